"""The journal's native protocol, against a socket of our own."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pacerelled.logs.journal import JournalHandler, encode, is_journal


def decode(datagram: bytes) -> dict[str, str]:
    """As the journal reads it."""
    fields, rest = {}, datagram
    while rest:
        head, _, rest = rest.partition(b"\n")
        name, given, value = head.partition(b"=")
        if not given:
            (size,) = struct.unpack("<Q", rest[:8])
            value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def journal() -> Iterator[tuple[Path, socket.socket]]:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        path = Path(folder) / "socket"
        sock.bind(str(path))
        sock.settimeout(20)
        yield path, sock


def test_a_record_arrives_with_its_fields(journal: tuple[Path, socket.socket]) -> None:
    path, sock = journal
    handler = JournalHandler(path)
    record = logging.LogRecord("pacerelled.link", logging.WARNING, "/x/link.py", 7, "Relay: %s", ("away",), None, "run")
    record.repeated = 4
    handler.handle(record)
    handler.close()
    assert decode(sock.recv(65536)) == {
        "MESSAGE": "Relay: away",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "pacerelled",
        "LOGGER": "pacerelled.link",
        "CODE_FILE": "/x/link.py",
        "CODE_LINE": "7",
        "CODE_FUNC": "run",
        "REPEATED": "4",
    }


def test_a_value_of_several_lines_and_any_character_arrives_whole(journal: tuple[Path, socket.socket]) -> None:
    path, sock = journal
    handler = JournalHandler(path)
    handler.handle(logging.LogRecord("a", logging.ERROR, "f", 1, "one\nMESSAGE=two\nλ \udcff", (), None))
    handler.close()
    found = decode(sock.recv(65536))
    assert (found["MESSAGE"], found["PRIORITY"]) == ("one\nMESSAGE=two\nλ \\udcff", "3")


def test_an_exception_is_shown_without_its_words(journal: tuple[Path, socket.socket]) -> None:
    path, sock = journal
    handler = JournalHandler(path)
    try:
        raise ValueError("what somebody wrote")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    handler.handle(logging.LogRecord("a", logging.ERROR, "f", 1, "it failed", (), info))
    handler.close()
    message = decode(sock.recv(65536))["MESSAGE"]
    assert message.startswith("it failed\nValueError at ")
    assert "somebody" not in message


def test_without_the_journal_it_goes_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handler = JournalHandler(tmp_path / "nobody")
    handler.handle(logging.LogRecord("a", logging.INFO, "f", 1, "hello", (), None))
    handler.close()
    assert capfd.readouterr().err == "<6>hello\n"


@pytest.mark.parametrize("value", [None, "", "1", "x:y", "1:2", ":"])
def test_another_stream_is_no_journal(value: str | None) -> None:
    assert not is_journal(2, {} if value is None else {"JOURNAL_STREAM": value})


def test_the_named_stream_is_the_journal() -> None:
    reader, writer = os.pipe()
    found = os.fstat(writer)
    assert is_journal(writer, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
    os.close(reader)
    os.close(writer)
    assert not is_journal(writer, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})


def test_encoding_is_that_of_the_protocol() -> None:
    assert encode({"A": "x=y", "B": "1\n2"}) == b"A=x=y\nB\n\x03\0\0\0\0\0\0\x001\n2\n"
