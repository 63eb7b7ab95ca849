"""Request encoding that reuses the bytes of the previous turn of the same conversation."""

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
_CLOSING = b"]}"
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])

HeadKey = tuple[Model, str, tuple[ToolSpec, ...]]


class ExchangePosition(Struct, frozen=True, kw_only=True):
    """Position of an exchange in its conversation.

    Some providers treat the first or the last exchange specially.
    """

    is_first: bool
    is_last: bool


_FIRST, _MIDDLE = (
    ExchangePosition(is_first=True, is_last=False),
    ExchangePosition(is_first=False, is_last=False),
)
_ONLY, _LAST = ExchangePosition(is_first=True, is_last=True), ExchangePosition(is_first=False, is_last=True)


class RequestFormat(Struct, frozen=True, kw_only=True):
    """The request encoding of one provider.

    `encode_head` returns everything before the messages, including their opening bracket. `build_messages`
    returns the messages of one exchange, at least one for the last exchange.
    """

    name: str
    encode_head: Callable[[ModelRequest], bytes]
    build_messages: Callable[[Exchange, ExchangePosition], Sequence[Mapping[str, Any]]]
    cached_heads: list[tuple[HeadKey, bytes]] = field(default_factory=list["tuple[HeadKey, bytes]"])
    """The most recent heads, shared by conversations of the same agent."""

    def head_for(self, request: ModelRequest, key: HeadKey) -> bytes:
        for cached_key, head in self.cached_heads:
            if cached_key == key:
                return head
        head = self.encode_head(request)
        self.cached_heads[:] = [(key, head), *self.cached_heads[: _CACHED_HEADS - 1]]
        return head


def encode_tool_list(
    specs: tuple[ToolSpec, ...], build_tool: Callable[[ToolSpec], Mapping[str, Any]]
) -> msgspec.Raw | None:
    """Return the encoded list, or None if there are no tools."""
    return msgspec.Raw(encode_json([build_tool(spec) for spec in specs])) if specs else None


class EncodedPrefix:
    """The encoded part of a conversation that can no longer change.

    A comma follows each message.
    """

    __slots__ = ("_full_chunks", "_last_chunk", "entry_count", "head", "head_key", "last_entry")

    def __init__(self) -> None:
        self._full_chunks: list[bytes] = []
        self._last_chunk = bytearray()
        self.entry_count = 0
        """Number of entries encoded so far."""
        self.last_entry: Entry | None = None
        self.head = b""
        self.head_key: HeadKey | None = None

    def append(self, encoded: bytes) -> None:
        self._last_chunk += encoded
        if len(self._last_chunk) > _CHUNK_SIZE:
            self._full_chunks.append(bytes(self._last_chunk))
            self._last_chunk = bytearray()

    def chunks(self) -> list[bytes | bytearray]:
        """Return the chunks. The last one still grows: copy it before keeping it."""
        return [*self._full_chunks, self._last_chunk]

    def is_prefix_of(self, entries: Sequence[Entry]) -> bool:
        """Return whether the entries begin with what is encoded here.

        Entries of a cached conversation only grow at the end; anything else is encoded from the start.
        """
        if self.entry_count == 0:
            return True
        return self.entry_count <= len(entries) and entries[self.entry_count - 1] is self.last_entry


def encode_request(request: ModelRequest, request_format: RequestFormat) -> list[bytes]:
    """Return the request's bytes in chunks.

    All exchanges but the last are kept encoded: only the last can still grow.
    """
    prefix = cast("EncodedPrefix | None", request.provider_cache.get(request_format.name))
    if prefix is None or not prefix.is_prefix_of(request.entries):
        prefix = request.provider_cache[request_format.name] = EncodedPrefix()
    head_key = (request.model, request.system, request.tools)
    if prefix.head_key != head_key:
        prefix.head = request_format.head_for(request, head_key)
        prefix.head_key = head_key
    last_messages = _encode_new_exchanges(prefix, request.entries, request_format)
    return _join_if_small([prefix.head, *prefix.chunks(), last_messages, _CLOSING])


def _encode_new_exchanges(
    prefix: EncodedPrefix, entries: Sequence[Entry], request_format: RequestFormat
) -> bytes:
    """Append all finished exchanges to the prefix and return the encoded last one."""
    is_first = prefix.entry_count == 0
    exchanges = split_exchanges(entries, prefix.entry_count)
    exchange = next(exchanges)
    for next_exchange in exchanges:
        prefix.append(_encode_messages(request_format, exchange, _FIRST if is_first else _MIDDLE, b","))
        prefix.entry_count = next_exchange.start
        prefix.last_entry = entries[next_exchange.start - 1]
        is_first = False
        exchange = next_exchange
    return _encode_messages(request_format, exchange, _ONLY if is_first else _LAST, b"")


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
