"""Decode JSON of model servers and programs, which may contain numbers that JSON does not have."""

import json
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ODD_NUMBER = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}")


def decode_json(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """Decode a document; NaN and infinite numbers count as null.

    Servers written in Python send them, mostly as token counts or log probabilities. They must not make a finished
    reply invalid.

    Raises:
        msgspec.MsgspecError: The data is not such a document.
    """
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError:
        if _ODD_NUMBER.search(data) is None:
            raise
        return msgspec.convert(_decode_leniently(data), decoder.type)


def _decode_leniently(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_as_null, parse_float=_parse_float)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error


def _as_null(_name: str) -> None:
    return None


def _parse_float(text: str) -> float | None:
    value = float(text)
    return value if abs(value) != float("inf") else None
