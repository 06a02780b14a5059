"""File names that others chose: data, of which a harmless name is made."""

from __future__ import annotations

import re
import unicodedata

MAX_BYTES = 200  # file systems take 255, and a number may be added
MAX_SUFFIX = 20  # characters that are kept at the end when a name is cut

_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|COM[0-9¹²³]|LPT[0-9¹²³])\s*(?:\.|$)", re.IGNORECASE)


def safe_name(name: str) -> str:
    """One visible name for one new file, on any file system.

    The last part of what may be a path; without control and format characters (such as those that turn the writing
    direction and can hide a suffix); with no dot at its beginning; not a device's name on Windows; at most `MAX_BYTES`
    long in UTF-8, with its suffix.
    """
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    shown = "".join(" " if c.isspace() else c for c in last if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Cn"))
    plain = re.sub('[<>:"|?*]', "_", shown).strip(" .") or "attachment"
    if _RESERVED.match(plain):
        plain = f"_{plain}"
    stem, dot, suffix = plain.rpartition(".")
    if not stem or len(suffix) > MAX_SUFFIX:
        stem, dot, suffix = plain, "", ""
    room = MAX_BYTES - len(f"{dot}{suffix}".encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip(" .") + dot + suffix


def numbered(name: str, number: int) -> str:
    """The name itself for 1, then `name (2).pdf`."""
    if number == 1:
        return name
    stem, dot, suffix = name.rpartition(".")
    return f"{stem} ({number}){dot}{suffix}" if stem else f"{name} ({number})"


def shown_name(name: str) -> str:
    """The name under which a file of ours is sent: the last part of a path, without control characters."""
    last = re.split(r"[/\\]", name)[-1]
    return "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cs"))[:512].strip() or "file"
