"""Request encoding that reuses the bytes of the previous turn of the same conversation."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from retinue.domain.model_turn import Model, ModelRequest
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry
from retinue.providers.message_order import Exchange, split_exchanges

_ENCODER = msgspec.json.Encoder()
_CHUNK_SIZE = 256 * 1024
"""Target chunk size. History is stored in chunks so that appending does not copy it."""

_CACHED_HEADS = 8
_CACHE_KEY = "encoded"
_HASH_BYTES = 12
_CLOSING = b"]}"
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])

HeadKey = tuple[Model, str, tuple[ToolSpec, ...], Mapping[str, Any] | None]


class ExchangePosition(Struct, frozen=True, kw_only=True):
    """Position of an exchange in its conversation.

    Some providers treat the first or the last exchange specially.
    """

    is_first: bool
    is_last: bool
    prefix: str = ""
    """Hash of everything before the exchange, if the server binds replies to it."""


_FIRST, _MIDDLE = (
    ExchangePosition(is_first=True, is_last=False),
    ExchangePosition(is_first=False, is_last=False),
)
_ONLY, _LAST = ExchangePosition(is_first=True, is_last=True), ExchangePosition(is_first=False, is_last=True)


class RequestHead(Struct, frozen=True, kw_only=True):
    """The encoded part of a request before its messages."""

    encoded: bytes
    prefix: bytes
    """The part of it that a server may bind replies to: system message and tools."""


class RequestFormat(Struct, frozen=True, kw_only=True):
    """The request encoding of one server and model.

    `build_fields` returns the fields of a request without its messages. `open_messages` returns their field with
    its opening bracket, and messages that precede the conversation. `build_messages` returns the messages of one
    exchange, at least one for the last exchange.
    """

    name: str
    build_fields: Callable[[ModelRequest], Mapping[str, Any]]
    open_messages: Callable[[ModelRequest], bytes]
    build_messages: Callable[[Exchange, ExchangePosition], Sequence[Mapping[str, Any]]]
    binds_prefix: bool = False
    """The server binds replies to everything before them."""
    cached_heads: list[tuple[HeadKey, RequestHead]] = field(
        default_factory=list["tuple[HeadKey, RequestHead]"]
    )
    """The most recent heads, shared by conversations of the same agent."""

    def head_for(self, request: ModelRequest, key: HeadKey) -> RequestHead:
        for cached_key, head in self.cached_heads:
            if cached_key == key:
                return head
        head = self._encode_head(request)
        self.cached_heads[:] = [(key, head), *self.cached_heads[: _CACHED_HEADS - 1]]
        return head

    def _encode_head(self, request: ModelRequest) -> RequestHead:
        fields = self.build_fields(request)
        bound = [fields.get("system"), fields.get("tools")] if self.binds_prefix else []
        return RequestHead(
            encoded=encode_open_object(**fields) + self.open_messages(request), prefix=encode_json(bound)
        )


class EncodedRequest(Struct, frozen=True, kw_only=True):
    chunks: list[bytes]
    prefix: str
    """Hash of what the reply to this request is bound to; empty if the server does not bind replies."""

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


def encode_tool_list(
    specs: tuple[ToolSpec, ...], build_tool: Callable[[ToolSpec], Mapping[str, Any]]
) -> msgspec.Raw | None:
    """Return the encoded list, or None if there are no tools."""
    return msgspec.Raw(encode_json([build_tool(spec) for spec in specs])) if specs else None


class EncodedPrefix:
    """The encoded part of a conversation that can no longer change.

    A comma follows each message.
    """

    __slots__ = (
        "_full_chunks",
        "_hash",
        "_last_chunk",
        "entry_count",
        "format_name",
        "head",
        "head_key",
        "last_entry",
    )

    def __init__(self, format_name: str, head: RequestHead, head_key: HeadKey, *, binds_prefix: bool) -> None:
        self.format_name = format_name
        self._hash = hashlib.blake2b(head.prefix, digest_size=_HASH_BYTES) if binds_prefix else None
        self._full_chunks: list[bytes] = []
        self._last_chunk = bytearray()
        self.entry_count = 0
        """Number of entries encoded so far."""
        self.last_entry: Entry | None = None
        self.head = head
        self.head_key = head_key

    def append(self, encoded: bytes) -> None:
        if self._hash is not None:
            self._hash.update(encoded)
        self._last_chunk += encoded
        if len(self._last_chunk) > _CHUNK_SIZE:
            self._full_chunks.append(bytes(self._last_chunk))
            self._last_chunk = bytearray()

    def chunks(self) -> list[bytes | bytearray]:
        """Return the chunks. The last one still grows: copy it before keeping it."""
        return [*self._full_chunks, self._last_chunk]

    def hash_with(self, encoded: bytes = b"") -> str:
        """Return the hash of what is encoded, and of these messages after it; empty if nothing is bound to it."""
        if self._hash is None:
            return ""
        extended = self._hash.copy()
        extended.update(encoded)
        return extended.hexdigest()

    def is_prefix_of(self, entries: Sequence[Entry]) -> bool:
        """Return whether the entries begin with what is encoded here.

        Entries of a cached conversation only grow at the end; anything else is encoded from the start.
        """
        if self.entry_count == 0:
            return True
        return self.entry_count <= len(entries) and entries[self.entry_count - 1] is self.last_entry


def encode_request(request: ModelRequest, request_format: RequestFormat) -> EncodedRequest:
    """Encode a request, reusing what was encoded for the conversation's earlier ones.

    All exchanges but the last are kept encoded: only the last can still grow.
    """
    head_key = (request.model, request.system, request.tools, request.output_schema)
    prefix = cast("EncodedPrefix | None", request.provider_cache.get(_CACHE_KEY))
    if (
        prefix is None
        or prefix.format_name != request_format.name
        or not prefix.is_prefix_of(request.entries)
    ):
        prefix = None
    if prefix is None or prefix.head_key != head_key:
        head = request_format.head_for(request, head_key)
        if prefix is None or prefix.head.prefix != head.prefix:
            binds_prefix = request_format.binds_prefix
            prefix = EncodedPrefix(request_format.name, head, head_key, binds_prefix=binds_prefix)
            request.provider_cache[_CACHE_KEY] = prefix
        prefix.head, prefix.head_key = head, head_key
    last_messages = _encode_new_exchanges(prefix, request.entries, request_format)
    chunks = _join_if_small([prefix.head.encoded, *prefix.chunks(), last_messages, _CLOSING])
    return EncodedRequest(chunks=chunks, prefix=prefix.hash_with(last_messages + b","))


def _encode_new_exchanges(
    prefix: EncodedPrefix, entries: Sequence[Entry], request_format: RequestFormat
) -> bytes:
    """Append all finished exchanges to the prefix and return the encoded last one."""
    is_first = prefix.entry_count == 0
    exchanges = split_exchanges(entries, prefix.entry_count)
    exchange = next(exchanges)
    for next_exchange in exchanges:
        position = _position_of(prefix, request_format, is_first=is_first, is_last=False)
        prefix.append(_encode_messages(request_format, exchange, position, b","))
        prefix.entry_count = next_exchange.start
        prefix.last_entry = entries[next_exchange.start - 1]
        is_first = False
        exchange = next_exchange
    position = _position_of(prefix, request_format, is_first=is_first, is_last=True)
    return _encode_messages(request_format, exchange, position, b"")


def _position_of(
    prefix: EncodedPrefix, request_format: RequestFormat, *, is_first: bool, is_last: bool
) -> ExchangePosition:
    if request_format.binds_prefix:
        return ExchangePosition(is_first=is_first, is_last=is_last, prefix=prefix.hash_with())
    if is_first:
        return _ONLY if is_last else _FIRST
    return _LAST if is_last else _MIDDLE


def encode_json(value: Any) -> bytes:
    """Encode JSON, replacing lone surrogates, which UTF-8 cannot hold, by U+FFFD."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_replace_surrogates_deep(value))


