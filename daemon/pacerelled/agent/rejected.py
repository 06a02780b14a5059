"""Why an inbound message goes to quarantine."""

from __future__ import annotations

IDENTITY_CHANGED = "identity_changed"  # held: its device has another key than before
IDENTITY_REFUSED = "identity_refused"  # its key is one that the user decided against
DEVICE_BLOCKED = "device_blocked"  # held: the user blocked its device
NOT_ALLOWED = "not_allowed"  # held: its sender is not on the allow list
KEY_MISSING = "group_key_missing"

OF_A_DEVICE = (IDENTITY_CHANGED, IDENTITY_REFUSED, DEVICE_BLOCKED)


class Rejected(Exception):
    """An inbound message that goes to quarantine. `plaintext` is kept: what is decrypted once cannot be decrypted
    again.
    """

    def __init__(self, reason: str, detail: str, plaintext: bytes | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.plaintext = plaintext
