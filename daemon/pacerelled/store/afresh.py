"""What a store has to forget when it comes out of a backup (the relay protocol reference, safety rule 4).

Its encryption state is older than what was sent since. Used again, message keys would be used twice. So every session
ends, and with the sessions the identity that they belong to: the protocol gives an agent no way to tell a phone to
start anew but to show another identity key. Prekeys go too; the relay has handed some of them out since.

What is known about people stays: their devices' keys, what the user decided about them, archive and group keys.
"""

from __future__ import annotations

from . import events
from .database import Tx

REASON = "restored from a backup: it may have been sent since"


def start_afresh(tx: Tx, made_at: str) -> int:
    """Returns the number of agents. `made_at` is when the backup was made.

    The numbers of events go on from the backup's, in a new epoch: whoever follows them is told of a gap.
    """
    for table in ("signal_pieces", "prekey_sets", "device_sessions", "claims", "sessions"):
        tx.execute(f"DELETE FROM {table}")
    tx.execute(
        "UPDATE replies SET state = 'uncertain', reason = ?, updated_at = ?, day = ?"
        " WHERE state IN ('queued', 'sending')",
        (REASON, tx.now, tx.day),
    )
    events.new_epoch(tx)
    events.add(tx, None, "store.restored", made_at=made_at)
    count: int = tx.one("SELECT count(*) FROM agents")[0]
    return count
