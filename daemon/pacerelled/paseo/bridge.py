"""The bridge as a whole: its connection, what it looks at, what it orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pacerelled.errors import PaseoError
from pacerelled.store.database import Store

from .approvals import Approvals, Phone
from .client import PaseoClient
from .connection import PaseoConnection
from .guard import Scope
from .looks import Looks
from .orders import Orders
from .settings import PaseoSettings
from .target import find_target, paseo_home
from .watch import Watch

TEST_TIMEOUT = 10.0  # seconds


class Bridge:
    """Off unless the settings have it; a Paseo daemon that is not there is a state of it, not an error."""

    def __init__(
        self,
        store: Store,
        settings: PaseoSettings,
        env: Mapping[str, str],
        phone: Phone,
        *,
        on_change: Callable[[set[str]], None] = lambda agent_ids: None,
    ) -> None:
        """`on_change(agent ids)`: something happened to them; no ids: to the connection."""
        self.settings = settings
        self._env = env
        self._on_change = on_change
        self._connection = PaseoConnection(
            lambda: find_target(settings, env),
            on_push=lambda push: self._watch.take(push),
            on_connected=lambda connection: self._watch.look_anew(connection),
            on_state=lambda: self._changed(set()),
        )
        client = PaseoClient(self._connection)
        self._watch = Watch(store, client, preview_chars=settings.preview_chars, on_change=self._changed)
        self.looks = Looks(settings, store, client, self._watch)
        worktrees = paseo_home(settings, env) / "worktrees"
        self.orders = Orders(settings, store, client, self._watch, worktrees=worktrees)
        self.approvals = Approvals(store, client, self._watch, self.orders, phone)

    def start(self) -> None:
        self._watch.start()
        self._connection.start()
        if not self.settings.read_only:
            self.approvals.start()

    async def stop(self) -> None:
        await self.approvals.stop()
        await self._connection.stop()
        await self._watch.stop()

    def _changed(self, agent_ids: set[str]) -> None:
        self.approvals.look()
        self._on_change(agent_ids)

    def active(self, scope: Scope) -> dict[str, str | None]:
        """The titles of the agents that are not archived, by id, as far as the bridge has heard of them."""
        return {agent_id: known.title for agent_id, known in self._watch.active().items() if scope.sees(known.labels)}

    def status(self) -> dict[str, Any]:
        """The JSON shape in docs/local-protocol.md."""
        connection, settings = self._connection, self.settings
        target = connection.target or find_target(settings, self._env)
        return {
            "on": True,
            "connection": connection.state,
            "problem": connection.problem,
            "hint": connection.hint if connection.problem else "",
            "url": target.url,
            "sign_in": target.sign_in,
            "sign_in_from": target.source,
            "version": connection.server.version if connection.server else None,
            "read_only": settings.read_only,
            "allowed_roots": [str(root) for root in settings.allowed_roots],
            "accounts": self.looks.accounts(),
            "default_provider": settings.default_provider,
            "origin_label": settings.origin_label,
        }

    async def warnings(self) -> list[dict[str, Any]]:
        """For GET /v1/status: why there is no connection."""
        problem, hint = self._connection.problem, self._connection.hint
        return [{"code": "paseo", "message": f"Paseo: {problem}", "hint": hint}] if problem else []

    async def test(self) -> dict[str, Any]:
        """Connects once more, as the bridge does, and looks. Raises PaseoError."""
        connection = PaseoConnection(lambda: find_target(self.settings, self._env), answer_timeout=TEST_TIMEOUT)
        try:
            await connection.try_once(TEST_TIMEOUT)
            client = PaseoClient(connection)
            count = 0
            async for _ in client.agents():
                count += 1
            target, server = connection.target, connection.server
            assert target is not None
            assert server is not None
            can: dict[str, bool | None] = {"steer": None, "environment": None}
            with suppress(PaseoError):
                can = {"steer": await client.can_steer(), "environment": await client.can_set_environment()}
            return {
                "url": target.url,
                "sign_in": target.sign_in,
                "sign_in_from": target.source,
                "credential": target.masked,
                "version": server.version,
                "features": sorted(server.features),
                "agents": count,
                "can": can,
            }
        finally:
            await connection.stop()
