"""A relay whose blobs can be late, damaged, cut off or gone; and a desk that sends and saves files through it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from pacerelle_protocol.files import open_file, seal_file
from pacerelle_protocol.payload import FileRef, encode_text
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Session
from tests.daemon.core import Core
from tests.daemon.human import Human, message_id
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay


class FileRelay(ScriptedRelay):
    """`hold` stops a download or an upload after its first piece until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self.go = asyncio.Event()
        self.held = 0  # transfers that wait now
        self.cut_after: int | None = None  # bytes of a download after which the connection ends
        self.uploads = 0

    async def _wait(self) -> None:
        self.held += 1
        try:
            await self.go.wait()
        finally:
            self.held -= 1

    async def _download(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        blob = self.blobs.get(request.match_info["id"])
        if blob is None:
            raise web.HTTPNotFound
        if not self.hold and self.cut_after is None:
            return web.Response(body=blob)
        response = web.StreamResponse(headers={"Content-Length": str(len(blob))})
        await response.prepare(request)
        first = len(blob) // 2 if self.cut_after is None else self.cut_after
        await response.write(blob[:first])
        if self.hold:
            await self._wait()
        if self.cut_after is not None:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(blob[first:])
        return response

    async def _upload(self, request: web.Request) -> web.Response:
        self._check(request)
        self.uploads += 1
        data = bytearray()
        async for piece in request.content.iter_any():
            data += piece
            if self.hold:
                await self._wait()
        name = f"blob{len(self.blobs)}"
        self.blobs[name] = bytes(data)
        return web.json_response({"id": name}, status=201)


@dataclass
class Desk:
    """A daemon's core with its folders, an agent, and a person who has written to it."""

    core: Core
    relay: FileRelay
    agent: Agent
    human: Human
    session: Session
    inward: Path
    outward: Path
    question: str

    async def receive(self, data: bytes, *, name: str = "plan.pdf", blob: bytes | None = None, **changes: Any) -> str:
        """A request with one file, `f1`; its blob and what is said of it may be changed. Its message id."""
        sealed = seal_file(data)
        about: dict[str, Any] = {"mime": "application/pdf", "size": len(data), "sha256": sealed.sha256}
        about |= {"key": sealed.key, "iv": sealed.iv} | changes
        file = FileRef(id="f1", blob_id=f"in{len(self.relay.blobs)}", name=name, **about)
        self.relay.blobs[file.blob_id] = sealed.ciphertext if blob is None else blob
        public = {"id": file.id, "blob_id": file.blob_id, "name": "attachment", "mime": "x/y", "size": file.size}
        if file.sha256 is not None:
            public["sha256"] = file.sha256
        body = encode_text("look", [file])
        frame = self.human.envelope(self.human.encrypt(body), attachments=[public])
        await self.relay.push(frame)
        await until(lambda: message_id(frame) in self.relay.acked, "the request")
        return message_id(frame)

    async def sent_file(self) -> tuple[FileRef, bytes]:
        """The newest file that the person got: what is said of it, and its content."""
        await until(lambda: self.relay.messages, "the reply")
        (file,) = self.human.read(self.relay.messages[-1]).files
        (public,) = self.relay.messages[-1]["attachments"]
        assert file.key is not None
        assert file.iv is not None
        blob = self.relay.blobs[file.blob_id]
        return file, open_file(blob, key=file.key, iv=file.iv, sha256=public["sha256"], size=file.size)

    def inside(self) -> list[str]:
        return sorted(path.name for path in self.inward.rglob("*")) if self.inward.exists() else []


@asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[Desk]:
    inward, outward = folder / "Inbox", folder / "Documents"
    outward.mkdir()
    async with FileRelay() as relay, Core(folder / "state", files_in=(inward,), files_out=(outward,)) as core:
        agent = await core.agent(relay.url)
        human = await Human.meet(relay)
        frame = human.frame("question")
        await relay.push(frame)
        await until(lambda: relay.acked, "the question")
        question: str = json.loads(frame)["id"]
        yield Desk(core, relay, agent, human, core.session(), inward, outward, question)
