"""Files go out: from allowed folders only, sealed on the way, once a call."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator

import pytest

from pacerelle_protocol.groups import new_group_key
from pacerelled.agent import files as files_module
from pacerelled.agent.files import MAX_FILE, mime_of
from pacerelled.agent.model import Reply
from pacerelled.errors import InvalidArgument, LinkError, NotConnected, NotPossible, RelayUnreachable, UnknownMessage
from tests.daemon.core import pieces
from tests.daemon.polling import until

from .file_relay import Desk

DATA = os.urandom(1_500_000)
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 64, 48) + bytes(100)


async def send(at: Desk, path: str, **more: object) -> Reply:
    return await at.agent.send_path(at.session, path=path, source_message_id=at.question, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "large"])
async def test_a_file_is_sent_whole(at: Desk, data: bytes) -> None:
    path = at.outward / "report of march.pdf"
    path.write_bytes(data)
    progress: list[tuple[int, int]] = []
    reply = await send(at, str(path), text="see", on_progress=lambda *now: progress.append(now))
    assert (reply.kind, reply.text, reply.to, reply.device_id) == ("file", "see", "ada", "d1")
    assert reply.source_message_id == at.question
    file, content = await at.sent_file()
    assert content == data
    assert (file.name, file.mime, file.size, file.width) == ("report of march.pdf", "application/pdf", len(data), None)
    assert progress == sorted(progress)
    assert progress[-1:] == ([(len(data), len(data))] if data else [])


@pytest.mark.parametrize(
    ("name", "data", "said", "wanted"),
    [
        ("photo", PNG, {}, ("photo", "image/png", 64, 48)),
        ("photo.jpg", PNG, {}, ("photo.jpg", "image/png", 64, 48)),
        ("a.jpg", b"no picture", {}, ("a.jpg", "image/jpeg", None, None)),
        ("song.MP3", b"x", {}, ("song.MP3", "audio/mpeg", None, None)),
        ("film.mp4", b"x", {}, ("film.mp4", "video/mp4", None, None)),
        ("no-suffix", b"x", {}, ("no-suffix", "application/octet-stream", None, None)),
        ("a.bin", PNG, {"mime": "x/y", "name": "../b\n.png"}, ("b.png", "x/y", 64, 48)),
        ("a.bin", b"x", {"name": "b.webp"}, ("b.webp", "image/webp", None, None)),
    ],
)
async def test_what_is_said_of_a_file(
    at: Desk, name: str, data: bytes, said: dict[str, str], wanted: tuple[object, ...]
) -> None:
    (at.outward / name).write_bytes(data)
    await send(at, str(at.outward / name), **said)
    file, _ = await at.sent_file()
    assert (file.name, file.mime, file.width, file.height) == wanted


@pytest.mark.parametrize(
    ("suffix", "kind"), [("heic", "image"), ("opus", "audio"), ("webm", "video"), ("mkv", "video")]
)
def test_pictures_sounds_and_films_are_known_by_their_suffix(suffix: str, kind: str) -> None:
    assert mime_of(f"a.{suffix}").startswith(f"{kind}/")


async def test_what_is_not_allowed_uploads_nothing(at: Desk) -> None:
    (at.outward / "a.txt").touch()
    secret = at.outward.parent / "secret.txt"
    secret.touch()
    good = str(at.outward / "a.txt")
    for call, argument in (
        (send(at, str(secret)), "path"),
        (send(at, good, mime="text"), "mime"),
        (send(at, good, text="\ud83d"), "text"),
        (send(at, good, to="eve"), "to"),
        (at.agent.send_path(at.session, path=good), "sourceMessageId"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await call
        assert refused.value.argument == argument
    with pytest.raises(UnknownMessage):
        await at.agent.send_path(at.session, path=good, source_message_id="nothing")
    assert (at.relay.uploads, await at.agent.replies()) == (0, [])


async def test_a_file_that_is_too_large_is_refused_before_it_is_read(at: Desk) -> None:
    with (at.outward / "large").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(InvalidArgument, match=str(MAX_FILE)) as refused:
        await send(at, str(at.outward / "large"))
    assert refused.value.argument == "path"
    with pytest.raises(InvalidArgument, match=str(MAX_FILE)):
        await at.agent.send_file(
            at.session, name="a", data=pieces(b"x"), size=MAX_FILE + 1, source_message_id=at.question
        )
    assert at.relay.uploads == 0


async def test_a_repeated_call_sends_nothing_even_when_the_file_is_gone(at: Desk) -> None:
    path = at.outward / "a.txt"
    path.write_text("one")
    first = await send(at, str(path), call_id="7")
    path.unlink()
    again = await send(at, str(path), call_id="7")
    assert (again.message_id, again.repeated, first.repeated) == (first.message_id, True, False)
    assert at.relay.uploads == 1
    path.write_text("two")
    keyed = await send(at, str(path), idempotency_key="k")
    path.write_text("three")
    assert (await send(at, str(path), idempotency_key="k")).message_id == keyed.message_id
    with pytest.raises(InvalidArgument, match="idempotencyKey"):
        await send(at, str(path), idempotency_key="k", text="another")
    assert at.relay.uploads == 2
    assert (await send(at, str(path), call_id="8")).message_id not in (first.message_id, keyed.message_id)


async def test_a_relay_that_does_not_take_it(at: Desk) -> None:
    (at.outward / "a.txt").write_bytes(DATA)
    for status, error, word in ((413, NotPossible, "takes no file"), (500, LinkError, "500"), (429, LinkError, "429")):
        at.relay.refuse["/agent/blobs"] = status
        with pytest.raises(error, match=word) as refused:
            await send(at, str(at.outward / "a.txt"))
        assert refused.value.hint
    at.relay.refuse.clear()
    assert await at.agent.replies() == []
    assert (await send(at, str(at.outward / "a.txt"))).state == "queued"


async def test_without_a_relay_nothing_is_sent(at: Desk) -> None:
    (at.outward / "a.txt").write_bytes(DATA)
    await at.relay.__aexit__(None, None, None)
    with pytest.raises(RelayUnreachable):
        await send(at, str(at.outward / "a.txt"))
    assert await at.agent.replies() == []
    await at.relay.__aenter__()


async def test_a_file_that_changes_meanwhile_is_not_sent(at: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "PIECE", 4096)
    path = at.outward / "a.txt"
    path.write_bytes(DATA * 10)
    at.relay.hold = True
    sending = asyncio.create_task(send(at, str(path)))
    await until(lambda: at.relay.held)
    with path.open("r+b") as file:
        file.write(b"changed")
    at.relay.go.set()
    with pytest.raises(NotPossible, match="changed while it was read"):
        await sending
    assert await at.agent.replies() == []


@pytest.mark.parametrize("by", ["cancelling", "stopping"])
async def test_an_upload_that_is_ended_sends_nothing(at: Desk, by: str) -> None:
    (at.outward / "a.txt").write_bytes(DATA * 10)
    at.relay.hold = True
    sending = asyncio.create_task(send(at, str(at.outward / "a.txt")))
    await until(lambda: at.relay.held)
    if by == "cancelling":
        sending.cancel()
    else:
        await at.core.stop()
    with pytest.raises(asyncio.CancelledError if by == "cancelling" else NotConnected):
        await sending
    at.relay.go.set()
    if by == "stopping":
        await at.core.start()
    assert await at.core.hub.agent(None).replies() == []


async def test_a_file_for_a_group_goes_to_the_group(at: Desk) -> None:
    key = new_group_key("c1")
    at.relay.group_keys["c1"] = [at.human.key_envelope(key)]
    frame = at.human.group_frame("to all", key)
    await at.relay.push(frame)
    await until(lambda: len(at.relay.acked) == 2)
    (at.outward / "a.txt").write_text("for all")
    reply = await at.agent.send_path(at.session, path=str(at.outward / "a.txt"), source_message_id=at.relay.acked[-1])
    assert (reply.to, reply.device_id) == ("group:c1", None)
    await until(lambda: at.relay.messages)
    assert at.relay.messages[0]["to"] == "group:c1"
    assert [item["name"] for item in at.relay.messages[0]["attachments"]] == ["attachment"]


# -- what control.sock sends -----------------------------------------------------------------------------------


async def stream(at: Desk, *data: bytes, size: int | None = None, **more: object) -> Reply:
    return await at.agent.send_file(
        at.session,
        name="a.txt",
        data=pieces(*data),
        size=size,
        source_message_id=at.question,
        **more,  # type: ignore[arg-type]
    )


async def test_a_stream_of_unknown_length(at: Desk) -> None:
    await stream(at, b"one, ", b"", b"two")
    assert (await at.sent_file())[1] == b"one, two"


async def test_a_stream_that_ends_early_is_not_sent(at: Desk) -> None:
    with pytest.raises(NotPossible, match="ended before"):
        await stream(at, b"one", size=10)
    assert await at.agent.replies() == []


async def test_what_a_stream_raises_comes_through(at: Desk) -> None:
    class Odd(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise Odd

    for size in (None, 10):
        with pytest.raises(Odd):
            await at.agent.send_file(at.session, name="a", data=broken(), size=size, source_message_id=at.question)
    assert await at.agent.replies() == []


async def test_a_stream_without_end_is_cut_off(at: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_FILE", 1_000_000)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)

    with pytest.raises(InvalidArgument, match="at most 1000000"):
        await at.agent.send_file(at.session, name="a", data=endless(), size=None, source_message_id=at.question)


async def test_a_stream_under_a_used_key_is_compared_and_not_uploaded(at: Desk) -> None:
    first = await stream(at, b"one", b"two", idempotency_key="k")
    again = await stream(at, b"onetwo", idempotency_key="k")
    assert (again.message_id, again.repeated) == (first.message_id, True)
    with pytest.raises(InvalidArgument, match="idempotencyKey"):
        await stream(at, b"other", idempotency_key="k")
    both = await asyncio.gather(*(stream(at, b"same", idempotency_key="l") for _ in range(2)))
    assert both[0].message_id == both[1].message_id
    assert sorted(reply.repeated for reply in both) == [False, True]
    assert len(await at.agent.replies()) == 2
