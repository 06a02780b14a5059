"""Rows for a store, made by the code that makes them in the daemon."""

from __future__ import annotations

from pacerelled.store import checkpoints, events, replies, requests
from pacerelled.store.database import Tx

AGENT = "a1"


def request(tx: Tx, number: int, *, processed: bool, agent: str = AGENT, text: str = "text") -> int:
    new = requests.NewRequest(
        f"m{number}", "c1", "ada", "d1", False, True, "text", text, None, None, None
    )  # fmt: skip
    seq = requests.insert_request(tx, agent, new, f"digest {number}")
    if processed:
        requests.mark_processed(tx, seq, None)
    return seq


def reply(tx: Tx, number: int, state: str, *, agent: str = AGENT, text: str = "text") -> int:
    new = replies.NewReply(f"r{number}", "c1", "ada", "d1", "text", text, None, None, None, None, "{}", f"key {number}")
    seq = replies.insert_reply(tx, agent, new)
    if state != "queued":
        replies.set_state(tx, [seq], state, None)
    return seq


def checkpoint(tx: Tx, number: int, status: str) -> None:
    checkpoints.save(tx, AGENT, f"m{number}", "c1", f"summary {number}", "next", None, status)


def event(tx: Tx) -> int:
    return events.add(tx, AGENT, "message.received")


def count(tx: Tx, table: str, where: str = "1") -> int:
    found: int = tx.one(f"SELECT count(*) FROM {table} WHERE {where}")[0]
    return found
