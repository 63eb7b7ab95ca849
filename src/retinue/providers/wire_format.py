"""A wire format: one HTTP API for models, as functions that encode its requests and read its replies."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from retinue.domain.model_turn import ModelReply, ModelRequest, ReplyDelta
from retinue.providers.reply_data import ReplyOrigin
from retinue.providers.request_changes import NO_CHANGES, RequestChanges
from retinue.providers.request_encoding import RequestFormat
from retinue.providers.stream_request import ReplyReader

_SHARED_FIELDS = ("text", "output_config")
"""Objects that hold the output schema beside what the user may add."""


class RequestTarget(Struct, frozen=True, kw_only=True):
    """The server and model that requests are encoded for."""

    server: str
    """A short name of server and API, by which the server's own data in transcripts is recognised."""
    base_url: str
    model: str
    changes: RequestChanges = NO_CHANGES
    thinking_field: str = ""
    """Field that requests thinking, if it is not the usual one of the API."""
    extra_fields: Mapping[str, Any] = {}
    """Fields that the user adds to each request."""

    def finish_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request with the user's own, and with what the server refused changed."""
        present = {name: value for name, value in fields.items() if value is not None}
        shared = {
            name: {**present[name], **self.extra_fields[name]}
            for name in _SHARED_FIELDS
            if isinstance(present.get(name), Mapping) and isinstance(self.extra_fields.get(name), Mapping)
        }
        return self.changes.apply({**present, **self.extra_fields, **shared})


class WireReader(ReplyReader, Protocol):
    """Reads a streamed reply."""

    def reply(self, *, sent_bytes: int) -> ModelReply: ...


class ReaderInputs(Struct, frozen=True, kw_only=True):
    on_delta: Callable[[ReplyDelta], None]
    key: str
    """Replaced in the server's messages."""
    origin: ReplyOrigin


class WireFormat(Struct, frozen=True, kw_only=True):
    name: str
    endpoint: Callable[[str], str]
    """Returns the URL of requests for a base URL."""
    headers: Callable[[str, ModelRequest, RequestChanges], Mapping[str, str]]
    """Returns the headers of a request with a key, which may be empty."""
    request_format: Callable[[RequestTarget], RequestFormat]
    reader: Callable[[ReaderInputs], WireReader]
    prepare: Callable[[ModelRequest, RequestTarget], ModelRequest] = lambda request, _: request
    """Adapts a request to its conversation."""
