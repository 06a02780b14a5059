"""`pacerelle backup` and `restore`."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from . import show
from .client import FILE_TIMEOUT
from .context import Cli, command, json_option, pass_cli
from .errors import CliError
from .offline import offline
from .progress import Progress
from .text import escape, size, when

_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
_passphrase_file = click.option(
    "--passphrase-file",
    metavar="PATH",
    type=click.File("r", encoding="utf-8"),
    help="Read the passphrase from the first line of this file; -: of standard input.",
)


@command("backup", example="pacerelle backup ~/pacerelle.backup\npacerelle backup FILE --passphrase-file - < phrase")
@_file
@_passphrase_file
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
@pass_cli
def backup(cli: Cli, file: Path, passphrase_file: Any, force: bool) -> None:
    """Write the store, its key and the settings to one file that opens with a passphrase.

    The daemon may run. The file is opened and checked again before it gets its name. Tokens are not in it.
    """
    if file.exists() and not force:
        raise _exists(file)
    passphrase = _passphrase(passphrase_file, twice=True)
    with _part_of(file) as part:
        with _place(file), open(part, "xb", opener=_private) as out, Progress("Backup") as progress:
            _fill(cli, file, out.fileno(), passphrase, progress)
            os.fsync(out.fileno())
        with Progress("Checking") as progress:
            found = offline(cli, "verify", os.fspath(part.absolute()), passphrase=passphrase, progress=progress)
        written = part.stat().st_size
        _publish(part, file, force)
    if cli.json:
        show.as_json({"file": os.fspath(file.absolute()), "size": written, "made_at": found["made_at"]})
    else:
        click.echo(f"{escape(os.fspath(file))}: {size(written)}, opened again and checked.")
        click.echo("Without its passphrase nobody can open it, nor can you.")


@command("restore", example="pacerelle restore ~/pacerelle.backup\npacerelle restore FILE --move-aside")
@_file
@_passphrase_file
@click.option("--move-aside", is_flag=True, help="Move a store that is here into a folder beside it.")
@json_option
@pass_cli
def restore(cli: Cli, file: Path, passphrase_file: Any, move_aside: bool) -> None:
    """Put the store of a backup into place. The daemon must not run, and there must be no store here.

    Encryption starts afresh: people have to accept the agent's new safety code, and write first.
    """
    if not file.is_file():
        raise CliError(f"There is no file {file}.")
    passphrase = _passphrase(passphrase_file, twice=False)
    more = ["--move-aside"] if move_aside else []
    with Progress("Restoring") as progress:
        done = offline(cli, "restore", os.fspath(file.absolute()), *more, passphrase=passphrase, progress=progress)
    if cli.json:
        show.as_json(done)
        return
    click.echo(f"Restored the backup of {when(done['made_at'])}, with {done['agents']} agents.")
    if done["moved_to"]:
        click.echo(f"The store that was here is in {escape(done['moved_to'])}.")
    click.echo("What is different now:")
    for what in done["afresh"]:
        show.wrapped(f"- {what}")


def _fill(cli: Cli, file: Path, fd: int, passphrase: str, progress: Progress) -> None:
    if not cli.daemon.is_up():
        offline(cli, "backup", "--to-fd", str(fd), passphrase=passphrase, progress=progress, pass_fds=(fd,))
        return
    with cli.daemon.stream("POST", "/v1/backup", {"passphrase": passphrase}, timeout=FILE_TIMEOUT) as (whole, pieces):
        done = 0
        for piece in pieces:
            with _place(file):  # here, where it is told apart from an error of the connection
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            done += len(piece)
            progress(done, whole)


def _passphrase(file: Any, *, twice: bool) -> str:
    if file is not None:
        phrase: str = file.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        phrase = click.prompt("Passphrase", hide_input=True, err=True, confirmation_prompt=twice)
    else:
        raise click.UsageError("No passphrase: use --passphrase-file (- for standard input).")
    if not phrase:
        raise CliError("The passphrase is empty.")
    return phrase


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _part_of(file: Path) -> Iterator[Path]:
    """A name beside `file` for what is not whole yet; what has it at the end is removed."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _place(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CliError(
            f"{path.parent} takes no backup: {error.strerror}.", hint="Choose another place, with more space."
        ) from error


def _publish(part: Path, file: Path, force: bool) -> None:
    with _place(file):
        if not force:
            try:
                os.link(part, file)  # unlike a renaming, it never replaces anything
            except FileExistsError:
                raise _exists(file) from None
            except OSError:  # a file system without links
                if file.exists():
                    raise _exists(file) from None
                part.replace(file)
        else:
            part.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _exists(file: Path) -> CliError:
    return CliError(f"{file} exists already.", hint="Choose another name, or replace it with --force.")
