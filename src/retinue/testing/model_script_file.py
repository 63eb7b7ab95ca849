"""The fake model server's script as a JSON file: which response is played for which request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from retinue.errors import BadConfig
from retinue.testing.replies import FakeResponse, http_error, response_from_json


class ScriptPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Responses for some of the requests."""

    replies: list[Any]
    when: str = ""
    """Text that must occur in the request's body; empty: any request."""
    by: Literal["order", "history"] = "order"
    """order: one after the other, for all clients. history: the n-th response when the conversation holds n
    replies, so that a client that was killed and resumed gets the response it would have got.
    """
    loop: bool = False
    """Start again when all responses are used."""


class ScriptFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    parts: list[ScriptPart]


_ScriptDocument = list[Any] | dict[str, Any]


def load_script_file(path: str) -> Callable[[bytes, int], FakeResponse]:
    """Load a script: a list of responses played in order, one part, or {"parts": […]}.

    The first part that matches a request answers it. The returned function takes a request's body and its
    number of replies. Raises BadConfig if the file cannot be read or is invalid.
    """
    try:
        document = msgspec.json.decode(Path(path).read_bytes(), type=_ScriptDocument)
        parts = [_PartPlayer(part) for part in _parse_parts(document)]
    except OSError as error:
        raise BadConfig(f"cannot read the script {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadConfig(f"the script {path} is invalid: {error}") from error

    def choose_response(body: bytes, reply_count: int) -> FakeResponse:
        for part in parts:
            if part.required_text in body:
                return part.next_response(reply_count)
        return http_error(400, f"no part of the script {path} matches this request")

    return choose_response


def _parse_parts(document: _ScriptDocument) -> list[ScriptPart]:
    if isinstance(document, list):
        return [ScriptPart(replies=document)]
    if "parts" in document:
        return msgspec.convert(document, ScriptFile).parts
    return [msgspec.convert(document, ScriptPart)]


class _PartPlayer:
    def __init__(self, part: ScriptPart) -> None:
        self.required_text = part.when.encode()
        self._part = part
        self._responses = [response_from_json(value) for value in part.replies]
        self._request_count = 0

    def next_response(self, reply_count: int) -> FakeResponse:
        index = self._request_count if self._part.by == "order" else reply_count
        self._request_count += 1
        if self._part.loop and self._responses:
            index %= len(self._responses)
        if index < len(self._responses):
            return self._responses[index]
        return http_error(
            400, f"this part of the script has {len(self._responses)} responses and all were used"
        )
