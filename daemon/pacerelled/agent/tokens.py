"""The tokens that an agent was given. Hosts hand over what stands in their configuration, which may be an old one."""

from __future__ import annotations


class Tokens:
    """One is in use. An old one that a host still has must not take the place of one that works."""

    def __init__(self) -> None:
        self.current: str | None = None
        self._before: str | None = None
        self._refused: set[str] = set()

    def give(self, token: str, *, current_refused: bool) -> bool:
        """Somebody says that `token` is good. Returns whether it is to be tried now."""
        if token == self.current:
            return current_refused
        if token in self._refused and not current_refused:
            return False
        self._before, self.current = self.current, token
        return True

    def refuse_current(self) -> bool:
        """The relay does not accept it. Returns whether the one before is to be tried instead."""
        if self.current is not None:
            self._refused.add(self.current)
        if self._before is None or self._before in self._refused:
            return False
        self.current, self._before = self._before, None
        return True
