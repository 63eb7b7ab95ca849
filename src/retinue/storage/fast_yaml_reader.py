"""A fast reader for the simple YAML subset of most definitions, avoiding the YAML library's import cost."""

import re
from typing import Any

LineNumbers = dict[tuple[str | int, ...], int]

_LINE = re.compile(r"( *)(?:(- )(?! )(.+)|([A-Za-z_][A-Za-z0-9_-]*):(?: +(.+))?)\Z")
_PLAIN = re.compile(r"[^\s\-?:,\[\]{}#&*!|>'\"%@`=<~][^#:\[\]{},'\"&*!|>%@`]*\Z")
_ITEM = r"(?:[A-Za-z0-9_][A-Za-z0-9_./*-]*(?: [A-Za-z0-9_./*-]+)*|\"[^\"\\]*\"|'[^']*')"
_FLOW = re.compile(rf"\[ *(?:{_ITEM}(?: *, *{_ITEM})*)? *\]\Z")
_FLOW_ITEM = re.compile(_ITEM)
_ESCAPED = re.compile(r"(?:[^\"\\]|\\[\"\\nt])*")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPE_VALUES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[-+][0-9]{1,3})?\Z")
_CONSTANTS: dict[str, bool | None] = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    "null": None, "Null": None, "NULL": None, "~": None, "": None,
}  # fmt: skip

MAX_PLAIN_LINES = 2000


class _NotPlainYaml(Exception):
    """The text uses YAML beyond the simple subset."""


def resolve_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar: a constant, an integer, a shortest-form float, else text.

    So `no`, `012`, `1.10` and dates stay text.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.match(text):
        return text if text == "-0" else int(text)
    if _FLOAT.match(text) and repr(float(text)) == text:
        return float(text)
    return text


def read_plain_yaml(text: str) -> tuple[Any, LineNumbers] | None:
    """Return the value and each key's 1-based line, or None if the text needs the full parser."""
    if "\t" in text or "\r" in text or not text.replace("\n", "").isprintable():
        return None
    rows: list[tuple[int, int, str | None, str | None]] = []
    for number, raw_line in enumerate(text.split("\n"), 1):
        line = raw_line.rstrip(" ")
        if not line or line.lstrip(" ").startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or len(rows) >= MAX_PLAIN_LINES:
            return None
        indent, dash, item, key, value = match.groups()
        rows.append((number, len(indent), None if dash else key, item if dash else value))
    if not rows or rows[0][1] != 0:
        return None
    lines: LineNumbers = {}
    try:
        value, next_row = _parse_block(rows, 0, (), lines)
    except _NotPlainYaml:
        return None
    return (value, lines) if next_row == len(rows) else None


_Rows = list[tuple[int, int, str | None, str | None]]


def _parse_block(
    rows: _Rows, row_index: int, path: tuple[str | int, ...], lines: LineNumbers
) -> tuple[Any, int]:
    """Parse the map or list of scalars that starts at this row; return it with the index of the next row."""
    if len(path) > 8:  # noqa: PLR2004  (deeper documents are left to the full parser, which has its own limit)
        raise _NotPlainYaml
    return (
        _parse_map(rows, row_index, path, lines)
        if rows[row_index][2] is not None
        else _parse_list(rows, row_index, path, lines)
    )


def _parse_map(
    rows: _Rows, row_index: int, path: tuple[str | int, ...], lines: LineNumbers
) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    indent = rows[row_index][1]
    while row_index < len(rows) and rows[row_index][1] == indent:
        number, _, key, value = rows[row_index]
        if key is None or key in result:
            raise _NotPlainYaml
        lines[*path, key] = number
        row_index += 1
        if value is not None:
            result[key] = _parse_scalar(value, path=(*path, key), lines=lines, line=number)
        elif row_index < len(rows) and (
            rows[row_index][1] > indent or (rows[row_index][1] == indent and rows[row_index][2] is None)
        ):
            result[key], row_index = _parse_block(rows, row_index, (*path, key), lines)
        else:
            result[key] = None
    _check_dedented(rows, row_index, indent)
    return result, row_index


def _parse_list(
    rows: _Rows, row_index: int, path: tuple[str | int, ...], lines: LineNumbers
) -> tuple[list[Any], int]:
    result: list[Any] = []
    indent = rows[row_index][1]
    while row_index < len(rows) and rows[row_index][1] == indent and rows[row_index][2] is None:
        number, _, _, value = rows[row_index]
        lines[*path, len(result)] = number
        result.append(_parse_scalar(value or "", path=None, lines=lines, line=number))
        row_index += 1
    _check_dedented(rows, row_index, indent)
    return result, row_index


def _check_dedented(rows: _Rows, row_index: int, indent: int) -> None:
    """Reject a deeper line after a scalar: it would continue the scalar, which is not plain YAML."""
    if row_index < len(rows) and rows[row_index][1] > indent:
        raise _NotPlainYaml


def _parse_scalar(text: str, *, path: tuple[str | int, ...] | None, lines: LineNumbers, line: int) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return _parse_quoted(text)
    if path is not None and text.startswith("[") and _FLOW.match(text):
        items = [
            _parse_scalar(item, path=None, lines=lines, line=line) for item in _FLOW_ITEM.findall(text[1:-1])
        ]
        lines.update({(*path, index): line for index in range(len(items))})
        return items
    if text != "~" and not _PLAIN.match(text):
        return _parse_unquoted(text)
    return resolve_scalar(text)


def _parse_quoted(text: str) -> str:
    inner = text[1:-1]
    if text[0] == '"' and _ESCAPED.fullmatch(inner):
        return _ESCAPE.sub(lambda match: _ESCAPE_VALUES[match.group(1)], inner)
    if text[0] in inner or text[0] == '"':
        raise _NotPlainYaml
    return inner


def _parse_unquoted(text: str) -> str:
    """Accept plain text with quotes, commas and brackets if no colon or hash has a special meaning."""
    if not text[0].isalnum() or ": " in text or " #" in text or text.endswith(":"):
        raise _NotPlainYaml
    return resolve_scalar(text)
