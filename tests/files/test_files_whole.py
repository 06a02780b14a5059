"""The whole machine: phone, relay, daemon process, host."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from pacerelle_phone.files import File
from pacerelle_protocol.files import seal_file
from pacerelle_protocol.payload import FileRef, encode_text
from tests.daemon.human import Human, message_id
from tests.daemon.polling import until
from tests.daemon.process import Daemon
from tests.daemon.process import Host as RawHost
from tests.e2e.stack import Stack, stack

from .file_relay import FileRelay

LARGE = 48 * 1024 * 1024  # bytes
ROOM = LARGE // 2  # bytes that the daemon may take for it, most of it stacks and buffers of threads


class Peak:
    """The most memory that a process had while this was watching."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self.most = self._process.memory_info().rss

    async def __aenter__(self) -> Peak:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, self._process.memory_info().rss)
            await asyncio.sleep(0.005)


async def test_a_large_file_goes_both_ways_and_costs_the_daemon_no_memory(tmp_path: Path) -> None:
    content = os.urandom(LARGE)
    async with stack(tmp_path) as machine:
        (tmp_path / "Documents").mkdir()
        machine.configure('files_out = ["~/Documents", "~/Downloads"]\n')
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        host = await machine.host(agent)
        await host.connected()
        assert (await host.tool("get_status"))["files"]["save_to"] == [str(tmp_path / "Downloads" / "Pacerelle")]
        question = await phone.send(agent.agent_id, "look", files=[File("../film.mp4", content, "video/mp4")])
        (request,) = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        (attachment,) = request["attachments"]
        pid = machine.daemon_pid()
        assert pid is not None
        async with Peak(pid) as peak:
            saved = await host.tool("save_attachment", messageId=question, attachmentId=attachment["id"])
            await host.tool("send_file", path=saved["path"], sourceMessageId=question, text="back")
            url = f"/v1/agents/-/attachments/{question}/{attachment['id']}"
            async with machine.control() as control:
                async with control.get(url) as response:
                    assert await response.read() == content
                query = {"name": "again.mp4", "source_message_id": question}
                async with control.post("/v1/agents/-/files", params=query, data=io.BytesIO(content)) as response:
                    assert response.status == 201, await response.text()
        assert saved["path"] == str(tmp_path / "Downloads" / "Pacerelle" / "film.mp4")
        assert Path(saved["path"]).read_bytes() == content
        received = await phone.wait_for(lambda m: m.direction == "in" and bool(m.files), 60)
        assert (received.text, received.reply_to, received.files[0].name) == ("back", question, "film.mp4")
        assert received.files[0].mime == "video/mp4"
        assert await phone.download(received.files[0]) == content
        assert peak.most - peak.before < ROOM


async def test_refusals_reach_the_assistant_with_what_to_do(tmp_path: Path) -> None:
    async with stack(tmp_path) as machine:
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        host = await machine.host(agent)
        await host.connected()
        question = await phone.send(agent.agent_id, "look", files=[File("a.txt", b"hi")])
        (request,) = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        (tmp_path / "a.txt").touch()
        said = await _refused(host.tool("send_file", path=str(tmp_path / "a.txt"), sourceMessageId=question))
        assert 'files_out = ["~/Documents"]' in said
        attached = {"messageId": question, "attachmentId": request["attachments"][0]["id"]}
        said = await _refused(host.tool("save_attachment", directory=str(machine.paths.state), **attached))
        assert "none of the allowed folders" in said
        await _delete_blobs(machine)
        said = await _refused(host.tool("save_attachment", **attached))
        assert "gone from the relay" in said
        assert "(code: not_possible)" in said
        assert os.listdir(tmp_path / "Downloads" / "Pacerelle") == []


async def test_a_daemon_that_is_killed_while_it_saves_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "Downloads" / "Pacerelle"
    content = os.urandom(1_000_000)
    async with FileRelay() as relay:
        daemon = Daemon(tmp_path)
        known: dict[str, Any] = {"agent_id": "a1", "token": "token", "base_url": relay.url}
        try:
            await (await daemon.start()).serving()
            host = await (await RawHost.connect(daemon, **known)).initialize()
            human = await Human.meet(relay)
            question = await _ask_with_file(relay, human, content)
            relay.hold = True
            arguments = {"messageId": question, "attachmentId": "f1"}
            host.send("tools/call", {"name": "save_attachment", "arguments": arguments})
            await until(lambda: relay.held and folder.is_dir() and os.listdir(folder), "half a file")
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
            await host.close()
            await daemon.kill()
            assert [name.startswith(".pacerelle-") for name in os.listdir(folder)] == [True]
            relay.hold = False
            await (await daemon.start()).serving()
            assert os.listdir(folder) == []
            host = await (await RawHost.connect(daemon, **known)).initialize()
            answer = await host.call("tools/call", {"name": "save_attachment", "arguments": arguments})
            assert not answer["result"]["isError"], answer
            await host.close()
        finally:
            relay.go.set()
            await daemon.kill()
    assert os.listdir(folder) == ["plan.pdf"]
    assert (folder / "plan.pdf").read_bytes() == content


async def _refused(call: Any) -> str:
    with pytest.raises(AssertionError) as refused:
        await call
    return str(refused.value)


async def _delete_blobs(machine: Stack) -> None:
    for path in (machine.relay.data / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()


async def _ask_with_file(relay: FileRelay, human: Human, content: bytes) -> str:
    sealed = seal_file(content)
    file = FileRef("f1", "in", "plan.pdf", "application/pdf", len(content), sealed.key, sealed.iv, sealed.sha256)
    relay.blobs["in"] = sealed.ciphertext
    public = {"id": "f1", "blob_id": "in", "name": "attachment", "mime": "x/y", "size": len(content)}
    frame = human.envelope(human.encrypt(encode_text("look", [file])), attachments=[public])
    await relay.push(frame)
    await until(lambda: message_id(frame) in relay.acked, "the request")
    return message_id(frame)
