"""The OS keyring behind a thread and a timeout: whatever it does, nobody waits for it longer than that.

It can be missing, locked, waiting for its user at a prompt, hanging, or failing. `Keyring.state` says which, for status
and errors; for whoever wants a secret it is all the same: there is none.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Literal

log = logging.getLogger(__name__)

SERVICE = "pacerelled"
TIMEOUT = 5.0  # seconds

State = Literal["off", "absent", "ready", "locked", "prompting", "hanging", "failed"]

MEANING: dict[State, tuple[str, str]] = {
    "off": ("is switched off by the setting `keyring`", "Set keyring = true in config.toml to use it."),
    "absent": ("is not there: no keyring service can be reached from here", "Without one, key files do the work."),
    "ready": ("is ready", ""),
    "locked": ("is locked", "Unlock it (by logging in at the desktop, or in its own program)."),
    "prompting": ("waits for its user at a prompt", "Answer its prompt; then it is used."),
    "hanging": (f"does not answer within {TIMEOUT:.0f} s", "Restart the keyring service."),
    "failed": ("fails", "The log names the error."),
}
"""What a state means, as the end of a sentence about the keyring, and what to do about it."""


class Keyring:
    """`state` is how the last call found it. While a call is stuck, others are not tried."""

    def __init__(self, enabled: bool, env: Mapping[str, str]) -> None:
        # Without a session bus there is no Secret Service, and looking for one can hang.
        there = sys.platform == "darwin" or bool(env.get("DBUS_SESSION_BUS_ADDRESS"))
        self.state: State = "off" if not enabled else "ready" if there else "absent"
        self._usable = enabled and there
        self._stuck: threading.Event | None = None  # set when the call that took too long has ended

    def __str__(self) -> str:
        return f"The OS keyring {MEANING[self.state][0]}"

    @property
    def hint(self) -> str:
        """What to do about its state; empty if nothing is wrong."""
        return MEANING[self.state][1]

    async def get(self, name: str, *, prompt: bool = True) -> str | None:
        """Without `prompt` a locked keyring is left alone: nobody is asked for its password in the background."""
        value = await self._call(lambda backend: backend.get_password(SERVICE, name), prompt=prompt)
        return value if isinstance(value, str) else None

    async def set(self, name: str, value: str) -> bool:
        """Whether it is kept now. Where its user has to answer a prompt first, it may be kept later."""

        def save(backend: Any) -> bool:
            backend.set_password(SERVICE, name, value)
            return bool(backend.get_password(SERVICE, name) == value)

        return bool(await self._call(save))

    async def delete(self, name: str) -> None:
        def remove(backend: Any) -> None:
            if backend.get_password(SERVICE, name) is not None:
                backend.delete_password(SERVICE, name)

        await self._call(remove)

    async def look(self) -> State:
        """The state now; asks nobody for a password."""
        await self._call(lambda _: None, prompt=False)
        return self.state

    async def _call(self, fn: Callable[[Any], object], *, prompt: bool = True) -> object | None:
        if not self._usable or (self._stuck is not None and not self._stuck.is_set()):
            return None
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object | None] = loop.create_future()
        ended = threading.Event()
        locked = False

        def deliver(value: object | None) -> None:
            if not done.done():
                done.set_result(value)

        def ask() -> object | None:
            nonlocal locked
            import keyring  # not at once: it looks for backends, and most daemons never need it

            if getattr(keyring.get_keyring(), "priority", 0) <= 0 and not _came_later():
                self.state = "absent"
                return None
            locked = _is_locked(keyring.get_keyring())
            if locked and not prompt:
                self.state = "locked"
                return None
            try:
                value = fn(keyring)
            except keyring.errors.KeyringLocked:
                self.state = "locked"
                return None
            self.state = "ready"
            return value

        def work() -> None:
            value: object | None = None
            try:
                value = ask()
            except Exception as error:
                self.state = "failed"
                log.warning("The OS keyring refused: %s", type(error).__name__)
            ended.set()
            try:
                loop.call_soon_threadsafe(deliver, value)
            except RuntimeError:  # the loop has ended meanwhile
                return

        # A daemon thread: one that hangs in the keyring must not keep the process alive.
        threading.Thread(target=work, name="keyring", daemon=True).start()
        try:
            return await asyncio.wait_for(done, TIMEOUT)
        except TimeoutError:
            self._stuck = ended
            self.state = "prompting" if locked else "hanging"
            log.warning("%s", self)
            return None


def _came_later() -> bool:
    """Whether there is a Secret Service by now: the library looks for it once."""
    import keyring
    from keyring.backends import SecretService

    backend: Any = SecretService.Keyring
    try:
        found = bool(backend.priority > 0)
    except RuntimeError:
        return False
    if found:
        keyring.set_keyring(backend())
    return found


def _is_locked(backend: Any) -> bool:
    """Whether a Secret Service would ask its user for a password. Elsewhere that cannot be known before."""
    if not any("SecretService" in type(each).__module__ for each in (backend, *getattr(backend, "backends", ()))):
        return False
    import secretstorage

    with closing(secretstorage.dbus_init()) as bus:
        try:
            return secretstorage.Collection(bus).is_locked()
        except secretstorage.ItemNotFoundException:
            return True  # it has no collection yet, and asks for a password for a new one
