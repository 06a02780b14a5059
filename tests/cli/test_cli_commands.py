"""Every command, as a process against a real control socket."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import pytest

from pacerelled import errors
from tests.cli.world import Home, World
from tests.control.hub_double import NOW, claimed_by, picture, request

# status, hosts


async def test_status_says_that_all_is_well(world: World) -> None:
    agent = await world.agent()
    agent.requests = [request(1, "a"), request(2, "b", claim=claimed_by("Zed"))]
    result = await world.run("status")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"OK  pacerelled 0.1.0, pid {os.getpid()}, up 1 h 2 min"
    assert lines[2].split("  ")[0] == "AGENT"
    assert lines[3].split() == ["agent-1", "connected", "ok", "4", "s", "ago", "2", "1", "0", "0", "0"]
    assert lines[-1] == "No host is attached."
    assert result.err == ""


async def test_status_shows_problems_first_with_what_to_do(world: World) -> None:
    await world.agent(token=None)
    world.hub.problems = [
        {
            "code": "token_missing",
            "message": "No token.",
            "hint": "pacerelle agent token agent-1",
            "agent_id": "agent-1",
        },
        {"code": "other", "message": "Disk is nearly full.", "hint": ""},
    ]
    result = await world.run("status")
    assert result.code == 4
    assert result.out.splitlines()[:4] == [
        f"2 problems  pacerelled 0.1.0, pid {os.getpid()}, up 1 h 2 min",
        "  agent-1: No token.",
        "    pacerelle agent token agent-1",
        "  Disk is nearly full.",
    ]


@pytest.mark.parametrize(
    ("connection", "token", "problem", "code"),
    [
        ("connected", "t", None, 0),
        ("reconnecting", "t", None, 5),
        ("connecting", "t", None, 5),
        ("disconnected", None, None, 4),
        ("connected", "t", "no_agent", 4),
        ("connected", "t", "token_missing", 4),
        ("connected", "t", "relay_offline", 5),
        ("connected", "t", "anything", 1),
        ("reconnecting", "t", "anything", 5),
    ],
)
async def test_the_exit_code_of_status(
    world: World, connection: str, token: str | None, problem: str | None, code: int
) -> None:
    (await world.agent(token=token)).connection = connection
    if problem:
        world.hub.problems = [{"code": problem, "message": "m", "hint": "h"}]
    result = await world.run("status", "--json")
    assert result.code == code
    assert json.loads(result.out)["version"] == 1


async def test_status_without_an_agent_says_how_to_add_one(world: World) -> None:
    result = await world.run("status")
    assert result.code == 4
    assert "There is no agent yet\n    pacerelle agent add\n" in result.out


async def test_hosts(world: World) -> None:
    assert (await world.run("hosts")).out == "No host is attached.\n"
    host = {
        "label": "Claude Code 2.1 (/home/me/x\x1b]0;)",
        "agent_id": "agent-1",
        "connected": True,
        "connected_s": 61,
        "idle_s": 3.2,
        "claims": 2,
    }
    world.hub.hosts = [host, host | {"label": "Zed", "connected": False, "agent_id": None}]
    result = await world.run("hosts")
    assert result.out.splitlines() == [
        "HOST                                 AGENT    CONNECTED  LAST ACTIVE  REQUESTS HELD",
        "Claude Code 2.1 (/home/me/x\\x1b]0;)  agent-1  1 min      3 s ago      2",
        "Zed                                           no         3 s ago      2",
    ]
    assert json.loads((await world.run("hosts", "--json")).out) == {"version": 1, "hosts": world.hub.hosts}


# agent


@pytest.mark.parametrize("how", ["stdin", "environment", "option"])
async def test_an_agent_is_added_with_a_token_from(world: World, how: str) -> None:
    args = {"stdin": ["--token-stdin"], "environment": [], "option": ["--token", "tok-1"]}[how]
    env = {"PACERELLE_AGENT_TOKEN": "tok-1"} if how == "environment" else {}
    result = await world.run("agent", "add", "agent-1", *args, stdin=b"tok-1\n", env=env)
    assert (result.code, result.out) == (0, "Added agent-1: connected.\n")
    assert world.hub.all["agent-1"].settings["token"] == "tok-1"
    assert result.err.count("Warning") == (how == "option")


async def test_an_agents_relay_can_be_named_and_its_token_replaced(world: World) -> None:
    settings = ["--base-url", "http://127.0.0.1:1", "--ws-url", "ws://127.0.0.1:1/ws", "--no-e2ee", "--token-stdin"]
    for token, said in ((b"one", "Added a: connected.\n"), (b"two", "Replaced the token of a: connected.\n")):
        assert (await world.run("agent", "add", "a", *settings, stdin=token)).out == said
    assert world.hub.all["a"].settings == {
        "base_url": "http://127.0.0.1:1",
        "ws_url": "ws://127.0.0.1:1/ws",
        "e2ee": False,
        "token": "two",
    }
    result = await world.run("agent", "add", "a", "--token-stdin", stdin=b"three")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == ["Error: a exists with other settings", "  Remove it first."]


async def test_a_token_is_needed(world: World) -> None:
    result = await world.run("agent", "add", "a")
    assert (result.code, world.hub.all) == (2, {})
    assert "--token-stdin" in result.err
    assert (await world.run("agent", "add", "a", "--token-stdin", stdin=b" \n")).code == 1
    assert (await world.run("agent", "add", "a", "--token-stdin", "--token", "x")).code == 2


async def test_agents_are_listed_removed_and_get_new_tokens(world: World) -> None:
    assert "No agent yet" in (await world.run("agent", "list")).out
    await world.agent("a b")
    assert (await world.run("agent", "list")).out.splitlines()[1].startswith("a b    connected")
    assert (await world.run("agent", "token", "a b", "--token-stdin", stdin=b"new")).code == 0
    assert world.hub.all["a b"].settings["token"] == "new"
    refused = await world.run("agent", "token", "a b", "--token-stdin", "--json", stdin=b"refused")
    assert (refused.code, json.loads(refused.out)["error"]["code"]) == (4, "token_refused")
    assert (await world.run("agent", "remove", "a b", "--purge", stdin=b"n\n")).code == 1
    assert "a b" in world.hub.all
    assert (await world.run("agent", "remove", "a b", "--purge", "--yes")).code == 0
    assert (world.hub.all, world.hub.purged) == ({}, True)


# inbox, history, done, quarantine


async def test_the_inbox_shows_what_was_written_and_nothing_that_a_terminal_obeys(world: World) -> None:
    agent = await world.agent()
    agent.requests = [
        request(1, "old", processed_at=NOW, note="by hand"),
        request(2, "line 1\nline 2\r\n\x1b[31mred\x9b\u202e", attachments=(picture(),), claim=claimed_by("Zed\x07")),
        request(3, "", kind="widget_response", widget_response={"value": "yes\x1b"}, encrypted=False, group=True),
    ]
    result = await world.run("inbox")
    assert result.out.splitlines() == [
        "msg-2 · from user-1 in conv-1 · 2031-05-06 07:08 · held by Zed\\x07",
        "  line 1",
        "  line 2",
        "  \\x1b[31mred\\x9b\\u202e",
        "  attachment att-1  photo.jpg (image/jpeg, 4.1 kB)",
        "msg-3 · from user-1 in group conv-1 · 2031-05-06 07:08 · NOT ENCRYPTED",
        '  widget response: {"value": "yes\\u001b"}',
    ]
    everything = await world.run("inbox", "--all")
    assert everything.out.splitlines()[:2] == [
        "msg-1 · from user-1 in conv-1 · 2031-05-06 07:08 · processed: by hand",
        "  old",
    ]
    body = json.loads((await world.run("inbox", "--json", "--limit", "1")).out)
    assert (body["version"], body["has_more"], body["messages"][0]["message_id"]) == (1, True, "msg-3")


async def test_an_empty_inbox(world: World) -> None:
    await world.agent()
    assert (await world.run("inbox")).out == "Nothing waits.\n"


async def test_history_mixes_requests_and_replies_in_time(world: World) -> None:
    agent = await world.agent()
    agent.requests = [
        request(1, "first", received_at="2031-01-01T00:00:00Z"),
        request(2, "third", received_at="2031-01-03T00:00:00Z"),
    ]
    await world.run("send", "second")
    agent.sent[0] = replace(agent.sent[0], created_at="2031-01-02T00:00:00Z", state="failed", reason="no key")
    lines = (await world.run("history")).out.splitlines()
    assert [line.strip() for line in lines[1::2]] == ["first", "second", "third"]
    assert lines[2] == "reply-1 · to user-1 in conv-1 · 2031-01-02 00:00 · failed: no key"
    only = json.loads((await world.run("history", "--conversation", "other", "--json")).out)
    assert (only["version"], only["requests"]) == (1, [])


async def test_a_request_is_done(world: World) -> None:
    agent = await world.agent()
    agent.requests = [request(1, "a")]
    assert (await world.run("done", "msg-1", "--note", "by phone")).out == "msg-1 is processed.\n"
    assert agent.requests[0].note == "by phone"
    unknown = await world.run("done", "msg/../9")
    assert (unknown.code, unknown.err.splitlines()[0]) == (1, "Error: no request msg/../9")


async def test_quarantine(world: World) -> None:
    agent = await world.agent()
    assert (await world.run("quarantine", "list")).out == "Nothing is in quarantine.\n"
    agent.refused = [{"id": 7, "reason": "bad_base64", "detail": "x\x1b", "sender": "u", "size": 10, "at": NOW}]
    row = (await world.run("quarantine", "list")).out.splitlines()[1]
    assert row.split() == ["7", "2031-05-06", "07:08", "bad_base64", "x\\x1b", "u", "10", "B"]


# send


async def test_a_message_is_sent_as_an_answer(world: World) -> None:
    agent = await world.agent()
    result = await world.run("send", "on my way ✓", "--reply-to", "msg-1")
    assert (result.code, result.out) == (0, "reply-1 to user-1: the relay has it\n")
    call = agent.calls[0]
    assert (call["text"], call["source_message_id"], call["reply_to_message_id"]) == ("on my way ✓", "msg-1", "msg-1")


async def test_standard_input_is_sent(world: World) -> None:
    agent = await world.agent()
    args = ("send", "-", "--conversation", "conv-7", "--to", "user-7", "--json")
    result = await world.run(*args, stdin="ü\n\n".encode())
    assert (agent.calls[0]["text"], agent.calls[0]["to"]) == ("ü\n", "user-7")
    body = json.loads(result.out)
    assert (body["version"], body["reply"]["conversation_id"]) == (1, "conv-7")
    assert (await world.run("send", "-", stdin=b"\xff")).code == 1


async def test_a_file_is_sent(world: World) -> None:
    agent = await world.agent()
    data = os.urandom(3_000_000)
    (world.path / "bild ü.bin").write_bytes(data)
    result = await world.run("send", "look", "--file", "bild ü.bin", "--reply-to", "msg-1")
    assert result.code == 0
    call = agent.calls[0]
    assert (call["name"], call["text"], call["data"] == data) == ("bild ü.bin", "look", True)
    assert (await world.run("send", "--file", "missing")).code == 2
    with (world.path / "huge").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    huge = await world.run("send", "--file", "huge")
    assert (huge.code, "64 MiB" in huge.err) == (1, True)


async def test_a_widget_is_sent(world: World) -> None:
    agent = await world.agent()
    result = await world.run("send", "--widget", '{"kind": "confirm"}')
    assert result.out == "reply-1 (widget widget-1) to user-1: the relay has it\n"
    assert agent.calls[0]["widget"] == '{"kind": "confirm"}'
    for wrong in (["send", "text", "--widget", "{}"], ["send"], ["send", "x", "--wait", "-1"]):
        assert (await world.run(*wrong)).code == 2


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        (None, 0, "queued; it goes out as soon as the relay is reachable"),
        ("sending", 0, "on its way"),
        ("uncertain", 1, "the link ended first"),
        ("failed", 1, "the link ended first"),
    ],
)
async def test_the_exit_code_of_send_follows_the_replys_state(
    world: World, state: str | None, code: int, said: str
) -> None:
    (await world.agent()).leaves_as = state
    result = await world.run("send", "x", "--wait", "0.1")
    assert result.code == code
    assert said in result.out + result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RelayUnreachable("the relay is away", hint="wait"), 5),
        (errors.TokenRefused("refused", hint="renew"), 4),
        (errors.StoreUnavailable("disk full", hint="make room"), 1),
        (RuntimeError("never shown"), 1),
    ],
)
async def test_the_daemons_errors_become_exit_codes(world: World, error: Exception, code: int) -> None:
    (await world.agent()).fails_with = error
    result = await world.run("send", "x")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("Error: ")
    assert "never shown" not in result.err
    assert "Traceback" not in result.err


async def test_which_agent_is_meant(world: World) -> None:
    none = await world.run("inbox")
    assert (none.code, "pacerelle agent add" in none.err) == (4, True)
    first, second = await world.agent("a"), await world.agent("b")
    assert (await world.run("inbox")).code == 4
    assert (await world.run("send", "x", "--agent", "a")).code == 0
    assert (await world.run("send", "x", env={"PACERELLE_AGENT_ID": "b"})).code == 0
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert (await world.run("inbox", "--agent", "c")).code == 1


# save


async def test_attachments_are_saved_under_harmless_names_and_nothing_is_overwritten(world: World) -> None:
    agent = await world.agent()
    first = replace(picture(), id="a/1", name="x")
    agent.requests = [request(1, "", attachments=(first, replace(first, id="a2"))), request(2, "")]
    agent.files["msg-1", "a/1"] = ("../../etc/photo.jpg", "image/jpeg", b"one" * 1_000_000)
    agent.files["msg-1", "a2"] = ("..\\photo.jpg", "image/jpeg", b"two")
    folder = world.path / "in"
    folder.mkdir()
    (folder / "photo.jpg").symlink_to(world.path / "elsewhere")
    result = await world.run("save", "msg-1", "--to", str(folder))
    assert result.out.splitlines() == [str(folder / "photo (1).jpg"), str(folder / "photo (2).jpg")]
    assert (folder / "photo (1).jpg").read_bytes() == b"one" * 1_000_000
    assert stat.S_IMODE((folder / "photo (2).jpg").stat().st_mode) == 0o600
    assert not (world.path / "elsewhere").exists()
    one = await world.run("save", "msg-1", "a2", "--json")
    assert json.loads(one.out) == {"version": 1, "saved": ["photo.jpg"]}
    for args in (["msg-9"], ["msg-2"], ["msg-1", "none"]):
        assert (await world.run("save", *args)).code == 1
    assert (await world.run("save", "msg-1", "--to", "nowhere")).code == 2


async def test_a_request_is_found_however_old_it_is(world: World) -> None:
    agent = await world.agent()
    agent.requests = [request(n, "", attachments=(picture(),)) for n in range(1, 1203)]
    agent.files["msg-1", "att-1"] = ("old", "x", b"data")
    assert (await world.run("save", "msg-1")).out == "old\n"


# paths, version, the rest


async def test_paths_need_no_daemon(home: Home) -> None:
    body = json.loads((await home.run("paths", "--json")).out)
    assert body["version"] == 1
    assert body["paths"]["control_sock"] == str(home.state / "control.sock")
    assert (await home.run("--store-root", "/tmp/other", "paths")).out.startswith(
        "state         /tmp/other/pacerelled\n"
    )
    assert "/run/x/control.sock" in (await home.run("--socket", "/run/x/m.sock", "paths")).out
    too_long = await home.run("--socket", "/" + "x" * 200, "paths")
    assert (too_long.code, "--socket" in too_long.err) == (1, True)


async def test_version(home: Home) -> None:
    assert (await home.run("version")).out == "pacerelle 0.1.0\n"
    assert (await home.run("--version")).out == "pacerelle 0.1.0\n"
    assert json.loads((await home.run("--json", "version")).out) == {"version": 1, "pacerelle": "0.1.0"}


async def test_help_lists_every_command_without_importing_them(home: Home) -> None:
    result = await home.run("--help")
    assert result.code == 0
    for name in ("status", "relay", "chat", "demo"):
        assert f"\n  {name}" in result.out
    assert (await home.run("nothing")).code == 2
