"""Prekey bundles: what starts a Signal session with someone who is not there (the relay protocol reference, "HTTP")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import _records, _wire
from .errors import PayloadError

MAX_PREKEY_ID = 2**31 - 1
DEVICE = 1  # libsignal's own device number: the device is part of the Signal name here
PROTOCOL_FEATURES = ("history-v1",)

_KEYS = {
    "identity_key": (_records.PUBLIC_KEY_BYTES, 5),
    "signed_prekey_public": (_records.PUBLIC_KEY_BYTES, 5),
    "signed_prekey_signature": (_records.SIGNATURE_BYTES, None),
    "kyber_prekey_public": (_records.KYBER_PUBLIC_BYTES, 8),
    "kyber_prekey_signature": (_records.SIGNATURE_BYTES, None),
}


@dataclass(frozen=True, slots=True)
class PreKeyBundle:
    """Public keys only. Without a one-time prekey, the first message of a session has less forward secrecy."""

    registration_id: int
    device_id: int
    identity_key: bytes
    signed_prekey_id: int
    signed_prekey: bytes
    signed_prekey_signature: bytes
    kyber_prekey_id: int
    kyber_prekey: bytes
    kyber_prekey_signature: bytes
    one_time_id: int | None = None
    one_time_key: bytes | None = None

    def without_one_time(self) -> PreKeyBundle:
        return replace(self, one_time_id=None, one_time_key=None)

    def to_json(self) -> dict[str, Any]:
        """The body of `PUT /agent/prekey-bundle`; one-time prekeys are published apart."""
        return {
            "registration_id": self.registration_id,
            "device_id": self.device_id,
            "identity_key": _wire.b64(self.identity_key),
            "signed_prekey_id": self.signed_prekey_id,
            "signed_prekey_public": _wire.b64(self.signed_prekey),
            "signed_prekey_signature": _wire.b64(self.signed_prekey_signature),
            "kyber_prekey_id": self.kyber_prekey_id,
            "kyber_prekey_public": _wire.b64(self.kyber_prekey),
            "kyber_prekey_signature": _wire.b64(self.kyber_prekey_signature),
            "protocol_features": list(PROTOCOL_FEATURES),
        }

    @classmethod
    def from_json(cls, obj: Any) -> PreKeyBundle:
        """Reads the published form, also with `one_time_prekey: {prekey_id, public_key} | null` beside it.

        Raises PayloadError (bad_bundle). Signatures are checked when the bundle is used.
        """
        if not isinstance(obj, dict):
            raise _bad("is not an object")
        keys = {name: _key(obj.get(name), name, *form) for name, form in _KEYS.items()}
        if _number(obj.get("device_id"), "device_id") != DEVICE:
            raise _bad("has a bad device_id")
        one_time = obj.get("one_time_prekey")
        one_time_id, one_time_key = None, None
        if one_time is not None:
            if not isinstance(one_time, dict):
                raise _bad("has a bad one_time_prekey")
            one_time_id = _number(one_time.get("prekey_id"), "prekey_id")
            one_time_key = _key(one_time.get("public_key"), "public_key", _records.PUBLIC_KEY_BYTES, 5)
        return cls(
            registration_id=_number(obj.get("registration_id"), "registration_id"),
            device_id=DEVICE,
            identity_key=keys["identity_key"],
            signed_prekey_id=_number(obj.get("signed_prekey_id"), "signed_prekey_id"),
            signed_prekey=keys["signed_prekey_public"],
            signed_prekey_signature=keys["signed_prekey_signature"],
            kyber_prekey_id=_number(obj.get("kyber_prekey_id"), "kyber_prekey_id"),
            kyber_prekey=keys["kyber_prekey_public"],
            kyber_prekey_signature=keys["kyber_prekey_signature"],
            one_time_id=one_time_id,
            one_time_key=one_time_key,
        )


@dataclass(frozen=True, slots=True)
class Prekeys:
    """A batch made at once: one signed and Kyber pair (in `bundle`) and one-time prekeys to use it with."""

    bundle: PreKeyBundle
    one_time: tuple[tuple[int, bytes], ...]

    def one_time_json(self) -> dict[str, Any]:
        """The body of `POST /agent/one-time-prekeys`."""
        return {
            "one_time_prekeys": [{"prekey_id": number, "public_key": _wire.b64(key)} for number, key in self.one_time]
        }


def _bad(what: str) -> PayloadError:
    return PayloadError("bad_bundle", f"the prekey bundle {what}")


def _number(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= 2**32 - 1:
        raise _bad(f"has a bad {name}")
    return value


def _key(value: Any, name: str, length: int, key_type: int | None) -> bytes:
    try:
        key = _wire.unb64(value, length)
    except _wire.WireError:
        raise _bad(f"has a bad {name}") from None
    if key_type is not None and key[0] != key_type:
        raise _bad(f"has a bad {name}")
    return key
