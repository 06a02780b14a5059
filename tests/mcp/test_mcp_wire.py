from __future__ import annotations

import json
import random
from typing import Any

import pytest
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from pacerelle_protocol.local import MAX_LINE
from pacerelled.mcp.wire import BadLine, LineSplitter, Oversized, decode, encode


def split(data: bytes, sizes: list[int], limit: int = MAX_LINE) -> list[bytes | Oversized]:
    """What a splitter makes of `data` when it comes in pieces of these sizes, over and over."""
    splitter = LineSplitter(limit)
    lines: list[bytes | Oversized] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        lines += splitter.feed(data[at : at + size])
        at += size
        turn += 1
    return lines


def request(**more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", **more}, ensure_ascii=False).encode()


SIZES = [[1], [2], [3, 7], [10**9]]


@pytest.mark.parametrize("sizes", SIZES)
def test_lines_come_out_whole_whatever_pieces_they_come_in(sizes: list[int]) -> None:
    lines = [request(params={"t": "a\u2028b\u2029c\u0085d"}), request(params={"t": "ñ😀\x00"}), b"\xff\xfe", b"[]"]
    assert split(b"\n".join(lines) + b"\n", sizes) == lines


@pytest.mark.parametrize("sizes", SIZES)
def test_blank_lines_and_carriage_returns_are_dropped(sizes: list[int]) -> None:
    assert split(b"\n\r\n  \n{}\r\n\t\n[]\nrest", sizes) == [b"{}", b"[]"]


def test_a_16_mib_line_is_whole() -> None:
    line = request(params={"t": "x" * (MAX_LINE - 100)}).ljust(MAX_LINE - 1)
    assert len(line) == MAX_LINE - 1
    (got,) = split(line + b"\n", [65536])
    assert got == line.strip()
    (got,) = split(line + b" \n", [65536])
    assert got == Oversized(1)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"t": "…"}}, 7),
        ({"jsonrpc": "2.0", "method": "m", "params": {"id": 5, "t": "…"}, "id": "last"}, "last"),
        ({"method": "m", "params": {"t": "…"}, "id": -3, "jsonrpc": "2.0"}, -3),
        ({"method": "m", "params": {"t": "…", "id": 5}, "jsonrpc": "2.0"}, None),
        ({"method": "m", "params": {"t": '…"id":5}'}}, None),
        ({"params": {"t": 'a"id":5,'}, "x": ["id"], "y": "id", "id": "é\\\"", "z": {"t": "…"}}, "é\\\""),
        ({"id": True, "params": {"t": "…"}}, None),
        ({"params": {"t": "…", "deep": {"id": 5}}}, None),
        (["id", {"id": 1, "t": "…"}], None),
    ],
)  # fmt: skip
def test_a_line_over_the_limit_is_read_past_and_its_id_found(line: Any, expected: Any, sizes: list[int]) -> None:
    for ascii_only in (True, False):
        text = json.dumps(line, ensure_ascii=ascii_only)
        text = text.replace("\\u2026", "…").replace("…", "y" * 70_000)
        data = text.encode() + b"\n" + request() + b"\n"
        assert split(data, sizes, limit=66_000) == [Oversized(expected), request()]


def test_a_line_without_end_is_not_kept() -> None:
    splitter = LineSplitter(limit=200_000)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 10_000)) == []
    assert sum(len(part) for part in vars(splitter).values() if isinstance(part, bytes | bytearray)) < 200_000
    assert list(splitter.feed(b"\n{}\n")) == [Oversized(None), b"{}"]


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"\xff\xff", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"m\xff"}', -32700, None),
        (b"{", -32700, None),
        (b"hello", -32700, None),
        (b'"\\ud800', -32700, None),
        (b"[" * 200_000, -32700, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600, None),
        (b"[]", -32600, None),
        (b"{}", -32600, None),
        (b"null", -32600, None),
        (b"1", -32600, None),
        (b'{"jsonrpc":"1.0","id":4,"method":"x"}', -32600, 4),
        (b'{"jsonrpc":"2.0","id":"4","method":7}', -32600, "4"),
        (b'{"jsonrpc":"2.0","id":4,"method":"x","params":[1]}', -32600, 4),
        (b'{"jsonrpc":"2.0","id":true,"method":7}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"result":7}', -32600, None),
    ],
)
def test_a_bad_line_has_an_answer(line: bytes, code: int, request_id: Any) -> None:
    with pytest.raises(BadLine) as caught:
        decode(line)
    assert caught.value.answer.error.code == code
    assert caught.value.answer.id == request_id
    assert json.loads(encode(caught.value.answer))["id"] == request_id


def test_random_bytes_are_never_more_than_a_bad_line() -> None:
    rng = random.Random(7)
    good = request(params={"name": "x", "arguments": {"t": "\\ud83d é"}})
    for _ in range(3000):
        line = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            line[rng.randrange(len(line))] = rng.randrange(256)
        for part in split(bytes(line) + b"\n", [10**9]):
            try:
                decode(part)
            except BadLine as bad:
                encode(bad.answer)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"a\uDFFFb", "a\ufffdb"),
        (rb"\ud83d\ude00", "😀"),
        (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\\ud800", "\\ud800"),
        (rb"\\\ud800\n", "\\\ufffd\n"),
        (rb"\u0000", "\0"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(escaped: bytes, text: str) -> None:
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"t":"%s"}}' % escaped)
    assert isinstance(message, JSONRPCRequest)
    assert message.params == {"t": text}


def test_a_sent_line_is_one_line_for_every_reader() -> None:
    line = encode(JSONRPCNotification(jsonrpc="2.0", method="m", params={"t": "a\u2028b\u2029c\nd\x00é"}))
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["params"] == {"t": "a\u2028b\u2029c\nd\x00é"}


def test_an_answer_that_cannot_be_written_becomes_an_error() -> None:
    line = encode(JSONRPCResponse(jsonrpc="2.0", id="a", result={"t": "\ud800"}))
    assert json.loads(line)["error"]["code"] == -32603
    assert json.loads(line)["id"] == "a"


def test_a_result_over_the_limit_becomes_an_error_result() -> None:
    result = {"content": [{"type": "text", "text": "x" * 900}], "resultType": "complete", "_meta": {"a": 1}}
    line = json.loads(encode(JSONRPCResponse(jsonrpc="2.0", id=3, result=result), limit=600))
    assert line["id"] == 3
    assert line["result"]["isError"] is True
    assert "at most 600" in line["result"]["content"][0]["text"]
    assert line["result"]["resultType"] == "complete"
    assert line["result"]["_meta"] == {"a": 1}
    other = JSONRPCResponse(jsonrpc="2.0", id=3, result={"contents": "x" * 900})
    assert json.loads(encode(other, limit=600))["error"]["code"] == -32603
