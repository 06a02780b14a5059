"""What may be done at all: where agents may be started, on which account, and which agents a caller sees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pacerelled.errors import InvalidArgument, NotPossible

from .model import Agent
from .settings import Account, PaseoSettings

_ROOTS_HINT = (
    'The user allows a folder with a line like allowed_roots = ["~/code"] under [paseo] in config.toml'
    " (`pacerelle paths` shows where that is) and then `pacerelle stop`."
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What one caller may see and do: its token may only look, or sees only agents with these labels."""

    read_only: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def sees(self, labels: Mapping[str, str]) -> bool:
        return self.labels.items() <= labels.items()


def folder(cwd: str, roots: tuple[Path, ...]) -> Path:
    """The folder itself, without symbolic links, if an agent may be started in it. Blocks. Raises InvalidArgument.

    Paseo up to 0.1 runs an agent in the root of the Git repository that a folder is in, so that must be allowed too.
    """
    if not roots:
        raise InvalidArgument("No folder is allowed to start agents in", argument="cwd", hint=_ROOTS_HINT)
    given = os.path.expanduser(cwd)
    if not os.path.isabs(given) or "\0" in given:
        raise InvalidArgument("`cwd` is no whole path", argument="cwd", hint="Give it from the root, or from ~, on.")
    real = Path(os.path.realpath(given))
    if not real.is_dir():
        raise InvalidArgument(f"{cwd} is no folder", argument="cwd", hint="Make it first, or give another.")
    for path, words in ((real, cwd), (_repository(real), f"The Git repository of {cwd}")):
        if not is_allowed(path, roots):
            raise InvalidArgument(
                f"{words} is in none of the folders in which agents may be started: {', '.join(map(str, roots))}",
                argument="cwd",
                hint=_ROOTS_HINT,
            )
    return real


def is_allowed(path: Path, roots: tuple[Path, ...]) -> bool:
    """Whether a path, free of symbolic links, is one of the folders or inside one. Blocks."""
    return any(path.is_relative_to(os.path.realpath(root)) for root in roots)


def where_it_runs(agent: Agent, asked: Path, roots: tuple[Path, ...], worktrees: Path | None) -> str | None:
    """Why an agent may not run where Paseo put it; None if it may. Blocks.

    Looked at again after it was made, since somebody may exchange a folder for a link meanwhile, and Paseo may choose
    another folder than it was asked for. `worktrees`: where Paseo makes worktrees, if one was asked for.
    """
    real = Path(os.path.realpath(agent.cwd)) if agent.cwd else None
    if real is None:
        return "Paseo does not say where"
    if worktrees is not None and real.is_relative_to(os.path.realpath(worktrees)):
        return None
    if not is_allowed(real, roots):
        return f"Paseo would run it in {agent.cwd}, which is not in an allowed folder"
    if os.path.realpath(asked) != str(asked):
        return f"{asked} was exchanged meanwhile"
    return None


def account(settings: PaseoSettings, name: str | None) -> Account | None:
    """The account that is asked for, or the default one, if any. Raises InvalidArgument."""
    wanted = name if name is not None else settings.default_account
    if wanted is None:
        return None
    for each in settings.accounts:
        if each.name == wanted:
            return each
    names = ", ".join(each.name for each in settings.accounts)
    raise InvalidArgument(
        f"There is no account {wanted[:64]!a}",
        argument="account",
        hint=f"There are {names}." if names else "The user adds one under [paseo.accounts.NAME] in config.toml.",
    )


def check_writable(settings: PaseoSettings, scope: Scope) -> None:
    """Raises NotPossible."""
    if settings.read_only or scope.read_only:
        why = "the bridge is read-only (read_only under [paseo])" if settings.read_only else "your token may only look"
        raise NotPossible(f"This cannot be done here: {why}", hint="Ask the user.", code="read_only")


def _repository(path: Path) -> Path:
    """The root of the Git repository that a folder is in; itself if it is in none."""
    for each in (path, *path.parents):
        if (each / ".git").exists():
            return each
    return path
