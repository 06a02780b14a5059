"""The table `[paseo]` of config.toml: that it is there turns the bridge on."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pacerelled.errors import ConfigError

MAX_PREVIEW = 2_000  # characters
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Account:
    """One login of a provider: agents on it get `config_dir` in the environment variable that the settings name."""

    name: str
    config_dir: Path
    note: str = ""


@dataclass(frozen=True, slots=True)
class PaseoSettings:
    """What can be set about the bridge (docs/paseo.md)."""

    enabled: bool = True
    daemon_url: str | None = None  # else where paseo.pid says, else ws://127.0.0.1:6767/ws
    home: Path | None = None  # else $PASEO_HOME, else ~/.paseo
    password: str | None = field(default=None, repr=False)  # $PASEO_PASSWORD wins
    allowed_roots: tuple[Path, ...] = ()  # agents may be started in these folders only
    default_provider: str | None = None  # "provider" or "provider/model"
    default_thinking: str | None = None
    default_mode: str | None = None
    accounts: tuple[Account, ...] = ()
    default_account: str | None = None
    account_env_var: str = "CLAUDE_CONFIG_DIR"
    origin_label: str = "pacerelle"
    read_only: bool = False
    preview_chars: int = 0  # of an agent's last message in the event of its turn's end


def parse(table: Any, where: str) -> PaseoSettings:
    """`where` says in errors which table it is. Raises ConfigError."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table", hint="Begin it with the line [paseo].")
    values: dict[str, Any] = {}
    for key, value in table.items():
        check = _CHECKS.get(key)
        if check is None:
            raise _unknown(key, where)
        values[key] = check(value, f"Setting `paseo.{key}` in {where.rpartition(' in ')[2]}")
    settings = PaseoSettings(**values)
    names = [account.name for account in settings.accounts]
    if settings.default_account is not None and settings.default_account not in names:
        raise ConfigError(
            f"{where} names the account {settings.default_account!a} as default, which is not among its accounts",
            hint=f"There are {', '.join(names)}." if names else "Add it as [paseo.accounts.NAME] with a config_dir.",
        )
    return settings


def _unknown(key: str, where: str) -> ConfigError:
    folded = {_folded(name): name for name in _CHECKS}
    near = difflib.get_close_matches(_folded(key), folded, 1)
    hint = f"Did you mean `{folded[near[0]]}`?" if near else f"Settings are: {', '.join(sorted(_CHECKS))}."
    return ConfigError(f"Unknown setting `{key}` in {where}", hint=hint)


def _folded(name: str) -> str:
    """Paseo MCP, whose settings these were, writes them in camelCase."""
    return re.sub("[^a-z0-9]", "", name.lower())


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false", hint="Write true or false, without quotes.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{where} must be text", hint='Write it in quotes: "…".')
    return value


def _url(value: Any, where: str) -> str:
    from pacerelled.config import checked_url

    return checked_url(_text(value, where), where, ("ws", "wss"))


def _folder(value: Any, where: str) -> Path:
    folder = Path(os.path.expanduser(_text(value, where)))
    if not folder.is_absolute():
        raise ConfigError(f"{where} is not a whole path: {str(folder)!a}", hint="Write it from / or ~ on.")
    return folder


def _folders(value: Any, where: str) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list of folders", hint='Write allowed_roots = ["~/code"].')
    return tuple(_folder(each, where) for each in value)


def _label(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(f"{where} must be a short name", hint="Use letters, digits, dots, dashes, underscores.")
    return value


def _variable(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise ConfigError(f"{where} is not the name of an environment variable", hint="The default fits Claude Code.")
    return value


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PREVIEW:
        raise ConfigError(f"{where} must be a whole number from 0 to {MAX_PREVIEW}", hint="0 shows nothing.")
    return value


def _accounts(value: Any, where: str) -> tuple[Account, ...]:
    hint = "Write it as [paseo.accounts.NAME] with config_dir and, if you like, note."
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table of accounts", hint=hint)
    found = []
    for name, table in value.items():
        here = f"{where}, account {name!a},"
        if not isinstance(table, Mapping) or "config_dir" not in table or set(table) - {"config_dir", "note"}:
            raise ConfigError(f"{here} must be a table with config_dir and note", hint=hint)
        note = _text(table["note"], here) if "note" in table else ""
        found.append(Account(_label(name, here), _folder(table["config_dir"], here), note))
    return tuple(found)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "enabled": _flag,
    "daemon_url": _url,
    "home": _folder,
    "password": _text,
    "allowed_roots": _folders,
    "default_provider": _text,
    "default_thinking": _text,
    "default_mode": _text,
    "accounts": _accounts,
    "default_account": _label,
    "account_env_var": _variable,
    "origin_label": _label,
    "read_only": _flag,
    "preview_chars": _count,
}
assert set(_CHECKS) == {each.name for each in fields(PaseoSettings)}
