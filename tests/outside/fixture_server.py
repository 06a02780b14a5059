"""The tools, prompts and resources that the conformance suites ask for, behind the transport that the daemon uses.

What is tested is `pacerelled.servers.http`; the fixtures only give the scenarios something to talk about.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError

from pacerelled.servers.http.checks import LOOPBACK_NAMES
from pacerelled.servers.http.endpoint import Endpoint
from pacerelled.servers.http.listener import Listener

from .fixture_content import (
    CONTENT,
    ELICITATIONS,
    NAME,
    PNG,
    ROUNDS,
    STATIC,
    STRING,
    TEMPLATE,
    describe,
    elicit,
    sample,
)

Context = ServerRequestContext[Any]
Result = types.CallToolResult | types.InputRequiredResult
Tool = Callable[[Context, types.CallToolRequestParams], Awaitable[Result]]

TOKEN = "token of the fixture"


def text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


async def in_rounds(_: Context, params: types.CallToolRequestParams) -> Result:
    """Asks round after round; the state says which one was answered."""
    rounds = ROUNDS[params.name]
    answered = int(params.request_state or "1") if params.input_responses else 0
    if answered and not set(rounds[answered - 1][0]) <= set(params.input_responses or {}):
        answered -= 1  # something is missing: the same question again
    if answered == len(rounds):
        return text(f"Done, state-ok after {answered} rounds")
    questions, state = rounds[answered]
    return types.InputRequiredResult(input_requests=questions, request_state=state)


async def only_what_the_client_can(context: Context, params: types.CallToolRequestParams) -> Result:
    can = context.session.client_params.capabilities if context.session.client_params else types.ClientCapabilities()
    questions: dict[str, Any] = {}
    if can.sampling is not None:
        questions["greeting"] = sample("Generate a greeting", 50)
    if can.elicitation is not None:
        questions["user_name"] = NAME
    return types.InputRequiredResult(input_requests=questions) if questions else text("The client can do nothing.")


async def ask(context: Context, params: types.CallToolRequestParams) -> Result:
    message, schema = ELICITATIONS[params.name]
    answer = await context.session.elicit_form(
        (params.arguments or {}).get("message") or message, schema, related_request_id=context.request_id
    )
    return text(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


async def sampling(context: Context, params: types.CallToolRequestParams) -> Result:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=(params.arguments or {})["prompt"]))
    answer = await context.session.create_message([message], max_tokens=100, related_request_id=context.request_id)
    content = answer.content
    return text(f"LLM response: {content.text if isinstance(content, types.TextContent) else content}")


async def logging(context: Context, _: types.CallToolRequestParams) -> Result:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", words, related_request_id=context.request_id)
        await asyncio.sleep(0.05)
    return text("Logged")


async def progress(context: Context, _: types.CallToolRequestParams) -> Result:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
        await asyncio.sleep(0.05)
    return text("Done")


async def failing(_: Context, __: types.CallToolRequestParams) -> Result:
    words = "This tool intentionally returns an error for testing"
    return types.CallToolResult(content=[types.TextContent(text=words)], is_error=True)


async def reconnection(context: Context, _: types.CallToolRequestParams) -> Result:
    """Closes its stream in the middle: the client has to come back for the answer."""
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await asyncio.sleep(0.1)
    return text("Reconnected")


async def missing_capability(context: Context, _: types.CallToolRequestParams) -> Result:
    params = context.session.client_params
    if params is None or params.capabilities.sampling is None:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs sampling",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return text("The client can sample.")


@dataclass
class Fixture:
    """What one session is served. The bus is shared, so that a change is told to all who listen."""

    bus: InMemorySubscriptionBus

    def server(self) -> Server[Any]:
        async def trigger(_: Context, params: types.CallToolRequestParams) -> Result:
            await self.bus.publish(ToolsListChanged() if "tool" in params.name else PromptsListChanged())
            return text("Changed")

        tools: dict[str, Tool] = {
            **dict.fromkeys(CONTENT, at_once),
            **dict.fromkeys(ELICITATIONS, ask),
            **dict.fromkeys(ROUNDS, in_rounds),
            "test_input_required_result_capabilities": only_what_the_client_can,
            "test_sampling": sampling,
            "test_tool_with_logging": logging,
            "test_logging_tool": logging,
            "test_tool_with_progress": progress,
            "test_error_handling": failing,
            "test_reconnection": reconnection,
            "test_missing_capability": missing_capability,
            "test_trigger_tool_change": trigger,
            "test_trigger_prompt_change": trigger,
        }

        async def call(context: Context, params: types.CallToolRequestParams) -> Result:
            if params.name not in tools:
                raise MCPError(types.INVALID_PARAMS, "There is no such tool")
            return await tools[params.name](context, params)

        async def list_tools(_: Context, __: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=[describe(name) for name in tools])

        server = Server(
            "fixture",
            version="1",
            on_list_tools=list_tools,
            on_call_tool=call,
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
            on_subscribe_resource=accept,
            on_unsubscribe_resource=accept,
            on_set_logging_level=accept,
            on_completion=complete,
            on_subscriptions_listen=ListenHandler(self.bus),
        )
        server.middleware.append(RequestStateBoundary(_STATE, default_audience="fixture"))
        return server


_STATE = RequestStateSecurity.ephemeral()


async def at_once(_: Context, params: types.CallToolRequestParams) -> Result:
    return types.CallToolResult(content=CONTENT[params.name])


async def list_prompts(_: Context, __: Any) -> types.ListPromptsResult:
    arguments = {"test_prompt_with_arguments": ["arg1", "arg2"], "test_prompt_with_embedded_resource": ["resourceUri"]}
    names = [*arguments, "test_simple_prompt", "test_prompt_with_image", "test_input_required_result_prompt"]
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=f"Fixture {name}",
                arguments=[types.PromptArgument(name=each, required=True) for each in arguments.get(name, [])],
            )
            for name in names
        ]
    )


async def get_prompt(
    _: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    content: list[Any]
    match params.name:
        case "test_simple_prompt":
            content = [types.TextContent(text="This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            words = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
            content = [types.TextContent(text=words)]
        case "test_prompt_with_embedded_resource":
            resource = types.TextResourceContents(
                uri=given["resourceUri"], mime_type="text/plain", text="Embedded resource content for testing."
            )
            content = [
                types.EmbeddedResource(resource=resource),
                types.TextContent(text="Please process the embedded resource above."),
            ]
        case "test_prompt_with_image":
            content = [
                types.ImageContent(data=PNG, mime_type="image/png"),
                types.TextContent(text="Please analyze the image above."),
            ]
        case "test_input_required_result_prompt" if not params.input_responses:
            question = elicit("What context should the prompt use?", context=STRING)
            return types.InputRequiredResult(input_requests={"user_context": question})
        case "test_input_required_result_prompt":
            content = [types.TextContent(text="Prompt with context")]
        case _:
            raise MCPError(types.INVALID_PARAMS, "There is no such prompt")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in content])


async def list_resources(_: Context, __: Any) -> types.ListResourcesResult:
    found = [types.Resource(uri=uri, name=uri, mime_type=each.mime_type) for uri, each in STATIC.items()]
    return types.ListResourcesResult(resources=found)


async def list_templates(_: Context, __: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="test://template/{id}/data", name="template", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if found := TEMPLATE.fullmatch(params.uri):
        data = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
        contents: Any = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=data)
    elif params.uri in STATIC:
        contents = STATIC[params.uri]
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult(contents=[contents])


async def accept(_: Context, __: Any) -> types.EmptyResult:
    return types.EmptyResult()


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [each for each in ("paris", "park", "party") if each.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


class Grant:
    id = "fixture"


class Client:
    def __init__(self, server: Server[Any]) -> None:
        self.server = server

    def came(self) -> None:
        pass

    def left(self) -> None:
        pass


class Backend:
    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()

    def identify(self, token: str) -> Grant | None:
        return Grant() if token == TOKEN else None

    def choose(self, grant: Grant, headers: Any) -> Hashable:
        return None

    def open(self, grant: Grant, choice: Hashable, *, stateless: bool) -> Client:
        return Client(Fixture(self._bus).server())


@asynccontextmanager
async def fixture_server():
    """Its port, while it runs."""
    endpoint = Endpoint(Backend(), names=LOOPBACK_NAMES, idle=600.0)
    listener = Listener(endpoint, "127.0.0.1", 0)
    task = asyncio.create_task(listener.serve())
    try:
        yield listener.port
    finally:
        listener.stop()
        await endpoint.stop()
        await task
