"""`pacerelle man`."""

from __future__ import annotations

from pathlib import Path

import click

from pacerelle_cli import show
from pacerelle_cli.context import Cli, command, json_option
from pacerelle_cli.errors import CliError
from pacerelle_cli.text import escape


@command("man", example="pacerelle man ~/.local/share/man/man1\npacerelle man . && man ./pacerelle-status.1")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@json_option
@click.pass_context
def man(ctx: click.Context, folder: Path) -> None:
    """Write the manual pages into FOLDER, one for each command.

    They are made of the help of the commands. Pages of these names that are there are replaced.
    """
    from importlib.metadata import version

    from .pages import pages
    from .roff import SECTION, render

    number, written = version("pacerelled"), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for page in pages(ctx.find_root().command, ("pacerelle",)):
            path = folder / f"{page.name}.{SECTION}"
            path.write_text(render(page, number), encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        raise CliError(f"{error.filename} cannot be written: {error.strerror}.") from error
    if ctx.ensure_object(Cli).json:
        show.as_json({"written": written})
    else:
        click.echo(f"{len(written)} pages are in {escape(str(folder))}.")
