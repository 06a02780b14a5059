"""Two parties on real Signal."""

from __future__ import annotations

import dataclasses

from pacerelle_protocol.signal import PreKeyBundle, Prekeys, SignalStore, agent_name, human_name


class Pair:
    """An agent with prekeys, and phones that write to it: all of it real Signal."""

    def __init__(self) -> None:
        self.agent = SignalStore.create(agent_name("a1"))
        self.prekeys: Prekeys = self.agent.generate_prekeys(10)
        self._unused = list(self.prekeys.one_time)

    def bundle(self) -> PreKeyBundle:
        """As the relay hands it out: with another one-time prekey each time."""
        number, key = self._unused.pop(0)
        return dataclasses.replace(self.prekeys.bundle, one_time_id=number, one_time_key=key)

    def phone(self, user: str = "u1", device: str | None = "d1") -> SignalStore:
        """A device with a session to the agent that the agent does not know of yet."""
        phone = SignalStore.create(human_name(user, "c1", device))
        phone.process_bundle(self.agent.name, self.bundle())
        return phone

    def talk(self, phone: SignalStore, agent: SignalStore | None = None) -> None:
        """A message each way."""
        agent = agent or self.agent
        assert agent.decrypt(phone.name, phone.encrypt(agent.name, b"request")) == b"request"
        assert phone.decrypt(agent.name, agent.encrypt(phone.name, b"reply")) == b"reply"
