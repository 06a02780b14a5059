"""The tools against a daemon that behaves as the recorded one does."""

from __future__ import annotations

import asyncio

from pacerelled.paseo.guard import Scope
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until


async def test_an_agent_is_started_waited_for_and_read(scene: Scene, paseo: ScriptedPaseo) -> None:
    made = await scene.tool("paseo_create_agent", cwd=str(scene.code), prompt="Mend the build")
    agent_id = made["agent"]["id"]
    assert made["agent"]["title"] == "Mend the build"
    assert made["agent"]["labels"]["origin"] == "pacerelle"
    assert made["repeated"] is False
    done = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert (done["state"], done["message"]) == ("finished", "Done: Mend the build")
    assert "data" in done["notice"]
    assert await scene.told(agent_id) == ["created", "turn_started", "turn_ended finished"]
    read = await scene.tool("paseo_read_timeline", agent_id=agent_id[:8])
    assert [(e["who"], e["text"]) for e in read["entries"]] == [
        ("user", "Mend the build"),
        ("agent", "Done: Mend the build"),
    ]
    assert read["older_cursor"] is None
    listed = await scene.tool("paseo_list_agents", labels={"origin": "pacerelle"})
    assert [a["id"] for a in listed["agents"]] == [agent_id]
    assert listed["agents"][0]["requires_attention"] is True


async def test_events_are_waited_for_from_a_cursor(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add("Somebody's")
    cursor = (await scene.tool("paseo_list_agents"))["events_cursor"]
    waiting = asyncio.create_task(scene.tool("paseo_wait_for_events", cursor=cursor, timeout_sec=20))
    await paseo.begin(agent_id, "hello")
    first = await waiting
    assert first["events"][0]["type"] == "agent.created"
    assert first["events"][0]["agent_id"] == agent_id
    await scene.until_told(agent_id, "turn_ended finished")
    rest = await scene.tool("paseo_wait_for_events", cursor=cursor, only_needs_attention=True, timeout_sec=0)
    assert [e["type"] for e in rest["events"]] == ["agent.turn_ended"]
    assert rest["gap"] is False
    ended = rest["events"][0]
    assert ended["id"] == f"{ended['epoch']}:{ended['seq']}"
    assert (ended["outcome"], ended["error"], ended["title"]) == ("finished", None, "Somebody's")
    assert "hello" not in str(first) + str(rest)
    after = await scene.tool("paseo_wait_for_events", cursor=rest["next_cursor"], timeout_sec=0)
    assert after["events"] == []
    other = await scene.tool("paseo_wait_for_events", cursor=cursor, labels={"origin": "x"}, timeout_sec=0)
    assert other["events"] == []


async def test_a_cursor_that_is_unknown_is_a_gap_with_the_state_of_now(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add("There")
    found = await scene.tool("paseo_wait_for_events", cursor="another:3", timeout_sec=20)
    assert found["gap"] is True
    assert [a["id"] for a in found["agents"]] == [agent_id]
    again = await scene.tool("paseo_wait_for_events", cursor=found["next_cursor"], timeout_sec=0)
    assert again["gap"] is False


async def test_a_permission_is_seen_and_answered(scene: Scene, paseo: ScriptedPaseo) -> None:
    made = await scene.tool("paseo_create_agent", cwd=str(scene.code), prompt="ask first")
    agent_id = made["agent"]["id"]
    waits = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert waits["state"] == "permission"
    permission = waits["agent"]["pending_permissions"][0]
    assert permission["title"] == "Run a command"
    assert "rm -rf build" in permission["input"]
    wrong = await scene.refused("paseo_respond_permission", agent_id=agent_id, request_id="no-such", decision="allow")
    assert permission["request_id"] in wrong.hint
    wrong = await scene.refused(
        "paseo_respond_permission",
        agent_id=agent_id,
        request_id=permission["request_id"],
        decision="allow",
        action="no",
    )
    assert "once" in wrong.hint
    assert paseo.asked("agent_permission_response") == []
    answered = await scene.tool(
        "paseo_respond_permission",
        agent_id=agent_id,
        request_id=permission["request_id"],
        decision="allow",
        action="once",
    )
    assert answered["resolution"] == "allow"
    assert paseo.asked("agent_permission_response")[0]["response"] == {"behavior": "allow", "selectedActionId": "once"}
    done = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert (done["state"], done["message"]) == ("finished", "It was allow.")
    assert sorted(await scene.told(agent_id)) == sorted(
        ["created", "turn_started", "permission_requested", "turn_ended finished", "permission_resolved allow"]
    )


async def test_a_permission_that_somebody_else_answers_is_told_as_they_did(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    permission = await paseo.ask(agent_id)
    paseo.bad.silent.add("agent_permission_response")
    answering = asyncio.create_task(
        scene.refused("paseo_respond_permission", agent_id=agent_id, request_id=permission, decision="allow")
    )
    await until(lambda: paseo.asked("agent_permission_response"), "the answer")
    await paseo.resolve(agent_id, permission, "deny")
    assert "Somebody else answered before: deny" in (await answering).message


async def test_a_turn_that_fails_or_meets_a_limit_says_so(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.begin(agent_id, "fail The tool is broken")
    failed = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert (failed["state"], failed["error"]) == ("error", "The tool is broken")
    await paseo.begin(agent_id, "fail You have hit your usage limit, it resets at 9 pm")
    await scene.until_told(agent_id, "turn_ended limit")
    assert (await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=0))["state"] == "limit"


async def test_a_wait_that_times_out_is_taken_up_again(scene: Scene, paseo: ScriptedPaseo) -> None:
    made = await scene.tool("paseo_create_agent", cwd=str(scene.code), prompt="run for long")
    agent_id = made["agent"]["id"]
    waited = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=0)
    assert waited["state"] == "timeout"
    await paseo.finish(agent_id, "First result")
    await paseo.begin(agent_id, "run something else")  # somebody in the app
    await scene.until_told(agent_id, "turn_ended finished", "turn_started")
    found = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20, cursor=waited["cursor"])
    assert (found["state"], found["runs_again"]) == ("finished", True)
    later = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=0, cursor=found["cursor"])
    assert later["state"] == "timeout"
    await paseo.finish(agent_id, "Second result")
    last = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20, cursor=later["cursor"])
    assert (last["state"], last["message"]) == ("finished", "Second result")


