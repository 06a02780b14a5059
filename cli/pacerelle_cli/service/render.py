"""The service managers' files, from the templates in systemd/ and launchd/. Text in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from pacerelle_cli.errors import CliError

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE / "templates", _HERE.parents[2])  # installed; in a checkout


@dataclass(frozen=True)
class Daemon:
    """What the files say about the daemon: absolute paths, in `command` too."""

    command: Sequence[str]
    mcp_sock: Path
    control_sock: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def systemd_files(daemon: Daemon) -> dict[str, str]:
    """Unit name → text. Raises CliError for a path that no unit can hold."""
    program, *arguments = daemon.command
    if set(program) & set("\"'\\"):
        raise CliError(
            f"systemd takes no program with a quote or a backslash in its path: {program}",
            hint="Install pacerelled in another folder.",
        )
    # `:` keeps systemd from replacing `$`, which in the program's own path could not be escaped.
    command = [_quoted(f":{program}"), *map(_word, arguments)]
    environment = [f"Environment={_quoted(f'{name}={value}')}\n" for name, value in sorted(daemon.environment.items())]
    return {
        "pacerelled.socket": _fill(
            "systemd/pacerelled.socket",
            {"MCP_SOCK": _specifiers(str(daemon.mcp_sock)), "CONTROL_SOCK": _specifiers(str(daemon.control_sock))},
        ),
        "pacerelled.service": _fill(
            "systemd/pacerelled.service", {"COMMAND": " ".join(command), "ENVIRONMENT\n": "".join(environment)}
        ),
    }


def launchd_file(daemon: Daemon) -> str:
    """The agent's property list. Raises CliError for a path that it cannot hold."""
    words = "".join(f"\n        <string>{_xml(word)}</string>" for word in daemon.command)
    pairs = "".join(
        f"\n        <key>{_xml(name)}</key>\n        <string>{_xml(value)}</string>"
        for name, value in sorted(daemon.environment.items())
    )
    return _fill(
        "launchd/pacerelled.plist",
        {
            "COMMAND": words,
            "ENVIRONMENT": pairs,
            "MCP_SOCK": _xml(str(daemon.mcp_sock)),
            "CONTROL_SOCK": _xml(str(daemon.control_sock)),
            "LOG": _xml(str(daemon.log)),
        },
    )


def _fill(name: str, values: Mapping[str, str]) -> str:
    text = next(file for folder in _FOLDERS if (file := folder / name).exists()).read_text(encoding="utf-8")
    for placeholder, value in values.items():
        stem = placeholder.rstrip("\n")
        text = text.replace(f"@{stem}@{placeholder[len(stem) :]}", value)
    return text


def _word(text: str) -> str:
    return text if text.replace("-", "").isalnum() else _quoted(text)


def _quoted(text: str) -> str:
    """One word of a line that is split into words (systemd.syntax(7), "Quoting")."""
    return '"' + _specifiers(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _specifiers(text: str) -> str:
    """For a value that systemd takes as a whole: only `%` means something in it (systemd.unit(5), "Specifiers")."""
    return _printable(text).replace("%", "%%")


def _xml(text: str) -> str:
    return escape(_printable(text))


def _printable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "\0"
    if any(character < " " or character == "\x7f" for character in text):
        raise CliError(
            "A path or setting has control characters or is not UTF-8: no service file can hold it.",
            hint="Choose another --store-root, or rename the folder.",
        )
    return text
