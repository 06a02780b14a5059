"""Messages as text for a terminal. What others wrote is escaped: a peer must not drive the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from pacerelle_protocol.widgets import Widget

from .model import Message

# Marks that reorder what is shown around them.
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape(text: str, *, one_line: bool = False) -> str:
    """Control characters, reordering marks and lone surrogates as `\\x1b`, `\\u202e`; newlines and tabs stay."""
    return "".join(_escape(c) if _is_harmful(c, one_line) else c for c in text)


def _is_harmful(c: str, one_line: bool) -> bool:
    if c in "\n\t":
        return one_line
    return unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _REORDERING


def _escape(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}"


def message(m: Message, who: str) -> str:
    """One message, `who` being the sender's name; several lines where it needs them."""
    return "\n".join(_lines(m, escape(who, one_line=True)))


def _lines(m: Message, who: str) -> Iterator[str]:
    mark = {"queued": " (waiting to be sent)", "failed": f" (not sent: {m.reason})"}.get(m.state, "")
    match m.kind:
        case "text":
            yield f"{who}: {_indent(escape(m.text))}{mark}"
            for file in m.files:
                yield f"    file {escape(file.name, one_line=True)} ({file.size:,} bytes)"
        case "widget":
            assert m.widget is not None
            yield from _widget(m.widget, who)
        case "widget_response":
            yield f"{who} answered: {'cancelled' if m.cancelled else _value(m.value)}{mark}"
        case "widget_update":
            spec = m.value.get("spec") if isinstance(m.value, dict) else None
            yield f"{who} updated: {_value(spec if spec is not None else m.value)}{mark}"
        case "undecryptable":
            yield f"{who}: [a message that cannot be decrypted: {m.reason}]"
        case "identity_changed":
            yield f"! The identity key of {who} has changed. Nothing is sent to it until you decide."
            yield "! Compare the safety code (/code) with the agent's own; /trust accepts the new key."


def _widget(widget: Widget, who: str) -> Iterator[str]:
    spec = widget.spec
    yield f"{who} asks: {escape(str(spec.get('title', '')), one_line=True)}"
    if spec.get("body"):
        yield "    " + _indent(escape(str(spec["body"])))
    match widget.kind:
        case "confirm":
            yield f"    {_label(spec, 'yes')} / {_label(spec, 'no')}? Answer yes or no."
        case "permission":
            yield from _numbered(spec.get("scopes") or ())
            yield "    Answer no, yes" + (", or the number of what you allow." if spec.get("scopes") else ".")
        case "choice":
            yield from _numbered([option["label"] for option in spec["options"]])
            yield "    Answer with " + ("numbers, like 1,3." if spec.get("multi") else "a number.")
        case "form":
            labels = ", ".join(escape(str(field["label"]), one_line=True) for field in spec["fields"])
            yield f"    Fields: {labels}. Fill it in with /answer."
        case "datetime":
            yield f"    Answer like {EXAMPLES[spec['mode']]}."
        case "file-picker":
            yield "    Answer with /answer and the files' paths."
        case "progress":
            limit = spec.get("max")
            yield f"    {spec['value']:g}" + (f" of {limit:g}" if limit else "")


EXAMPLES = {"date": "2030-05-21", "time": "09:30", "datetime": "2030-05-21T09:30"}


def _label(spec: dict[str, Any], name: str) -> str:
    labels = spec.get("labels") or {}
    return escape(str(labels.get(name) or name), one_line=True)


def _numbered(items: Any) -> Iterator[str]:
    for number, item in enumerate(items, 1):
        yield f"    {number}. {escape(str(item), one_line=True)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{escape(str(k), one_line=True)}: {_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_value(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(str(value), one_line=True)


def _indent(text: str) -> str:
    return text.replace("\n", "\n    ")
