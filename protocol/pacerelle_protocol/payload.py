"""What a message says, once it is decrypted (the relay protocol reference, "Payload").

The plaintext is a string: plain text, or JSON of a known shape. What has no known shape is text, as it is for the
official clients, so that a person can write JSON to an agent. Types under `pacerelle.` are the protocol's own and never
text: they may carry keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _wire
from .envelope import PublicAttachment
from .errors import InvalidWidget, LocalProtocolError, PayloadError
from .files import IV_BYTES, KEY_BYTES
from .history import HistoryKey, history_key_json, parse_history_key
from .widgets import Widget, parse_widget, widget_json

NEUTRAL_NAME = "attachment"
NEUTRAL_MIME = "application/octet-stream"
MAX_NAME = 512  # characters of a file's name or MIME type


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of a message: where its ciphertext is and how to open it. `size` in bytes of the file itself.

    Without key and IV it was not sent end-to-end encrypted.
    """

    id: str
    blob_id: str
    name: str = field(repr=False)
    mime: str
    size: int
    key: bytes | None = field(default=None, repr=False)
    iv: bytes | None = field(default=None, repr=False)
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    duration_ms: int | None = None
    thumbnail_blob_id: str | None = None

    def public(self) -> PublicAttachment:
        """What the relay may see: neither name nor type nor dimensions."""
        return PublicAttachment(
            self.id, NEUTRAL_NAME, NEUTRAL_MIME, self.size, self.blob_id, self.sha256, self.thumbnail_blob_id
        )


@dataclass(frozen=True, slots=True)
class Text:
    text: str = field(repr=False)
    files: tuple[FileRef, ...] = ()


@dataclass(frozen=True, slots=True)
class WidgetResponse:
    """A person's answer to the widget `ref`."""

    id: str
    ref: str
    value: Any = field(default=None, repr=False)
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class WidgetUpdate:
    """A change of the widget `ref`: `patch` has `spec` (the changed fields) and `expires_at`, each optional."""

    id: str
    ref: str
    patch: dict[str, Any] = field(repr=False)


Content = Text | WidgetResponse | WidgetUpdate | Widget


@dataclass(frozen=True, slots=True)
class Opened:
    """`body` is the string that history records are made of; `history_key` came with the message, if any did.

    A key from a message that was not encrypted must not be believed: that is the caller's to know.
    """

    content: Content
    body: str = field(repr=False)
    history_key: HistoryKey | None = None


def unpack_b64(payload_b64: str) -> bytes:
    """Strict base64. Raises PayloadError (bad_base64)."""
    try:
        return _wire.unb64(payload_b64)
    except _wire.WireError as error:
        raise PayloadError(error.reason) from None


def pack_b64(data: bytes) -> str:
    return _wire.b64(data)


def open_plaintext(data: bytes, attachments: Sequence[PublicAttachment] = ()) -> Opened:
    """Reads a plaintext and joins the envelope's public attachments with the secrets inside.

    Encrypted metadata wins. A file that only the envelope lists appears without a key.
    Raises PayloadError: not_utf8, bad_delivery, bad_history_key, unsupported_type.
    """
    try:
        body = data.decode()
    except UnicodeDecodeError:
        raise PayloadError("not_utf8") from None
    key: HistoryKey | None = None
    obj = _object(body)
    if obj is not None and obj.get("type") == "pacerelle.delivery":
        inner = obj.get("body")
        if not _is_version_1(obj) or not isinstance(inner, str):
            raise PayloadError("bad_delivery")
        key = parse_history_key(obj.get("history_key"))
        body = inner
        obj = _object(body)
    return Opened(_content(body, obj, attachments), body, key)


def _object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        return _wire.loads_object(text)
    except _wire.WireError:
        return None


def _is_version_1(obj: Mapping[str, Any]) -> bool:
    return type(obj.get("v")) is int and obj["v"] == 1


def _content(body: str, obj: dict[str, Any] | None, attachments: Sequence[PublicAttachment]) -> Content:
    obj = obj or {}
    kind = obj.get("type")
    if isinstance(kind, str) and kind.startswith("pacerelle."):
        raise PayloadError("unsupported_type", "a message of the protocol itself where content was expected")
    if kind == "widget.standard":
        try:
            return parse_widget(obj)
        except InvalidWidget:
            return Text(body, _files([], attachments))
    if kind in ("widget.response", "widget.update") and _wire.is_id(obj.get("id")) and _wire.is_id(obj.get("ref")):
        if kind == "widget.response":
            return WidgetResponse(obj["id"], obj["ref"], obj.get("value"), obj.get("cancelled") is True)
        if isinstance(obj.get("patch"), dict):
            return WidgetUpdate(obj["id"], obj["ref"], obj["patch"])
    if obj.get("kind") == "chat.message" and isinstance(obj.get("text"), str):
        return Text(obj["text"], _files(obj.get("attachments"), attachments))
    return Text(body, _files([], attachments))


