"""The log as a file: its size, its form, its level; each in a process of its own, whose standard error it is."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from pacerelled.logs.shapes import JsonFormatter, TextFormatter

WRITER = """
import logging, os, sys
from pathlib import Path
from pacerelled.logs import capped, setup
path = Path(sys.argv[1])
capped.LIMIT = 10_000
capped.CappedFile.__init__.__kwdefaults__.update(limit=10_000)
if sys.argv[2] == "calm":
    capped.CALM = 0.0
setup.start_logging("info", sys.argv[3], path, os.environ)
for number in range(400):
    logging.getLogger("pacerelled.x").info("line %s of the log, which is %s", str(number), "long " * 10)
os.write(2, b"the interpreter's last words\\n")
os.write(1, b"and what a library printed\\n")
"""


def write(log: Path, when: str = "calm", form: str = "text") -> None:
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(log), when, form], stdout=file, stderr=file, check=False, timeout=60
        )
    assert done.returncode == 0, log.read_text()[-2000:]


def test_a_full_file_makes_room_and_everything_goes_on_in_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "pacerelled.log"
    write(log)
    old = tmp_path / "pacerelled.log.1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pacerelled.log", "pacerelled.log.1"]
    assert log.stat().st_size <= 10_300
    assert old.stat().st_size <= 10_300
    assert log.stat().st_mode & 0o777 == 0o600
    lines = old.read_text().splitlines() + log.read_text().splitlines()
    assert lines[-2:] == ["the interpreter's last words", "and what a library printed"]
    numbers = [int(line.split(" line ")[1].split()[0]) for line in lines[:-2]]
    assert numbers == list(range(numbers[0], 400)), "no line is lost, cut or doubled in between"


def test_in_its_first_minute_the_file_stays_where_it_is(tmp_path: Path) -> None:
    log = tmp_path / "pacerelled.log"
    write(log, "early")
    assert [path.name for path in tmp_path.iterdir()] == ["pacerelled.log"]
    assert len(log.read_text().splitlines()) == 402


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.txt"
    with theirs.open("wb") as file:
        command = [sys.executable, "-c", WRITER, str(tmp_path / "pacerelled.log"), "calm", "text"]
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.txt"]


def test_json_is_one_object_a_line(tmp_path: Path) -> None:
    log = tmp_path / "pacerelled.log"
    write(log, "early", "json")
    first = json.loads(log.read_text().splitlines()[0])
    assert (first["level"], first["logger"]) == ("info", "pacerelled.x")
    assert first["message"].startswith("line 0 of the log")
    assert first["time"].endswith("+00:00")


def test_no_form_shows_the_words_of_an_exception() -> None:
    try:
        raise ValueError("what somebody wrote")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "it failed", (), info)
    record.repeated = 2
    line = json.loads(JsonFormatter().format(record))
    assert line["place"].startswith("ValueError at ")
    assert line["repeated"] == 2
    for formatter in (JsonFormatter(), TextFormatter()):
        assert "somebody" not in formatter.format(record)


def test_libraries_stay_quiet_whatever_the_level() -> None:
    program = (
        "import logging\nfrom pathlib import Path\n"
        "from pacerelled.logs.setup import describe, set_level, start_logging\n"
        "start_logging('error', 'text', Path('/nowhere'), {}); print(describe())\n"
        "logging.getLogger('websockets').warning('not at this level')\n"
        "set_level('debug'); print(describe())\n"
        "logging.getLogger('websockets.client').info('secret address'); logging.getLogger('aiohttp').warning('heard')\n"
        "logging.getLogger('pacerelled').debug('ours')\n"
    )
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["{'level': 'error'}", "{'level': 'debug'}"]
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == [
        "WARNING aiohttp: heard",
        "DEBUG pacerelled: ours",
    ]
