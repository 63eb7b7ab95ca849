"""YAML as Retinue writes it: block maps and lists that the plain reader takes back without the library."""

import re
from collections.abc import Mapping
from typing import Any, cast

from retinue.storage import fast_yaml_reader

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*\Z")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump(value: Mapping[str, Any], indent: int = 0) -> str:
    """A map, one key to a line; what is nested deeper than lists of scalars is written in flow style."""
    return "".join(_entry(key, each, indent) for key, each in value.items())


def _entry(key: str, value: Any, indent: int) -> str:
    pad = " " * indent
    name = key if _KEY.match(key) else quoted(key)
    if isinstance(value, Mapping) and value:
        return f"{pad}{name}:\n{dump(cast('Mapping[str, Any]', value), indent + 2)}"
    if isinstance(value, list | tuple) and value:
        items = cast("list[Any] | tuple[Any, ...]", value)
        return f"{pad}{name}:\n" + "".join(f"{pad}  - {flow(each)}\n" for each in items)
    return f"{pad}{name}: {flow(value)}\n"


def flow(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = cast("Mapping[str, Any]", value)
        return "{" + ", ".join(f"{quoted(key)}: {flow(each)}" for key, each in inside.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(each) for each in cast("list[Any]", value)) + "]"
    if isinstance(value, str):
        bare = _BARE.match(value) and fast_yaml_reader.resolve(value) is value and len(value) < 400  # noqa: PLR2004
        return value if bare else quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def quoted(text: str) -> str:
    """In double quotes, with escapes only for what must not stand in a text file."""
    return (
        '"'
        + "".join(_ESCAPES.get(char) or (char if char.isprintable() else _code(char)) for char in text)
        + '"'
    )


def _code(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
