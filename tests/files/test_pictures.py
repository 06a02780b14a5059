"""What pictures say of themselves."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelled.agent.pictures import Picture, picture

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x06\0\0\0"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0\0\0"
APP0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
SOF2 = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 600, 800) + bytes(10)
TABLE = b"\xff\xc4" + struct.pack(">H", 6) + bytes(4)


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (PNG, Picture("image/png", 640, 480)),
        (GIF, Picture("image/gif", 320, 200)),
        (b"\xff\xd8" + APP0 + TABLE + b"\xff" + SOF2, Picture("image/jpeg", 800, 600)),
        (webp(b"VP8X", b"\x10\0\0\0" + (1023).to_bytes(3, "little") + (767).to_bytes(3, "little")),
         Picture("image/webp", 1024, 768)),
        (webp(b"VP8L", b"\x2f" + (99 | 49 << 14).to_bytes(4, "little") + bytes(5)), Picture("image/webp", 100, 50)),
        (webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 300 | 1 << 14, 99)), Picture("image/webp", 300, 99)),
        (webp(b"ALPH", bytes(10)), Picture("image/webp")),
        (b"\xff\xd8" + APP0, Picture("image/jpeg")),
        (b"\xff\xd8\xff\xda" + bytes(100), Picture("image/jpeg")),
        (PNG[:20], Picture("image/png")),
        (GIF[:6], Picture("image/gif")),
        (GIF[:6] + bytes(4), Picture("image/gif")),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)  # fmt: skip
def test_type_and_size(head: bytes, wanted: Picture | None) -> None:
    assert picture(head) == wanted


@given(st.sampled_from([PNG[:8], GIF[:6], b"\xff\xd8\xff", webp(b"VP8X", b""), webp(b"VP8L", b"\x2f")]), st.binary())
def test_whatever_follows_is_survived(start: bytes, rest: bytes) -> None:
    found = picture(start + rest)
    assert found is not None
    assert (found.width is None) == (found.height is None)
