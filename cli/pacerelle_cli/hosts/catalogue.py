"""The hosts that are known: their files, the form of an entry, and how they start a server (docs/hosts.md).

Paths, forms and environments are from their makers' documentation, and from running those that run on Linux.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NAME: Final = "pacerelle"
"""What the entry is called in every host."""

_SDK_ENVIRONMENT: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_CODEX_ENVIRONMENT: Final = (*_SDK_ENVIRONMENT, "LANG", "LC_ALL", "TMPDIR", "TZ")
_DESKTOP_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"  # what a program gets that was not started in a terminal


@dataclass(frozen=True)
class Place:
    """`rest` in the folder that `variable` names if it is set, else in `folder` of the home."""

    folder: str
    rest: str = ""
    variable: str = ""

    def path(self, env: Mapping[str, str]) -> Path:
        given = env.get(self.variable, "")
        return Path(given if os.path.isabs(given) else Path(env.get("HOME") or Path.home(), self.folder), self.rest)


def _config(rest: str) -> Place:
    return Place(".config", rest, "XDG_CONFIG_HOME")


def _support(rest: str) -> Place:
    return Place("Library/Application Support", rest)


@dataclass(frozen=True)
class Host:
    """One MCP application.

    `servers` is where its file has the entries. An entry's fields are `first`, then those named in `command`, `args`
    and `env`, then `more`. `sign` is a folder that only the host makes, if the one of its file is none. `passes` is
    what a server gets of its environment. `restart` tells the user what to do.
    """

    key: str
    title: str
    linux: Place
    mac: Place
    format: str
    servers: str
    restart: str
    programs: tuple[str, ...] = ()
    app: str = ""
    sign: Place | None = None
    command: str = "command"
    args: str = "args"
    env: str = "env"
    first: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    passes: tuple[str, ...] = _SDK_ENVIRONMENT
    desktop: bool = False

    @property
    def where(self) -> tuple[str, str]:
        """The entry's place in the file."""
        return self.servers, NAME

    def file(self, env: Mapping[str, str], platform: str = sys.platform) -> Path:
        return (self.mac if platform == "darwin" else self.linux).path(env)

    def is_installed(self, env: Mapping[str, str]) -> bool:
        """Whether there is a sign of it: its program, or something in its folder that we did not make."""
        if any(shutil.which(program, path=env.get("PATH")) for program in self.programs):
            return True
        if self.app and Path("/Applications", self.app).exists():
            return True
        file = self.file(env)
        try:
            names = os.listdir(self.sign.path(env) if self.sign else file.parent)
        except OSError:
            return False
        return any(not name.startswith(file.name) for name in names)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What of `env` it hands on to a server that it starts: the least that any version does."""
        passed = {name: env[name] for name in self.passes if name in env}
        return passed | {"PATH": _DESKTOP_PATH} if self.desktop else passed


HOSTS: Final = {
    host.key: host
    for host in (
        Host(
            "claude-desktop",
            "Claude Desktop",
            linux=_config("Claude/claude_desktop_config.json"),
            mac=_support("Claude/claude_desktop_config.json"),
            format="json",
            servers="mcpServers",
            restart="Quit Claude Desktop wholly, not only its window, and start it again.",
            app="Claude.app",
            desktop=True,
        ),
        Host(
            "claude-code",
            "Claude Code",
            linux=Place("", ".claude.json", "CLAUDE_CONFIG_DIR"),
            mac=Place("", ".claude.json", "CLAUDE_CONFIG_DIR"),
            format="json",
            servers="mcpServers",
            restart="Start a new session of Claude Code.",
            programs=("claude",),
            sign=Place(".claude", variable="CLAUDE_CONFIG_DIR"),
            first={"type": "stdio"},
        ),
        Host(
            "codex",
            "Codex",
            linux=Place(".codex", "config.toml", "CODEX_HOME"),
            mac=Place(".codex", "config.toml", "CODEX_HOME"),
            format="toml",
            servers="mcp_servers",
            restart="Start a new session of Codex.",
            programs=("codex",),
            passes=_CODEX_ENVIRONMENT,
        ),
        Host(
            "cursor",
            "Cursor",
            linux=Place(".cursor", "mcp.json"),
            mac=Place(".cursor", "mcp.json"),
            format="jsonc",
            servers="mcpServers",
            restart="Switch the server off and on in Cursor's MCP settings, or restart Cursor.",
            programs=("cursor",),
            app="Cursor.app",
            desktop=True,
        ),
        Host(
            "vscode",
            "VS Code",
            linux=_config("Code/User/mcp.json"),
            mac=_support("Code/User/mcp.json"),
            format="jsonc",
            servers="servers",
            restart="Start the server with VS Code's command “MCP: List Servers”.",
            programs=("code",),
            app="Visual Studio Code.app",
            first={"type": "stdio"},
            desktop=True,
        ),
        Host(
            "zed",
            "Zed",
            linux=_config("zed/settings.json"),
            mac=Place(".config", "zed/settings.json"),
            format="jsonc",
            servers="context_servers",
            restart="Switch the server off and on in the settings of Zed's agent panel, or restart Zed.",
            programs=("zed", "zeditor"),
            app="Zed.app",
            first={"source": "custom"},
            desktop=True,
        ),
        Host(
            "gemini",
            "Gemini CLI",
            linux=Place(".gemini", "settings.json"),
            mac=Place(".gemini", "settings.json"),
            format="jsonc",
            servers="mcpServers",
            restart="Start a new session of Gemini CLI, in a folder that it trusts.",
            programs=("gemini",),
        ),
        Host(
            "goose",
            "Goose",
            linux=_config("goose/config.yaml"),
            mac=_config("goose/config.yaml"),
            format="yaml",
            servers="extensions",
            restart="Start a new session of Goose.",
            programs=("goose",),
            app="Goose.app",
            command="cmd",
            env="envs",
            first={"enabled": True, "type": "stdio", "name": NAME, "description": "Requests from people's phones"},
            more={"timeout": 300},
        ),
    )
}
