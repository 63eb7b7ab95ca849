"""What a scripted model server can answer: good replies, and every bad habit of servers."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

from retinue.domain.value import value

Args = Mapping[str, Any] | str


@value
class Answer:
    """One answer of the server, whichever provider it plays. Made by the functions below; `replace` changes it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, Args], ...] = ()
    """Tool name and arguments; a text is sent as the arguments' JSON just as it is."""
    call_ids: tuple[str, ...] = ()
    """The provider's ids of the calls; made up where they are missing."""
    stop: str = ""
    """In the words of Chat Completions (stop, tool_calls, length, content_filter); chosen by content if empty."""
    model: str = ""
    """The model that claims to have answered; the one asked for if empty."""
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"input": 10, "output": 5})
    """Input and output tokens; None sends no counts at all."""
    error: Mapping[str, str] | None = None
    """A provider's error object (type, message) sent inside the stream, after the content."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    """Sent as it is instead of a reply."""
    content_type: str = "text/event-stream"
    stream: bool = True
    """False: the whole reply as one JSON document, as servers do that cannot stream."""
    piece: int = 8
    """Characters of text or arguments per event."""

    delay: float = 0
    """Seconds before the answer begins."""
    pace: float = 0
    """Seconds between the pieces written."""
    chunk: int = 0
    """Bytes per piece written, cutting wherever it falls; 0: one event each."""
    finish: bool = True
    """False: the stream ends in good order without having said why."""
    done: bool = True
    """False: the finish reason comes, the closing event does not."""
    drop_after: int | None = None
    """Bytes after which the connection is cut."""
    silent_after: int | None = None
    """Bytes after which nothing more comes while the connection stays open."""


def reply(text: str = "", **more: Any) -> Answer:
    """Words, in a stream of small events."""
    return Answer(text=text, **more)


def calls(*wishes: tuple[str, Args], text: str = "", **more: Any) -> Answer:
    """Tool calls, each a name and its arguments: `calls(("read", {"path": "x"}))`."""
    return Answer(text=text, calls=wishes, **more)


def status(code: int, message: str = "", *, retry_after: str | float | None = None, kind: str = "") -> Answer:
    """An HTTP error in the shape both providers use."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    names = {429: "rate_limit_error", 529: "overloaded_error"}
    error = {"type": kind or names.get(code, "api_error"), "message": message or f"scripted HTTP {code}"}
    return Answer(status=code, headers=headers, error=error)


def html(code: int = 200) -> Answer:
    """A web page where a reply should be, as captive portals and proxies send."""
    page = b"<!doctype html><title>Sign in</title><p>Please sign in to continue."
    return Answer(status=code, body=page, content_type="text/html")


def empty() -> Answer:
    """Status 200 and not a byte."""
    return Answer(body=b"")


def raw_stream(data: bytes | str, **more: Any) -> Answer:
    """Exactly these bytes as an event stream."""
    return Answer(body=data.encode() if isinstance(data, str) else data, **more)


def drop_after(size: int, answer: Answer | None = None) -> Answer:
    """The connection breaks after so many bytes."""
    return replace(answer or reply("a text that will not be heard to its end"), drop_after=size)


def silence(after: int = 0, answer: Answer | None = None) -> Answer:
    """Nothing more comes after so many bytes, and nobody hangs up."""
    return replace(answer or reply("a text that will not be heard to its end"), silent_after=after)


def drip(text: str = "slow", *, pace: float = 0.01, **more: Any) -> Answer:
    """One byte at a time."""
    return Answer(text=text, chunk=1, pace=pace, **more)


def unfinished(text: str = "par", **more: Any) -> Answer:
    """The stream ends in good order in the middle of the reply."""
    return Answer(text=text, finish=False, done=False, **more)


def cut_call(name: str, args: str) -> Answer:
    """The output limit falls inside a call's arguments."""
    return Answer(calls=((name, args),), stop="length")


def refusal(text: str = "I cannot help with that.") -> Answer:
    return Answer(text=text, stop="content_filter")


def stream_error(kind: str = "overloaded_error", message: str = "Overloaded", *, text: str = "") -> Answer:
    """A good beginning, then the provider's error object inside the stream."""
    return Answer(text=text, error={"type": kind, "message": message}, finish=False, done=False)


def huge(size: int, **more: Any) -> Answer:
    """A text of so many bytes."""
    return Answer(text="x" * size, piece=64 * 1024, **more)


def blanks(count: int = 1000, *, pace: float = 0.01) -> Answer:
    """A stream that is alive and says nothing: whitespace, for as long as anyone listens."""
    return Answer(text=" " * count, piece=1, pace=pace)


def from_json(value: Any) -> Answer:
    """An answer as a script file writes it: a text, or an object with the fields of Answer. `tools`, a list of
    {name, args}, may stand for `calls`, as in the scripted driver's files."""
    if isinstance(value, str):
        return reply(value)
    if not isinstance(value, dict):
        raise ValueError("a reply is a text or an object")  # noqa: TRY004 — a wrong value in a file, not a wrong call
    fields = dict(cast("dict[str, Any]", value))
    tools: Sequence[Mapping[str, Any]] = fields.pop("tools", ())
    if tools:
        fields["calls"] = tuple(
            (_either(tool, "name", "tool"), _either(tool, "args", "arguments")) for tool in tools
        )
    if isinstance(fields.get("body"), str):
        fields["body"] = fields["body"].encode()
    unknown = sorted(set(fields) - set(Answer.__dataclass_fields__))
    if unknown:
        raise ValueError(f"a reply has no field {unknown[0]!r}")
    return Answer(**fields)


def _either(tool: Mapping[str, Any], first: str, second: str) -> Any:
    return tool[first] if first in tool else tool.get(second, "" if first == "name" else {})
