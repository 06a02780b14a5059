"""control.sock: every call of docs/local-protocol.md, and what callers get wrong."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pacerelled import errors
from pacerelled.servers import control as control_module
from pacerelled.servers.answers import STATUSES
from pacerelled.servers.fields import MAX_FILE, MAX_JSON
from tests.control.hub_double import Control, claimed_by, listens, picture, request

DEADLINE = 20.0


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


# The calls


async def test_status_has_a_version_health_agents_and_hosts(control: Control) -> None:
    await control.agent()
    status, body = await control.call("GET", "/v1/status")
    assert status == 200
    assert body["version"] == 1
    assert body["daemon"]["pid"] == os.getpid()
    assert body["health"] == {"ok": True, "problems": []}
    assert [agent["agent_id"] for agent in body["agents"]] == ["agent-1"]
    assert body["hosts"] == []


async def test_an_added_agents_token_is_kept_for_good(control: Control) -> None:
    kept = []

    async def set_token(agent_id: str, token: str) -> None:
        kept.append((agent_id, token))

    control.hub.set_token = set_token  # type: ignore[method-assign]
    await control.call("POST", "/v1/agents", json={"agent_id": "a", "token": "t"})
    await control.call("POST", "/v1/agents", json={"agent_id": "a"})
    assert kept == [("a", "t")]


async def test_hosts_paths_and_agents(control: Control) -> None:
    await control.agent()
    control.hub.hosts = [{"session": "s", "label": "Zed"}]
    assert await control.call("GET", "/v1/hosts") == (200, {"hosts": control.hub.hosts})
    assert await control.call("GET", "/v1/paths") == (200, {"paths": {"store": "/somewhere/store.db"}})
    status, body = await control.call("GET", "/v1/agents")
    assert (status, [agent["login"] for agent in body["agents"]]) == (200, ["ok"])


async def test_an_agent_is_added_once_and_its_token_replaced(control: Control) -> None:
    new = {"agent_id": "a/b c", "token": "first", "base_url": None, "e2ee": False}
    status, body = await control.call("POST", "/v1/agents", json=new)
    assert (status, body["agent_id"], body["e2ee"]) == (201, "a/b c", False)
    status, _ = await control.call("POST", "/v1/agents", json=new | {"token": "second"})
    assert (status, control.hub.all["a/b c"].settings["token"]) == (200, "second")
    status, body = await control.call("POST", "/v1/agents", json=new | {"e2ee": True})
    assert (status, body["error"]["code"]) == (409, "agent_exists")


async def test_ids_in_the_path_may_hold_any_character(control: Control) -> None:
    await control.agent("a/b ü")
    status, _ = await control.call("PUT", "/v1/agents/a%2Fb%20%C3%BC/token", json={"token": "new"})
    assert (status, control.hub.all["a/b ü"].settings["token"]) == (204, "new")


async def test_a_removed_agent_keeps_its_messages_unless_purged(control: Control) -> None:
    for query, purged in (("", False), ("?purge=true", True)):
        await control.agent()
        assert await control.call("DELETE", f"/v1/agents/agent-1{query}") == (204, None)
        assert control.hub.purged is purged
        assert control.hub.all == {}


async def test_the_inbox_pages_backwards(control: Control) -> None:
    agent = await control.agent()
    agent.requests = [request(n, f"text {n}") for n in range(1, 6)]
    agent.requests[4] = request(5, "done", processed_at="2031-01-01T00:00:00Z")
    status, body = await control.call("GET", "/v1/agents/-/inbox?limit=2")
    assert (status, body["has_more"]) == (200, True)
    assert [message["text"] for message in body["messages"]] == ["text 3", "text 4"]
    before = body["messages"][0]["cursor"]
    _, body = await control.call("GET", f"/v1/agents/-/inbox?state=all&before={before}&limit=500")
    assert [message["text"] for message in body["messages"]] == ["text 1", "text 2"]


async def test_a_request_is_marked_processed(control: Control) -> None:
    agent = await control.agent()
    agent.requests = [request(1, "please", claim=claimed_by("Zed"), attachments=(picture(),))]
    status, body = await control.call("POST", "/v1/agents/-/inbox/msg-1/processed", json={"note": "by hand"})
    assert (status, body["note"]) == (200, "by hand")
    assert (await control.call("POST", "/v1/agents/-/inbox/msg-9/processed"))[0] == 404


async def test_history_replies_and_quarantine(control: Control) -> None:
    agent = await control.agent()
    agent.requests = [request(1, "one"), request(2, "two", conversation_id="conv-2")]
    await control.call("POST", "/v1/agents/-/messages", json={"text": "answer"})
    agent.refused = [{"id": 1, "reason": "bad_base64", "detail": "", "size": 3, "at": "2031-01-01T00:00:00Z"}]
    _, history = await control.call("GET", "/v1/agents/-/history?conversation_id=conv-2&limit=5")
    assert [r["text"] for r in history["requests"]] == ["two"]
    _, replies = await control.call("GET", "/v1/agents/-/replies?state=queued")
    assert [r["text"] for r in replies["replies"]] == ["answer"]
    assert await control.call("GET", "/v1/agents/-/quarantine") == (200, {"quarantine": agent.refused})


async def test_a_message_is_sent_once_for_one_idempotency_key(control: Control) -> None:
    agent = await control.agent()
    body = {"text": "hé\u2028llo", "to": "user-2", "reply_to_message_id": "msg-1", "idempotency_key": "k1"}
    first_status, first = await control.call("POST", "/v1/agents/-/messages", json=body)
    second_status, second = await control.call("POST", "/v1/agents/-/messages", json=body)
    assert (first_status, second_status) == (201, 200)
    assert first["message_id"] == second["message_id"]
    assert [(call["text"], call["reply_to_message_id"]) for call in agent.calls] == [("hé\u2028llo", "msg-1")]


async def test_replies_are_sent_again_or_given_up(control: Control) -> None:
    agent = await control.agent()
    agent.leaves_as = "uncertain"
    _, sent = await control.call("POST", "/v1/agents/-/messages", json={"text": "a", "wait_s": 5})
    await control.call("POST", "/v1/agents/-/messages", json={"text": "b"})
    agent.leaves_as = "submitted"
    reply = f"/v1/agents/-/replies/{sent['message_id']}"
    assert len((await control.call("GET", "/v1/agents/-/replies?state=open"))[1]["replies"]) == 2
    status, again = await control.call("POST", f"{reply}/retry", json={"wait_s": 5})
    assert (status, again["state"], again["repeated"]) == (200, "submitted", False)
    status, again = await control.call("POST", f"{reply}/retry")
    assert (status, again["state"], again["repeated"]) == (200, "submitted", True)
    status, refused = await control.call("POST", f"{reply}/drop")
    assert (status, refused["error"]["code"]) == (409, "not_possible")
    status, dropped = await control.call("POST", "/v1/agents/-/replies/reply-2/drop", json={})
    assert (status, dropped["state"]) == (200, "dropped")
    assert (await control.call("GET", "/v1/agents/-/replies?state=open"))[1]["replies"] == []
    for call in ("retry", "drop", "widget"):
        status, _ = await control.call("POST", f"/v1/agents/-/replies/nothing/{call}")
        assert status == 404
        status, _ = await control.call("POST", f"{reply}/{call}", json={"unknown": 1})
        assert status == 400


async def test_a_widget_is_changed_where_it_was_shown(control: Control) -> None:
    agent = await control.agent()
    await control.call("POST", "/v1/agents/-/messages", json={"widget": {"kind": "confirm"}})
    change = {"spec": {"title": "Really?"}, "expires_at": "2031-01-01T00:00:00Z", "idempotency_key": "k"}
    for status in (201, 200):
        found, body = await control.call("POST", "/v1/agents/-/replies/reply-1/widget", json=change)
        assert (found, body["kind"]) == (status, "widget_update")
    assert agent.calls[1]["spec"] == {"title": "Really?"}
    status, _ = await control.call("POST", "/v1/agents/-/replies/reply-1/widget", json={"spec": "text"})
    assert status == 400


async def test_a_sender_can_wait_until_the_reply_has_left(control: Control) -> None:
    await control.agent()
    status, body = await control.call("POST", "/v1/agents/-/messages", json={"text": "a", "wait_s": 5})
    assert (status, body["state"]) == (201, "submitted")


@pytest.mark.parametrize("widget", [{"kind": "confirm"}, '{"kind": "confirm"}'])
async def test_a_widget_is_sent_as_object_or_string(control: Control, widget: object) -> None:
    agent = await control.agent()
    status, body = await control.call("POST", "/v1/agents/-/messages", json={"widget": widget})
    assert (status, body["widget_id"], agent.calls[0]["widget"]) == (201, "widget-1", widget)


async def test_a_large_file_arrives_whole(control: Control) -> None:
    agent = await control.agent()
    data = os.urandom(1024) * (20 * 1024)
    text = "ü" * 20_000
    query = {"name": "große datei.bin", "mime": "application/x-thing", "text": text, "wait_s": "5"}
    status, body = await control.call("POST", "/v1/agents/-/files", params=query, data=io.BytesIO(data))
    assert (status, body["state"]) == (201, "submitted")
    assert agent.calls[0]["data"] == data
    assert (agent.calls[0]["name"], agent.calls[0]["text"]) == ("große datei.bin", text)


@pytest.mark.parametrize(
    ("mime", "served"),
    [
        ("image/png", "image/png"),
        ("text/html\r\nX-Evil: 1", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
async def test_an_attachment_is_served_as_data(control: Control, mime: str, served: str) -> None:
    agent = await control.agent()
    agent.files["msg-1", "att-1"] = ('../"a\r\nb.png', mime, b"\x00bytes")
    async with control.http.get("http://x/v1/agents/-/attachments/msg-1/att-1") as response:
        assert await response.read() == b"\x00bytes"
        assert response.headers["Content-Type"] == served
        assert response.headers["Content-Disposition"] == ("attachment; filename*=UTF-8''..%2F%22a%0D%0Ab.png")
    assert (await control.call("GET", "/v1/agents/-/attachments/msg-1/att-2"))[0] == 404


async def test_a_large_attachment_is_served_whole(control: Control) -> None:
    data = os.urandom(1024) * (20 * 1024)
    (await control.agent()).files["m", "a"] = ("film", "video/mp4", data)
    async with control.http.get("http://x/v1/agents/-/attachments/m/a") as response:
        assert await response.read() == data


async def test_events_wait_until_something_happens(control: Control) -> None:
    control.hub.happen("first")
    status, body = await control.call("GET", "/v1/events?cursor=e:0")
    assert (status, [e["type"] for e in body["events"]], body["next_cursor"]) == (200, ["first"], "e:1")
    call = asyncio.create_task(control.call("GET", "/v1/events?cursor=e:1&wait_s=30"))
    await until(lambda: control.hub.waiting == 1)
    control.hub.happen("second")
    _, body = await call
    assert [e["type"] for e in body["events"]] == ["second"]


async def test_stop_is_answered_before_the_daemon_ends(control: Control) -> None:
    status, body = await control.call("POST", "/v1/stop")
    assert (status, body, control.stops) == (202, {"stopping": True, "pid": os.getpid()}, ["stop"])


# Wrong calls


@pytest.mark.parametrize(
    ("method", "path", "body", "argument"),
    [
        ("GET", "/v1/status?verbose=1", None, "verbose"),
        ("GET", "/v1/events?last=0", None, "last"),
        ("GET", "/v1/events?cursor=a&cursor=b", None, "cursor"),
        ("GET", f"/v1/events?cursor={'a' * 101}", None, "cursor"),
        ("GET", "/v1/events?wait_s=31", None, "wait_s"),
        ("GET", "/v1/events?wait_s=nan", None, "wait_s"),
        ("GET", "/v1/agents/-/inbox?state=some", None, "state"),
        ("GET", "/v1/agents/-/inbox?limit=0", None, "limit"),
        ("GET", "/v1/agents/-/inbox?limit=501", None, "limit"),
        ("GET", "/v1/agents/-/inbox?before=" + "9" * 30, None, "before"),
        ("DELETE", "/v1/agents/agent-1?purge=yes", None, "purge"),
        ("POST", "/v1/agents/-/files", b"x", "name"),
        ("POST", "/v1/agents", {}, "agent_id"),
        ("POST", "/v1/agents", {"agent_id": ""}, "agent_id"),
        ("POST", "/v1/agents", {"agent_id": 5}, "agent_id"),
        ("POST", "/v1/agents", {"agent_id": "a", "e2ee": "true"}, "e2ee"),
        ("POST", "/v1/agents", {"agent_id": "a", "tokn": "x"}, "tokn"),
        ("PUT", "/v1/agents/-/token", {"token": None}, "token"),
        ("POST", "/v1/agents/-/inbox/m/processed", {"note": "x" * 2001}, "note"),
        ("POST", "/v1/agents/-/messages", {}, "text"),
        ("POST", "/v1/agents/-/messages", {"text": ["a"]}, "text"),
        ("POST", "/v1/agents/-/messages", {"text": "a", "widget": {}}, "text"),
        ("POST", "/v1/agents/-/messages", {"widget": 1}, "widget"),
        ("POST", "/v1/agents/-/messages", {"widget": {}, "reply_to_message_id": "m"}, "reply_to_message_id"),
        ("POST", "/v1/agents/-/messages", {"text": "a", "wait_s": True}, "wait_s"),
        ("POST", "/v1/agents/-/messages", {"text": "a", "wait_s": "1"}, "wait_s"),
        ("POST", "/v1/agents/-/messages", b'{"text": "\\ud800"}', "text"),
        ("POST", "/v1/agents/-/messages", b'{"widget": {"x": NaN}}', "widget"),
        ("POST", "/v1/agents/-/messages", b'{"\\udfff": 1}', "\\udfff"),
        ("POST", "/v1/agents/-/messages", b'{"text": "\xff"}', "body"),
        ("POST", "/v1/agents/-/messages", b"[" * 100_000, "body"),
        ("POST", "/v1/agents/-/messages", b"[]", "body"),
        ("POST", "/v1/agents/-/messages", b"{", "body"),
    ],
)
async def test_a_wrong_field_is_named(control: Control, method: str, path: str, body: object, argument: str) -> None:
    agent = await control.agent()
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    status, answer = await control.call(method, path, data=data)
    assert (status, answer["error"]["code"]) == (400, "invalid_argument")
    assert answer["error"]["argument"] == argument
    assert argument in answer["error"]["message"].replace("\\\\", "\\")
    assert agent.calls == []


async def test_unknown_calls_and_agents(control: Control) -> None:
    for method, path, status, code in (
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("DELETE", "/v1/status", 405, "method_not_allowed"),
        ("GET", "/v1/agents/-/inbox", 404, "no_agent"),
        ("GET", "/v1/agents/nobody/inbox", 404, "unknown_agent"),
    ):
        answer = await control.call(method, path)
        assert (answer[0], answer[1]["error"]["code"]) == (status, code), path


async def test_a_body_over_the_limit_is_refused_before_it_is_read(control: Control) -> None:
    agent = await control.agent()
    status, body = await control.call("POST", "/v1/agents/-/messages", data=io.BytesIO(b"x" * (MAX_JSON + 1)))
    assert (status, body["error"]["code"]) == (413, "too_large")
    reader, writer = await asyncio.open_unix_connection(control.path)
    size = MAX_FILE + 1
    writer.write(f"POST /v1/agents/-/files?name=a HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n"), DEADLINE)
    assert b" 413 " in head
    writer.close()
    assert agent.calls == []


async def test_a_file_without_an_announced_size_is_cut_off_at_the_limit(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacerelled.servers.fields.MAX_FILE", 1000)
    agent = await control.agent()

    async def endless():
        for _ in range(100):
            yield b"x" * 100

    status, body = await control.call("POST", "/v1/agents/-/files?name=a", data=endless())
    assert (status, body["error"]["code"], agent.calls) == (413, "too_large", [])


@pytest.mark.parametrize("header", ["Origin", "Sec-Fetch-Site", "sec-fetch-mode"])
async def test_a_browser_is_refused(control: Control, header: str) -> None:
    status, body = await control.call("POST", "/v1/stop", headers={header: "null"})
    assert (status, body["error"]["code"], control.stops) == (403, "refused", [])


async def test_another_users_process_is_refused(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "peer_uid", lambda _: os.geteuid() + 1)
    status, body = await control.call("POST", "/v1/stop")
    assert (status, body["error"]["code"], control.stops) == (403, "refused", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_real_process_of_another_user_is_refused(control: Control) -> None:
    control.path.parent.chmod(0o755)
    control.path.chmod(0o666)
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'POST /v1/stop HTTP/1.0\\r\\n\\r\\n'); print(s.recv(99).split()[1].decode())"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-IS", "-c", program, str(control.path), stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(child.communicate(), DEADLINE)
    assert (out, control.stops) == (b"403\n", [])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument("m", argument="a", hint="h"), 400),
        (errors.ConfigError("m", hint="h"), 400),
        (errors.TokenRefused("m", hint="h"), 401),
        (errors.UnknownMessage("m", hint="h"), 404),
        (errors.NotPossible("m", hint="h"), 409),
        (errors.RelayRejected("m", status=500, hint="h"), 502),
        (errors.RelayUnreachable("m", hint="h"), 503),
        (errors.StoreUnavailable("m", hint="h"), 503),
        (errors.PacerelledError("m", hint="h"), 500),
    ],
)
async def test_every_error_of_the_domain_has_its_status(
    control: Control, error: errors.PacerelledError, status: int
) -> None:
    (await control.agent()).fails_with = error
    answer = await control.call("POST", "/v1/agents/-/messages", json={"text": "a"})
    assert answer[0] == status
    assert {"code": error.code, "message": "m", "hint": "h"}.items() <= answer[1]["error"].items()


def test_the_status_table_covers_what_the_domain_may_raise() -> None:
    mapped = tuple(kind for kind, _ in STATUSES)
    for kind in (errors.AgentError, errors.StoreError, errors.LinkError):
        assert issubclass(kind, mapped)
        assert all(issubclass(sub, mapped) for sub in kind.__subclasses__())


# Faults


async def test_an_unforeseen_error_is_found_in_the_log_by_its_number_without_its_words(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    control.hub.explode = KeyError("a message's text")
    status, body = await control.call("GET", "/v1/status")
    assert (status, body["error"]["code"]) == (500, "internal")
    number = re.search(r"number ([0-9a-f]{8})", body["error"]["message"])
    assert number
    assert f"error {number[1]} in GET /v1/status: KeyError" in caplog.text
    assert "hub_double.py" in caplog.text
    assert "a message's text" not in caplog.text + json.dumps(body)


async def test_no_text_and_no_token_is_logged(control: Control, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await control.call("POST", "/v1/agents", json={"agent_id": "agent-1", "token": "canary-token"})
    await control.call("PUT", "/v1/agents/-/token", json={"token": "canary-token"})
    await control.call("POST", "/v1/agents/-/messages", json={"text": "canary-text", "nope": "canary-text"})
    await control.call("POST", "/v1/agents/-/files?name=a&text=canary-text", data=b"canary-text")
    for raw in (
        b"canary-text\r\n\r\n",
        b"GET /canary-text\x00 HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\ncanary-text\r\n\r\n",
    ):
        reader, writer = await asyncio.open_unix_connection(control.path)
        writer.write(raw)
        await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
    assert "canary" not in caplog.text


async def test_garbage_does_not_disturb_others(control: Control) -> None:
    reader, writer = await asyncio.open_unix_connection(control.path)
    writer.write(b"\x16\x03\x01\x00garbage\r\n\r\n")
    assert b" 400 " in (await asyncio.wait_for(reader.read(), DEADLINE))[:40]
    writer.close()
    assert (await control.call("GET", "/v1/status"))[0] == 200


async def test_a_waiting_call_ends_with_its_caller(control: Control) -> None:
    _, writer = await asyncio.open_unix_connection(control.path)
    writer.write(b"GET /v1/events?wait_s=30 HTTP/1.1\r\nHost: x\r\n\r\n")
    await until(lambda: control.hub.waiting == 1)
    writer.close()
    await until(lambda: control.hub.waiting == 0)


async def test_a_caller_that_leaves_while_it_uploads_is_no_error(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await control.agent()
    _, writer = await asyncio.open_unix_connection(control.path)
    writer.write(b"POST /v1/agents/-/files?name=a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()
    assert (await control.call("GET", "/v1/status"))[0] == 200
    writer.close()
    await writer.wait_closed()
    for _ in range(3):
        assert (await control.call("GET", "/v1/status"))[0] == 200
    assert (agent.calls, [r for r in caplog.records if r.levelno >= logging.ERROR]) == ([], [])


async def test_stopping_ends_waiting_calls_and_stuck_clients(control: Control) -> None:
    agent = await control.agent()
    agent.leaves_as = None
    events = asyncio.create_task(control.call("GET", "/v1/events?wait_s=30"))
    sender = asyncio.create_task(control.call("POST", "/v1/agents/-/messages", json={"text": "a", "wait_s": 3600}))
    _, silent = await asyncio.open_unix_connection(control.path)
    _, uploading = await asyncio.open_unix_connection(control.path)
    uploading.write(b"POST /v1/agents/-/files?name=a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    await until(lambda: control.hub.waiting == 1 and agent.calls)
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(DEADLINE):
        await control.server.stop()
    took = asyncio.get_running_loop().time() - started
    assert (await events)[1]["error"]["code"] == "stopping"
    status, reply = await sender
    assert (status, reply["state"]) == (201, "queued")
    assert took < 10  # well under the calls' own times; about 0.6 s here
    for writer in (silent, uploading):
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(control.path)


async def test_the_server_can_be_run_by_a_process_and_ends_with_it(short_dir: Path) -> None:
    program = Path(__file__).with_name("hub_double.py")
    path, lock = short_dir / "c.sock", short_dir / "lock"
    child = await asyncio.create_subprocess_exec(sys.executable, str(program), str(path), str(lock))
    try:
        await until(lambda: listens(path))
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /v1/stop HTTP/1.0\r\n\r\n")
        assert b" 202 " in (await asyncio.wait_for(reader.read(), DEADLINE))[:40]
        writer.close()
        assert await asyncio.wait_for(child.wait(), DEADLINE) == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
