"""A real Claude Code, Codex and Gemini CLI, each in an empty home, with the entry of `pacerelle host install`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.e2e.stack import DEADLINE, Stack
from tests.outside.node import Unavailable, node_22, packages, this_platform

CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.197"
CODEX = "@openai/codex@0.171.0"
GEMINI = "@google/gemini-cli@0.61.0"


def claude_code() -> Path:
    """The program of Claude Code. Raises Unavailable."""
    return _binary(CLAUDE_CODE, f"@anthropic-ai/claude-code-{this_platform()}/claude")


def codex() -> Path:
    """The program of Codex. Raises Unavailable."""
    return _binary(CODEX, f"@openai/codex-{this_platform()}/vendor/*/bin/codex")


def gemini() -> tuple[Path, str]:
    """A Node, and the Gemini CLI that it can run. Raises Unavailable."""
    return Path(node_22()), str(packages(GEMINI) / "node_modules" / ".bin" / "gemini")


def _binary(package: str, pattern: str) -> Path:
    """It is in a package of its own, which npm chooses."""
    found = next((packages(package) / "node_modules").glob(pattern), None)
    if found is None:
        raise Unavailable(f"npm's package {package} has no program for {this_platform()}")
    return found


@dataclass
class RealHost:
    """A host by its name in `pacerelle host`, as a process group that can be killed."""

    name: str
    program: Path
    home: Path
    stack: Stack
    env: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    log: IO[bytes] | None = None

    def prepare(self, model_url: str) -> list[str]:
        """Its settings besides the entry. Returns the arguments for one session."""
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "TMPDIR": str(self.home), "LANG": "C.UTF-8"}
        if self.name == "claude-code":
            self.env |= {
                "ANTHROPIC_BASE_URL": model_url,
                "ANTHROPIC_API_KEY": "none",
                "DISABLE_TELEMETRY": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            }
            return ["-p", "go", "--allowedTools", "mcp__pacerelle"]
        if self.name == "gemini":
            self.env |= {"GOOGLE_GEMINI_BASE_URL": model_url, "GEMINI_API_KEY": "none"}
            files = {
                "settings.json": {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "general": {"disableAutoUpdate": True},
                },
                "trustedFolders.json": {str(self.home / "work"): "TRUST_FOLDER"},
            }
            for name, content in files.items():
                file = self.home / ".gemini" / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps(content))
            return ["-p", "go", "--model", "gemini-2.5-flash", "--yolo"]
        settings = self.home / ".codex" / "config.toml"
        settings.parent.mkdir()
        settings.write_text(
            '# the test\'s own settings\nmodel = "scripted"\nmodel_provider = "fake"\napproval_policy = "never"\n\n'
            f'[model_providers.fake]\nname = "fake"\nbase_url = "{model_url}/v1"\nwire_api = "responses"\n\n'
            '[mcp_servers.pacerelle]\ndefault_tools_approval_mode = "approve"  # nobody is there to ask\n'
        )
        return ["exec", "--skip-git-repo-check", "go"]

    async def install(self, agent_id: str) -> None:
        """As a user does it, for the stack's daemon."""
        await self.pacerelle("host", "install", self.name, "--agent", agent_id)

    async def check(self) -> None:
        await self.pacerelle("host", "test", self.name)

    async def start(self, arguments: list[str]) -> None:
        work = self.home / "work"
        work.mkdir()
        self.log = (self.home / "log").open("w+b")
        self.process = await asyncio.create_subprocess_exec(
            str(self.program), *arguments,
            cwd=work, env=self.env, stdin=asyncio.subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip

    def words(self) -> str:
        """What it has written so far."""
        return (self.home / "log").read_text(errors="replace") if self.log else ""

    async def end(self) -> int:
        """Waits for it to end by itself; returns its exit code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), DEADLINE)

    async def kill(self) -> None:
        """With all it has started in its group, at once."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        if self.log is not None:
            self.log.close()

    async def pacerelle(self, *args: str) -> str:
        """A command in its home; what it printed. It must succeed."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pacerelle_cli", "--store-root", str(self.stack.root), *args,
            env=self.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(child.communicate(), DEADLINE)
        assert child.returncode == 0, out.decode()
        return out.decode()
