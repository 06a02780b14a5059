"""A person's device on real Signal, without a relay client: it makes what a relay would deliver, and reads ours."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pacerelle_protocol.groups import GroupKey, encode_sender_key, seal_group
from pacerelle_protocol.history import HistoryKey
from pacerelle_protocol.payload import encode_delivery, encode_text, open_plaintext, pack_b64, unpack_b64
from pacerelle_protocol.signal import PreKeyBundle, SignalStore, agent_name, human_name

from .polling import until
from .scripted_relay import ScriptedRelay


class Human:
    """`await Human.meet(relay)`: a device that has the agent's prekeys and can write to it."""

    def __init__(self, agent_id: str, user: str, conversation: str, device: str | None) -> None:
        self.agent_id = agent_id
        self.user = user
        self.conversation = conversation
        self.device = device
        self.signal = SignalStore.create(human_name(user, conversation, device))

    @classmethod
    async def meet(
        cls,
        relay: ScriptedRelay,
        *,
        agent_id: str = "a1",
        user: str = "ada",
        conversation: str = "c1",
        device: str | None = "d1",
        one_time: bool = True,
    ) -> Human:
        await until(lambda: relay.bundles and relay.one_time, "the agent's prekeys")
        human = cls(agent_id, user, conversation, device)
        human.use_bundle(relay.bundles[-1], relay.one_time[-1]["one_time_prekeys"].pop(0) if one_time else None)
        return human

    @property
    def _agent(self) -> str:
        """Its name in this device's store: a session for each conversation, as the agent has it too."""
        return f"{agent_name(self.agent_id)}:{self.conversation}"

    def use_bundle(self, bundle: dict[str, Any], one_time: dict[str, Any] | None) -> None:
        self.signal.process_bundle(self._agent, PreKeyBundle.from_json({**bundle, "one_time_prekey": one_time}))

    def fork(self) -> Human:
        """The same device with another identity key, as after a reinstallation."""
        return Human(self.agent_id, self.user, self.conversation, self.device)

    def elsewhere(self, relay: ScriptedRelay, conversation: str) -> Human:
        """The same device with its one identity key, in another conversation."""
        other = Human(self.agent_id, self.user, conversation, self.device)
        other.signal = self.signal
        other.start(relay)
        return other

    def start(self, relay: ScriptedRelay) -> None:
        """Begins a session with the agent's newest prekeys."""
        self.use_bundle(relay.bundles[-1], relay.one_time[-1]["one_time_prekeys"].pop(0))

    # -- writing -----------------------------------------------------------------------------------------------

    def encrypt(self, plaintext: str | bytes) -> str:
        data = plaintext if isinstance(plaintext, bytes) else plaintext.encode()
        return pack_b64(self.signal.encrypt(self._agent, data))

    def frame(self, text: str = "hello", *, history: HistoryKey | None = None, **changes: Any) -> str:
        """A `MSG` with `text`; a change to None takes the field out."""
        body = encode_text(text)
        if history is not None:
            body = encode_delivery(body, history)
        return self.envelope(self.encrypt(body), **changes)

    def envelope(self, payload_b64: str, **changes: Any) -> str:
        fields: dict[str, Any] = {
            "type": "MSG",
            "id": str(uuid.uuid4()),
            "from": self.user,
            "from_device_id": self.device,
            "to": self.agent_id,
            "conversation_id": self.conversation,
            "payload_b64": payload_b64,
            "encrypted": True,
            **changes,
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    def group_frame(self, text: str, key: GroupKey, **changes: Any) -> str:
        payload = seal_group(encode_text(text).encode(), key)
        return self.envelope(payload, **{"to": f"group:{key.conversation_id}"} | changes)

    def key_envelope(self, key: GroupKey, **changes: Any) -> dict[str, Any]:
        """An entry of `GET /agent/group-keys`."""
        return {
            "conversation_id": key.conversation_id,
            "key_id": key.key_id,
            "epoch": key.epoch,
            "sender_id": self.user,
            "sender_device_id": self.device,
            "envelope_b64": self.encrypt(encode_sender_key(key)),
            **changes,
        }

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, message: dict[str, Any]) -> Any:
        """The content of one of the agent's messages."""
        data = self.signal.decrypt(self._agent, unpack_b64(message["payload_b64"]))
        return open_plaintext(data).content


def message_id(frame: str) -> str:
    found: str = json.loads(frame)["id"]
    return found
