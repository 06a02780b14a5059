"""Sealing and opening in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelle_protocol.errors import DecryptError
from pacerelle_protocol.files import FileOpener, FileSealer, open_file, seal_file


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(st.binary(max_size=200), st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_pieces_of_any_size_are_the_whole(data: bytes, sealed_in: list[int], opened_in: list[int]) -> None:
    sealer = FileSealer()
    ciphertext = b"".join(map(sealer.update, cut(data, sealed_in))) + sealer.finish()
    assert sealer.size == len(data)
    assert open_file(ciphertext, key=sealer.key, iv=sealer.iv, sha256=sealer.sha256, size=len(data)) == data
    opener = FileOpener(key=sealer.key, iv=sealer.iv, sha256=sealer.sha256, size=len(data))
    assert b"".join(map(opener.update, cut(ciphertext, opened_in))) == data
    opener.finish()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_no_changed_file_opens(data: bytes, choice: st.DataObject) -> None:
    sealed = seal_file(data)
    at = choice.draw(st.integers(0, len(sealed.ciphertext) - 1))
    changed = bytearray(sealed.ciphertext)
    changed[at] ^= choice.draw(st.integers(1, 255))
    for sha256, reason in ((None, "not_authentic"), (sealed.sha256, "digest_mismatch")):
        with pytest.raises(DecryptError) as caught:
            open_file(bytes(changed), key=sealed.key, iv=sealed.iv, sha256=sha256, size=len(data))
        assert caught.value.reason == reason


def test_too_much_is_noticed_at_once_and_too_little_at_the_end() -> None:
    sealed = seal_file(b"x" * 1000)
    opener = FileOpener(key=sealed.key, iv=sealed.iv, size=100)
    opener.update(sealed.ciphertext[:116])
    with pytest.raises(DecryptError, match="larger"):
        opener.update(sealed.ciphertext[116:117])
    for length in (0, 5, 16, 999, 1015):
        opener = FileOpener(key=sealed.key, iv=sealed.iv, size=1000, sha256=sealed.sha256)
        opener.update(sealed.ciphertext[:length])
        with pytest.raises(DecryptError, match="shorter"):
            opener.finish()
