"""`pacerelle export`: requests and replies as JSON Lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from . import show
from .client import part
from .context import Cli, command, json_option, pass_cli
from .errors import CliError
from .text import escape

_PAGE = 500


@command("export", example="pacerelle export messages.jsonl\npacerelle export - --since 2031-05-06 | jq .text")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--agent", "agent_id", metavar="AGENT_ID", help="Only of this agent.")
@click.option("--conversation", "conversation_id", metavar="ID", help="Only of this conversation.")
@click.option("--since", metavar="TIME", help="Only from this time on (ISO 8601; UTC if it names no zone).")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
@pass_cli
def export(
    cli: Cli, file: Path, agent_id: str | None, conversation_id: str | None, since: str | None, force: bool
) -> None:
    """Write all messages to FILE (-: standard output), one JSON object a line: each agent's requests, then replies.

    The file is not encrypted; it is for you alone to read.
    """
    if cli.json and os.fspath(file) == "-":
        raise click.UsageError("--json tells what was written to a file; standard output has JSON anyway.")
    count = 0
    with _target(file, force) as out:
        for each in [agent_id] if agent_id else [row["agent_id"] for row in cli.daemon.get("/v1/agents")["agents"]]:
            for kind in ("requests", "replies"):
                for message in _messages(cli, each, kind, conversation_id=conversation_id, since=since):
                    out.write(json.dumps({"type": kind.replace("ies", "y").rstrip("s"), "agent_id": each, **message}))
                    out.write("\n")
                    count += 1
    if cli.json:
        show.as_json({"file": os.fspath(file.absolute()), "messages": count})
    elif os.fspath(file) != "-":
        click.echo(f"{count} messages in {escape(os.fspath(file))}.")


def _messages(cli: Cli, agent_id: str, kind: str, **which: str | None) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        page = cli.daemon.get(f"/v1/agents/{part(agent_id)}/messages", kind=kind, after=after, limit=_PAGE, **which)
        yield from page["messages"]
        after = page["next"]


@contextmanager
def _target(file: Path, force: bool) -> Iterator[IO[str]]:
    """A file that is there only when all is in it."""
    if os.fspath(file) == "-":
        yield sys.stdout
        return
    if file.exists() and not force:
        raise CliError(f"{file} exists already.", hint="Choose another name, or replace it with --force.")
    temporary = file.with_name(f".{file.name}.part")
    try:
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as out:
            yield out
        temporary.replace(file)
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}.", hint="Choose another place.") from error
    finally:
        temporary.unlink(missing_ok=True)
