"""Attachments become files: whole and checked, or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pacerelle_protocol.files import seal_file
from pacerelled.agent import files as files_module
from pacerelled.agent import folders
from pacerelled.agent.files import MAX_FILE
from pacerelled.errors import LinkError, NotConnected, NotPossible, RelayUnreachable, TokenRefused, UnknownMessage
from tests.daemon.polling import until

from .file_relay import Desk

DATA = os.urandom(1_500_000)


async def save(at: Desk, message_id: str, **more: Any) -> str:
    saved = await at.agent.save_attachment(message_id=message_id, attachment_id="f1", **more)
    return saved.path


async def fetch(at: Desk, message_id: str) -> bytes:
    async with at.agent.attachment(message_id, "f1") as file:
        return b"".join([piece async for piece in file.pieces])


@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "large"])
async def test_a_file_arrives_whole_both_ways(at: Desk, data: bytes) -> None:
    request = await at.receive(data, name="../..//.plan.pdf")
    progress: list[tuple[int, int]] = []
    saved = await at.agent.save_attachment(
        message_id=request, attachment_id="f1", on_progress=lambda *now: progress.append(now)
    )
    assert saved.as_dict() == {
        "path": str(at.inward / "plan.pdf"),
        "name": "../..//.plan.pdf",
        "mime": "application/pdf",
        "size": len(data),
    }
    assert (at.inward / "plan.pdf").read_bytes() == data
    assert progress == sorted(progress)
    assert progress[-1] == (len(data), len(data))
    assert await fetch(at, request) == data
    assert await save(at, request) == str(at.inward / "plan (2).pdf")
    assert at.inside() == ["plan (2).pdf", "plan.pdf"]


async def test_the_status_shows_the_folders(at: Desk) -> None:
    status = await at.agent.status()
    assert status["files"] == {"save_to": [str(at.inward)], "send_from": [str(at.outward)], "max_bytes": MAX_FILE}


async def test_a_file_without_a_digest_is_checked_by_its_tag(at: Desk) -> None:
    assert await fetch(at, await at.receive(DATA, sha256=None)) == DATA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("damaged", "not the one that was sent"),
        ("damaged, without a digest", "changed or its key"),
        ("another key", "changed or its key"),
        ("wrong digest", "not the one that was sent"),
        ("half", "shorter"),
        ("a few bytes", "shorter"),
        ("nothing", "shorter"),
        ("one byte more", "larger"),
        ("much more", "larger"),
        ("a smaller size said", "larger"),
        ("a larger size said", "shorter"),
    ],
)
async def test_what_does_not_open_leaves_nothing(at: Desk, change: str, words: str) -> None:
    sealed = seal_file(DATA)
    whole = sealed.ciphertext
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    said: dict[str, Any] = {"key": sealed.key, "iv": sealed.iv, "sha256": sealed.sha256, "blob": whole}
    said |= {
        "damaged": {"blob": damaged},
        "damaged, without a digest": {"blob": damaged, "sha256": None},
        "another key": {"key": bytes(32)},
        "wrong digest": {"sha256": "0" * 64},
        "half": {"blob": whole[:middle]},
        "a few bytes": {"blob": whole[:7]},
        "nothing": {"blob": b""},
        "one byte more": {"blob": whole + b"x"},
        "much more": {"blob": whole + bytes(20_000_000)},
        "a smaller size said": {"size": len(DATA) - 1},
        "a larger size said": {"size": len(DATA) + 1},
    }[change]
    request = await at.receive(DATA, **said)
    with pytest.raises(NotPossible, match=words) as refused:
        await save(at, request)
    assert "send it again" in refused.value.hint
    with pytest.raises(NotPossible, match=words):
        await fetch(at, request)
    assert at.inside() == []


async def test_a_file_that_is_gone_or_out_of_reach(at: Desk) -> None:
    request = await at.receive(DATA)
    blob = next(name for name in at.relay.blobs if name.startswith("in"))
    at.relay.refuse[f"/agent/blobs/{blob}"] = 503
    with pytest.raises(LinkError, match="503"):
        await save(at, request)
    at.relay.refuse[f"/agent/blobs/{blob}"] = 401
    with pytest.raises(TokenRefused):
        await save(at, request)
    at.relay.refuse.clear()
    at.relay.cut_after = 100_000
    with pytest.raises(RelayUnreachable):
        await save(at, request)
    at.relay.cut_after = None
    assert at.inside() == []
    assert (await save(at, request)).endswith("plan.pdf")
    del at.relay.blobs[blob]
    with pytest.raises(NotPossible, match="gone") as refused:
        await save(at, request)
    assert "send it again" in refused.value.hint
    assert at.inside() == ["plan.pdf"]


async def test_what_is_not_there_is_said_before_anything_is_fetched(at: Desk) -> None:
    request = await at.receive(b"x")
    for message_id, attachment_id in (("nothing", "f1"), (request, "f2")):
        with pytest.raises(UnknownMessage):
            await at.agent.save_attachment(message_id=message_id, attachment_id=attachment_id)
    too_large = await at.receive(b"x", size=MAX_FILE + 1)
    with pytest.raises(NotPossible, match=str(MAX_FILE)) as refused:
        await save(at, too_large)
    assert refused.value.hint
    at.relay.hold = True  # nobody asks for it, so nobody waits
    assert at.inside() == []


async def test_a_file_without_a_key_says_so(at: Desk) -> None:
    public = [{"id": "f1", "blob_id": "b", "name": "a", "mime": "x/y", "size": 1}]
    await at.relay.push(at.human.frame("no key", attachments=public))
    await until(lambda: len(at.relay.acked) == 2)
    with pytest.raises(NotPossible, match="without a key"):
        await save(at, at.relay.acked[-1])


async def test_a_cancelled_call_leaves_nothing_and_ends_its_download(at: Desk) -> None:
    request = await at.receive(DATA)
    at.relay.hold = True
    saving = [asyncio.create_task(save(at, request)) for _ in range(3)]
    fetching = asyncio.create_task(fetch(at, request))
    await until(lambda: at.relay.held == 4)
    await until(lambda: len(at.inside()) == 3)
    assert all(name.startswith(".pacerelle-") for name in at.inside())
    for task in (*saving, fetching):
        task.cancel()
    assert all(
        isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*saving, fetching, return_exceptions=True)
    )
    assert at.inside() == []
    await until(lambda: at.relay.held == 0, "the relay's end of the connections")


async def test_stopping_the_daemon_ends_what_is_saved(at: Desk) -> None:
    request = await at.receive(DATA)
    at.relay.hold = True
    saving = asyncio.create_task(save(at, request))
    await until(lambda: at.relay.held)
    await at.core.stop()
    with pytest.raises(NotConnected):
        await saving
    with pytest.raises(NotConnected):
        [piece async for piece in at.agent._rest.download_blob("in0")]
    assert at.inside() == []
    await at.core.start()


async def test_a_leftover_is_removed_at_the_next_start(at: Desk) -> None:
    at.inward.mkdir()
    (at.inward / ".pacerelle-0123456789abcdef.part").write_bytes(b"half a file")
    await at.core.restart()
    assert at.inside() == []


@contextmanager
def small_files_only(limit: int) -> Iterator[None]:
    """No file can grow beyond `limit` bytes, for this whole process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_no_more(at: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "IN_MEMORY", 1000)
    request = await at.receive(os.urandom(6_000_000))
    with small_files_only(5_000_000):
        with pytest.raises(NotPossible, match=os.strerror(errno.EFBIG)) as refused:
            await save(at, request)
        assert refused.value.hint
        with pytest.raises(NotPossible, match=os.strerror(errno.EFBIG)):
            await fetch(at, request)
    assert at.inside() == []
    assert (await save(at, request)).endswith("plan.pdf")