async def test_a_follow_up_starts_a_turn_and_the_wait_is_for_that_one(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.begin(agent_id, "first")
    await scene.until_told(agent_id, "turn_ended finished")
    paseo.bad.slow["send_agent_message_request"] = 0.05
    sent = await scene.tool("paseo_send_message", agent_id=agent_id, message="second")
    assert sent["delivered"] == "started"
    done = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert done["message"] == "Done: second"


async def test_steering_is_refused_where_it_would_interrupt(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.begin(agent_id, "run for long")
    await scene.until_told(agent_id, "turn_started")
    refused = await scene.refused("paseo_send_message", agent_id=agent_id, message="Also this")
    assert refused.code == "cannot_steer"
    assert "interrupt" in refused.hint
    assert [m for m in paseo.asked("send_agent_message_request") if m["agentId"] == agent_id] == []
    assert paseo.agents[agent_id]["status"] == "running"
    sent = await scene.tool("paseo_send_message", agent_id=agent_id, message="Instead", when_running="interrupt")
    assert sent["delivered"] == "interrupted"
    done = await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
    assert (done["state"], done["message"]) == ("finished", "Done: Instead")
    assert await scene.told(agent_id) == [
        "created",
        "turn_started",
        "turn_ended canceled",
        "turn_started",
        "turn_ended finished",
    ]


async def test_steering_keeps_the_turn_where_the_daemon_can(scene: Scene, paseo: ScriptedPaseo) -> None:
    paseo.steers = True
    agent_id = paseo.add()
    await paseo.begin(agent_id, "run for long")
    await scene.until_told(agent_id, "turn_started")
    sent = await scene.tool("paseo_send_message", agent_id=agent_id, message="Also this")
    assert sent["delivered"] == "steered"
    assert paseo.agents[agent_id]["status"] == "running"
    assert (await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=0))["state"] == "timeout"


async def test_a_message_never_denies_a_permission_by_accident(scene: Scene, paseo: ScriptedPaseo) -> None:
    paseo.steers = True
    agent_id = paseo.add()
    await paseo.begin(agent_id, "ask first")
    await scene.until_told(agent_id, "permission_requested")
    refused = await scene.refused("paseo_send_message", agent_id=agent_id, message="Hurry")
    assert "paseo_respond_permission" in refused.hint
    assert paseo.agents[agent_id]["pendingPermissions"]


async def test_an_agent_is_archived_once_and_told_once(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.begin(agent_id, "hello")
    for _ in range(2):
        assert (await scene.tool("paseo_archive_agent", agent_id=agent_id))["archived"] is True
    assert len(paseo.asked("archive_agent_request")) == 1
    await scene.until_told(agent_id, "archived")
    assert (await scene.tool("paseo_list_agents"))["agents"] == []
    listed = await scene.tool("paseo_list_agents", include_archived=True)
    assert [a["archived"] for a in listed["agents"]] == [True]
    assert (await scene.tool("paseo_get_agent", agent_id=agent_id))["agent"]["status"] == "closed"


async def test_ids_may_be_short_but_not_ambiguous_and_titles_do_not_count(scene: Scene, paseo: ScriptedPaseo) -> None:
    first = paseo.add("Twin", id="aaaa1111-0000-4000-8000-000000000001")
    paseo.add("Twin", id="aaaa2222-0000-4000-8000-000000000002")
    assert (await scene.tool("paseo_get_agent", agent_id="AAAA1"))["agent"]["id"] == first
    for name, words in (("aaaa", "2 agents"), ("Twin", "no Paseo agent"), ("bbbb", "no Paseo agent")):
        for tool, more in (
            ("paseo_get_agent", {}),
            ("paseo_read_timeline", {}),
            ("paseo_wait_for_agent", {}),
            ("paseo_send_message", {"message": "x"}),
            ("paseo_archive_agent", {}),
            ("paseo_respond_permission", {"request_id": "p", "decision": "deny"}),
        ):
            assert words in (await scene.refused(tool, agent_id=name, **more)).message


async def test_filters_and_pages_of_the_list(scene: Scene, paseo: ScriptedPaseo) -> None:
    ids = [paseo.add(f"Agent {n}", labels={"n": str(n)}) for n in range(450)]
    await paseo.begin(ids[7], "run on")
    running = await scene.tool("paseo_list_agents", statuses=["running"])
    assert [a["title"] for a in running["agents"]] == ["Agent 7"]
    assert (await scene.tool("paseo_list_agents", labels={"n": "44"}))["agents"][0]["id"] == ids[44]
    found: list[str] = []
    while True:
        page = await scene.tool("paseo_list_agents", limit=500, start=len(found))
        found += [a["id"] for a in page["agents"]]
        if not page["has_more"]:
            break
    assert sorted(found) == sorted(ids)
    refused = await scene.refused("paseo_list_agents", statuses=["asleep"])
    assert "running" in refused.hint


async def test_models_and_accounts(scene: Scene) -> None:
    models = await scene.tool("paseo_list_models")
    assert models["models"] == [
        {"model": "mock/ten-second-stream", "label": "Ten", "default": True, "thinking": ["low"]}
    ]
    assert "Unknown provider" in (await scene.refused("paseo_list_models", provider="nope")).message
    accounts = (await scene.tool("paseo_list_accounts"))["accounts"]
    assert accounts[0] == {"name": "work", "note": "The office's", "default": False}
    assert "claude-work" not in str(accounts)


async def test_a_transcript_is_paged_without_losing_or_cutting_anything(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    for n in range(300):
        await paseo.item(agent_id, {"type": "user_message", "text": f"question {n} " + "x" * 200})
        await paseo.item(agent_id, {"type": "assistant_message", "text": f"answer {n}, "})
        await paseo.item(agent_id, {"type": "assistant_message", "text": "in two pieces"})
    pages: list[list[str]] = []
    cursor = None
    while True:
        page = await scene.tool("paseo_read_timeline", agent_id=agent_id, limit=200, max_bytes=8000, cursor=cursor)
        pages.insert(0, [e["text"] for e in page["entries"]])
        cursor = page["older_cursor"]
        if cursor is None:
            break
    texts = [text for page in pages for text in page]
    assert len(pages) > 5
    assert [t for t in texts if t.startswith("answer")] == [f"answer {n}, in two pieces" for n in range(300)]
    assert len([t for t in texts if t.startswith("question")]) == 300
    paseo.epochs[agent_id] = "another"
    stale = await scene.tool("paseo_read_timeline", agent_id=agent_id, cursor="before:9")
    assert stale["reset"] is True
    assert stale["entries"][-1]["text"] == "answer 299, in two pieces"


async def test_a_token_with_labels_sees_only_its_agents(scene: Scene, paseo: ScriptedPaseo) -> None:
    mine = paseo.add("Mine", labels={"origin": "hermes"})
    other = paseo.add("Other")
    scope = Scope(labels={"origin": "hermes"})
    listed = await scene.tool("paseo_list_agents", scope=scope)
    assert [a["id"] for a in listed["agents"]] == [mine]
    assert (await scene.tool("paseo_list_agents", scope=scope, labels={"origin": "x"}))["agents"] == []
    assert "no Paseo agent" in (await scene.refused("paseo_get_agent", scope=scope, agent_id=other)).message
    for agent_id in (mine, other):
        await paseo.begin(agent_id, "hello")
        await scene.until_told(agent_id, "turn_ended finished")
    events = await scene.tool("paseo_wait_for_events", cursor=listed["events_cursor"], scope=scope, timeout_sec=0)
    assert {e["agent_id"] for e in events["events"]} == {mine}
    made = await scene.tool("paseo_create_agent", scope=scope, cwd=str(scene.code), prompt="x")
    assert made["agent"]["labels"]["origin"] == "hermes"
