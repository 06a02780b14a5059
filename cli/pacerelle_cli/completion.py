"""`pacerelle completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .context import command

VARIABLE = "_PACERELLE_COMPLETE"  # by which click is asked for completions


@command("completion", example="pacerelle completion bash > ~/.local/share/bash-completion/completions/pacerelle")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands and options.

    \b
    bash   pacerelle completion bash > ~/.local/share/bash-completion/completions/pacerelle
    zsh    pacerelle completion zsh > ~/.zfunc/_pacerelle    (a folder in $fpath)
    fish   pacerelle completion fish > ~/.config/fish/completions/pacerelle.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(ctx.find_root().command, {}, "pacerelle", VARIABLE)
    click.echo(script.source_template % script.source_vars())
