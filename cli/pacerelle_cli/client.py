"""HTTP to the daemon over control.sock (docs/local-protocol.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from pacerelle_protocol.local import LocalPaths

from .errors import CliError, NotAnswering, NotRunning, Refused, refused
from .unix_http import Answer, BadAnswer, connect, exchange

ANSWER_TIMEOUT = 5.0  # seconds
FILE_TIMEOUT = 620.0  # seconds for a file to get through between daemon and relay, which takes at most 600


class Daemon:
    """The daemon of one store, as seen from outside. Every call makes its own connection.

    All calls raise NotRunning, NotAnswering, Refused (the daemon's own error) or CliError.
    """

    def __init__(self, paths: LocalPaths) -> None:
        self.paths = paths

    def get(self, path: str, **query: object) -> dict[str, Any]:
        return self.call("GET", path, query=query)[1]

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | IO[bytes] | None = None,
        timeout: float = ANSWER_TIMEOUT,
    ) -> tuple[int, dict[str, Any]]:
        """The status and the answer (an empty one for 204). None in `query` and `body` means absent.

        `body` is a JSON object or an open file, which is sent as it is. `timeout` is in seconds.
        """
        content = (
            json.dumps({name: value for name, value in body.items() if value is not None}).encode()
            if isinstance(body, Mapping)
            else body
        )
        with self._answer(method, path + _query(query or {}), content, timeout) as answer:
            found = json.loads(answer.read() or b"{}")
            if not isinstance(found, dict):
                raise BadAnswer
            return answer.status, found

    @contextmanager
    def download(self, path: str, *, timeout: float = FILE_TIMEOUT) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The name that the sender gave to the file (data, not a path) and its bytes in pieces."""
        with self._answer("GET", path, None, timeout) as answer:
            from urllib.parse import unquote

            disposition = answer.headers.get("content-disposition", "")
            name = unquote(disposition.partition("filename*=UTF-8''")[2])
            yield name, answer.pieces()

    @contextmanager
    def stream(
        self, method: str, path: str, body: Mapping[str, object], *, timeout: float
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The size of an answer, in bytes, and its bytes in pieces."""
        with self._answer(method, path, json.dumps(body).encode(), timeout) as answer:
            yield int(answer.headers.get("content-length", "0")), answer.pieces()

    def is_up(self) -> bool:
        """Whether somebody listens at the socket; says nothing about answers."""
        try:
            connect(self.paths.control_sock, ANSWER_TIMEOUT).close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise self._explain(error, ANSWER_TIMEOUT) from error
        return True

    def owner(self) -> int | None:
        """The pid in the lock file if that process is alive.

        The lock itself is not tried: even a moment's shared lock could make a daemon that starts give up.
        """
        try:
            pid = int(self.paths.lock.read_text())
            os.kill(pid, 0)
        except PermissionError:
            return pid
        except (OSError, ValueError):
            return None
        return pid

    @contextmanager
    def _answer(self, method: str, target: str, body: bytes | IO[bytes] | None, timeout: float) -> Iterator[Answer]:
        try:
            with exchange(self.paths.control_sock, method, target, body, timeout=timeout) as answer:
                if answer.status >= 400:
                    raise _refusal(answer)
                yield answer
        except (OSError, BadAnswer, ValueError) as error:
            raise self._explain(error, timeout) from error

    def _explain(self, error: Exception, timeout: float) -> CliError:
        pid = self.owner()
        named = f"pacerelled (pid {pid})" if pid else "pacerelled"
        if isinstance(error, TimeoutError | BlockingIOError):
            return NotAnswering(
                f"{named} did not answer within {timeout:g} seconds.",
                hint=f"It is busy or suspended. If it is suspended: kill -CONT {pid or 'PID'}",
            )
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            if pid:
                return NotRunning(
                    f"{named} is alive but does not listen at {self.paths.control_sock}.",
                    hint="It is starting or stopping (try again), or was started with another --socket.",
                )
            from .service import record

            start = "pacerelle service start" if record.load(self.paths.state) else "pacerelled"
            return NotRunning(
                "pacerelled is not running.", hint=f"Start it with: {start}  (an MCP host starts it by itself)"
            )
        if isinstance(error, PermissionError):
            return CliError(
                f"{self.paths.control_sock} belongs to another user.",
                hint="Run this as the user who started pacerelled.",
            )
        if isinstance(error, ConnectionError | BadAnswer):
            return NotRunning(
                f"{named} went away before it had answered.",
                hint=f"See what it does with: pacerelle status. Its log is {self.paths.log}",
            )
        return CliError(f"The call to {named} failed ({type(error).__name__}).", hint=f"Log: {self.paths.log}")


def part(value: str) -> str:
    """One part of a call's path. Only what came from the user or the daemon gets here; `-` is the only agent."""
    from urllib.parse import quote  # a fortieth of what `status`, which needs none, may cost

    return quote(value, safe="")


def _query(values: Mapping[str, object]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in values.items()
        if value is not None
    }
    if not given:
        return ""
    from urllib.parse import quote, urlencode

    return "?" + urlencode(given, quote_via=quote)


def _refusal(answer: Answer) -> Refused:
    try:
        error = json.loads(answer.read())["error"]
        return refused(str(error["code"]), str(error["message"]), hint=str(error["hint"]))
    except (ValueError, LookupError, TypeError):
        return Refused("bad_answer", f"pacerelled answered with HTTP {answer.status} and no reason.")
