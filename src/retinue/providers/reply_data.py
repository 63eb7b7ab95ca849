"""Data that a server wants back with a reply, unchanged: stored beside the transcript as JSON texts, in order.

The first text names the server, the model and the prefix that the reply was made for. Placeholders stand for the
reply's text and its tool calls, which are in the transcript, where a person may edit them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from retinue.domain.transcript import Message

TEXT = '{"type":"retinue.text"}'
"""Stands for the text of the reply."""
CALL = '{"type":"retinue.call"}'
"""Stands for the next tool call of the reply."""
_CALL_TYPE = "retinue.call"
_TEXT_TYPE = "retinue.text"
_MAX_VENDOR_ID_CHARS = 256


class ReplyOrigin(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="retinue.origin"
):
    """Where a reply came from, and what it followed."""

    server: str
    model: str
    prefix: str = ""
    """Hash of everything before the reply in its request; empty if the server does not bind replies to it."""


UNKNOWN_ORIGIN = ReplyOrigin(server="", model="")


NO_FIELDS = msgspec.Raw()


class CallData(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=_CALL_TYPE
):
    """Stands for a tool call, with the fields that the server wants back with it."""

    fields: msgspec.Raw = NO_FIELDS


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a reply, in the order of the server."""

    kind: str
    """`text`, `call`, or the type of a block of the server."""
    raw: str
    """The block itself."""


class ReplyData(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of one reply."""

    origin: ReplyOrigin
    blocks: tuple[Block, ...]

    def is_from(self, server: str, model: str | None = None) -> bool:
        """Return True if the reply came from the server, and from the model if one is given."""
        return self.origin.server == server and model in (None, self.origin.model)

    @property
    def server_blocks(self) -> Iterator[Block]:
        return (block for block in self.blocks if block.kind not in ("text", "call"))


class _TypedBlock(msgspec.Struct, gc=False):
    type: str = ""


_ORIGIN_DECODER = msgspec.json.Decoder(ReplyOrigin)
_TYPE_DECODER = msgspec.json.Decoder(_TypedBlock)
_CALL_DECODER = msgspec.json.Decoder(CallData)
_ENCODER = msgspec.json.Encoder()


def server_tag(wire: str, base_url: str) -> str:
    """Return a short name for a server and its API, by which its own data is recognised."""
    return hashlib.blake2b(f"{wire} {base_url}".encode("utf-8", "replace"), digest_size=4).hexdigest()


def make_vendor_id(server: str, call_id: str) -> str:
    """Return the stored form of a call id that a server issued; empty if it cannot be sent back."""
    if (
        not server
        or not call_id
        or len(call_id) > _MAX_VENDOR_ID_CHARS
        or not call_id.isascii()
        or not call_id.isprintable()
    ):
        return ""
    return f"{server}.{call_id}"


def vendor_call_id(vendor_id: str, server: str) -> str:
    """Return the call id that the server issued; empty if another one did."""
    tag, _, call_id = vendor_id.partition(".")
    return call_id if tag == server else ""


def short_call_id(entry_id: str) -> str:
    """Return nine letters and digits derived from an entry id, which every server accepts as a call id."""
    digest = hashlib.blake2b(entry_id.encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    digits: list[str] = []
    for _ in range(9):
        number, index = divmod(number, len(_ID_ALPHABET))
        digits.append(_ID_ALPHABET[index])
    return "".join(digits)


_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def encode_call(fields: Any) -> str:
    """Return the placeholder of a call, with the fields that the server wants back with it."""
    return _ENCODER.encode(CallData(fields=msgspec.Raw(_ENCODER.encode(fields)))).decode()


def call_fields(block: Block) -> dict[str, Any]:
    """Return the fields that the server wants back with a call."""
    fields = _CALL_DECODER.decode(block.raw.encode()).fields
    return msgspec.json.decode(fields, type=dict[str, Any]) if fields else {}


def encode_reply_data(origin: ReplyOrigin, blocks: Sequence[str]) -> tuple[str, ...]:
    """Return the texts to store; none if the server wants nothing back."""
    if all(block in (TEXT, CALL) for block in blocks):
        return ()
    if not origin.server:
        return tuple(blocks)
    return (_ENCODER.encode(origin).decode(), *blocks)


def parse_reply_data(message: Message) -> ReplyData | None:
    """Return the stored data of a reply, or None if there is none whose server is known."""
    if not message.provider_data:
        return None
    try:
        origin = _ORIGIN_DECODER.decode(message.provider_data[0].encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    return ReplyData(origin=origin, blocks=tuple(_parse_blocks(message.provider_data[1:])))


def without_call(data: Sequence[str], index: int) -> tuple[str, ...]:
    """Return the stored texts of a reply without its call at an index."""
    kept: list[str] = []
    count = 0
    for text in data:
        is_call = text == CALL or any(block.kind == "call" for block in _parse_blocks([text]))
        if not is_call or count != index:
            kept.append(text)
        count += is_call
    return tuple(kept)


def _parse_blocks(texts: Iterable[str]) -> Iterator[Block]:
    for text in texts:
        try:
            kind = _TYPE_DECODER.decode(text.encode()).type
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            continue
        yield Block(kind={_TEXT_TYPE: "text", _CALL_TYPE: "call"}.get(kind, kind), raw=text)
