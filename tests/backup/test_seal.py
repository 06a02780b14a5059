"""The sealed file: nothing but the whole of it, with its passphrase, opens."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pacerelled.backup import seal
from pacerelled.backup.seal import CHUNK, HEADER, TAG, Sealer, opened, sealed_size
from pacerelled.errors import BackupDamaged, WrongPassphrase

CHEAP = seal.MIN_COST
PHRASE = "long enough"
SEALED_CHUNK = CHUNK + TAG


def sealed(data: bytes, *, passphrase: str = PHRASE, piece: int = 10_000) -> bytes:
    sealer = Sealer(passphrase, cost=CHEAP)
    out = [sealer.header]
    out += [sealer.update(data[at : at + piece]) for at in range(0, len(data), piece)]
    return b"".join([*out, sealer.finish()])


def unsealed(data: bytes, passphrase: str = PHRASE) -> bytes:
    return b"".join(opened(io.BytesIO(data), passphrase))


def damaged(data: bytes) -> None:
    with pytest.raises(BackupDamaged) as refused:
        unsealed(data)
    assert refused.value.hint


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])
@pytest.mark.parametrize("piece", [1000, CHUNK, 5 * CHUNK])
def test_what_is_sealed_opens_whatever_pieces_it_came_in(size: int, piece: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    file = sealed(data, piece=piece)
    assert len(file) == sealed_size(size)
    assert unsealed(file) == data


THREE = bytes(range(250)) * (3 * CHUNK // 250)
FILE = sealed(THREE)
CHUNKS = [FILE[at : at + SEALED_CHUNK] for at in range(HEADER, len(FILE), SEALED_CHUNK)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(FILE) * 8 - 1))
def test_one_bit_anywhere(bit: int) -> None:
    changed = bytearray(FILE)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises((BackupDamaged, WrongPassphrase)):
        unsealed(bytes(changed))


@pytest.mark.parametrize(
    "size", [0, 1, 8, HEADER - 1, HEADER, HEADER + 1, HEADER + SEALED_CHUNK, HEADER + 2 * SEALED_CHUNK, len(FILE) - 1]
)
def test_cut_off(size: int) -> None:
    """At the end of a chunk too."""
    damaged(FILE[:size])


@pytest.mark.parametrize(
    "order", [(0, 2, 1), (1, 0, 2), (0, 1), (0, 0, 1, 2), (0, 2), (1, 2), (2,), (0, 1, 2, 2), (0, 1, 2, 0)]
)
def test_chunks_that_are_left_out_repeated_or_exchanged(order: tuple[int, ...]) -> None:
    assert len(CHUNKS) == 3
    damaged(FILE[:HEADER] + b"".join(CHUNKS[number] for number in order))


def test_something_behind_the_end() -> None:
    damaged(FILE + b"x")


def test_chunks_of_another_file_with_the_same_passphrase() -> None:
    other = sealed(THREE)
    assert other != FILE
    damaged(FILE[: HEADER + SEALED_CHUNK] + other[HEADER + SEALED_CHUNK :])


def test_another_passphrase_is_no_damage() -> None:
    with pytest.raises(WrongPassphrase):
        unsealed(FILE, "long enouch")


def test_the_same_letters_typed_on_another_system() -> None:
    assert unsealed(sealed(b"x", passphrase="pass\u00e9 compos\u00e9"), "passe\u0301 compose\u0301") == b"x"


@pytest.mark.parametrize(("at", "value"), [(9, 63), (9, 0), (8, 2), (12, 255)])
def test_a_header_that_would_cost_gigabytes_or_is_of_another_kind(at: int, value: int) -> None:
    changed = bytearray(FILE)
    changed[at] = value
    damaged(bytes(changed))


def test_the_header_is_as_documented() -> None:
    magic, version, cost, zero, chunk = struct.unpack_from(">8sBBHI", FILE)
    assert (magic, version, cost, zero, chunk) == (b"PACERBAK", 1, CHEAP, 0, 65_536)
    assert HEADER == 64
