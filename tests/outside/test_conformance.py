"""The official conformance suites against our HTTP transport.

They cannot send a token: a proxy in front adds it, and passes everything else on as it is, `Host` and `Origin` too.

No failure is expected, so there is no list of them. What a revision does not require (the extension for tasks, which we
do not have) the suite runs as well, and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from .fixture_server import TOKEN, fixture_server
from .node import Unavailable, node_22, packages

pytestmark = [
    pytest.mark.outside,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),  # the old era has logging
]

PACKAGE = "@modelcontextprotocol/conformance"
SUITES = {
    "0.1.16": ("0.1.16", ["--suite", "all"]),
    "2025-11-25": ("0.2.0-alpha.12", ["--requirements", "2025-11-25"]),
    "2026-07-28": ("0.2.0-alpha.12", ["--requirements", "2026-07-28"]),
}
LEAST = {"0.1.16": 32, "2025-11-25": 30, "2026-07-28": 37}  # scenarios that are counted
TIME = 300  # seconds for a suite


@asynccontextmanager
async def with_token(port: int) -> AsyncIterator[int]:
    """The port of a proxy that adds the token."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as http:

        async def forward(request: web.Request) -> web.StreamResponse:
            headers = request.headers.copy()
            headers["Authorization"] = f"Bearer {TOKEN}"
            async with http.request(
                request.method,
                f"http://127.0.0.1:{port}{request.rel_url}",
                headers=headers,
                data=await request.read() or None,
                allow_redirects=False,
            ) as answer:
                passed = web.StreamResponse(status=answer.status, headers=answer.headers)
                await passed.prepare(request)
                with suppress(ConnectionError):  # the suite went away
                    async for piece in answer.content.iter_any():
                        await passed.write(piece)
                    await passed.write_eof()
                return passed

        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("suite", SUITES)
async def test_the_suite_finds_nothing_wrong(suite: str, tmp_path: Path) -> None:
    version, options = SUITES[suite]
    try:
        node, folder = node_22(), packages(f"{PACKAGE}@{version}")
    except Unavailable as why:
        pytest.skip(str(why))
    program = folder / "node_modules" / PACKAGE / "dist" / "index.js"
    async with fixture_server() as port, with_token(port) as proxy:
        process = await asyncio.create_subprocess_exec(
            node, str(program), "server", "--url", f"http://127.0.0.1:{proxy}/mcp", *options,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(process.communicate(), TIME)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    summary = said.decode().partition("=== SUMMARY ===")[2]
    assert process.returncode == 0, summary
    assert summary.count("✓") >= LEAST[suite], summary
