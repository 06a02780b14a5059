"""What the conformance suites want to see: words, pictures, forms and questions, as their scenarios describe them."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from typing import Any

import mcp_types as types


def _png() -> str:
    """One red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    ).decode()


def _wav() -> str:
    """No sound at all."""
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 0)
    return base64.b64encode(head).decode()


PNG, WAV = _png(), _wav()

STATIC: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    each.uri: each
    for each in (
        types.TextResourceContents(
            uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
        ),
        types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
        types.TextResourceContents(uri="test://watched-resource", mime_type="text/plain", text="Watched."),
    )
}
TEMPLATE = re.compile(r"test://template/([^/]+)/data")

SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def form(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


STRING = {"type": "string"}

# What tools return at once

CONTENT: dict[str, list[Any]] = {
    "test_simple_text": [types.TextContent(text="This is a simple text response for testing.")],
    "test_image_content": [types.ImageContent(data=PNG, mime_type="image/png")],
    "test_audio_content": [types.AudioContent(data=WAV, mime_type="audio/wav")],
    "test_embedded_resource": [
        types.EmbeddedResource(
            resource=types.TextResourceContents(
                uri="test://embedded-resource", mime_type="text/plain", text="This is an embedded resource content."
            )
        )
    ],
    "test_multiple_content_types": [
        types.TextContent(text="Multiple content types test:"),
        types.ImageContent(data=PNG, mime_type="image/png"),
        types.EmbeddedResource(
            resource=types.TextResourceContents(
                uri="test://mixed-content-resource",
                mime_type="application/json",
                text='{"test":"data","value":123}',
            )
        ),
    ],
    "json_schema_2020_12_tool": [types.TextContent(text="ok")],
    "test_custom_headers": [types.TextContent(text="ok")],
}

# What tools ask of the person in the handshake era: message and form

ELICITATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "test_elicitation": ("", form(username=STRING, email=STRING)),
    "test_elicitation_sep1034_defaults": (
        "Please confirm the defaults",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": "John Doe"},
                "age": {"type": "integer", "default": 30},
                "score": {"type": "number", "default": 95.5},
                "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                "verified": {"type": "boolean", "default": True},
            },
        },
    ),
    "test_elicitation_sep1330_enums": (
        "Please choose",
        {
            "type": "object",
            "properties": {
                "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
                "titledSingle": {
                    "type": "string",
                    "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
                },
                "legacyEnum": {
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
                },
                "titledMulti": {
                    "type": "array",
                    "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
                },
            },
        },
    ),
}

# What they ask in the modern era, where the question is a result


def elicit(message: str, **properties: Any) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=form(**properties))
    )


def sample(prompt: str, tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


NAME = elicit("What is your name?", name=STRING)
CONFIRM = elicit("Please confirm", ok={"type": "boolean"})
ROUNDS: dict[str, list[tuple[dict[str, Any], str | None]]] = {
    "test_input_required_result_elicitation": [({"user_name": NAME}, None)],
    "test_input_required_result_sampling": [({"capital_question": sample("Capital of France?", 100)}, None)],
    "test_input_required_result_list_roots": [({"client_roots": types.ListRootsRequest()}, None)],
    "test_input_required_result_request_state": [({"confirm": CONFIRM}, "1")],
    "test_input_required_result_tampered_state": [({"confirm": CONFIRM}, "1")],
    "test_input_required_result_multiple_inputs": [
        (
            {
                "user_name": NAME,
                "greeting": sample("Generate a greeting", 50),
                "client_roots": types.ListRootsRequest(),
            },
            "1",
        )
    ],
    "test_input_required_result_multi_round": [
        ({"step1": elicit("Step 1: What is your name?", name=STRING)}, "1"),
        ({"step2": elicit("Step 2: What is your favorite color?", color=STRING)}, "2"),
    ],
    "test_streaming_elicitation": [({"user_name": NAME}, None)],
}


def describe(name: str) -> types.Tool:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if name == "json_schema_2020_12_tool":
        schema = SCHEMA_2020_12
    elif name == "test_custom_headers":
        schema = form(region={"type": "string", "x-mcp-header": "Region"})
    elif argument := {"test_sampling": "prompt", "test_elicitation": "message"}.get(name):
        schema = form(**{argument: STRING})
    return types.Tool(name=name, description=f"Fixture {name}", input_schema=schema)
