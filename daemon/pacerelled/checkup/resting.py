"""The checkup while no daemon runs (`pacerelled.offline`); the caller holds the owner's lock."""

from __future__ import annotations

import os
from typing import Any

from pacerelle_protocol.local import LocalPaths
from pacerelled.agent.keys import describe_keyring, describe_store_key
from pacerelled.config import Settings
from pacerelled.errors import StoreError
from pacerelled.store.keyring import Keyring

from .finding import Finding, failed
from .network import way_to
from .runtime import runtime
from .secrets import secrets
from .store import closed_store


async def examine(paths: LocalPaths, settings: Settings) -> list[Finding]:
    """Of the relays, those that the store's agents have, else the one of the settings."""
    keyring = Keyring(settings.keyring, os.environ)
    await keyring.look()
    found, relays = await closed_store(paths, keyring, os.environ)
    for url in relays or [settings.base_url]:
        found += await way_to(url)
    return [runtime(), *_keys(paths, keyring), *found]


def _keys(paths: LocalPaths, keyring: Keyring) -> list[Finding]:
    try:
        key: dict[str, Any] = describe_store_key(paths.state)
    except StoreError as error:
        return [failed("store key", error)]
    return secrets({"store_key": key, "keyring": describe_keyring(keyring), "tokens": None})
