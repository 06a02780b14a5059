"""A store that cannot be used is moved aside, once, when somebody asks: never by itself, never while it is well."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pacerelle_protocol.errors import StateError
from pacerelle_protocol.local import LocalPaths
from pacerelle_protocol.signal import SignalStore, agent_name
from pacerelled.errors import NotPossible, StoreCorrupt, StoreError, StoreKeyError, StoreTooNew, StoreUnavailable
from pacerelled.files import sync_directory

from .agents import list_agents, load_pieces
from .custody import entry_of, key_source
from .database import Tx
from .driver import Connection
from .keyring import Keyring
from .memo import MEMO
from .opening import RESTORE_HINT, examine
from .rekey import store_key

LOST = (
    "the encryption sessions: people have to write first again, and get to see another safety code",
    "requests that wait and replies that were not sent",
    "history and checkpoints",
    "the list of agents: hosts bring theirs along, others are added again",
)
ELSEWHERE = ("credential", "keyring")  # where the key can be out of reach for now


async def damage(paths: LocalPaths, keyring: Keyring, env: Mapping[str, str]) -> StoreError | None:
    """Why the store cannot be used; None if it can. Changes nothing.

    Raises NotPossible (there is none, or its key is out of reach, so that nobody can tell), StoreUnavailable and
    StoreTooNew, which moving it aside is no help against. The caller holds the owner's lock.
    """
    if not any(path.exists() for path in store_files(paths)[:-1]):
        raise NotPossible(f"There is no store in {paths.state}", hint="The daemon makes one when it starts.")
    try:
        source = key_source(paths.state)
        try:
            key = await store_key(paths, keyring=keyring, env=env)
        except StoreKeyError as error:
            if source in ELSEWHERE:
                raise NotPossible(
                    f"Whether the store is damaged cannot be told: {error.message}",
                    hint="Unlock the keyring, or run this where the key is.",
                ) from error
            raise
        examine(paths.store, key.raw, new=key.new, also=_check_pieces)
    except (StoreUnavailable, StoreTooNew):
        raise
    except StoreError as error:
        return error
    return None


async def move_aside(paths: LocalPaths, why: str, *, keyring: Keyring) -> Path | None:
    """Moves the store with its key into a folder `why-TIME` beside it, and returns that; None if there is none.

    A key in the keyring goes with it, to the folder's name. Raises StoreUnavailable.
    """
    found = [path for path in store_files(paths) if path.exists()]
    if not found:
        return None
    name = f"{why}-{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    try:
        folder = _make(paths.state, name)
        key = await keyring.get(entry_of(paths.state))
        key_kept = key is not None and await keyring.set(entry_of(folder), key)
        # The database first: without it nothing is opened, should we be interrupted. A log alone is never left behind
        # by a database that goes on.
        for path in found:
            path.rename(folder / path.name)
        for directory in (folder, paths.state):
            sync_directory(directory)
    except OSError as error:
        raise StoreUnavailable(
            f"The store in {paths.state} cannot be moved: {error.strerror}",
            hint="Free some disk space, or make the folder writable; then do it again.",
        ) from error
    if key_kept:
        await keyring.delete(entry_of(paths.state))  # the next store gets its own
    return folder


def store_files(paths: LocalPaths) -> list[Path]:
    """What a store can consist of, in the order in which it is moved; the key last."""
    beside = [paths.store.with_name(paths.store.name + suffix) for suffix in ("-wal", "-shm")]
    return [paths.store, *beside, paths.state / MEMO, paths.key_file]


def _check_pieces(conn: Connection) -> None:
    tx = Tx(conn, 0)
    for row in list_agents(tx):
        pieces = load_pieces(tx, row.agent_id)
        if row.e2ee and pieces:
            try:
                SignalStore.restore(agent_name(row.agent_id), pieces).close()
            except StateError as error:
                raise StoreCorrupt(
                    f"The encryption state of agent {row.agent_id} is damaged: {error}", hint=RESTORE_HINT
                ) from error


def _make(state: Path, name: str) -> Path:
    for number in range(1, 100):
        folder = state / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(17, "File exists")
