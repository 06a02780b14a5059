"""Where the secrets of this daemon are, without the secrets: the store's key, and each agent's token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from pacerelled.store.custody import CREDENTIAL, TOKEN_CREDENTIAL, TokenSource, key_source, token_entry
from pacerelled.store.keyring import Keyring

from .agent import Agent


class Keys:
    """The part of `api.HubApi` that is about keys and tokens."""

    def __init__(
        self,
        state: Path,
        keyring: Keyring,
        *,
        agent: Callable[[str | None], Agent],
        agents: Callable[[], Iterable[Agent]],
        log_out: Callable[[str], Awaitable[TokenSource | None]],
    ) -> None:
        self._state = state
        self._keyring = keyring
        self._agent = agent
        self._agents = agents
        self._log_out = log_out
        self._visible: set[str] = set()

    async def describe(self) -> dict[str, Any]:
        """The body of GET /v1/keys (docs/local-protocol.md)."""
        await self._keyring.look()
        return {
            "store_key": describe_store_key(self._state),
            "keyring": describe_keyring(self._keyring),
            "tokens": [
                {
                    "agent_id": agent.agent_id,
                    "login": agent.login,
                    "source": agent.token_source,
                    "place": _place(agent.agent_id, agent.token_source),
                    "visible": agent.agent_id in self._visible,
                }
                for agent in self._agents()
            ],
        }

    async def keep(self, agent_id: str, token: str) -> None:
        """A person's token: for good where the OS keyring takes it, else until the daemon ends."""
        agent = self._agent(agent_id)
        agent.set_token(token)
        if await self._keyring.set(token_entry(agent.agent_id), token):
            agent.note_token(token, "keyring")

    async def forget(self, agent_id: str) -> dict[str, Any]:
        """Logs an agent out: its token leaves memory and keyring. `still_in` says where else it is.

        From there it is not taken again before the next start of the daemon, or before a host brings it.
        """
        agent = self._agent(agent_id)
        await self._keyring.delete(token_entry(agent.agent_id))
        still_in = await self._log_out(agent.agent_id)
        agent.forget_token()
        return {"agent_id": agent.agent_id, "still_in": still_in, "place": _place(agent.agent_id, still_in)}

    def seen_on_command_line(self, agent_id: str) -> None:
        """A host has the token in the arguments of its shim."""
        self._visible.add(agent_id)

    def warnings(self) -> list[dict[str, Any]]:
        """What is not well and stops nothing."""
        return [
            {
                "code": "token_visible",
                "message": "A host starts pacerelle-mcp with --token: others on this machine can see the token",
                "hint": "Put it into PACERELLE_AGENT_TOKEN in the host's settings, or use `pacerelle login`.",
                "agent_id": agent_id,
            }
            for agent_id in sorted(self._visible)
        ]


def describe_store_key(state: Path) -> dict[str, Any]:
    """Raises StoreCorrupt."""
    source = key_source(state)
    places = {"credential": CREDENTIAL, "keyring": "the OS keyring", "file": str(state / "store.key")}
    return {"source": source, "place": places.get(source or "")}


def describe_keyring(keyring: Keyring) -> dict[str, Any]:
    return {"state": keyring.state, "message": str(keyring), "hint": keyring.hint}


def _place(agent_id: str, source: TokenSource | None) -> str | None:
    places: dict[TokenSource, str] = {
        "credential": f"{TOKEN_CREDENTIAL}{agent_id}",
        "environment": "PACERELLE_AGENT_TOKEN of the daemon",
        "keyring": "the OS keyring",
        "host": "a host's settings",
        "given": "the memory of the daemon",
    }
    return places[source] if source else None