async def test_many_at_once_get_different_names(at: Desk) -> None:
    request = await at.receive(b"data")
    paths = await asyncio.gather(*(save(at, request) for _ in range(20)))
    assert len(set(paths)) == 20
    assert len(at.inside()) == 20


async def test_no_fetched_byte_is_seen_before_its_tag(at: Desk) -> None:
    """What a reader of the folder can open under a name without a dot is complete."""
    request = await at.receive(DATA)
    at.relay.hold = True
    saving = asyncio.create_task(save(at, request))
    await until(lambda: at.relay.held)
    await until(lambda: any(path.stat().st_size for path in at.inward.iterdir()), "bytes under the hidden name")
    assert folders._PART.fullmatch(at.inside()[0])
    at.relay.go.set()
    assert await saving == str(at.inward / "plan.pdf")
    assert at.inside() == ["plan.pdf"]


async def test_a_call_that_is_made_again_finds_the_file_that_it_saved(at: Desk) -> None:
    request = await at.receive(DATA, name="plan.pdf")
    first = await save(at, request, session=at.session, call_id="1")
    assert await save(at, request, session=at.session, call_id="1") == first
    assert sorted(path.name for path in at.inward.iterdir()) == ["plan.pdf"]
    assert await save(at, request, session=at.session, call_id="2") != first
    assert await save(at, request) not in (first, await save(at, request))
