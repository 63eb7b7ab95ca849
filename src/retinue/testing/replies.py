"""Responses of the fake model server: good replies, and the failures of real servers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

ToolArguments = Mapping[str, Any] | str


class FakeResponse(Struct, frozen=True, kw_only=True):
    """A response of the server, for each provider API. The functions below make it; `replace` changes it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, ToolArguments], ...] = ()
    """Tool names and arguments; a text is sent unchanged as the JSON of the arguments."""
    call_ids: tuple[str, ...] = ()
    """The provider's ids of the calls; missing ones are generated."""
    stop: str = ""
    """A finish reason of Chat Completions (stop, tool_calls, length, content_filter); derived if empty."""
    model: str = ""
    """The model named in the response; the requested one if empty."""
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"input": 10, "output": 5})
    """Input and output tokens; None omits the counts."""
    error: Mapping[str, Any] | None = None
    """A provider's error object (type, message, param, code), sent inside the stream after the content."""
    message_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Chat Completions: more fields of the message, such as `reasoning_details`."""
    call_fields: tuple[Mapping[str, Any], ...] = ()
    """Chat Completions: more fields of each call, such as `extra_content`."""
    signature: str = ""
    """Messages: signature of the thinking block, which may have no text; a constant one if empty."""
    encrypted_reasoning: tuple[str, ...] = ()
    """Responses: encrypted reasoning items, one before each call or before the text."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    """Sent unchanged instead of a reply."""
    content_type: str = "text/event-stream"
    stream: bool = True
    """False: the whole reply as one JSON document, like a server that cannot stream."""
    piece: int = 8
    """Characters of text or arguments per event."""

    delay: float = 0
    """Seconds before the response begins."""
    pace: float = 0
    """Seconds between writes."""
    chunk: int = 0
    """Bytes per write, regardless of event boundaries; 0: one event per write."""
    finish: bool = True
    """False: the stream ends normally without a finish reason."""
    done: bool = True
    """False: the finish reason is sent, the closing event is not."""
    drop_after: int | None = None
    """Bytes after which the connection is closed."""
    silent_after: int | None = None
    """Bytes after which nothing more is sent while the connection stays open."""


def text_reply(text: str = "", **options: Any) -> FakeResponse:
    """Return a text reply, streamed in small events."""
    return FakeResponse(text=text, **options)


def tool_call_reply(*tool_calls: tuple[str, ToolArguments], text: str = "", **options: Any) -> FakeResponse:
    """Return tool calls, each a name and its arguments: `tool_call_reply(("read", {"path": "x"}))`."""
    return FakeResponse(text=text, calls=tool_calls, **options)


def http_error(
    code: int,
    message: str = "",
    *,
    retry_after: str | float | None = None,
    kind: str = "",
    param: str | None = None,
) -> FakeResponse:
    """Return an HTTP error in a format that clients of all APIs read; `param` names the refused field."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    error_types = {429: "rate_limit_error", 529: "overloaded_error"}
    error = {
        "type": kind or error_types.get(code, "api_error"),
        "message": message or f"scripted HTTP {code}",
        **({} if param is None else {"param": param}),
    }
    return FakeResponse(status=code, headers=headers, error=error)


def html_page(code: int = 200) -> FakeResponse:
    """Return a web page instead of a reply, like captive portals and proxies."""
    page = b"<!doctype html><title>Sign in</title><p>Please sign in to continue."
    return FakeResponse(status=code, body=page, content_type="text/html")


def empty_response() -> FakeResponse:
    """Return status 200 with an empty body."""
    return FakeResponse(body=b"")


def raw_stream(data: bytes | str, **options: Any) -> FakeResponse:
    """Return exactly these bytes as an event stream."""
    return FakeResponse(body=data.encode() if isinstance(data, str) else data, **options)


def dropped_connection(after_bytes: int, response: FakeResponse | None = None) -> FakeResponse:
    """Close the connection after `after_bytes` bytes."""
    return replace(response or text_reply("a text that will not be sent completely"), drop_after=after_bytes)


def stalled_stream(after_bytes: int = 0, response: FakeResponse | None = None) -> FakeResponse:
    """Stop sending after `after_bytes` bytes, but keep the connection open."""
    return replace(
        response or text_reply("a text that will not be sent completely"), silent_after=after_bytes
    )


def byte_by_byte_reply(text: str = "slow", *, pace: float = 0.01, **options: Any) -> FakeResponse:
    """Return a reply sent one byte at a time."""
    return FakeResponse(text=text, chunk=1, pace=pace, **options)


def unfinished_stream(text: str = "par", **options: Any) -> FakeResponse:
    """Return a stream that ends normally in the middle of the reply."""
    return FakeResponse(text=text, finish=False, done=False, **options)


def truncated_tool_call(name: str, args: str) -> FakeResponse:
    """Return a tool call whose arguments are cut off by the output limit."""
    return FakeResponse(calls=((name, args),), stop="length")


def refused_reply(text: str = "I cannot help with that.") -> FakeResponse:
    return FakeResponse(text=text, stop="content_filter")


def stream_error(
    kind: str = "overloaded_error", message: str = "Overloaded", *, text: str = ""
) -> FakeResponse:
    """Return a stream that starts well and then contains the provider's error object."""
    return FakeResponse(text=text, error={"type": kind, "message": message}, finish=False, done=False)


def huge_reply(size: int, **options: Any) -> FakeResponse:
    """Return a text of `size` bytes."""
    return FakeResponse(text="x" * size, piece=64 * 1024, **options)


def whitespace_stream(count: int = 1000, *, pace: float = 0.01) -> FakeResponse:
    """Return a stream that stays alive but contains only whitespace."""
    return FakeResponse(text=" " * count, piece=1, pace=pace)


def response_from_json(value: Any) -> FakeResponse:
    """Parse a response of a script file: a text, or an object with the fields of FakeResponse.

    `tools`, a list of {name, args}, is accepted instead of `calls`, as in the scripted provider's files.
    """
    if isinstance(value, str):
        return text_reply(value)
    if not isinstance(value, dict):
        raise ValueError("a reply is a text or an object")  # noqa: TRY004 — an invalid file, not a wrong argument type
    fields = dict(cast("dict[str, Any]", value))
    tools: Sequence[Mapping[str, Any]] = fields.pop("tools", ())
    if tools:
        fields["calls"] = tuple(
            (_first_given(tool, "name", "tool"), _first_given(tool, "args", "arguments")) for tool in tools
        )
    if isinstance(fields.get("body"), str):
        fields["body"] = fields["body"].encode()
    unknown = sorted(set(fields) - set(FakeResponse.__struct_fields__))
    if unknown:
        raise ValueError(f"a reply has no field {unknown[0]!r}")
    return FakeResponse(**fields)


def _first_given(tool: Mapping[str, Any], key: str, alias: str) -> Any:
    return tool[key] if key in tool else tool.get(alias, "" if key == "name" else {})
