from __future__ import annotations

from typing import Any

import pytest

from pacerelled.errors import InvalidArgument
from pacerelled.mcp.arguments import check, close_name
from pacerelled.mcp.schemas import TOOLS


def test_defaults_are_filled_in_and_null_counts_as_left_out() -> None:
    expected = {
        "timeoutMs": 25_000,
        "conversationId": None,
        "limit": 10,
        "afterCursor": None,
        "includeClaimed": False,
        "release": None,
    }
    assert check(TOOLS["wait_for_messages"], {}) == expected
    assert check(TOOLS["wait_for_messages"], dict.fromkeys(expected)) == expected
    assert check(TOOLS["wait_for_messages"], {"timeoutMs": 0, "limit": 50.0})["limit"] == 50
    assert check(TOOLS["save_checkpoint"], {"sourceMessageId": "m", "summary": "s", "nextAction": "n"}) == {
        "sourceMessageId": "m",
        "summary": "s",
        "nextAction": "n",
        "hostSessionLabel": None,
        "status": "active",
        "takeOver": False,
    }


def test_every_example_is_a_right_call() -> None:
    for spec in TOOLS.values():
        check(spec, spec.example)


@pytest.mark.parametrize(
    ("tool", "arguments", "argument", "says"),
    [
        ("wait_for_messages", {"timeoutMS": 1}, "timeoutMS", "did you mean timeoutMs?"),
        ("wait_for_messages", {"timeout_ms": 1}, "timeout_ms", "camelCase"),
        ("wait_for_messages", {"afterCurser": "1"}, "afterCurser", "did you mean afterCursor?"),
        ("wait_for_messages", {"foo": 1}, "foo", "there are timeoutMs, conversationId"),
        ("wait_for_messages", {"x" * 5000: 1}, "x" * 5000, "…"),
        ("get_status", {"verbose": True}, "verbose", "takes none"),
        ("wait_for_messages", {"timeoutMs": 30_001}, "timeoutMs", "from 0 to 30000, not 30001"),
        ("wait_for_messages", {"timeoutMs": -1}, "timeoutMs", "from 0 to 30000, not -1"),
        ("wait_for_messages", {"timeoutMs": 1.5}, "timeoutMs", "a whole number from 0 to 30000, not 1.5"),
        ("wait_for_messages", {"timeoutMs": float("inf")}, "timeoutMs", "whole number"),
        ("wait_for_messages", {"timeoutMs": "25000"}, "timeoutMs", 'not "25000"'),
        ("wait_for_messages", {"timeoutMs": True}, "timeoutMs", "not true"),
        ("wait_for_messages", {"limit": 0}, "limit", "from 1 to 50"),
        ("wait_for_messages", {"limit": 51}, "limit", "from 1 to 50"),
        ("wait_for_messages", {"conversationId": 7}, "conversationId", "a string, not 7"),
        ("wait_for_messages", {"conversationId": ""}, "conversationId", "must not be empty; leave it out instead"),
        ("wait_for_messages", {"includeClaimed": 1}, "includeClaimed", "true or false, not 1"),
        ("wait_for_messages", {"includeClaimed": "true"}, "includeClaimed", "true or false"),
        ("send_message", {}, "text", "text is missing; it must be a string"),
        ("send_message", {"text": None}, "text", "is missing"),
        ("send_message", {"text": ""}, "text", "text must not be empty"),
        ("send_message", {"text": ["a"]}, "text", "a string, not a list"),
        ("send_message", {"text": {"a": 1}}, "text", "a string, not an object"),
        ("send_message", {"text": "a", "source_message_id": "m"}, "source_message_id", "sourceMessageId"),
        ("send_message", {"text": "a", "message": "m"}, "message", "there are text"),
        ("send_message", {"retryMessageId": "r", "to": "u"}, "to", "retryMessageId goes alone"),
        ("send_message", {"retryMessageId": ""}, "retryMessageId", "must not be empty"),
        ("send_message", {"text": "a", "idempotencyKey": "k" * 201}, "idempotencyKey", "at most 200"),
        ("update_widget", {"spec": {"value": 1}}, "messageId", "messageId is missing"),
        ("update_widget", {"messageId": "m", "spec": 1}, "spec", "a string or an object, not 1"),
        ("send_widget", {"widgetJson": []}, "widgetJson", "a string or an object, not a list"),
        ("send_widget", {"widget": {}}, "widget", "not an argument"),
        ("mark_processed", {"messageId": "m", "note": "x" * 2001}, "note", "2001 characters; at most 2000"),
        ("save_checkpoint", {"summary": "s", "nextAction": "n"}, "sourceMessageId", "missing"),
        (
            "save_checkpoint",
            {"sourceMessageId": "m", "summary": "s", "nextAction": "n", "status": "done"},
            "status",
            '"active" or "completed", not "done"',
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_right(
    tool: str, arguments: dict[str, Any], argument: str, says: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(TOOLS[tool], arguments)
    assert caught.value.argument == argument
    assert says in caught.value.message
    assert f"A right call: {tool} {{" in caught.value.hint
    assert len(caught.value.message) < 300


def test_a_long_wrong_value_is_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(TOOLS["wait_for_messages"], {"limit": "secret " * 50})
    assert "secret" not in caught.value.message


def test_close_names() -> None:
    assert close_name("sendMessage", TOOLS) == "send_message"
    assert close_name("get-status", TOOLS) == "get_status"
    assert close_name("markProcesed", TOOLS) == "mark_processed"
    assert close_name("launch", TOOLS) is None
    assert close_name("", TOOLS) is None
