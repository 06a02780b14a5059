"""Settings: defaults < config.toml < environment < flags. An error names the key and where it was set."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from platformdirs import user_downloads_path

from .errors import ConfigError
from .files import is_hidden

if TYPE_CHECKING:
    from .paseo.settings import PaseoSettings

DEFAULT_BASE_URL = "https://api.pacerelle.com"


def download_folder() -> Path:
    """Where people's files go unless something else is set."""
    return user_downloads_path() / "Pacerelle"


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set. Durations are seconds, where the name does not say days."""

    base_url: str = DEFAULT_BASE_URL
    ws_url: str | None = None
    log_level: str = "info"
    log_format: str = "text"  # or json
    keyring: bool = True
    claim_lease: float = 1800.0  # a session silent for so long loses its claims
    claim_grace: float = 60.0  # a lost connection's claims wait so long for its return
    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    reconnect_max: float = 30.0
    retry_uncertain: bool = False  # send the identical envelope again after a reconnection
    files_in: tuple[Path, ...] = field(default_factory=lambda: (download_folder(),))  # where attachments may be saved
    files_out: tuple[Path, ...] = ()  # where files may be sent from
    http: bool = False  # MCP over HTTP, for hosts that cannot start a process
    http_host: str = "127.0.0.1"
    http_port: int = 8790  # 0: any that is free
    http_names: tuple[str, ...] = ()  # other host names under which this machine is reached
    overdue_after: float = 3600.0  # a request that is unanswered for so long raises an event; 0: none does
    event_preview: int = 0  # characters of a request's text that its event shows
    paseo: PaseoSettings | None = None  # the table [paseo], which is in the file only
    # What is kept of processed requests, replies that came to an end, events, and receipts (store/retention.py)
    retention_days: int = 90
    retention_requests: int = 10_000
    retention_replies: int = 10_000
    retention_events: int = 10_000
    retention_receipts: int = 100_000
    retention_receipt_days: int = 400


ENVIRONMENT = {
    "PACERELLE_BASE_URL": "base_url",
    "PACERELLE_WS_URL": "ws_url",
    "PACERELLED_LOG_LEVEL": "log_level",
    "PACERELLED_LOG_FORMAT": "log_format",
    "PACERELLED_KEYRING": "keyring",
    "PACERELLED_CLAIM_LEASE": "claim_lease",
    "PACERELLED_CLAIM_GRACE": "claim_grace",
    "PACERELLED_PING_INTERVAL": "ping_interval",
    "PACERELLED_PING_TIMEOUT": "ping_timeout",
    "PACERELLED_RECONNECT_MAX": "reconnect_max",
    "PACERELLED_RETRY_UNCERTAIN": "retry_uncertain",
    "PACERELLED_FILES_IN": "files_in",
    "PACERELLED_FILES_OUT": "files_out",
    "PACERELLED_HTTP": "http",
    "PACERELLED_HTTP_HOST": "http_host",
    "PACERELLED_HTTP_PORT": "http_port",
    "PACERELLED_HTTP_NAMES": "http_names",
    "PACERELLED_OVERDUE_AFTER": "overdue_after",
    "PACERELLED_EVENT_PREVIEW": "event_preview",
    "PACERELLED_RETENTION_DAYS": "retention_days",
    "PACERELLED_RETENTION_REQUESTS": "retention_requests",
    "PACERELLED_RETENTION_REPLIES": "retention_replies",
    "PACERELLED_RETENTION_EVENTS": "retention_events",
    "PACERELLED_RETENTION_RECEIPTS": "retention_receipts",
    "PACERELLED_RETENTION_RECEIPT_DAYS": "retention_receipt_days",
}
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
RANGES = {
    "claim_lease": (1.0, 7 * 86400.0),
    "claim_grace": (0.0, 3600.0),
    "ping_interval": (0.1, 300.0),
    "ping_timeout": (0.1, 300.0),
    "reconnect_max": (0.05, 600.0),
    "http_port": (0, 65_535),
    "overdue_after": (0.0, 30 * 86400.0),
    "event_preview": (0, 2_000),
    "retention_days": (1, 36_500),
    "retention_requests": (100, 1_000_000),
    "retention_replies": (100, 1_000_000),
    "retention_events": (100, 1_000_000),
    "retention_receipts": (1_000, 10_000_000),
    "retention_receipt_days": (30, 36_500),
}


_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")  # or an IPv6 address, without brackets


def load_settings(config_file: Path, env: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """Merges the four layers. Raises ConfigError."""
    values: dict[str, Any] = {}
    for source, layer in (
        (str(config_file), _from_file(config_file)),
        ("the environment", {key: env[name] for name, key in ENVIRONMENT.items() if env.get(name)}),
        ("the command line", {k: v for k, v in flags.items() if v is not None}),
    ):
        for key, value in layer.items():
            values[key] = _checked(key, value, source)
    return Settings(**values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="Mend its permissions or remove it."
        ) from error
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="Mend the line named there.") from error


def _checked(key: str, value: Any, source: str) -> Any:
    kinds = {f.name: f.type for f in fields(Settings)}
    if key not in kinds:
        near = difflib.get_close_matches(key, kinds, 1)
        raise ConfigError(
            f"Unknown setting `{key}` in {source}",
            hint=f"Did you mean `{near[0]}`?" if near else f"Settings are: {', '.join(sorted(kinds))}.",
        )
    where = f"Setting `{key}` in {source}"
    if key == "paseo":
        from .paseo.settings import parse  # only where there is such a table

        return parse(value, f"The table [paseo] in {source}")
    kind = str(kinds[key])
    if kind == "bool":
        return _boolean(value, where)
    if kind == "float":
        return _number(key, value, where, "a number of seconds")
    if kind == "int":
        return int(_number(key, value, where, "a whole number"))
    if kind == "tuple[str, ...]":
        return _names(key, value, where)
    if kind.startswith("tuple"):
        return _folders(key, value, where)
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be text, not {type(value).__name__}", hint=f'Write {key} = "…".')
    choices = {"log_level": LOG_LEVELS, "log_format": LOG_FORMATS}.get(key)
    if choices and value.lower() not in choices:
        raise ConfigError(f"{where} is `{value}`", hint=f"Use one of: {', '.join(choices)}.")
    if key in ("base_url", "ws_url"):
        return checked_url(value, where, ("http", "https") if key == "base_url" else ("ws", "wss"))
    if key == "http_host":
        return _address(value, where)
    return value.lower()


def checked_url(value: str, where: str, schemes: tuple[str, ...]) -> str:
    """The URL without a trailing slash. Raises ConfigError naming `where`."""
    try:
        parts = urlsplit(value)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if (
        parts.scheme not in schemes
        or not parts.hostname
        or not port_ok
        or parts.username is not None
        or any(c <= " " or c == "\x7f" for c in value)
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(f"{where} is not a usable address", hint=f"Write it like {schemes[-1]}://relay.example.org")
    return value.rstrip("/")


def _address(value: str, where: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ConfigError(
            f"{where} is not an IP address of this machine",
            hint="127.0.0.1 is this machine only, 0.0.0.0 every network that it is in.",
        ) from None


def _names(key: str, value: Any, where: str) -> tuple[str, ...]:
    """A list of host names without ports, or in the environment one text with commas."""
    names = value.split(",") if isinstance(value, str) and where.endswith("the environment") else value
    if not isinstance(names, list) or not all(isinstance(n, str) and _HOST_NAME.fullmatch(n.strip()) for n in names):
        raise ConfigError(
            f"{where} must be a list of host names, without ports", hint=f'Write {key} = ["mybox.example.org"].'
        )
    return tuple(name.strip().lower() for name in names)


def _folders(key: str, value: Any, where: str) -> tuple[Path, ...]:
    """A list, or in the environment one text with the system's separator (`:`)."""
    names = value.split(os.pathsep) if isinstance(value, str) and where.endswith("the environment") else value
    hint = f'Write {key} = ["~/Documents/Pacerelle"].'
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of folders", hint=hint)
    folders = tuple(Path(os.path.expanduser(name)) for name in names if name)
    for folder in folders:
        if not folder.is_absolute() or "\0" in str(folder):
            raise ConfigError(f"{where} has {str(folder)!r}, which is not a whole path", hint=hint)
        if is_hidden(folder):
            raise ConfigError(
                f"{where} has {str(folder)!r}, which is hidden: settings and keys live in such folders",
                hint="Use a folder without a part that begins with a dot.",
            )
    return folders


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on"):
        return True
    if isinstance(value, str) and value.lower() in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{where} must be true or false", hint="Write true or false, without quotes in the file.")


def _number(key: str, value: Any, where: str, what: str) -> float:
    low, high = RANGES[key]
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not low <= number <= high or (isinstance(low, int) and number != int(number)):
        raise ConfigError(
            f"{where} must be {what} from {low:.10g} to {high:.10g}",
            hint=f"The default is {key} = {getattr(Settings(), key):.10g}.",
        )
    return number
