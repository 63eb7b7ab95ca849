"""The plain part of YAML that nearly every definition is written in, read without the YAML library's start-up cost."""

import re
from typing import Any

Lines = dict[tuple[str | int, ...], int]

_LINE = re.compile(r"( *)(?:(- )(?! )(.+)|([A-Za-z_][A-Za-z0-9_-]*):(?: +(.+))?)\Z")
_PLAIN = re.compile(r"[^\s\-?:,\[\]{}#&*!|>'\"%@`=<~][^#:\[\]{},'\"&*!|>%@`]*\Z")
_ITEM = r"(?:[A-Za-z0-9_][A-Za-z0-9_./*-]*(?: [A-Za-z0-9_./*-]+)*|\"[^\"\\]*\"|'[^']*')"
_FLOW = re.compile(rf"\[ *(?:{_ITEM}(?: *, *{_ITEM})*)? *\]\Z")
_FLOW_ITEM = re.compile(_ITEM)
_ESCAPED = re.compile(r"(?:[^\"\\]|\\[\"\\nt])*")
_ESCAPE = re.compile(r"\\(.)")
_MEANING = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[-+][0-9]{1,3})?\Z")
_WORDS: dict[str, bool | None] = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    "null": None, "Null": None, "NULL": None, "~": None, "": None,
}  # fmt: skip

MAX_PLAIN_LINES = 2000


class _Outside(Exception):
    """The text is more than this reader knows."""


def resolve(text: str) -> Any:
    """What an unquoted scalar means: true, false, null, a whole number, a number written the shortest way, else text.
    So `no`, `012`, `1.10` and dates stay the words they are."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return text if text == "-0" else int(text)
    if _FLOAT.match(text) and repr(float(text)) == text:
        return float(text)
    return text


def read(text: str) -> tuple[Any, Lines] | None:
    """The value and the line of each key, counted from 1; None when only the whole language can tell."""
    if "\t" in text or "\r" in text or not text.replace("\n", "").isprintable():
        return None
    rows: list[tuple[int, int, str | None, str | None]] = []
    for number, written in enumerate(text.split("\n"), 1):
        line = written.rstrip(" ")
        if not line or line.lstrip(" ").startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or len(rows) >= MAX_PLAIN_LINES:
            return None
        indent, dash, item, key, value = match.groups()
        rows.append((number, len(indent), None if dash else key, item if dash else value))
    if not rows or rows[0][1] != 0:
        return None
    lines: Lines = {}
    try:
        value, rest = _block(rows, 0, (), lines)
    except _Outside:
        return None
    return (value, lines) if rest == len(rows) else None


_Rows = list[tuple[int, int, str | None, str | None]]


def _block(rows: _Rows, at: int, path: tuple[str | int, ...], lines: Lines) -> tuple[Any, int]:
    """A map or a list of scalars that starts at this row, and the row after it."""
    if len(path) > 8:  # noqa: PLR2004  (deeper is not plain; the whole reader has its own limit)
        raise _Outside
    return _map(rows, at, path, lines) if rows[at][2] is not None else _list(rows, at, path, lines)


def _map(rows: _Rows, at: int, path: tuple[str | int, ...], lines: Lines) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    indent = rows[at][1]
    while at < len(rows) and rows[at][1] == indent:
        number, _, key, value = rows[at]
        if key is None or key in found:
            raise _Outside
        lines[*path, key] = number
        at += 1
        if value is not None:
            found[key] = _scalar(value, path=(*path, key), lines=lines, line=number)
        elif at < len(rows) and (rows[at][1] > indent or (rows[at][1] == indent and rows[at][2] is None)):
            found[key], at = _block(rows, at, (*path, key), lines)
        else:
            found[key] = None
    _outdented(rows, at, indent)
    return found, at


def _list(rows: _Rows, at: int, path: tuple[str | int, ...], lines: Lines) -> tuple[list[Any], int]:
    found: list[Any] = []
    indent = rows[at][1]
    while at < len(rows) and rows[at][1] == indent and rows[at][2] is None:
        number, _, _, value = rows[at]
        lines[*path, len(found)] = number
        found.append(_scalar(value or "", path=None, lines=lines, line=number))
        at += 1
    _outdented(rows, at, indent)
    return found, at


def _outdented(rows: _Rows, at: int, indent: int) -> None:
    """A deeper line after a scalar goes on with it: not plain."""
    if at < len(rows) and rows[at][1] > indent:
        raise _Outside


def _scalar(text: str, *, path: tuple[str | int, ...] | None, lines: Lines, line: int) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return _quoted(text)
    if path is not None and text.startswith("[") and _FLOW.match(text):
        items = [_scalar(item, path=None, lines=lines, line=line) for item in _FLOW_ITEM.findall(text[1:-1])]
        lines.update({(*path, index): line for index in range(len(items))})
        return items
    if text != "~" and not _PLAIN.match(text):
        return _colons(text)
    return resolve(text)


def _quoted(text: str) -> str:
    inner = text[1:-1]
    if text[0] == '"' and _ESCAPED.fullmatch(inner):
        return _ESCAPE.sub(lambda match: _MEANING[match.group(1)], inner)
    if text[0] in inner or text[0] == '"':
        raise _Outside
    return inner


def _colons(text: str) -> str:
    """Plain words may hold quotes, commas and brackets, and a colon or a hash that no space makes special."""
    if not text[0].isalnum() or ": " in text or " #" in text or text.endswith(":"):
        raise _Outside
    return resolve(text)