def _files(secrets: Any, attachments: Sequence[PublicAttachment]) -> tuple[FileRef, ...]:
    """The envelope's files in its order, then those that only the encrypted part knows."""
    inside = {
        item["id"]: item
        for item in (secrets if isinstance(secrets, list) else [])
        if isinstance(item, dict) and _wire.is_id(item.get("id"))
    }
    files = {public.id: _file(public.id, inside.get(public.id, {}), public) for public in attachments}
    for file_id, secret in inside.items():
        if file_id not in files and _wire.is_id(secret.get("blob_id")):
            files[file_id] = _file(file_id, secret, None)
    return tuple(files.values())


def _file(file_id: str, secret: dict[str, Any], public: PublicAttachment | None) -> FileRef:
    def text(name: str, otherwise: str) -> str:
        value = secret.get(name)
        return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else otherwise

    def count(name: str) -> int | None:
        value = secret.get(name)
        return value if _wire.is_count(value) else None

    key, iv = _secret(secret.get("key_b64"), KEY_BYTES), _secret(secret.get("iv_b64"), IV_BYTES)
    if key is None or iv is None:
        key = iv = None
    size = count("size")
    if size is None:
        size = public.size if public else 0
    blob_id = secret.get("blob_id")
    if not _wire.is_id(blob_id):
        blob_id = public.blob_id if public else ""
    return FileRef(
        id=file_id,
        blob_id=str(blob_id),
        name=text("name", public.name if public else NEUTRAL_NAME),
        mime=text("mime", public.mime if public else NEUTRAL_MIME),
        size=size,
        key=key,
        iv=iv,
        # The digest is of the blob that the envelope names; of another blob it would only refuse a good file.
        sha256=public.sha256 if public and public.blob_id == blob_id else None,
        width=count("width"),
        height=count("height"),
        duration_ms=count("duration_ms"),
        thumbnail_blob_id=public.thumbnail_blob_id if public else None,
    )


def _secret(value: Any, length: int) -> bytes | None:
    try:
        return _wire.unb64(value, length)
    except _wire.WireError:
        return None


def encode_text(text: str, files: Sequence[FileRef] = ()) -> str:
    """Text, with its files' names and keys. Lone surrogates become U+FFFD.

    Text that a receiver could take for something else (a widget's JSON, say) is wrapped, so that it stays text.
    Raises LocalProtocolError (bad_file) for a file without key, or with a name that receivers do not accept.
    """
    text = _wire.repair(text)
    obj = _object(text)
    if not files and not (obj and ("type" in obj or "kind" in obj)):
        return text
    return _wire.dumps({"kind": "chat.message", "text": text, "attachments": [_file_json(item) for item in files]})


def _file_json(item: FileRef) -> dict[str, Any]:
    if item.key is None or item.iv is None:
        raise LocalProtocolError("bad_file", "a file without a key cannot be sent")
    if not (0 < len(item.name) <= MAX_NAME and 0 < len(item.mime) <= MAX_NAME):
        raise LocalProtocolError("bad_file", f"a file's name and type must have 1 to {MAX_NAME} characters")
    out: dict[str, Any] = {
        "id": item.id,
        "blob_id": item.blob_id,
        "key_b64": _wire.b64(item.key),
        "iv_b64": _wire.b64(item.iv),
        "name": item.name,
        "mime": item.mime,
        "size": item.size,
    }
    measures = {"width": item.width, "height": item.height, "duration_ms": item.duration_ms}
    return out | {name: value for name, value in measures.items() if value is not None}


def encode_widget(widget: Widget) -> str:
    return _wire.dumps(widget_json(widget))


def encode_widget_response(response: WidgetResponse) -> str:
    """Raises LocalProtocolError: bad_id, bad_value (what JSON cannot say)."""
    out: dict[str, Any] = {"type": "widget.response", "id": response.id, "ref": response.ref, "v": 1}
    if response.cancelled:
        out["cancelled"] = True
    else:
        out["value"] = response.value
    return _say(out)


def encode_widget_update(update: WidgetUpdate) -> str:
    """Raises LocalProtocolError: bad_id, bad_value (what JSON cannot say)."""
    return _say({"type": "widget.update", "id": update.id, "v": 1, "ref": update.ref, "patch": update.patch})


def encode_delivery(body: str, key: HistoryKey) -> str:
    """`body` (one of the encoded strings) together with the conversation's history key."""
    return _wire.dumps({"type": "pacerelle.delivery", "v": 1, "body": body, "history_key": history_key_json(key)})


def _say(obj: dict[str, Any]) -> str:
    if not (_wire.is_id(obj["id"]) and _wire.is_id(obj["ref"])):
        raise LocalProtocolError("bad_id", "a widget's id is empty, too long or has control characters")
    try:
        return _wire.dumps(obj)
    except _wire.WireError:
        raise LocalProtocolError("bad_value", "a value that JSON cannot say") from None
