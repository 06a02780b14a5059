"""What a real daemon sent, read and understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pacerelled.paseo.frames import Answer, Push, ServerInfo, hello, parse, request
from pacerelled.paseo.model import parse_agent
from pacerelled.paseo.timeline import entries, last_message, newest
from pacerelled.paseo.tracker import Happening, Known, Tracker, restore
from tests.paseo.scripted import FRAMES, received, recorded

ALL = sorted(path.stem for path in FRAMES.glob("*.jsonl"))


def replay(name: str, conn: int | None = None, *, twice: bool = False) -> tuple[Tracker, list[Happening]]:
    """What the pushes of a recording tell somebody who had seen none of its agents."""
    tracker = Tracker(preview_chars=0 if twice else 40)
    found: list[Happening] = []
    for raw in received(name, conn):
        frame = parse(raw)
        for _ in range(1 + twice):
            if isinstance(frame, Push):
                found += feed(tracker, frame)
    return tracker, found


def feed(tracker: Tracker, push: Push) -> list[Happening]:
    payload = push.payload
    match push.type:
        case "agent_update" if agent := parse_agent(payload.get("agent")):
            return tracker.upsert(agent)
        case "agent_stream":
            return tracker.stream(payload["agentId"], payload["event"])
        case "agent_permission_request":
            return tracker.permission_requested(payload["agentId"], payload["request"])
        case "agent_permission_resolved":
            return tracker.permission_resolved(payload["agentId"], payload["requestId"], payload["resolution"])
        case "agent_deleted":
            return tracker.gone(payload["agentId"])
    return []


def short(found: list[Happening]) -> list[str]:
    return [
        " ".join(filter(None, (h.type.removeprefix("agent."), h.data.get("outcome"), h.data.get("resolution"))))
        for h in found
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_frame_is_read(name: str) -> None:
    kinds = [type(frame) for raw in received(name) if (frame := parse(raw)) is not None]
    if not name.startswith("auth"):
        assert ServerInfo in kinds
        once, again = replay(name)[1], replay(name, twice=True)[1]
        assert [(h.type, h.agent_id) for h in once] == [(h.type, h.agent_id) for h in again]  # repeated is no news


def test_our_requests_have_the_form_of_those_that_were_answered() -> None:
    sent = next(line["frame"] for line in recorded("hello-ok") if line.get("dir") == "out")
    ours = json.loads(hello("c-1", None))
    assert set(ours) == set(sent)
    assert sent["capabilities"].items() <= ours["capabilities"].items()
    made = json.loads(request("fetch_agents_request", "r1", {"page": {"limit": 1, "cursor": None}, "filter": None}))
    assert made == {
        "type": "session",
        "message": {"type": "fetch_agents_request", "requestId": "r1", "page": {"limit": 1}},
    }


@pytest.mark.parametrize(("name", "resolution"), [("permission-allow", "allow"), ("permission-deny", "deny")])
def test_a_permission_is_asked_for_and_answered_once(name: str, resolution: str) -> None:
    tracker, found = replay(name)
    assert short(found) == [
        "created",
        "turn_started",
        "permission_requested",
        "turn_ended finished",
        f"permission_resolved {resolution}",
    ]
    asked = found[2].data["permission"]
    assert (asked["name"], asked["kind"], asked["title"]) == ("MockPlanApproval", "plan", "Plan")
    (known,) = tracker.agents.values()
    assert known.answered == {asked["request_id"]: resolution}


def test_the_first_answer_to_a_permission_counts() -> None:
    found = short(replay("permission-then-message")[1])
    assert found.count("permission_requested") == 1
    assert [each for each in found if each.startswith("permission_resolved")] == ["permission_resolved deny"]


def test_a_follow_up_breaks_the_turn_off_and_starts_another() -> None:
    found = short(replay("stream-interrupted-by-short-follow-up")[1])
    assert found == ["created", "turn_started", "turn_ended canceled", "turn_started", "turn_ended finished"]


def test_a_shutdown_closes_every_agent_and_cuts_the_turn_off() -> None:
    tracker, found = replay("restart-sigterm", conn=1)
    running = next(i for i, known in tracker.agents.items() if (known.title or "").startswith("Restart"))
    assert short([h for h in found if h.agent_id == running]) == [
        "created",
        "turn_started",
        "turn_ended canceled",
        "closed",
    ]
    waiting = next(i for i, known in tracker.agents.items() if (known.title or "").startswith("Perm"))
    assert short([h for h in found if h.agent_id == waiting])[-3:] == [
        "permission_resolved",
        "turn_ended canceled",
        "closed",
    ]


def test_what_a_tracker_knows_comes_back_from_its_json() -> None:
    tracker, _ = replay("restart-sigterm", conn=1)
    stored = {agent_id: json.loads(json.dumps(known.as_dict())) for agent_id, known in tracker.agents.items()}
    assert restore(stored.items()) == tracker.agents
    assert restore([("a", {"running": True, "of_a_later_version": 1})]) == {"a": Known(running=True)}


def test_a_preview_is_the_beginning_of_the_last_message() -> None:
    found = replay("stream-interrupted-by-short-follow-up")[1]
    ended = [h.data.get("preview") for h in found if h.type == "agent.turn_ended"]
    assert all(each is None or (each["untrusted"] is True and len(each["text"]) <= 40) for each in ended)
    assert any(ended)


def timelines() -> list[dict[str, Any]]:
    found = []
    for raw in received("timeline"):
        frame = parse(raw)
        if isinstance(frame, Answer) and frame.type == "fetch_agent_timeline_response" and not frame.error:
            found.append(frame.payload)
    return found


def test_a_timeline_becomes_a_transcript() -> None:
    whole = timelines()[0]
    read = entries(whole["entries"])
    assert [entry.who for entry in read] == [
        *("user", "todo", "todo", "todo", "user", "agent", "user", "agent", "thinking", "tool", "tool", "agent")
    ]
    assert read[1].text == "[x] stress-update-0"
    assert "read" in read[9].text
    assert last_message(read) == read[-1].text
    assert read[4].message_id == "m-2"
    some, cut = newest(read, 1500)
    assert cut
    assert some[-1].last == read[-1].last
    assert len(json.dumps([e.as_dict() for e in some], ensure_ascii=False).encode()) <= 1500
    assert newest(read, 10**6)[1] is False


def test_failures_are_found_wherever_they_stand() -> None:
    failed = [f for raw in received("errors") if isinstance(f := parse(raw), Answer) and f.error]
    assert {f.type for f in failed} >= {
        "rpc_error",
        "status",
        "fetch_agent_response",
        "send_agent_message_response",
        "wait_for_finish_response",
    }
    assert any(f.code == "unknown_schema" for f in failed)
    good = [f for raw in received("list-three-and-paging") if isinstance(f := parse(raw), Answer) and not f.error]
    assert good
