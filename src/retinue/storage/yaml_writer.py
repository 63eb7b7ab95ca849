"""Write YAML in block style, readable by the fast YAML reader."""

import re
from collections.abc import Mapping
from typing import Any, cast

from retinue.storage import fast_yaml_reader

_UNQUOTED_VALUE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*\Z")
_UNQUOTED_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump_yaml(value: Mapping[str, Any], indent: int = 0) -> str:
    """Write a map, one key per line; anything nested deeper than lists of scalars uses flow style."""
    return "".join(_dump_entry(key, each, indent) for key, each in value.items())


def _dump_entry(key: str, value: Any, indent: int) -> str:
    pad = " " * indent
    name = key if _UNQUOTED_KEY.match(key) else quote_string(key)
    if isinstance(value, Mapping) and value:
        return f"{pad}{name}:\n{dump_yaml(cast('Mapping[str, Any]', value), indent + 2)}"
    if isinstance(value, list | tuple) and value:
        items = cast("list[Any] | tuple[Any, ...]", value)
        return f"{pad}{name}:\n" + "".join(f"{pad}  - {flow_style(each)}\n" for each in items)
    return f"{pad}{name}: {flow_style(value)}\n"


def flow_style(value: Any) -> str:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return (
            "{" + ", ".join(f"{quote_string(key)}: {flow_style(each)}" for key, each in mapping.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow_style(each) for each in cast("list[Any]", value)) + "]"
    if isinstance(value, str):
        unquoted = (
            _UNQUOTED_VALUE.match(value)
            and fast_yaml_reader.resolve_scalar(value) is value
            and len(value) < 400  # noqa: PLR2004
        )
        return value if unquoted else quote_string(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def quote_string(text: str) -> str:
    """Quote a string with double quotes; escape only characters that do not belong in a text file."""
    return (
        '"'
        + "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escape_code(char)) for char in text)
        + '"'
    )


def _escape_code(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
