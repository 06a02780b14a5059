"""What a used machine's disk gives away: nothing."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from pacerelle_phone.files import File
from tests.e2e.stack import Host, Stack

CANARY = "canary-7f3a9c-"


def everything(*folders: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_absent(files: dict[Path, bytes], needles: dict[str, bytes]) -> None:
    for name, needle in needles.items():
        forms = {
            needle,
            needle.hex().encode(),
            base64.b64encode(needle)[:-4],
            needle.decode("latin-1").encode("utf-16-le"),
        }
        for path, content in files.items():
            for form in forms:
                assert form not in content, f"{name} can be read in {path.name}"


async def test_no_text_id_token_or_key_can_be_found(machine: Stack) -> None:
    machine.configure('log_level = "debug"\nlog_format = "json"\n')
    machine.paths.config.chmod(0o600)
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host: Host = await machine.host(agent)
    await host.connected()
    secret = os.urandom(5000)
    message_id = await phone.send(agent.agent_id, CANARY + "question", files=[File(CANARY + "name", secret)])
    got = await host.tool("wait_for_messages", timeoutMs=30000)
    request = got["messages"][0]
    await host.tool(
        "save_checkpoint", sourceMessageId=message_id, summary=CANARY + "summary", nextAction=CANARY + "next"
    )
    sent = await host.tool("send_message", text=CANARY + "answer", sourceMessageId=message_id)
    assert (await phone.wait_reply(message_id, 30)).archived
    widget = {"type": "widget.standard", "v": 1, "id": "w", "kind": "confirm", "spec": {"title": CANARY + "widget"}}
    await host.tool("send_widget", widgetJson=widget, sourceMessageId=message_id)
    shown = await phone.wait_for(lambda m: m.kind == "widget", 30)
    await phone.respond(shown, True)
    await host.tool("wait_for_messages", timeoutMs=30000, afterCursor=got["cursor"])
    await host.tool("mark_processed", messageId=message_id, note=CANARY + "note")
    bad = await host.call(
        "tools/call", {"name": "send_message", "arguments": {"text": CANARY, "sourceMessageId": CANARY}}
    )
    assert bad["result"]["isError"]
    async with machine.control() as control:
        url = f"/v1/agents/{agent.agent_id}/attachments/{message_id}/{request['attachments'][0]['id']}"
        async with control.get(url) as response:
            assert await response.read() == secret

    needles = {
        "message text": CANARY.encode(),
        "a file's content": secret[:64],
        "a message's id": message_id.encode(),
        "a reply's id": sent["message_id"].encode(),
        "a conversation's id": agent.conversation_id.encode(),
        "an agent's id": agent.agent_id.encode(),
        "a person's id": phone.user_id.encode(),
        "a device's id": phone.device_id.encode(),
        "an agent's token": agent.agent_token.encode(),
    }
    state = machine.paths.state
    running = everything(machine.root)  # with the write-ahead log that a crash would leave
    assert state / "store.db-wal" in running
    assert_absent(running, needles)
    await host.stop()
    await machine.stop_daemon()
    files = everything(machine.root)
    assert_absent(files, needles)
    key = base64.b64decode(files.pop(machine.paths.key_file))
    assert_absent(files, {"the store's key": key})

    for path in [state, *state.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path.name}: {mode:o}"

    relay = everything(machine.relay.data)
    for name in ("message text", "a file's content", "an agent's token"):
        assert_absent(relay, {name: needles[name]})
