"""JSON, base64 and identifiers, strictly: every failure here is a `WireError`, which each module turns into its own.

Values from `loads` can be written again: finite numbers, no lone surrogates, nested at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_ID = 512  # characters
MAX_SAFE_INT = 2**53 - 1  # the largest integer that JavaScript peers keep exactly
_UNFIT_FOR_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")  # controls, lone surrogates, U+FFFD


class WireError(ValueError):
    """`reason` is a stable code; never contains what was parsed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _refuse_constant(_: str) -> NoReturn:
    raise WireError("not_json")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise WireError("not_json")
    return value


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def repair(text: str) -> str:
    """Surrogate pairs joined, lone surrogates replaced by U+FFFD.

    JavaScript peers cut strings between surrogates and escape what is left; the rest of the text is still good.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _repair_all(value: Any) -> Any:
    if isinstance(value, str):
        return repair(value)
    if isinstance(value, list):
        return [_repair_all(item) for item in value]
    if isinstance(value, dict):
        return {repair(key): _repair_all(item) for key, item in value.items()}
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise WireError("too_deep")


def loads(data: str | bytes) -> Any:
    """Raises WireError: not_utf8, not_json, too_deep."""
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError:
        raise WireError("not_utf8") from None
    try:
        value = _decoder.decode(text)
    except WireError:
        raise
    except RecursionError:
        raise WireError("too_deep") from None
    except ValueError:  # also integers of thousands of digits
        raise WireError("not_json") from None
    if text.count("[") + text.count("{") >= MAX_DEPTH:
        _check_depth(value)
    if "\\u" in text or not text.isascii():
        value = _repair_all(value)
    return value


def loads_object(data: str | bytes) -> dict[str, Any]:
    """As `loads`; anything but an object is WireError: not_object."""
    value = loads(data)
    if not isinstance(value, dict):
        raise WireError("not_object")
    return value


def dumps(value: Any) -> str:
    """Compact JSON that can always be encoded. Raises WireError for what JSON cannot say."""
    try:
        return repair(_encoder.encode(value))
    except RecursionError:
        raise WireError("too_deep") from None
    except (TypeError, ValueError):
        raise WireError("not_json") from None


def unb64(text: Any, length: int | None = None) -> bytes:
    """Strict base64 of exactly `length` bytes, if given. Raises WireError: bad_base64."""
    if not isinstance(text, str):
        raise WireError("bad_base64")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("bad_base64") from None
    if length is not None and len(data) != length:
        raise WireError("bad_base64")
    return data


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def is_id(value: Any) -> bool:
    """1 to 512 characters, none of them a control character or a lone surrogate."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and _UNFIT_FOR_ID.search(value) is None


def is_plain_id(value: Any) -> bool:
    """An identifier without a colon: ours and the peer's names join these with colons."""
    return is_id(value) and ":" not in value


def is_count(value: Any, *, at_least: int = 0) -> bool:
    return type(value) is int and at_least <= value <= MAX_SAFE_INT
