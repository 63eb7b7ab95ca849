"""A model server's script as a JSON file: which answer is played for which request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from retinue.errors import BadConfig
from retinue.testing.replies import Answer, from_json, status


class Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Answers for some of the requests."""

    replies: list[Any]
    when: str = ""
    """Text that must occur in the request's body; empty: any request."""
    by: Literal["order", "history"] = "order"
    """order: one after the other, whoever asks. history: the n-th answer when the conversation holds n replies,
    so that a client that was killed and resumed hears what it would have heard."""
    loop: bool = False
    """Begin again when all answers are used."""


class Parts(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    parts: list[Part]


_File = list[Any] | dict[str, Any]


def script_file(path: str) -> Callable[[bytes, int], Answer]:
    """The script in a file: a list of answers played in order, one part, or {"parts": […]} of which the first
    that fits a request answers it. The function takes a request's body and its number of replies."""
    try:
        value = msgspec.json.decode(Path(path).read_bytes(), type=_File)
        parts = [_Playing(part) for part in _parts(value)]
    except OSError as error:
        raise BadConfig(f"cannot read the script {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadConfig(f"the script {path} is wrong: {error}") from error

    def answer(body: bytes, turns: int) -> Answer:
        for part in parts:
            if part.when in body:
                return part.answer(turns)
        return status(400, f"no part of the script {path} fits this request")

    return answer


def _parts(value: _File) -> list[Part]:
    if isinstance(value, list):
        return [Part(replies=value)]
    if "parts" in value:
        return msgspec.convert(value, Parts).parts
    return [msgspec.convert(value, Part)]


class _Playing:
    def __init__(self, part: Part) -> None:
        self.when = part.when.encode()
        self._part = part
        self._answers = [from_json(value) for value in part.replies]
        self._played = 0

    def answer(self, turns: int) -> Answer:
        at = self._played if self._part.by == "order" else turns
        self._played += 1
        if self._part.loop and self._answers:
            at %= len(self._answers)
        if at < len(self._answers):
            return self._answers[at]
        return status(400, f"the script holds {len(self._answers)} answers here, and all are used")
