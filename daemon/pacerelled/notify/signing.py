"""What proves to a webhook's receiver that a delivery is ours, and fresh. Pure."""

from __future__ import annotations

import hashlib
import hmac
import secrets

SECRET_PREFIX = "whsec_"


def new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def signature(secret: str, at: int, body: bytes) -> str:
    """The header `Pacerelle-Signature` of a body sent `at` this Unix time, which is signed with it."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"
