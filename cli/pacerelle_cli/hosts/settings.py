"""One host's file with our entry in it: what it has, and the text that it should have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import entry, formats
from .catalogue import Host
from .entry import Wanted
from .errors import BadHostFile, BadText, HostFailed
from .files import UNTOUCHED, read


class Settings:
    """`found` is the entry, None if there is none. The file is read once; changes are refused if it changed since."""

    def __init__(self, host: Host, path: Path) -> None:
        """Raises BadHostFile."""
        self.host = host
        self.path = path
        self._file = read(path)
        self.found: Any = None
        if self._file.raw is not None:
            with self._understood():
                self.found = formats.find(formats.read(host.format, self._file.text), host.where)

    def install(self, wanted: Wanted) -> Path | None:
        """Writes the entry; returns the backup of a file that was there. Raises BadHostFile."""
        text = self._file.text
        with self._understood():
            for place, value in entry.edits(self.host, self.found, wanted):
                text = formats.put(self.host.format, text, place, value)
        return self._file.write(text)

    def uninstall(self) -> Path | None:
        """Takes the entry out; returns the backup. Raises HostFailed if the entry is not ours, BadHostFile."""
        if not entry.is_ours(self.host, self.found):
            raise HostFailed(
                f"The entry in {self.path} runs something else than Pacerelle's daemon.",
                hint="It is not ours to remove. Remove it by hand if you do not need it.",
            )
        with self._understood():
            text = formats.remove(self.host.format, self._file.text, self.host.where)
        return self._file.write(text)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except BadText as error:
            raise BadHostFile(f"{self.path}, {error}", hint=UNTOUCHED) from error
