"""`pacerelle chat`: a person's device in a terminal and in scripts (docs/phone.md)."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from . import show
from .answers import parse_answer
from .command import Settings, common, pick_agent, run
from .device import Device
from .errors import InvalidArgument, PhoneError, RelayUnreachable, WaitTimeout
from .files import File
from .model import Agent, Message
from .talk import Talk
from .terminal import Terminal

DEFAULT_WAIT = 10.0  # seconds a command waits for the relay to take what it sends


@click.group(invoke_without_command=True)
@common
@click.option("--send", "text", metavar="TEXT", help="Send one message instead of talking.")
@click.option("--file", "files", type=click.Path(path_type=Path, dir_okay=False), multiple=True, help="Send a file.")
@click.option("--wait", type=float, metavar="SECONDS", help="Then wait for the reply to it.")
def chat(
    settings: Settings,
    text: str | None,
    files: tuple[Path, ...],
    wait: float | None,
) -> None:
    """Write to your agents as a person's device, end-to-end encrypted.

    Without a command: talk in the terminal; the first time, pair with a relay and make an agent.
    """
    if click.get_current_context().invoked_subcommand is not None:
        if text is not None or files or wait is not None:
            raise click.UsageError("--send, --file and --wait go without a command.")
    elif text is not None or files:
        _send(settings, text or "", files, wait)
    elif wait is not None:
        raise click.UsageError("--wait needs --send or --file.")
    else:
        _talk(settings)


@chat.command()
@common
@click.option("--name", required=True, help="Your name.")
@click.option("--device-name", help="This device's name.")
@click.option("--invite", help="The relay's invitation, if it asks for one.")
@click.option("--new-agent", metavar="NAME", help="Make an agent too, and show its id and token.")
def pair(settings: Settings, name: str, device_name: str | None, invite: str | None, new_agent: str | None) -> None:
    """Make an account at the relay, with this home as its first device."""

    async def work(phone: Device) -> None:
        await phone.register(name, device_name, invite)
        out: dict[str, Any] = {"user_id": phone.user_id, "device_id": phone.device_id, "relay": phone.relay_url}
        if new_agent is not None:
            out["agent"], said = await _make_agent(phone, new_agent)
        settings.out(out, f"Paired with {phone.relay_url}." + (f"\n{said}" if new_agent is not None else ""))

    run(settings, work)


async def _make_agent(phone: Device, name: str) -> tuple[dict[str, Any], str]:
    made = await phone.create_agent(name)
    out = {"agent_id": made.agent_id, "agent_token": made.agent_token, "conversation_id": made.conversation_id}
    return out, (
        f"Agent {show.escape(name, one_line=True)}. Its token is shown this once:\n"
        f"PACERELLE_AGENT_ID={made.agent_id}\nPACERELLE_AGENT_TOKEN={made.agent_token}\n"
        f"PACERELLE_BASE_URL={phone.relay_url}"
    )


@chat.command("link-code")
@common
def link_code(settings: Settings) -> None:
    """Show a code with which another device joins this account."""

    async def work(phone: Device) -> None:
        code, seconds = await phone.create_link_code()
        text = f"{code}\nOn the other device, within {seconds // 60} minutes: pacerelle chat link {code}"
        settings.out({"link_code": code, "expires_in": seconds}, text)

    run(settings, work)


@chat.command()
@common
@click.argument("code")
@click.option("--device-name", help="This device's name.")
def link(settings: Settings, code: str, device_name: str | None) -> None:
    """Join an account with the CODE that another of its devices shows."""

    async def work(phone: Device) -> None:
        await phone.link(code, device_name)
        out = {"user_id": phone.user_id, "device_id": phone.device_id, "relay": phone.relay_url}
        settings.out(out, f"Linked at {phone.relay_url}.")

    run(settings, work)


@chat.command("new-agent")
@common
@click.argument("name")
def new_agent(settings: Settings, name: str) -> None:
    """Make an agent and show its id and token, this once."""

    async def work(phone: Device) -> None:
        settings.out(*await _make_agent(phone, name))

    run(settings, work)


@chat.command("new-token")
@common
def new_token(settings: Settings) -> None:
    """Give an agent a new token; the old one stops working."""

    async def work(phone: Device) -> None:
        agent = await pick_agent(phone, settings.agent)
        token = await phone.new_agent_token(agent.agent_id)
        settings.out({"agent_id": agent.agent_id, "agent_token": token}, f"PACERELLE_AGENT_TOKEN={token}")

    run(settings, work)


@chat.command()
@common
def agents(settings: Settings) -> None:
    """List the agents with their safety codes."""

    async def work(phone: Device) -> None:
        for agent in await phone.agents():
            code = await phone.safety_code(agent.agent_id)
            new = await phone.new_safety_code(agent.agent_id)
            lines = [f"{show.escape(agent.name, one_line=True)}  {agent.agent_id}"]
            lines[0] += "  connected" if agent.connected else "  not connected"
            lines += [f"    safety code {code}"] if code else []
            lines += [f"    KEY CHANGED {new}\n    `pacerelle chat trust {agent.agent_id}` accepts it"] if new else []
            settings.out(agent.as_dict() | {"safety_code": code, "new_safety_code": new}, "\n".join(lines))

    run(settings, work)


@chat.command()
@common
@click.argument("agent_id", metavar="AGENT")
def trust(settings: Settings, agent_id: str) -> None:
    """Accept an agent's changed identity key, or start over with one that lost its sessions.

    Compare its safety code first (`pacerelle chat agents`).
    """

    async def work(phone: Device) -> None:
        agent = await phone.find_agent(agent_id)
        await phone.trust_new_key(agent.agent_id)
        code = await phone.safety_code(agent.agent_id)
        settings.out({"agent_id": agent.agent_id, "safety_code": code}, f"Trusted: {code}")

    run(settings, work)


@chat.command()
@common
@click.argument("text")
@click.option("--file", "files", type=click.Path(path_type=Path, dir_okay=False), multiple=True, help="Send a file.")
@click.option("--wait", type=float, metavar="SECONDS", help="Then wait for the reply to it.")
def send(settings: Settings, text: str, files: tuple[Path, ...], wait: float | None) -> None:
    """Send TEXT to an agent. Exit code 0: the relay has it, or with --wait: the reply came."""
    _send(settings, text, files, wait)


def _send(settings: Settings, text: str, files: tuple[Path, ...], wait: float | None) -> None:
    async def work(phone: Device) -> None:
        agent = await pick_agent(phone, settings.agent)
        attached = [await asyncio.to_thread(File.read, path) for path in files]
        after = await phone.last_seq()
        message_id = await phone.send(agent.agent_id, text, files=attached)
        await _follow(settings, phone, agent, message_id, wait, after)

    run(settings, work)


@chat.command()
@common
@click.argument("value", required=False)
@click.option("--cancel", is_flag=True, help="Decline instead of answering.")
@click.option("--wait", type=float, metavar="SECONDS", help="Then wait for the reply to it.")
def answer(settings: Settings, value: str | None, cancel: bool, wait: float | None) -> None:
    """Answer the newest open widget: yes or no, a number or an option's id, a date, or a form's JSON object."""
    if (value is None) != cancel:
        raise click.UsageError("Give a VALUE or --cancel.")

    async def work(phone: Device) -> None:
        agent = await pick_agent(phone, settings.agent)
        widgets = await phone.open_widgets(agent.conversation_id)
        if not widgets or widgets[0].widget is None:
            raise InvalidArgument("There is no open widget.", argument="value", hint="`pacerelle chat listen 10`")
        said = None if value is None else parse_answer(widgets[0].widget, value)
        after = await phone.last_seq()
        message_id = await phone.respond(widgets[0], said, cancelled=cancel)
        await _follow(settings, phone, agent, message_id, wait, after)

    run(settings, work)


async def _follow(
    settings: Settings, phone: Device, agent: Agent, message_id: str, wait: float | None, after: int
) -> None:
    """Report what was sent and, with `wait`, what comes until the reply to it. Raises what went wrong."""
    deadline = time.monotonic() + (DEFAULT_WAIT if wait is None else wait)
    sent = await phone.wait_sent(message_id, deadline - time.monotonic())
    settings.out(sent.as_dict(), show.message(sent, "You"))
    if sent.state == "failed":
        raise PhoneError(f"The message was not sent ({sent.reason}).", code=sent.reason)
    if sent.state == "queued":
        raise await _why_waiting(phone, agent, sent)
    if wait is None:
        return

    shown: list[Message] = []

    def is_reply(message: Message) -> bool:
        settings.out(message.as_dict(), show.message(message, agent.name))
        shown.append(message)
        return message.reply_to == message_id

    try:
        await phone.wait_for(is_reply, deadline - time.monotonic(), after=after)
    finally:
        await phone.mark_shown(shown)


async def _why_waiting(phone: Device, agent: Agent, sent: Message) -> PhoneError:
    """The message is safe in the outbox; this is what keeps it there."""
    hint = "It is kept and goes out when `pacerelle chat` runs again and this is solved."
    if sent.reason == "identity_changed":
        return PhoneError(
            f"The identity key of {agent.name!r} has changed.",
            code="identity_changed",
            hint=f"Compare its code (`pacerelle chat agents`), then `pacerelle chat trust {agent.agent_id}`. {hint}",
        )
    if sent.reason == "no_prekeys":
        return PhoneError("The agent has never connected. Start it.", code="no_prekeys", hint=hint)
    status = await phone.status()
    return RelayUnreachable(status.problem or "The relay did not take the message in time.", hint=hint)


@chat.command()
@common
@click.argument("seconds", type=float)
def listen(settings: Settings, seconds: float) -> None:
    """Print what came in and no command has shown yet, and what comes for SECONDS. Without --agent, from all agents."""

    async def work(phone: Device) -> None:
        names = {a.agent_id: a.name for a in await phone.known_agents()}
        only = await phone.find_agent(settings.agent) if settings.agent is not None else None

        shown: list[Message] = []

        def show_it(message: Message) -> bool:
            if only is None or message.agent_id == only.agent_id:
                settings.out(message.as_dict(), show.message(message, names.get(message.agent_id, message.agent_id)))
                shown.append(message)
            return False

        before = await phone.last_seq()
        while page := await phone.not_shown(only.agent_id if only is not None else None, before):
            for message in page:
                show_it(message)
            await phone.mark_shown(page)
        shown.clear()
        try:
            await phone.wait_for(show_it, seconds, after=before)
        except WaitTimeout:
            await phone.connected(0)  # says so if the relay was away all the time
        finally:
            await phone.mark_shown(shown)

    run(settings, work)


@chat.command()
@common
@click.argument("message_id")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="The folder [.].")
def save(settings: Settings, message_id: str, to: Path) -> None:
    """Download, decrypt and save the files of a message."""

    async def work(phone: Device) -> None:
        for file in (await phone.message(message_id)).files:
            path = await phone.save(file, to)
            settings.out({"name": file.name, "path": str(path)}, show.escape(str(path), one_line=True))

    run(settings, work)


def _talk(settings: Settings) -> None:
    """Prompts come between runs of the device: a blocking question must not hold up its connection."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("Talking needs a terminal. In a script use `pacerelle chat --send TEXT --wait SECONDS`.")

    async def pairing(phone: Device) -> tuple[bool, str]:
        return phone.is_paired, phone.relay_url

    paired, relay = run(settings, pairing)
    if not paired:
        settings = replace(settings, relay=click.prompt("Relay", default=relay))
        name = click.prompt("Your name")
        run(settings, lambda phone: phone.register(name))
    agent = _choose_agent(settings)

    async def talk(phone: Device) -> None:
        found = await phone.find_agent(agent)
        with Terminal(sys.stdin.fileno(), sys.stdout.fileno(), f"{show.escape(found.name, one_line=True)[:20]}> ") as t:
            await Talk(phone, found, t).run()

    run(settings, talk)


def _choose_agent(settings: Settings) -> str:
    """The id of the agent to talk to; makes the first one."""
    if settings.agent is not None:
        return settings.agent

    async def listed(phone: Device) -> list[Agent]:
        return await phone.known_agents() or await phone.agents()

    known = run(settings, listed)
    if not known:
        name = click.prompt("There is no agent yet. A name for the first one")
        out, said = run(settings, lambda phone: _make_agent(phone, name))
        click.echo(said)
        return str(out["agent_id"])
    if len(known) == 1:
        return known[0].agent_id
    for number, agent in enumerate(known, 1):
        click.echo(f"{number}. {show.escape(agent.name, one_line=True)}")
    chosen = click.prompt("Talk to", type=click.IntRange(1, len(known)))
    return known[chosen - 1].agent_id
