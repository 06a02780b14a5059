"""`pacerelle relay`: runs a relay until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import secrets
import signal
from pathlib import Path

import click

from .errors import DataError
from .server import Relay, RelayConfig

DEFAULT_PORT = 8787


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=lambda: Path.home() / ".pacerelle" / "relay",
    show_default="~/.pacerelle/relay",
    help="Directory for the database and files.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option(
    "--invite",
    envvar="PACERELLE_RELAY_INVITE",
    help="Code that people need to make an account. Made up if the relay can be reached from elsewhere.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON with the URL.")
def relay(data: Path, host: str, port: int, invite: str | None, as_json: bool) -> None:
    """Run a relay of your own. It stores ciphertext, routing data and times, never a key that opens a message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    exposed = not _is_loopback(host)
    if exposed and not invite:
        invite = secrets.token_urlsafe(12)
    config = RelayConfig(database=data / "relay.db", host=host, port=port, invite=invite)
    try:
        asyncio.run(_serve(config, exposed=exposed, as_json=as_json))
    except DataError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host} port {port}: {error.strerror}") from error


async def _serve(config: RelayConfig, *, exposed: bool, as_json: bool) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with Relay(config) as running:
        if as_json:
            click.echo(json.dumps({"url": running.url, "invite": config.invite}))
        else:
            _greet(running, exposed=exposed)
        await stopping.wait()
    if not as_json:
        click.echo("Stopped.")


def _greet(running: Relay, *, exposed: bool) -> None:
    config = running.config
    click.echo(f"Relay at {running.url}, data in {config.database.parent}")
    if exposed:
        click.echo(
            "Warning: this is HTTP without TLS, reachable from other machines. Tokens would cross the network readable:"
            " put a reverse proxy with a certificate in front of it."
        )
    if config.invite:
        click.echo(f"Invite code for new accounts: {config.invite}")
    invite = " --invite CODE" if config.invite else ""
    click.echo(
        f"Next:\n"
        f"  pacerelle chat pair --relay {running.url}{invite} --name YOU --new-agent NAME\n"
        f"      an account with this device, and an agent: its id and token are shown once\n"
        f"  pacerelle agent add AGENT_ID --base-url {running.url}\n"
        f"      the daemon speaks for the agent (other programs: PACERELLE_BASE_URL={running.url})\n"
        f"Ctrl-C stops the relay."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