def replace_surrogates(text: str) -> str:
    """Return the text with every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Two adjacent surrogates form a character; a lone one is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode_open_object(**values: Any) -> bytes:
    """Encode an object without its closing brace; fields that are None are left out."""
    present = {name: value for name, value in values.items() if value is not None}
    return encode_json(present)[:-1] + b","


def invalid_arguments_reason(args: str) -> str:
    """Return why the arguments are not one JSON object, or "" if they are."""
    try:
        _OBJECT_DECODER.decode(replace_surrogates(args))
    except msgspec.MsgspecError:
        return "its arguments are not a JSON object"
    except RecursionError:
        return "its arguments are nested too deeply"
    return ""


def _encode_messages(
    request_format: RequestFormat, exchange: Exchange, position: ExchangePosition, suffix: bytes
) -> bytes:
    messages = request_format.build_messages(exchange, position)
    return encode_json(messages)[1:-1] + suffix if messages else b""


def _join_if_small(parts: list[bytes | bytearray]) -> list[bytes]:
    """Join a small request into one chunk, so that it is sent in one write."""
    return (
        [b"".join(parts)] if sum(map(len, parts)) <= _CHUNK_SIZE else [bytes(part) for part in parts if part]
    )


def _replace_surrogates_deep(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {
            _replace_surrogates_deep(key): _replace_surrogates_deep(item)
            for key, item in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_replace_surrogates_deep(item) for item in cast("Sequence[Any]", value)]
    return value
