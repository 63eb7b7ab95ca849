"""The bench model's replies: complete HTTP responses, encoded once for each wire format."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from retinue.testing.replies import FakeResponse
from retinue.testing.wire_formats import anthropic_events, anthropic_message, openai_completion, openai_events

MODEL_NAME = "bench"
JSON_TYPE, STREAM_TYPE = b"application/json", b"text/event-stream"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class CannedReply(Struct, frozen=True, kw_only=True):
    """A reply, ready to be written to a socket."""

    document: bytes
    """For a client that requested one JSON document."""
    stream_pieces: tuple[bytes, ...]
    """For a client that requested a stream: one piece, or one piece per event if they are sent separately."""


def encode_openai_reply(response: FakeResponse, *, split_events: bool = False) -> CannedReply:
    """Encode a reply for Chat Completions; `split_events` writes each event separately."""
    document = openai_completion(response, MODEL_NAME)
    document |= {"created": 1, "usage": _USAGE}
    events = [_with_required_fields(event) for event in openai_events(response, MODEL_NAME)]
    return CannedReply(
        document=_http_response(JSON_TYPE, msgspec.json.encode(document)),
        stream_pieces=_chunked_response(events, split_events=split_events),
    )


def encode_anthropic_reply(response: FakeResponse, *, split_events: bool = False) -> CannedReply:
    """Encode a reply for Messages."""
    document = anthropic_message(response, MODEL_NAME)
    events = list(anthropic_events(response, MODEL_NAME))
    return CannedReply(
        document=_http_response(JSON_TYPE, msgspec.json.encode(document)),
        stream_pieces=_chunked_response(events, split_events=split_events),
    )


def error_response(problem: str) -> bytes:
    """Return the error response to a request that no rule of the scenario matches."""
    body = msgspec.json.encode({"error": {"message": problem, "type": "invalid_request_error", "code": None}})
    return _http_response(JSON_TYPE, body, status=b"400 Bad Request")


def json_response(value: Mapping[str, Any]) -> bytes:
    """Return the server's own statistics as a JSON response."""
    return _http_response(JSON_TYPE, msgspec.json.encode(value))


def _with_required_fields(event: bytes) -> bytes:
    """Add fields that some clients require in every event and others ignore."""
    if event.startswith(b"data: {"):
        data: dict[str, Any] = msgspec.json.decode(event[6:])
        data |= {"object": "chat.completion.chunk", "created": 1}
        if "usage" in data:
            data["usage"] = _USAGE
        return b"data: " + msgspec.json.encode(data) + b"\n\n"
    return event


def _http_response(content_type: bytes, body: bytes, *, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (
        status,
        content_type,
        len(body),
    )
    return head + body


def _chunked_response(events: Sequence[bytes], *, split_events: bool) -> tuple[bytes, ...]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % STREAM_TYPE
    pieces = [head + _http_chunk(events[0]), *(_http_chunk(event) for event in events[1:])]
    pieces[-1] += b"0\r\n\r\n"
    return tuple(pieces) if split_events else (b"".join(pieces),)


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
