"""Just enough of the protocol buffers wire format to look into libsignal's records and messages."""

from __future__ import annotations


class ProtobufError(ValueError):
    """Not a whole message."""


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """(field number, value) in order: an int for varints and fixed widths, else bytes. Raises ProtobufError."""
    out: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if not 0 < number < 1 << 29:
            raise ProtobufError("field number")
        if wire_type == 0:
            value, at = _varint(data, at)
        else:
            if wire_type == 2:
                length, at = _varint(data, at)
            elif wire_type in (1, 5):
                length = 8 if wire_type == 1 else 4
            else:
                raise ProtobufError("wire type")
            if at + length > len(data):
                raise ProtobufError("ends early")
            chunk = data[at : at + length]
            at += length
            value = chunk if wire_type == 2 else int.from_bytes(chunk, "little")
        out.append((number, value))
    return out


def single_bytes(data: bytes, number: int) -> bytes:
    """The one bytes field of that number. Raises ProtobufError if there is none, or several."""
    found = [value for field, value in fields(data) if field == number]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise ProtobufError("field")
    return found[0]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ProtobufError("ends early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at
    raise ProtobufError("varint")
