"""`pacerelle save`: attachments become files. Their names were chosen by somebody else: data, never paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from . import show
from .client import Daemon, part
from .context import Cli, agent_option, command, json_option, pass_cli
from .errors import CliError
from .text import UNSAFE, escape

_MAX_NAME = 200  # bytes; file systems take 255, and a number may be added
_MAX_COPIES = 1000
_PAGE = 500


@command("save", example="pacerelle save MESSAGE_ID --to ~/Downloads\npacerelle save MESSAGE_ID ATTACHMENT_ID")
@click.argument("message_id")
@click.argument("attachment_id", required=False)
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Where to save.",
)
@agent_option
@json_option
@pass_cli
def save(cli: Cli, message_id: str, attachment_id: str | None, folder: Path, agent_id: str) -> None:
    """Save a request's attachments, or one of them. Nothing is overwritten: a taken name gets a number."""
    base = f"/v1/agents/{part(agent_id)}"
    wanted = [attachment_id] if attachment_id else _attachments(cli.daemon, base, message_id)
    saved = []
    for each in wanted:
        call = f"{base}/attachments/{part(message_id)}/{part(each)}"
        with cli.daemon.download(call) as (name, pieces):
            saved.append(_write(folder, safe_name(name), pieces))
    if cli.json:
        show.as_json({"saved": [os.fspath(path) for path in saved]})
    else:
        for path in saved:
            click.echo(escape(os.fspath(path)))


def safe_name(name: str) -> str:
    """A file name out of whatever a peer called its file: the last part, visible, without controls, not too long."""
    last = re.split(r"[/\\]", name)[-1]
    plain = re.sub('[<>:"|?*]', "_", UNSAFE.sub("_", last)).strip(" .")
    while len(plain.encode()) > _MAX_NAME:
        stem, dot, suffix = plain.rpartition(".")
        plain = f"{stem[:-1]}{dot}{suffix}" if dot and stem[:-1] and len(suffix) < 20 else plain[:-1]
    return plain or "attachment"


def _attachments(daemon: Daemon, base: str, message_id: str) -> list[str]:
    before: str | None = None
    while True:
        page: dict[str, Any] = daemon.get(f"{base}/inbox", state="all", limit=_PAGE, before=before)
        for message in page["messages"]:
            if message["message_id"] == message_id:
                found = [file["id"] for file in message["attachments"]]
                if not found:
                    raise CliError(f"{message_id} has no attachment.")
                return found
        if not page["has_more"]:
            raise CliError(f"There is no request {message_id}.", hint="See: pacerelle inbox --all")
        before = page["messages"][0]["cursor"]


def _write(folder: Path, name: str, pieces: Iterable[bytes]) -> Path:
    path, descriptor = _create(folder, name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CliError(f"{path} cannot be written: {error.strerror}.") from error
        raise
    return path


def _create(folder: Path, name: str) -> tuple[Path, int]:
    """A file that did not exist before, whatever lies in the folder; symlinks are not followed."""
    stem, dot, suffix = name.rpartition(".")
    for number in range(_MAX_COPIES):
        copy = f" ({number})" if number else ""
        path = folder / (f"{stem}{copy}{dot}{suffix}" if stem else f"{name}{copy}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise CliError(f"{path} cannot be written: {error.strerror}.", hint="Choose --to FOLDER.") from error
    raise CliError(f"{folder} has {_MAX_COPIES} files called {name}.", hint="Choose --to FOLDER.")
