"""The tokens that an agent was given. Hosts hand over what stands in their configuration, which may be an old one."""

from __future__ import annotations

from pacerelled.store.custody import TokenSource


class Tokens:
    """One is in use. An old one that a host still has must not take the place of one that works."""

    def __init__(self) -> None:
        self.current: str | None = None
        self._before: str | None = None
        self._refused: set[str] = set()
        self._sources: dict[str, TokenSource] = {}

    @property
    def source(self) -> TokenSource | None:
        """Where the one in use came from."""
        return self._sources.get(self.current) if self.current else None

    def give(self, token: str, *, current_refused: bool, source: TokenSource = "given") -> bool:
        """Somebody says that `token` is good. Returns whether it is to be tried now."""
        if source != "host" or token not in self._sources:  # a host says nothing new of where else it is
            self.note(token, source)
        if token == self.current:
            return current_refused
        if token in self._refused and not current_refused:
            return False
        self._before, self.current = self.current, token
        return True

    def note(self, token: str, source: TokenSource) -> None:
        """Where this one is."""
        self._sources[token] = source

    def refuse_current(self) -> bool:
        """The relay does not accept it. Returns whether the one before is to be tried instead."""
        if self.current is not None:
            self._refused.add(self.current)
        if self._before is None or self._before in self._refused:
            return False
        self.current, self._before = self._before, None
        return True

    def forget(self) -> None:
        """All of them."""
        self.current = self._before = None
        self._refused.clear()
        self._sources.clear()
