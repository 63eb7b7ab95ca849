"""What the benchmark's model says: whole answers as bytes, made once, in every form a client may ask for."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.domain.value import value
from retinue.testing.replies import Answer
from retinue.testing.wire_formats import anthropic_events, anthropic_whole, openai_events, openai_whole

MODEL = "bench"
JSON, STREAM = b"application/json", b"text/event-stream"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@value
class Canned:
    """One answer, ready to be written."""

    whole: bytes
    """To a client that asked for one document."""
    stream: tuple[bytes, ...]
    """To a client that asked for a stream: what belongs together is one piece, unless it is said piece by piece."""


def openai(answer: Answer, *, apart: bool = False) -> Canned:
    """As Chat Completions has it; `apart` writes each event by itself."""
    document = openai_whole(answer, MODEL)
    document |= {"created": 1, "usage": _USAGE}
    events = [_complete(event) for event in openai_events(answer, MODEL)]
    return Canned(whole=_response(JSON, msgspec.json.encode(document)), stream=_chunked(events, apart=apart))


def anthropic(answer: Answer, *, apart: bool = False) -> Canned:
    """As Messages has it."""
    document = anthropic_whole(answer, MODEL)
    events = list(anthropic_events(answer, MODEL))
    return Canned(whole=_response(JSON, msgspec.json.encode(document)), stream=_chunked(events, apart=apart))


def refusal(problem: str) -> bytes:
    """What a request gets that the scene has no answer for: no client may take it for one."""
    body = msgspec.json.encode({"error": {"message": problem, "type": "invalid_request_error", "code": None}})
    return _response(JSON, body, status=b"400 Bad Request")


def facts(value: Mapping[str, Any]) -> bytes:
    """What the server itself has to say."""
    return _response(JSON, msgspec.json.encode(value))


def _complete(event: bytes) -> bytes:
    """Fields that some clients want of every event, and that cost the others nothing."""
    if event.startswith(b"data: {"):
        found: dict[str, Any] = msgspec.json.decode(event[6:])
        found |= {"object": "chat.completion.chunk", "created": 1}
        if "usage" in found:
            found["usage"] = _USAGE
        return b"data: " + msgspec.json.encode(found) + b"\n\n"
    return event


def _response(kind: bytes, body: bytes, *, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
    return head + body


def _chunked(events: Sequence[bytes], *, apart: bool) -> tuple[bytes, ...]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % STREAM
    pieces = [head + _chunk(events[0]), *(_chunk(event) for event in events[1:])]
    pieces[-1] += b"0\r\n\r\n"
    return tuple(pieces) if apart else (b"".join(pieces),)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
