"""What can go wrong in the common language, and whose fault it is.

::

    ProtocolError              `reason`: a stable snake_case code; str() is safe to log and to show
    ├── LocalProtocolError     our caller asked for something that cannot be said
    │   ├── InvalidWidget      `field`: where; `example`: a right widget of that kind
    │   └── TooLarge           longer than receivers accept
    ├── RemoteProtocolError    the peer said something that cannot be read
    │   ├── FrameError         the envelope; `message_id`, `sender`, `conversation_id` as far as readable
    │   ├── PayloadError       what the envelope carries
    │   ├── DecryptError       ciphertext that does not open
    │   └── GroupKeyMissing    a group message whose key has not arrived; names the key
    └── StateError             a persisted Signal state that must not be loaded

No message ever contains message text, tokens or keys. No other exception leaves a parser of this package, whatever the
bytes.
"""

from __future__ import annotations

from typing import Any


class ProtocolError(Exception):
    """Base of everything here. Without a message, str() is the reason in words."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason.replace("_", " "))
        self.reason = reason


class LocalProtocolError(ProtocolError):
    """Our caller's fault."""


class InvalidWidget(LocalProtocolError):
    """`field` is a path like `spec.options[1].label`; `example` is a right widget of the same kind."""

    def __init__(self, field: str, problem: str, example: dict[str, Any]) -> None:
        super().__init__("invalid_widget", f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.example = example


class TooLarge(LocalProtocolError):
    """`size` and `limit` are in bytes."""

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        super().__init__("too_large", f"{what} has {size} bytes, {limit} are allowed")
        self.size = size
        self.limit = limit


class RemoteProtocolError(ProtocolError):
    """The peer's fault."""


class FrameError(RemoteProtocolError):
    """An envelope that cannot be read. What could be read of its routing helps to find it again."""

    def __init__(
        self,
        reason: str,
        message: str = "",
        *,
        message_id: str | None = None,
        sender: str | None = None,
        conversation_id: str | None = None,
    ) -> None:
        super().__init__(reason, message)
        self.message_id = message_id
        self.sender = sender
        self.conversation_id = conversation_id


class PayloadError(RemoteProtocolError):
    """Content that cannot be read, or keys and records that are not what they must be."""


class DecryptError(RemoteProtocolError):
    """Ciphertext that does not open with what we have. The state that was used stays as it was."""


class GroupKeyMissing(RemoteProtocolError):
    """The group key of a message is not known (yet)."""

    def __init__(self, conversation_id: str, key_id: str, epoch: int) -> None:
        super().__init__("group_key_missing", f"no group key of epoch {epoch} for this message")
        self.conversation_id = conversation_id
        self.key_id = key_id
        self.epoch = epoch


class StateError(ProtocolError):
    """A persisted Signal state that must not be loaded: damaged, another agent's, or of an unknown layout."""
