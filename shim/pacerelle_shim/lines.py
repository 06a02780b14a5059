"""Lines of JSON, read as far as the shim must: who asks, who is answered. (The json package costs 5 ms a start.)"""

from _json import encode_basestring_ascii as quoted
from _json import make_scanner

__all__ = ["as_key", "parse", "quoted", "take_lines"]


class _Json:
    strict, memo, object_hook, object_pairs_hook = True, dict[str, str](), None, None
    parse_float, parse_int, parse_constant = float, int, int  # int refuses NaN and Infinity, as JSON does


_scan = make_scanner(_Json)  # type: ignore[arg-type]


def parse(line: bytes) -> dict[str, object]:
    """The JSON object in a line; empty if there is none."""
    try:
        text = line.decode().strip(" \t\r\n")
        value, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return {}
    return value if isinstance(value, dict) and end == len(text) else {}


def as_key(value: object) -> str:
    """A request id as JSON text; empty for what is no id."""
    return quoted(value) if isinstance(value, str) else str(value) if type(value) in (int, float) else ""


def take_lines(partial: bytearray, data: bytes) -> list[bytes]:
    """The lines that `data` completes, each with its end; what follows them stays in `partial`."""
    partial += data
    if b"\n" not in data:
        return []
    *lines, partial[:] = bytes(partial).split(b"\n")
    return [line + b"\n" for line in lines]
