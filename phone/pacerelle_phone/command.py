"""What every `pacerelle chat` command shares: its options, a device around its work, messages and exit codes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, NoReturn

import click

from pacerelle_protocol.errors import ProtocolError

from . import show
from .device import DEFAULT_RELAY, Device
from .errors import InvalidArgument, NotPaired, PhoneError, RelayUnreachable, TokenRefused
from .model import Agent

EXIT_FAILED, EXIT_LOGIN, EXIT_OFFLINE = 1, 4, 5


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that every command has; those of a subcommand win over those before it."""

    home: Path
    relay: str | None
    agent: str | None
    json: bool

    def out(self, value: dict[str, Any], text: str) -> None:
        click.echo(json.dumps(value) if self.json else text)


def common[**P](command: Callable[Concatenate[Settings, P], None]) -> Callable[..., None]:
    """The options of every command; the function gets them as its first argument."""

    @click.pass_context
    @functools.wraps(command)
    def with_settings(
        context: click.Context,
        /,
        *args: Any,
        home: Path | None,
        relay: str | None,
        agent: str | None,
        as_json: bool,
        **more: Any,
    ) -> None:
        before = context.find_object(Settings) or Settings(default_home(), None, None, False)
        settings = Settings(
            home=home or before.home,
            relay=relay or before.relay,
            agent=agent or before.agent,
            json=as_json or before.json,
        )
        context.obj = settings
        command(settings, *args, **more)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
        click.option("--agent", metavar="AGENT", help="The agent's id or name; not needed with one agent."),
        click.option("--relay", metavar="URL", help=f"The relay to pair with [{DEFAULT_RELAY}]; remembered."),
        click.option(
            "--home",
            type=click.Path(path_type=Path, file_okay=False),
            help="The device's directory [$PACERELLE_PHONE_HOME or ~/.pacerelle/phone].",
        ),
    ):
        with_settings = option(with_settings)
    return with_settings


def default_home() -> Path:
    return Path(os.environ.get("PACERELLE_PHONE_HOME") or "~/.pacerelle/phone").expanduser()


def run[T](settings: Settings, work: Callable[[Device], Awaitable[T]]) -> T:
    """Open the device and do the work; what goes wrong becomes a message and an exit code."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with await Device.open(settings.home, settings.relay) as phone:
            return await work(phone)

    try:
        return asyncio.run(main())
    except (PhoneError, ProtocolError) as e:
        fail(settings, e)
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)


def fail(settings: Settings, error: PhoneError | ProtocolError) -> NoReturn:
    if isinstance(error, ProtocolError):
        error = PhoneError(f"{error}.", code=error.reason)
    if settings.json:
        click.echo(json.dumps({"error": error.as_dict()}), err=True)
    else:
        click.echo(show.escape(f"Error: {error.message}"), err=True)
        if error.hint:
            click.echo(show.escape(error.hint), err=True)
    if isinstance(error, RelayUnreachable):
        sys.exit(EXIT_OFFLINE)
    sys.exit(EXIT_LOGIN if isinstance(error, (NotPaired, TokenRefused)) else EXIT_FAILED)


async def pick_agent(phone: Device, wanted: str | None) -> Agent:
    """The agent that was named, or the only one. Raises UnknownAgent and InvalidArgument."""
    if wanted is not None:
        return await phone.find_agent(wanted)
    known = await phone.known_agents() or await phone.agents()
    if len(known) == 1:
        return known[0]
    raise InvalidArgument(
        "There are several agents." if known else "There is no agent yet.",
        argument="agent",
        hint="Name one with --agent." if known else "Make one with `pacerelle chat new-agent NAME`.",
    )
