"""The demo's parts: how it looks for texts, what it says about a step that is stuck, how it prints."""

from __future__ import annotations

import base64
import io
import signal
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from pacerelle_cli.context import Cli
from pacerelle_cli.demo import demo, evidence, stage, story
from pacerelle_cli.demo.screen import Screen
from tests.demo.running import Place


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
@pytest.mark.parametrize("after", [b"", b"z", b"yz"])
def test_texts_within_base64_are_found(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "file").write_bytes(b"\0\1" + base64.b64encode(before + "flowerpot ü".encode() + after) + b"\2")
    assert evidence.found_in(tmp_path, {"flowerpot ü", "flowerpot", "flowerpots", "plumber"}) == {
        "flowerpot ü",
        "flowerpot",
    }


def test_texts_are_found_as_they_are_in_any_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "wide").write_bytes("a flowerpot".encode("utf-16-le"))
    (tmp_path / "plain").write_text("a plumber")
    assert evidence.found_in(tmp_path, {"flowerpot", "plumber", "Barcelona"}) == {"flowerpot", "plumber"}


def test_words_that_chance_could_make_are_not_looked_for() -> None:
    assert evidence.words(["The blue flowerpot."]) == {"The blue flowerpot.", "flowerpot"}


def test_a_stuck_step_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)  # it remembers
    pair_phone = story.pair_phone

    async def with_a_stopped_relay(*arguments: object) -> object:
        relay = next(p for p in psutil.Process().children() if "relay" in p.cmdline())
        relay.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(stage, "STEP_LIMIT", 0.5)
        return await pair_phone(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(story, "pair_phone", with_a_stopped_relay)
    monkeypatch.setattr(stage, "_END_LIMIT", 0.5)
    result = CliRunner().invoke(demo, obj=Cli())
    monkeypatch.setattr("tempfile.tempdir", None)
    assert str(result.exception) == "Stuck for 0.5 seconds: the phone makes an account and an agent."


def test_lines_are_wrapped_and_what_others_wrote_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    screen.heading("A heading that is longer than forty columns are")
    screen.said("Ada writes", "words " * 20 + "\x1b[2J")
    screen.passed("checked " * 10)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 40
    assert "\x1b[2J" not in "".join(lines)
    assert screen.checks == 1


def test_a_terminal_that_has_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    Screen().passed("done")
    ascii_only.flush()
    assert ascii_only.buffer.getvalue() == b"  ok done\n"
