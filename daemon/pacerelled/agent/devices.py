"""People's devices: whose identity key is known how well, and what the user decides about one.

A decision names the safety code that was compared, so that it is about the key that the user saw and no newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pacerelle_protocol.signal import human_name, safety_code
from pacerelled.errors import InvalidArgument, NotPossible, PacerelledError, UnknownMessage
from pacerelled.store import devices, events
from pacerelled.store.database import Store, Tx
from pacerelled.store.devices import DeviceRow
from pacerelled.store.quarantine import Chosen

from .crypto import AgentCrypto
from .intake import Result
from .quarantine import Quarantine
from .rejected import OF_A_DEVICE

LIST_HINT = "`pacerelle devices list` shows the devices with their safety codes."


class Devices:
    """The part of `api.AgentApi` that is about devices. `on_decided` is called after each decision."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        crypto: AgentCrypto,
        quarantine: Quarantine,
        *,
        on_decided: Callable[[], None],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._quarantine = quarantine
        self._on_decided = on_decided

    async def select(self) -> list[dict[str, Any]]:
        return await self._store.run(self._select)

    async def verify(self, user_id: str, device_id: str | None, code: str) -> dict[str, Any]:
        """The user compared the code with what the device shows."""

        def decide(tx: Tx, row: DeviceRow) -> bool:
            if row.changed_key is not None:
                raise NotPossible(
                    "This device has shown another identity key",
                    hint="Decide about that first: `pacerelle devices trust` or `pacerelle devices refuse`.",
                )
            _same(code, row.identity_key)
            devices.set_verified(tx, self._agent_id, user_id, device_id)
            return False

        return await self._decide("verified", user_id, device_id, decide)

    async def trust(self, user_id: str, device_id: str | None, code: str) -> dict[str, Any]:
        """Accepts the key with this code: one that the device came with since, or a blocked device's own.

        Its sessions under the key before end, and what was held is taken in its order.
        """

        def decide(tx: Tx, row: DeviceRow) -> bool:
            others = {safety_code(key): key for key in (row.changed_key, row.refused_key) if key is not None}
            if (key := others.get(_plain(code))) is not None:
                conversations = devices.conversations_of(tx, self._agent_id, user_id, device_id)
                self._crypto.signal.forget(human_name(user_id, each, device_id) for each in conversations)
                devices.accept_key(tx, self._agent_id, user_id, device_id, key)
            else:
                _same(code, row.identity_key)
                if not row.blocked:
                    raise NotPossible(
                        "This device is neither blocked nor has it shown another key with this code",
                        hint="To note that you compared its code: `pacerelle devices verify`. To stay with it though"
                        " it has shown another: `pacerelle devices refuse`.",
                    )
            devices.set_blocked(tx, self._agent_id, user_id, device_id, blocked=False)
            return True

        return await self._decide("trusted", user_id, device_id, decide)

    async def refuse(self, user_id: str, device_id: str | None, code: str) -> dict[str, Any]:
        """Stays with the known key: what comes with the other one, whose code this is, holds up no other any more."""

        def decide(tx: Tx, row: DeviceRow) -> bool:
            if row.changed_key is None:
                raise NotPossible("This device has shown no other identity key", hint=LIST_HINT)
            _same(code, row.changed_key)
            devices.refuse_changed_key(tx, self._agent_id, user_id, device_id)
            return True

        return await self._decide("key_refused", user_id, device_id, decide)

    async def block(self, user_id: str, device_id: str | None) -> dict[str, Any]:
        """Holds everything of this device from now on, also what was accepted and is not processed."""

        def decide(tx: Tx, row: DeviceRow) -> bool:
            devices.set_blocked(tx, self._agent_id, user_id, device_id, blocked=True)
            return False

        return await self._decide("blocked", user_id, device_id, decide)

    def problems(self, tx: Tx) -> list[PacerelledError]:
        """What waits for the user's decision."""
        found = []
        noticed: dict[str, str] = {}
        for row in self._select(tx):
            device = f"device {row['device_id']}" if row["device_id"] else "the client without a device id"
            if row["state"] == "changed":
                found.append(
                    PacerelledError(
                        f"{device[0].upper()}{device[1:]} of {row['user_id']} has another identity key;"
                        f" {row['held']} of its messages are held",
                        code="identity_changed",
                        hint="Compare the new safety code in `pacerelle devices list` with what the device shows, then"
                        " `pacerelle devices trust` or `pacerelle devices refuse`.",
                    )
                )
            if row["noticed_at"]:
                noticed[row["user_id"]] = row["noticed_at"]
        for user_id, at in noticed.items():
            found.append(
                PacerelledError(
                    f"The relay said at {at} that an identity key of {user_id} has changed",
                    code="identity_notice",
                    hint="It does not say of which device. Compare the safety codes in `pacerelle devices list`; any"
                    " decision about a device of this person ends this notice.",
                )
            )
        return found

    async def _decide(
        self, what: str, user_id: str, device_id: str | None, decide: Callable[[Tx, DeviceRow], bool]
    ) -> dict[str, Any]:
        """`decide` makes the change, and says whether what was held is to be tried again."""

        def job(tx: Tx) -> list[Result]:
            row = devices.find(tx, self._agent_id, user_id, device_id)
            if row is None:
                raise UnknownMessage(f"There is no such device of {user_id}", hint=LIST_HINT)
            self._crypto.guard(tx)
            again = decide(tx, row)
            devices.clear_notice(tx, self._agent_id, user_id)
            events.add(tx, self._agent_id, f"device.{what}", user_id=user_id, device_id=device_id)
            held = Chosen(reasons=OF_A_DEVICE, sender=user_id, device_id=device_id or "")
            return self._quarantine.take(tx, held) if again else []

        results = await self._store.run(job)
        await self._quarantine.taken(results)
        self._on_decided()
        rows = await self.select()
        device = next(row for row in rows if (row["user_id"], row["device_id"]) == (user_id, device_id))
        return {"device": device, "accepted": sum(result.outcome == "accepted" for result in results)}

    def _select(self, tx: Tx) -> list[dict[str, Any]]:
        return [_shown(row) for row in devices.select(tx, self._agent_id)]


def _shown(row: Any) -> dict[str, Any]:
    user_id, device_id, key, changed, refused, verified, blocked, first_seen, last_seen, noticed_at, held = row
    state = "blocked" if blocked else "changed" if changed else "verified" if verified else "new"
    return {
        "user_id": user_id,
        "device_id": device_id or None,
        "state": state,
        "safety_code": _code(key),
        "changed_code": _code(changed),
        "refused_code": _code(refused),
        "first_seen": first_seen,
        "last_seen": last_seen,
        "noticed_at": noticed_at,
        "held": held,
    }


def _code(key: bytes | None) -> str | None:
    return None if key is None else safety_code(bytes(key))


def _plain(code: str) -> str:
    """As `safety_code` writes it, however a person copied it."""
    digits = "".join(code.split()).upper()
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _same(code: str, key: bytes | None) -> None:
    if key is None or _plain(code) != safety_code(key):
        raise InvalidArgument(
            "The safety code is not that of this device's key now", argument="safety_code", hint=LIST_HINT
        )
