"""Parse a model's tool arguments: check limits, then decode strictly and report errors by argument."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_ARGUMENT_DEPTH
from retinue.tools.schema import find_unknown_key, has_nested_objects

_TOKEN = re.compile(rb'"((?:[^"\\]++|\\.)*+)(?:"(\s*+:)?|\\?\Z)|([{\[])|([}\]])', re.DOTALL)
"""A string, possibly a key, or a bracket; the decoder checks everything else.

An unterminated string matches up to the end of the text, which keeps the search linear.
"""

_ERROR_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`$")
_WRONG_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`$")


def make_argument_parser(
    struct: type[msgspec.Struct], schema: Mapping[str, Any]
) -> Callable[[bytes], Mapping[str, Any]]:
    """Make a parser that decodes into the struct's fields.

    For invalid input it raises ValueError with a sentence that names the key.
    """
    checks_nested = has_nested_objects(schema)
    decoder = msgspec.json.Decoder(struct)
    fields: tuple[str, ...] = struct.__struct_fields__
    names = {field.encode_name for field in msgspec.structs.fields(struct)}

    def parse_arguments(raw: bytes) -> Mapping[str, Any]:
        raw = raw.strip() or b"{}"
        check_json_limits(raw)
        try:
            value = decoder.decode(raw)
        except UnicodeDecodeError as error:
            raise ValueError("the arguments are not valid UTF-8") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(_describe_error(str(error), names)) from error
        if checks_nested and (key_path := find_unknown_key(msgspec.json.decode(raw), schema)):
            raise ValueError(f"unknown argument `{key_path}`")
        return {field: getattr(value, field) for field in fields}

    return parse_arguments


def check_json_limits(raw: bytes) -> None:
    """Refuse JSON that is too large, too deep or repeats a key, in one pass before decoding."""
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"the arguments are {len(raw):,} bytes; the limit is {MAX_ARGUMENT_BYTES:,}")
    keys: list[set[bytes]] = [set()]
    for token in _TOKEN.finditer(raw):
        text, colon, opening, closing = token.groups()
        if opening:
            keys.append(set())
            if len(keys) > MAX_ARGUMENT_DEPTH + 1:
                raise ValueError(f"the arguments are nested deeper than {MAX_ARGUMENT_DEPTH} levels")
        elif closing:
            keys.pop()
            if not keys:
                return  # unbalanced brackets: the decoder reports them
        elif colon:
            key = _decode_key(text)
            if key in keys[-1]:
                raise ValueError(f"the key `{key.decode(errors='replace')}` is given twice")
            keys[-1].add(key)


def _decode_key(key: bytes) -> bytes:
    """Decode a key: two spellings of one key are the same key."""
    if b"\\" not in key:
        return key
    try:
        plain: str = json.loads(b'"' + key + b'"')
    except ValueError:
        return key
    return plain.encode(errors="surrogatepass")


def _describe_error(message: str, names: set[str]) -> str:
    path = ""
    if match := _ERROR_PATH.search(message):
        path, message = match.group(1), message[: match.start()]
    location = f" in `{path}`" if path else ""
    if unknown := _UNKNOWN_FIELD.search(message):
        accepted = "" if path else f"; valid arguments: {_name_list(names)}"
        return f"unknown argument `{unknown.group(1)}`{location}{accepted}"
    if missing := _MISSING_FIELD.search(message):
        return f"the argument `{missing.group(1)}` is missing{location}"
    subject = f"the argument `{path}`" if path else "the arguments"
    if types := _WRONG_TYPE.search(message):
        return f"{subject} must be {types.group(1).replace(' | ', ' or ')}, not {types.group(2)}"
    if not path:
        return f"the arguments cannot be parsed: {message}"
    return f"{subject} is invalid: {message[:1].lower()}{message[1:]}"


def _name_list(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"
