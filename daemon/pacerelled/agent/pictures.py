"""What the first bytes of a picture tell: its type, and its width and height in pixels where they are easily found."""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEAD_BYTES = 64 * 1024  # cameras put a preview before a JPEG's size

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 without the tables among them


@dataclass(frozen=True, slots=True)
class Picture:
    mime: str
    width: int | None = None
    height: int | None = None


def picture(head: bytes) -> Picture | None:
    """None for what is no PNG, GIF, WebP or JPEG."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _sized("image/png", struct.unpack(">II", head[16:24]) if head[12:16] == b"IHDR" and head[23:] else None)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return _sized("image/gif", struct.unpack("<HH", head[6:10]) if head[9:] else None)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _sized("image/webp", _webp(head))
    if head.startswith(b"\xff\xd8\xff"):
        return _sized("image/jpeg", _jpeg(head))
    return None


def _sized(mime: str, size: tuple[int, ...] | None) -> Picture:
    return Picture(mime, *size) if size and all(size) else Picture(mime)


def _webp(head: bytes) -> tuple[int, ...] | None:
    kind, body = head[12:16], head[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return tuple(side & 0x3FFF for side in struct.unpack("<HH", body[6:10]))
    return None


def _jpeg(head: bytes) -> tuple[int, ...] | None:
    """As stored: a viewer may turn it."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 1 if marker == 0xFF else 2 + length  # 0xFF may be repeated before a marker
    return None
