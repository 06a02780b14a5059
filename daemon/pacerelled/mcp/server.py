"""The MCP server of one session. It is cheap (about 10 µs and 2 KB), so every connection gets its own."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError

from pacerelled import __version__
from pacerelled.agent.api import HubApi
from pacerelled.agent.model import Session
from pacerelled.errors import AgentError, PacerelledError

from . import texts
from .arguments import check, close_name, example_call
from .channel import CAPABILITIES, PROMPT, Channel, PromptParams
from .channel import INSTRUCTIONS as CHANNEL_INSTRUCTIONS
from .resources import MIME, RESOURCES, TEMPLATES, Updates, is_known, read
from .results import failure, json_text, success, unexpected
from .schemas import TOOLS
from .tools import RUN, Call

if TYPE_CHECKING:
    from .paseo.resources import CodingResources
    from .paseo.tools import CodingTools

log = logging.getLogger(__name__)
Context = ServerRequestContext[Any]

MAX_IN_FLIGHT = 512  # requests of one host at a time
LINKS_SINCE = "2025-06-18"  # the first protocol version in which a result may link to resources
_MAX_NAME = 100  # characters of a client's name or version that are kept


def build_server(
    hub: HubApi, session: Session, *, read_only: bool = False, labels: Mapping[str, str] | None = None
) -> PacerelleServer:
    """A server for one connection of `session`. Both protocol eras are served; the host's first request decides.

    With `read_only` it has only the tools that look, and nothing that tells an assistant to work. Of coding agents it
    sees only those with `labels`.
    """
    host = _Host(hub, session, read_only=read_only, labels=labels or {})

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            await host.updates.aclose()
            if host.channel is not None:
                await host.channel.aclose()

    server = PacerelleServer(
        "pacerelle",
        version=__version__,
        title="Pacerelle",
        instructions=host.instructions,
        lifespan=lifespan,
        on_list_tools=host.list_tools,
        on_call_tool=host.call_tool,
        on_list_prompts=host.list_prompts,
        on_get_prompt=host.get_prompt,
        on_list_resources=host.list_resources,
        on_list_resource_templates=host.list_resource_templates,
        on_read_resource=host.read_resource,
        on_subscribe_resource=host.subscribe,
        on_unsubscribe_resource=host.unsubscribe,
        on_subscriptions_listen=host.listen,
    )
    server.offers = host.offers
    server.tells_of_lists = NotificationOptions(
        prompts_changed=session.transport == "stdio",
        tools_changed=session.transport == "stdio",
        resources_changed=session.transport == "stdio" or hub.paseo is not None,
    )
    server.add_notification_handler("notifications/initialized", types.NotificationParams, host.initialized)
    if host.channel is not None:
        server.experimental = CAPABILITIES
        server.add_notification_handler(PROMPT, PromptParams, host.prompted)
    server.middleware.append(host.observe)
    return server


class _Host:
    """What a session's host may ask for."""

    def __init__(self, hub: HubApi, session: Session, *, read_only: bool, labels: Mapping[str, str]) -> None:
        self._hub = hub
        self._session = session
        self._read_only = read_only
        self._labels = labels
        self._tools = {name: spec for name, spec in TOOLS.items() if spec.only_looks or not read_only}
        self._coding: CodingTools | None = None
        if hub.paseo is not None:
            from pacerelled.paseo.guard import Scope  # costs nothing while the bridge is off

            from .paseo.tools import CodingTools

            scope = Scope(read_only=read_only, labels=labels)
            self._coding = CodingTools(hub.paseo, session, lambda: hub.agent_for(session).agent_id, scope)
            self._tools |= self._coding.specs
        self._in_flight = 0
        self.channel = Channel(hub, session) if session.channel and not read_only else None
        self.updates = Updates(hub, session, self._coding.resources if self._coding else None)

    @property
    def instructions(self) -> str:
        """What its assistant is told."""
        if self._read_only:
            return texts.INSTRUCTIONS_READ_ONLY
        told = texts.INSTRUCTIONS + (self._coding.instructions if self._coding else "")
        return told + (CHANNEL_INSTRUCTIONS if self.channel else "")

    async def observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Around every request and notification: notes who the host is and that it lives, and bounds what it asks."""
        self._session.last_active = time.monotonic()
        if ctx.request_id is None:
            return await call_next(ctx)
        if self._in_flight >= MAX_IN_FLIGHT:
            raise MCPError(types.INTERNAL_ERROR, f"At most {MAX_IN_FLIGHT} requests at a time: wait for some answers.")
        _refuse_odd_arguments(ctx)
        if ctx.session.client_params is not None:
            self._note_client(ctx.session.client_params.client_info)
        self._in_flight += 1
        try:
            result = await call_next(ctx)
        finally:
            self._in_flight -= 1
            self._session.last_active = time.monotonic()
        if ctx.method == "initialize" and ctx.params is not None:
            self._note_client(types.InitializeRequestParams.model_validate(ctx.params, by_name=False).client_info)
        return result

    def _note_client(self, info: types.Implementation) -> None:
        self._session.client = _printable(info.title or info.name) or None
        self._session.client_version = _printable(info.version) or None

    @property
    def offers(self) -> str:
        """Of what is listed; descriptions and schemas change with the version only."""
        return hashlib.sha256(" ".join([__version__, *self._tools]).encode()).hexdigest()[:16]

    @property
    def _replaced(self) -> bool:
        """Whether the host knows another daemon's lists: it has stayed while the daemon was replaced."""
        return self._session.offers not in (None, self.offers)

    async def initialized(self, ctx: Context, params: types.NotificationParams) -> None:
        if self._replaced:
            await ctx.session.send_tool_list_changed()
            await ctx.session.send_prompt_list_changed()
            await ctx.session.send_resource_list_changed()
        if self.channel is not None:
            self.channel.start(ctx.session)

    async def prompted(self, ctx: Context, params: PromptParams) -> None:
        assert self.channel is not None
        self.channel.prompt(params)

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[spec.tool for spec in self._tools.values()])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        spec = self._tools.get(params.name)
        if spec is None and (params.name in TOOLS or (self._coding and params.name in self._coding.withheld)):
            problem = AgentError(
                f"{params.name} cannot be called here: this host's access token may only look (scope `read`)",
                hint="Ask the user for a token with the scope `full`: pacerelle token create LABEL --scope full",
                code="read_only",
            )
            return failure(problem, example="get_status {}")
        if spec is None:
            meant = close_name(params.name, self._tools)
            problem = AgentError(
                "There is no such tool" + (f"; did you mean {meant}?" if meant else "."),
                hint=f"The tools are {', '.join(self._tools)}.",
                code="unknown_tool",
            )
            return failure(problem, example="get_status {}")
        started, ended = time.monotonic(), "ended"
        try:
            arguments = check(spec, params.arguments or {})
            if self._coding is not None and params.name in self._coding.specs:
                return success(await self._coding.run(params.name, arguments, ctx), links=False)
            call = Call(self._hub, self._hub.agent_for(self._session), self._session, ctx, self._labels)
            return success(await RUN[params.name](call, arguments), links=ctx.protocol_version >= LINKS_SINCE)
        except PacerelledError as problem:
            ended = problem.code
            return failure(problem, example=example_call(spec))
        except Exception as problem:
            return failure(unexpected(problem), example=example_call(spec))
        finally:
            log.debug("Tool %s: %s after %.1f s", params.name, ended, time.monotonic() - started)

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        if self._read_only:
            return types.ListPromptsResult(prompts=[])
        prompt = types.Prompt(name=texts.PROMPT_NAME, title=texts.PROMPT_TITLE, description=texts.PROMPT_DESCRIPTION)
        return types.ListPromptsResult(prompts=[prompt])

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if self._read_only or params.name != texts.PROMPT_NAME:
            known = "none here" if self._read_only else texts.PROMPT_NAME
            raise MCPError(types.INVALID_PARAMS, f"There is no such prompt; there is {known}.")
        message = types.PromptMessage(role="user", content=types.TextContent(text=texts.PROMPT))
        return types.GetPromptResult(description=texts.PROMPT_DESCRIPTION, messages=[message])

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        coding = self._coding.resources.listed() if self._coding else []
        return types.ListResourcesResult(resources=[*RESOURCES.values(), *coding])

    async def list_resource_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        coding = [self._coding.template] if self._coding else []
        return types.ListResourceTemplatesResult(resource_templates=[*TEMPLATES, *coding])

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        coding = self._coding_resources(params.uri)
        if coding is None and not is_known(params.uri):
            raise self._no_such_resource()
        try:
            if coding is not None:
                content = await coding.read(params.uri)
            else:
                content = await read(self._hub.agent_for(self._session), self._session, params.uri)
        except Exception as error:
            problem = error if isinstance(error, PacerelledError) else unexpected(error)
            raise MCPError(types.INTERNAL_ERROR, f"{problem.message} {problem.hint}".strip()) from None
        text = types.TextResourceContents(uri=params.uri, mime_type=MIME, text=json_text(content))
        return types.ReadResourceResult(contents=[text])

    async def subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        if params.uri not in RESOURCES and self._coding_resources(params.uri) is None:
            raise self._no_such_resource()
        self.updates.subscribe(params.uri, ctx.session)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.updates.unsubscribe(params.uri)
        return types.EmptyResult()

    async def listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        return await self.updates.listen(ctx, params, replaced=self._replaced)

    def _coding_resources(self, uri: str) -> CodingResources | None:
        """Whoever has this resource, if it is of the coding agents."""
        return self._coding.resources if self._coding and self._coding.resources.owns(uri) else None

    def _no_such_resource(self) -> MCPError:
        known = [*RESOURCES, *(["paseo://agents"] if self._coding else [])]
        return MCPError(types.INVALID_PARAMS, f"There is no such resource; there are {', '.join(known)}.")


class PacerelleServer(Server[dict[str, Any]]):
    """Says in the handshake of which lists it tells that they are others than before."""

    offers = ""
    """A text that is another one where other tools, prompts or resources are listed."""
    tells_of_lists = NotificationOptions()
    experimental: Mapping[str, dict[str, Any]] = {}

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or self.tells_of_lists
        experimental = experimental_capabilities or dict(self.experimental)
        return super().create_initialization_options(options, experimental, extensions)


def _refuse_odd_arguments(ctx: Context) -> None:
    """The SDK refuses arguments that are no object as well, but without saying why."""
    if ctx.method != "tools/call" or ctx.params is None:
        return
    if not isinstance(ctx.params.get("arguments"), dict | None):
        raise MCPError(types.INVALID_PARAMS, 'The tool\'s arguments must be a JSON object, e.g. {"limit": 10}.')


def _printable(text: str) -> str:
    """Names are shown on terminals."""
    return "".join(c for c in text[:_MAX_NAME] if c.isprintable())
