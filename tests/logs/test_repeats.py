"""Counting what is said again and again."""

from __future__ import annotations

import logging

from pacerelled.logs.repeats import FIRST, LONGEST_PAUSE, MOST, PAUSE, SILENCE, Counting, Repeats


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def record(message: str, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("pacerelled.link", level, __file__, 1, message, args, None)


def say(repeats: Repeats, *what: object, level: int = logging.INFO) -> list[str]:
    return [each.getMessage() for each in repeats.take(record(*what, level=level))]  # type: ignore[arg-type]


def test_a_night_without_a_relay_is_a_few_lines() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    lines = []
    for attempt in range(8 * 3600 // 30):
        lines += say(repeats, "Relay: %s; next attempt in %.1f s", "no answer in time", 30 + attempt / 1000)
        clock.now += 30
    assert FIRST < len(lines) < 20
    assert lines[0] == "Relay: no answer in time; next attempt in 30.0 s"
    assert lines[FIRST].startswith("Relay: no answer")
    assert lines[FIRST].endswith(f"({int(PAUSE) // 30} times since)")
    assert lines[-1].endswith(f"({int(LONGEST_PAUSE) // 30} times since)")


def test_other_words_are_something_else() -> None:
    repeats = Repeats(Clock())
    for _ in range(9):
        say(repeats, "Relay: %s", "no route")
    assert say(repeats, "Relay: %s", "no answer") == ["Relay: no answer"]
    assert say(repeats, "Relay: %s", "no route", level=logging.ERROR) == ["Relay: no route"]
    assert say(repeats, "Relay: %s", "no route") == []


def test_what_was_held_back_is_told_when_it_has_ended_and_is_news_when_it_returns() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    for _ in range(FIRST + 4):
        say(repeats, "Agent …%s: %s", "abcd", "reconnecting")
    clock.now += SILENCE + 1
    assert say(repeats, "something else") == [
        "Agent …abcd: reconnecting (4 times since, the last 10 min ago)",
        "something else",
    ]
    assert say(repeats, "Agent …%s: %s", "abcd", "reconnecting") == ["Agent …abcd: reconnecting"]


def test_debugging_hides_nothing() -> None:
    repeats = Repeats(Clock())
    assert [say(repeats, "a frame", level=logging.DEBUG) for _ in range(50)] == [["a frame"]] * 50


def test_many_different_ones_cost_a_bounded_memory() -> None:
    repeats = Repeats(Clock())
    for number in range(4 * MOST):
        assert say(repeats, "error %s", f"{number:x}") == [f"error {number:x}"]
    assert len(repeats._said) <= MOST + 1


def test_the_handler_hands_on_what_is_to_be_written() -> None:
    written: list[logging.LogRecord] = []
    target = logging.Handler()
    target.emit = written.append  # type: ignore[method-assign]
    clock = Clock()
    handler = Counting(target, Repeats(clock))
    for _ in range(FIRST + 2):
        handler.handle(record("again"))
    clock.now += PAUSE
    handler.handle(record("again"))
    assert [each.getMessage() for each in written] == ["again"] * FIRST + ["again (3 times since)"]
    assert getattr(written[-1], "repeated", None) == 3
