"""JSON Schemas of answers: whether one is valid, and whether a text matches it.

jsonschema_rs is imported on use: that takes 35 to 55 ms, and most runs have no schema.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from retinue.errors import UsageError
from retinue.storage import strict_json
from retinue.storage.strict_yaml import ParseError

MAX_SCHEMA_BYTES = 256 * 1024
MAX_ERRORS = 5
"""Errors of an answer that the model is told at once."""
_MAX_ERROR_CHARS = 300


def find_schema_error(schema: Any) -> str:
    """Return why a value is no schema of answers, as the end of a sentence; empty if it is one."""
    if not isinstance(schema, dict):
        return "is not a JSON object"
    try:
        _compile_schema(cast("dict[str, Any]", schema))
    except ValueError as error:
        return f"is not a valid JSON Schema: {_describe_error(error)}"
    return ""


def find_output_error(schema: Mapping[str, Any], text: str) -> str:
    """Return why a text is not JSON that matches the schema; empty if it is."""
    if not text.strip():
        return "the answer is empty"
    try:
        value: Any = msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return f"the answer is not one JSON value: {str(error)[:_MAX_ERROR_CHARS]}"
    try:
        errors = _compile_schema(schema).iter_errors(value)
        found = [_describe_error(error) for error, _ in zip(errors, range(MAX_ERRORS), strict=False)]
    except ValueError as error:
        return _describe_error(error)
    return "; ".join(found)


def read_schema_file(path: str | Path) -> dict[str, Any]:
    """Read a schema that a person names.

    Raises:
        UsageError: The file cannot be read, or is no schema.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"The schema {path} cannot be read: {reason}.") from error
    if len(data) > MAX_SCHEMA_BYTES:
        raise UsageError(f"The schema {path} is larger than {MAX_SCHEMA_BYTES // 1024} KiB.")
    try:
        schema = strict_json.parse_json(data.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"The schema {path} is not UTF-8 text.") from error
    except ParseError as error:
        raise UsageError(f"The schema {path}:{error.line} {error.problem}.") from error
    if problem := find_schema_error(schema):
        raise UsageError(f"The schema {path} {problem}.")
    return schema


def _compile_schema(schema: Mapping[str, Any]) -> Any:
    """Compile a schema; nothing is fetched for it, from no server and no file.

    Raises:
        ValueError: It is no schema, or refers to another document.
    """
    import jsonschema_rs  # noqa: PLC0415  (slow to import)

    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    return jsonschema_rs.validator_for(text, retriever=_refuse_reference)


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, and a schema can only refer to itself")


def _describe_error(error: Exception) -> str:
    """Return the library's message in one line, with the place it is about."""
    message = " ".join(str(getattr(error, "message", error)).split())
    if "a schema can only refer to itself" in message:
        message = message[message.index("it refers to") :]
    if len(message) > _MAX_ERROR_CHARS:
        message = f"{message[:_MAX_ERROR_CHARS]}…"
    path: list[str | int] = getattr(error, "instance_path", [])
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return f"{place}: {message}" if place else message
