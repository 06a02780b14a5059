"""What the measurements of messaging stand on: a scripted relay, a person who writes, and agents as real processes.

The relay costs next to nothing: frames are encrypted and framed before the clock starts, and it decides nothing. It
keeps nothing either, so it only suits measuring; `pacerelle relay` is the real one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode

from pacerelle_protocol.prekeys import PreKeyBundle
from pacerelle_protocol.signal import SignalStore, agent_name, human_name

TEXT = "x" * 200  # what people write, about
CONVERSATION, DEVICE = "conversation-1", "phone-1"
PATIENCE = 60.0  # seconds until something that should happen counts as broken


class Agent:
    """One agent at the relay, with the one person who writes to it. Its token is its id."""

    def __init__(self, agent_id: str) -> None:
        self.id = agent_id
        self.bundle: dict[str, Any] = {}
        self.one_time: list[dict[str, Any]] = []
        self.ws: ServerConnection | None = None
        self.online = asyncio.Event()
        self.signal = SignalStore.create(human_name(agent_id, CONVERSATION, DEVICE))

    def frames(self, count: int, text: str = TEXT) -> list[bytes]:
        """New messages from the person, as bytes to be written to the socket."""
        return [Frame(Opcode.TEXT, self.message(text)).serialize(mask=False) for _ in range(count)]

    def message(self, text: str) -> bytes:
        if not self.signal.has_session(agent_name(self.id)):
            bundle = PreKeyBundle.from_json(self.bundle | {"one_time_prekey": self.one_time[0]})
            self.signal.process_bundle(agent_name(self.id), bundle)
        frame = {
            "type": "MSG",
            "id": str(uuid.uuid4()),
            "from": "person-1",
            "from_device_id": DEVICE,
            "to": self.id,
            "conversation_id": CONVERSATION,
            "payload_b64": base64.b64encode(self.signal.encrypt(agent_name(self.id), text.encode())).decode(),
            "encrypted": True,
        }
        return json.dumps(frame).encode()

    async def hand(self, frames: list[bytes]) -> int:
        """Writes frames at once, waits for all their ACK_READs; returns how many other frames came between."""
        assert self.ws is not None
        self.ws.transport.write(b"".join(frames))
        others = 0
        for _ in frames:
            while b'"ACK_READ"' not in await self.ws.recv(decode=False):
                others += 1
        return others

    async def receive(self) -> None:
        """Reads the agent's reply, so that from here on the person's messages are no longer first messages."""
        assert self.ws is not None
        async with asyncio.timeout(PATIENCE):
            while (frame := json.loads(await self.ws.recv()))["type"] != "MSG":
                pass
        self.signal.decrypt(agent_name(self.id), base64.b64decode(frame["payload_b64"]))


class Relay:
    """Serves `agents`, by their tokens."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.base_url = self.ws_url = ""

    def agent(self, agent_id: str) -> Agent:
        self.agents[agent_id] = Agent(agent_id)
        return self.agents[agent_id]

    async def _put_bundle(self, request: web.Request) -> web.Response:
        self._caller(request).bundle = await request.json()
        return web.json_response({})

    async def _add_one_time(self, request: web.Request) -> web.Response:
        self._caller(request).one_time += (await request.json())["one_time_prekeys"]
        return web.json_response({})

    def _caller(self, request: web.Request) -> Agent:
        return self.agents[request.headers["Authorization"].removeprefix("Bearer ")]

    async def _serve(self, ws: ServerConnection) -> None:
        assert ws.request is not None
        agent = self.agents[parse_qs(urlsplit(ws.request.path).query)["token"][0]]
        agent.ws = ws
        agent.online.set()
        await ws.wait_closed()
        agent.online.clear()


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    serving = Relay()
    app = web.Application()
    app.router.add_put("/agent/prekey-bundle", serving._put_bundle)
    app.router.add_post("/agent/one-time-prekeys", serving._add_one_time)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    serving.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    options: dict[str, Any] = {"compression": None, "ping_interval": None, "close_timeout": 1}
    try:
        async with serve(serving._serve, "127.0.0.1", 0, **options) as server:
            serving.ws_url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield serving
    finally:
        await runner.cleanup()


@asynccontextmanager
async def daemon(serving: Relay, agent: Agent, home: Path) -> AsyncIterator[Path]:
    """The daemon with `agent`, connected; its state folder."""
    home.mkdir(exist_ok=True)
    root = home / "root"
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PACERELLED_KEYRING": "false",
        "PACERELLE_AGENT_ID": agent.id,
        "PACERELLE_AGENT_TOKEN": agent.id,
        "PACERELLE_BASE_URL": serving.base_url,
        "PACERELLE_WS_URL": serving.ws_url,
    }
    with _process([sys.executable, "-I", "-m", "pacerelled", "--store-root", str(root)], env):
        await _online(agent)
        yield root / "pacerelled"


@asynccontextmanager
async def sdk_agent(serving: Relay, agent: Agent, home: Path) -> AsyncIterator[None]:
    """An agent on the official SDK, connected. It answers the text `hello` and takes every other message silently."""
    home.mkdir(exist_ok=True)
    arguments = [agent.id, serving.base_url, serving.ws_url, str(home)]
    with _process([sys.executable, "-c", _SDK_AGENT, *arguments], {"PATH": os.environ["PATH"], "HOME": str(home)}):
        await _online(agent)
        yield
    await _offline(agent)


_SDK_AGENT = """
import asyncio, sys
from pacerelle import AgentGatewayClient
agent_id, base_url, ws_url, root = sys.argv[1:]
client = AgentGatewayClient(
    token=agent_id, agent_id=agent_id, base_url=base_url, ws_url=ws_url, store_root=root, e2ee=True
)
async def take(message, agent):
    if message.text == "hello":
        await agent.reply(message, "hello")
client.on_message(take)
client.publish_prekey_bundle()
asyncio.run(client.connect())
"""


@contextmanager
def _process(command: list[str], env: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def awake() -> AsyncIterator[None]:
    """Inside, the relay polls its sockets without pause: what the machine takes to wake it up is not the agent's."""

    async def poll() -> None:
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        polling.cancel()


async def _online(agent: Agent) -> None:
    async with asyncio.timeout(PATIENCE):
        await agent.online.wait()


async def _offline(agent: Agent) -> None:
    assert agent.ws is not None
    async with asyncio.timeout(PATIENCE):
        await agent.ws.wait_closed()


def microseconds(seconds: list[float]) -> dict[str, float]:
    """What a series of durations is summed up as."""
    ordered = sorted(seconds)
    figures = {
        "median": statistics.median(ordered),
        "mean": statistics.fmean(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }
    return {name: round(value * 1e6, 1) for name, value in figures.items()}
