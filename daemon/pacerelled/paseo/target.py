"""Where the Paseo daemon is, and how to sign in: found anew for each attempt, since both change with its restarts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from .settings import PaseoSettings

DEFAULT_URL = "ws://127.0.0.1:6767/ws"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what HTTP lets stand in a header's list
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

SignIn = Literal["password", "local credential", "none"]


@dataclass(frozen=True, slots=True)
class Target:
    """`source` says where the secret is from; it never goes to another place than `url`."""

    url: str
    sign_in: SignIn
    source: str
    secret: str | None = field(default=None, repr=False)

    @property
    def auth(self) -> dict[str, str] | None:
        """What goes into the hello."""
        if self.secret is None:
            return None
        if self.sign_in == "password":
            return {"kind": "password", "password": self.secret}
        return {"kind": "localCredential", "token": self.secret}

    @property
    def subprotocols(self) -> list[str]:
        """How older daemons take the password, if it can stand there at all."""
        if self.sign_in == "password" and self.secret is not None and _TOKEN.fullmatch(self.secret):
            return [f"paseo.bearer.{self.secret}"]
        return []

    @property
    def masked(self) -> str | None:
        """The secret as it may be shown: how long it is, and its last two characters if it is long."""
        if self.secret is None:
            return None
        tail = self.secret[-2:] if len(self.secret) >= 16 else ""
        return f"…{tail} ({len(self.secret)} characters)"


def paseo_home(settings: PaseoSettings, env: Mapping[str, str]) -> Path:
    return settings.home or Path(os.path.expanduser(env.get("PASEO_HOME") or "~/.paseo"))


def find_target(settings: PaseoSettings, env: Mapping[str, str]) -> Target:
    """The daemon as the settings, its own files and the environment tell. What is missing is left out."""
    home = paseo_home(settings, env)
    listen = _listen(home)
    url = settings.daemon_url or (_url_of(listen) if listen else DEFAULT_URL)
    if password := env.get("PASEO_PASSWORD"):
        return Target(url, "password", "PASEO_PASSWORD", password)
    if settings.password is not None:
        return Target(url, "password", "config.toml", settings.password)
    file = home / "local-credential"
    if listen and _same_place(url, listen) and (credential := _read(file)):
        return Target(url, "local credential", str(file), credential)
    return Target(url, "none", "no password, and no credential of a daemon at this address")


def _listen(home: Path) -> tuple[str, int] | None:
    """Host and port of the daemon that wrote paseo.pid, if it still lives."""
    try:
        about: Any = json.loads(_read(home / "paseo.pid") or "null")
    except ValueError:
        return None
    if not isinstance(about, dict) or not isinstance(about.get("listen"), str) or not _lives(about.get("pid")):
        return None
    host, _, port = about["listen"].rpartition(":")
    if not (port.isascii() and port.isdigit()):
        return None  # a Unix socket
    return host.strip("[]") or "127.0.0.1", int(port)


def _lives(pid: Any) -> bool:
    if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False  # another user's: nothing of ours is for it
    except (OSError, OverflowError):
        return False
    return True


def _url_of(listen: tuple[str, int]) -> str:
    host, port = listen
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "*") else host
    return f"ws://[{host}]:{port}/ws" if ":" in host else f"ws://{host}:{port}/ws"


def _same_place(url: str, listen: tuple[str, int]) -> bool:
    parts = urlsplit(url)
    return parts.hostname in _LOOPBACK and (parts.port or 80) == listen[1]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None
