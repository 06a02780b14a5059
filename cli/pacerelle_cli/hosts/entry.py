"""The entry that a host should have, and what becomes of the one that it has.

An entry runs the shim in its fast form (docs/shim.md). It never gets a token: the daemon has those. Of an entry that is
there, everything is kept that need not change: a host that ran `@pacerelle/mcp-server` keeps its environment and its
options.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from .catalogue import Host

CURRENT: Final = "current"
OUTDATED: Final = "outdated"
OTHER_COMMAND: Final = "other command"
ABSENT: Final = "absent"

_SHIM: Final = "pacerelle_shim"
_ORIGINAL: Final = "@pacerelle/mcp-server"
_FLAGS: Final = {"PACERELLE_AGENT_ID": "--agent-id", "PACERELLE_STORE_ROOT": "--store-root"}


@dataclass(frozen=True)
class Wanted:
    """What an entry should run. `env`, `options` (flag → value) and `flags` are those that the user asked for now."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    options: Mapping[str, str]
    flags: tuple[str, ...] = ()

    @classmethod
    def here(
        cls, *, agent_id: str | None, store_root: str | None, socket: str | None, flags: tuple[str, ...] = ()
    ) -> Wanted:
        """This installation's shim. Paths are absolute; None means what the entry has, or else the shim's default."""
        spec = importlib.util.find_spec(_SHIM)
        assert spec is not None
        assert spec.origin is not None
        shim = Path(spec.origin).with_name("__main__.py")
        env = {"PACERELLE_AGENT_ID": agent_id, "PACERELLE_STORE_ROOT": store_root}
        return cls(
            sys.executable,
            ("-I", "-S", str(shim)),
            {name: value for name, value in env.items() if value},
            {"--socket": socket} if socket else {},
            flags,
        )


def state(host: Host, found: Any, wanted: Wanted) -> str:
    """What `host` has, which is `found` in its file (None: nothing)."""
    if found is None:
        return ABSENT
    if not edits(host, found, wanted):
        return CURRENT
    return OUTDATED if is_ours(host, found) else OTHER_COMMAND


def is_ours(host: Host, found: Any) -> bool:
    """Whether the entry runs a shim, be it another installation's."""
    words = command_line(host, found)
    return _options(words) is not None and not any(_ORIGINAL in word for word in words)


def command_line(host: Host, found: Any) -> list[str]:
    """What the entry runs; empty if it runs nothing."""
    if not isinstance(found, Mapping):
        return []
    command, args = found.get(host.command), found.get(host.args, [])
    if not isinstance(command, str) or not command or not isinstance(args, list):
        return []
    return [command, *map(str, args)]


def environment(host: Host, found: Any) -> dict[str, str]:
    """The entry's own variables."""
    given = found.get(host.env) if isinstance(found, Mapping) else None
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}


def agent_of(host: Host, found: Any) -> str | None:
    """The agent that the entry names."""
    named = environment(host, found).get("PACERELLE_AGENT_ID")
    for word, following in pairwise([*command_line(host, found), ""]):
        flag, _, value = word.partition("=")
        named = value or following if flag == "--agent-id" else named
    return named or None


def fresh(host: Host, wanted: Wanted) -> dict[str, Any]:
    """The entry where there is none yet."""
    args = [*wanted.args, *_kept([], wanted)]
    env = {host.env: dict(wanted.env)} if wanted.env else {}
    return {**host.first, host.command: wanted.command, host.args: args, **env, **host.more}


def edits(host: Host, found: Any, wanted: Wanted) -> list[tuple[tuple[str, ...], Any]]:
    """What to put where in the host's file, so that it has the wanted entry; empty if it has it."""
    words = command_line(host, found)
    if not words and not (isinstance(found, Mapping) and all(_is_setting(name) for name in found)):
        return [(host.where, fresh(host, wanted))]
    args = [*wanted.args, *_kept(_options(words) or [], wanted)]
    fields = {host.command: wanted.command, host.args: args}
    changed = {name: value for name, value in fields.items() if found.get(name) != value}
    added = {name: value for name, value in {**host.first, **host.more}.items() if name not in found}
    env = environment(host, found)
    missing = {name: value for name, value in wanted.env.items() if env.get(name) != value}
    if missing and not env:
        added[host.env] = missing
    changes: list[tuple[tuple[str, ...], Any]] = [((*host.where, name), v) for name, v in {**changed, **added}.items()]
    if env:
        changes += [((*host.where, host.env, name), value) for name, value in missing.items()]
    return changes


def _is_setting(name: Any) -> bool:
    """Whether a field of an entry can stay beside a command; an address cannot."""
    return not str(name).lower().endswith(("url", "uri", "command", "cmd"))


def _options(words: Sequence[str]) -> list[str] | None:
    """The options for the shim, or for the original server, which has the same; None if the words run neither."""
    for number, word in enumerate(words):
        parts = word.split("/")
        runs_shim = parts[-1] in ("pacerelle-mcp", _SHIM) or parts[-2:] == [_SHIM, "__main__.py"]
        if runs_shim or _ORIGINAL in word:
            return list(words[number + 1 :])
    return None


def _kept(options: Sequence[str], wanted: Wanted) -> list[str]:
    """The options without those that are now asked for otherwise, and with those that are new."""
    replaced = {*wanted.options, *(_FLAGS[name] for name in wanted.env)}
    kept: list[str] = []
    words = iter(options)
    for word in words:
        flag, given, _ = word.partition("=")
        if flag not in replaced:
            kept.append(word)
        elif not given:
            next(words, None)
    kept += [word for option in wanted.options.items() for word in option]
    return kept + [flag for flag in wanted.flags if flag not in kept]
