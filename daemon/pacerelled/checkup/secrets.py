"""Where the store's key and the tokens come from, without them: `agent.keys` knows, here it becomes lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pacerelled.agent.model import short

from .finding import Finding, State

_HARMLESS = ("ready", "off", "absent")  # states of the keyring: a key file is as good


def secrets(described: Mapping[str, Any]) -> list[Finding]:
    """Of the body of GET /v1/keys (docs/local-protocol.md)."""
    key, keyring = described["store_key"], described["keyring"]
    place = "none yet: the daemon makes one" if key["source"] is None else f"from {key['place']}"
    state: State = "ok" if keyring["state"] in _HARMLESS else "note"
    found = [
        Finding("store key", "ok", place),
        Finding("keyring", state, keyring["message"], "" if state == "ok" else keyring["hint"]),
    ]
    return found + [_token(token) for token in described["tokens"] or ()]


def _token(token: Mapping[str, Any]) -> Finding:
    about = short(token["agent_id"])
    if token["login"] == "ok":
        if token["visible"]:
            hint = "Put it into PACERELLE_AGENT_TOKEN in the host's settings, or use `pacerelle login`."
            return Finding("token", "note", "others can see it: a host has it on a command line", hint, about)
        return Finding("token", "ok", f"from {token['place']}", about=about)
    what = "the relay refused it" if token["login"] == "refused" else "there is none"
    return Finding("token", "failed", what, "Give the agent a new one: pacerelle login", about)
