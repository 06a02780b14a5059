"""The people and agents around a relay under test. Signal is the SDK's own; nothing of the phone is used."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from agent_gateway_sdk import SignalPreKeyBundle, _SignalStore

PATIENCE = 30.0  # seconds


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unb64(text: str) -> bytes:
    return base64.b64decode(text)


async def until[T](look: Callable[[], Awaitable[T]], *, what: str) -> T:
    """The first true result of `look`."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.02)
    raise AssertionError(what)


def text_message(conversation_id: str, to: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    """A message that is not encrypted: the relay treats it the same."""
    return {
        "id": str(uuid.uuid4()),
        "conversation_id": conversation_id,
        "to": to,
        "payload_b64": b64(text.encode()),
        "encrypted": False,
        **more,
    }


class Caller:
    """HTTP calls with one token. `call` gives (status, JSON)."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None = None) -> None:
        self.http = http
        self.url = url
        self.token = token

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        sent = dict(headers or {})
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        async with self.http.request(method, self.url + path, json=body, data=data, headers=sent) as answer:
            raw = await answer.read()
            return answer.status, json.loads(raw) if raw else None

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        status, answer = await self.call(method, path, body, **more)
        assert status in (200, 201, 202, 204), (status, answer)
        return answer

    async def refused(self, status: int, code: str, method: str, path: str, body: Any = None, **more: Any) -> str:
        """Checks the refusal and returns its message."""
        got, answer = await self.call(method, path, body, **more)
        assert (got, answer["error"]["code"]) == (status, code), (got, answer)
        return str(answer["error"]["message"])

    async def fetch(self, path: str) -> tuple[int, bytes]:
        async with self.http.get(self.url + path, headers={"Authorization": f"Bearer {self.token}"}) as answer:
            return answer.status, await answer.read()


class Agent(Caller):
    """An agent by its token, spoken for by the test itself."""

    def __init__(self, http: aiohttp.ClientSession, relay_url: str, created: dict[str, Any]) -> None:
        super().__init__(http, relay_url, created["agent_token"])
        self.id: str = created["agent_id"]
        self.conversation_id: str = created["conversation_id"]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        url = f"{self.url}/ws/agent?token={self.token}"
        async with self.http.ws_connect(url, max_msg_size=0, autoping=False) as ws:
            yield Wire(ws)


class Wire:
    """An agent's or a device's open WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def send(self, frame: dict[str, Any]) -> None:
        await self.ws.send_str(json.dumps(frame))

    async def say(self, message: dict[str, Any]) -> None:
        await self.send({"type": "MSG", **message})

    async def receive(self) -> dict[str, Any]:
        """The next frame; the relay's pings are answered meanwhile."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self.ws.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    return dict(json.loads(message.data))
                if message.type is aiohttp.WSMsgType.PING:
                    await self.ws.pong(message.data)
                else:
                    assert message.type is aiohttp.WSMsgType.PONG, message

    async def receive_all(self, count: int) -> list[dict[str, Any]]:
        return [await self.receive() for _ in range(count)]

    async def stored(self) -> None:
        """Returns once the relay has answered a ping; frames that come before the answer are dropped."""
        data = os.urandom(8)
        await self.ws.ping(data)
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self.ws.receive()
                if message.type is aiohttp.WSMsgType.PING:
                    await self.ws.pong(message.data)
                elif message.type is not aiohttp.WSMsgType.TEXT:
                    assert message.type is aiohttp.WSMsgType.PONG, message
                    if message.data == data:
                        return

    async def frames_until(self, marker: str) -> list[dict[str, Any]]:
        """What comes before the message with this id, markers left out."""
        frames = []
        while (frame := await self.receive()).get("id") != marker:
            if not str(frame.get("id")).startswith("marker-"):
                frames.append(frame)
        return frames

    async def ack_read(self, message: dict[str, Any]) -> None:
        await self.send(
            {
                "type": "ACK_READ",
                "to": message["from"],
                "message_id": message["id"],
                "conversation_id": message["conversation_id"],
            }
        )

    async def ack(self, frame: dict[str, Any]) -> None:
        await self.send({"type": "ACK", "seq": frame["seq"]})

    async def closed(self) -> int | None:
        """The code with which the relay closes, whatever comes before it."""
        async with asyncio.timeout(PATIENCE):
            while (await self.ws.receive()).type not in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.CLOSING,
            ):
                pass
        return self.ws.close_code


class Device(Caller):
    """A person's device with a Signal store of its own for each conversation."""

    def __init__(self, http: aiohttp.ClientSession, relay_url: str, created: dict[str, Any]) -> None:
        super().__init__(http, relay_url + "/human/v1", created["device_token"])
        self.relay_url = relay_url
        self.user_id: str = created["user_id"]
        self.id: str = created["device_id"]
        self._stores: dict[str, _SignalStore] = {}

    @classmethod
    async def first(cls, http: aiohttp.ClientSession, relay_url: str, name: str = "Ann", **more: Any) -> Device:
        """A new account's device."""
        created = await Caller(http, relay_url + "/human/v1").ok("POST", "/accounts", {"name": name, **more})
        return cls(http, relay_url, created)

    async def link_another(self) -> Device:
        code = (await self.ok("POST", "/devices/codes", {}))["link_code"]
        created = await Caller(self.http, self.url).ok("POST", "/devices/link", {"link_code": code})
        return Device(self.http, self.relay_url, created)

    async def new_agent(self, name: str = "Helper") -> Agent:
        return Agent(self.http, self.relay_url, await self.ok("POST", "/agents", {"name": name}))

    async def new_group(self, *agents: Agent) -> str:
        body = {"kind": "group", "agent_ids": [agent.id for agent in agents], "title": "All"}
        return str((await self.ok("POST", "/conversations", body))["conversation_id"])

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.http.ws_connect(f"{self.url}/ws", headers=headers, max_msg_size=0, autoping=False) as ws:
            yield Wire(ws)

    async def post(self, message: dict[str, Any]) -> Any:
        return await self.ok("POST", "/messages", message)

    async def waiting(self, wire: Wire) -> list[dict[str, Any]]:
        """What the relay has for this device: everything that comes before a message sent now."""
        marker = f"marker-{uuid.uuid4()}"
        agent = await self.new_agent()
        async with agent.connected() as other:
            await other.say(text_message(agent.conversation_id, self.user_id, id=marker))
            await other.stored()
        await self.ok("DELETE", f"/agents/{agent.id}")
        return await wire.frames_until(marker)

    async def waiting_for(self, agent: Agent, wire: Wire) -> list[dict[str, Any]]:
        """The same for an agent of this person."""
        marker = f"marker-{uuid.uuid4()}"
        await self.post(text_message(agent.conversation_id, agent.id, id=marker))
        return await wire.frames_until(marker)

    # Signal

    def _store(self, conversation_id: str) -> _SignalStore:
        if conversation_id not in self._stores:
            name = f"human:{self.user_id}:{conversation_id}:device:{self.id}"
            self._stores[conversation_id] = _SignalStore(name)
        return self._stores[conversation_id]

    async def start_session(self, agent: Agent, conversation_id: str) -> None:
        """Waits until the agent has published its keys, and uses up one of them."""

        async def look() -> Any:
            status, bundle = await self.call("GET", f"/agents/{agent.id}/prekey-bundle")
            return bundle if status == 200 and bundle["one_time_prekey"] else None

        bundle = await until(look, what="the agent publishes its prekeys")
        one_time = bundle.pop("one_time_prekey")
        assert bundle.pop("protocol_features") == ["history-v1"]
        self._store(conversation_id).process_prekey_bundle(
            f"agent:{agent.id}",
            SignalPreKeyBundle(**bundle, prekey_id=one_time["prekey_id"], prekey_public=one_time["public_key"]),
        )

    def seal(self, agent: Agent, text: str, conversation_id: str | None = None) -> str:
        store = self._store(conversation_id or agent.conversation_id)
        return b64(store.encrypt(f"agent:{agent.id}", text.encode()))

    def open(self, agent: Agent, message: dict[str, Any]) -> str:
        store = self._store(message["conversation_id"])
        return store.decrypt(f"agent:{agent.id}", unb64(message["payload_b64"])).decode()

    async def write(self, agent: Agent, text: str, **more: Any) -> str:
        """Sends encrypted text in the direct conversation; returns the message's id."""
        message = text_message(agent.conversation_id, agent.id, **more)
        message |= {"payload_b64": self.seal(agent, text), "encrypted": True}
        await self.post(message)
        return str(message["id"])


ECHO = """
import asyncio
import os

from pacerelle import AgentGatewayClient

client = AgentGatewayClient(
    token=os.environ["PACERELLE_AGENT_TOKEN"],
    agent_id=os.environ["PACERELLE_AGENT_ID"],
    base_url=os.environ["PACERELLE_BASE_URL"],
    store_root=os.environ["STORE_ROOT"],
    e2ee=True,
)


async def handle(message, agent):
    await agent.send_message(
        conversation_id=message.conversation_id,
        to=message.from_id,
        reply_to_message_id=message.id,
        text=f"Received: {message.text}",
    )


client.on_message(handle)
asyncio.run(client.connect())
"""

SKILLED = """
import asyncio
import os

from pacerelle import AgentGatewayClient

client = AgentGatewayClient(
    token=os.environ["PACERELLE_AGENT_TOKEN"],
    agent_id=os.environ["PACERELLE_AGENT_ID"],
    base_url=os.environ["PACERELLE_BASE_URL"],
    store_root=os.environ["STORE_ROOT"],
    e2ee=True,
)


async def handle(message, agent):
    to = {"conversation_id": message.conversation_id, "to": message.from_id}
    if message.attachments:
        data = await agent.download_attachment(message.attachments[0])
        name = message.attachments[0].name
        await agent.send_file(**to, name="back-" + name, data=data[::-1], text="turned", reply_to_message_id=message.id)
    elif message.widget_response:
        answer = message.widget_response
        await agent.send_message(**to, text=f"{answer.ref} is {answer.value}", reply_to_message_id=message.id)
    elif message.text == "ask":
        await agent.send_confirm_widget(**to, title="Really?", widget_id="w1")
    elif message.text == "hang":
        print("HANGING", flush=True)
        await asyncio.sleep(3600)
    else:
        await agent.reply(message, "Received: " + message.text)


client.on_message(handle)
client.on_identity_changed(lambda peer: print("CHANGED", peer, flush=True))
asyncio.run(client.connect())
"""


@asynccontextmanager
async def sdk_agent(script: str, agent: Agent, home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The official SDK in a process of its own, killed at the end."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PACERELLE_AGENT_TOKEN": str(agent.token),
        "PACERELLE_AGENT_ID": agent.id,
        "PACERELLE_BASE_URL": agent.url,
        "STORE_ROOT": str(home / "store"),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process, start: str) -> str:
    """The next line that the process prints and that starts so."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while found := await process.stdout.readline():
            if found.decode().startswith(start):
                return found.decode().strip()
    raise AssertionError(f"the process ended without printing {start}")
