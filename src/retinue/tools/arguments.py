"""Arguments as a model wrote them: bounded before they are decoded, strict when they are, and errors are sentences."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_ARGUMENT_DEPTH
from retinue.tools.schema import is_nested, stranger

_TOKEN = re.compile(rb'"((?:[^"\\]++|\\.)*+)(?:"(\s*+:)?|\\?\Z)|([{\[])|([}\]])', re.DOTALL)
"""A string, perhaps a key; or a bracket. Everything else between them is the decoder's business. A string that
does not end is taken to the end, so that no text makes the search start over and over."""

_AT = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_TYPES = re.compile(r"Expected `(.*)`, got `(.*)`$")


def parser(struct: type[msgspec.Struct], schema: Mapping[str, Any]) -> Callable[[bytes], Mapping[str, Any]]:
    """Decodes into the struct's fields. What does not fit is a ValueError that names the key."""
    nested = is_nested(schema)
    decoder = msgspec.json.Decoder(struct)
    fields: tuple[str, ...] = struct.__struct_fields__
    named = {field.encode_name for field in msgspec.structs.fields(struct)}

    def parse(raw: bytes) -> Mapping[str, Any]:
        raw = raw.strip() or b"{}"
        prescan(raw)
        try:
            value = decoder.decode(raw)
        except UnicodeDecodeError as error:
            raise ValueError("the arguments are not valid UTF-8") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(_sentence(str(error), named)) from error
        if nested and (place := stranger(msgspec.json.decode(raw), schema)):
            raise ValueError(f"there is no argument `{place}`")
        return {field: getattr(value, field) for field in fields}

    return parse


def prescan(raw: bytes) -> None:
    """Refuses what is too large, too deep or says a key twice, in one pass and before anything is built of it."""
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"the arguments are {len(raw):,} bytes; at most {MAX_ARGUMENT_BYTES:,} are taken")
    keys: list[set[bytes]] = [set()]
    for token in _TOKEN.finditer(raw):
        text, colon, opened, closed = token.groups()
        if opened:
            keys.append(set())
            if len(keys) > MAX_ARGUMENT_DEPTH + 1:
                raise ValueError(f"the arguments are nested deeper than {MAX_ARGUMENT_DEPTH} levels")
        elif closed:
            keys.pop()
            if not keys:
                return  # more is closed than was opened: the decoder says so
        elif colon:
            key = _unescaped(text)
            if key in keys[-1]:
                raise ValueError(f"the key `{key.decode(errors='replace')}` is given twice")
            keys[-1].add(key)


def _unescaped(key: bytes) -> bytes:
    """Two spellings of one key are one key."""
    if b"\\" not in key:
        return key
    try:
        plain: str = json.loads(b'"' + key + b'"')
    except ValueError:
        return key
    return plain.encode(errors="surrogatepass")


def _sentence(message: str, named: set[str]) -> str:
    where = ""
    if at := _AT.search(message):
        where, message = at.group(1), message[: at.start()]
    inside = f" in `{where}`" if where else ""
    if unknown := _UNKNOWN.search(message):
        takes = "" if where else f"; it takes {_listed(named)}"
        return f"there is no argument `{unknown.group(1)}`{inside}{takes}"
    if missing := _MISSING.search(message):
        return f"the argument `{missing.group(1)}` is missing{inside}"
    subject = f"the argument `{where}`" if where else "the arguments"
    if types := _TYPES.search(message):
        return f"{subject} must be {types.group(1).replace(' | ', ' or ')}, not {types.group(2)}"
    if not where:
        return f"the arguments cannot be read: {message}"
    return f"{subject} does not fit: {message[:1].lower()}{message[1:]}"


def _listed(named: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(named)) or "none"
