"""What must not be in a report: secrets, should one ever have got into a log, and who and where somebody is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

_GONE: Final = "[…]"
_NAMED: Final = r"[\w-]*(?:token|secret|password|passphrase)[\w-]*"
_PATTERNS: Final = (
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {_GONE}"),
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{_GONE}@"),  # a name and a password in an address
    (re.compile(r"\bpcl_\w+"), _GONE),  # an access token of ours
    (
        re.compile(r"(?i)\b([\w-]*(?:token|secret|password|passphrase)[\w-]*[\"']?\s*[=:]\s*)[\"']?[^\s\"',}&]+"),
        rf"\1{_GONE}",
    ),
    # A long word of letters and digits: keys, digests, tokens in base64 and hex.
    (re.compile(r"(?<![\w/.-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{24,}"), _GONE),
)
_SHOWN: Final = ("log_level", "log_format", "base_url", "ws_url", "http_host")
"""Settings whose text is shown; of all others only numbers and flags are."""


def redacted(text: str, names: Mapping[str, str]) -> str:
    """`names` says what else is to be replaced, by what: the home, the user, agents."""
    for name, instead in sorted(names.items(), key=lambda pair: -len(pair[0])):
        if len(name) > 2:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", instead, text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def settings(raw: bytes) -> Iterable[str]:
    """The lines of config.toml that can be shown."""
    try:
        found = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        yield "(not valid TOML)"
        return
    for name, value in found.items():
        yield f"{name} = {_value(name, value)}"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (isinstance(value, str) and name in _SHOWN):
        return repr(value)
    return f"({len(value)} entries)" if isinstance(value, list | dict) else "(set)"
