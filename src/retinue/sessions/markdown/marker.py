"""Parse marker lines, the invisible line before each entry of session.md, and quote their values."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from retinue.sessions.markdown.compiler import compile_constructor
from retinue.sessions.markdown.grammar import (
    ANY_KIND,
    COMMENT_CLOSE,
    COMMENT_OPEN,
    ENTRY_KINDS,
    FORMAT_VERSION,
    HEAD,
    MarkerKind,
    SessionHead,
)

_HEAD_PREFIX = f"{COMMENT_OPEN}{HEAD.name} {FORMAT_VERSION} {HEAD.attributes[1].name}="
MARKER_START = re.compile(rf"(?:{ANY_KIND})\b")
"""Matches what follows `<!-- ` on a line that claims to be a Retinue marker."""
_BARE_WORDS = {kind.name: kind.bare_words for kind in (HEAD, *ENTRY_KINDS)}
"""Words a marker may contain besides its `name=value` pairs."""
_UNSAFE = re.compile('[\\s>"%\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]')
_COUNT = re.compile(r"[0-9]{1,18}")
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")

Attributes = Mapping[str, str]


def parse_marker(line: str) -> Attributes | None:
    """Parse a marker line after its `<!-- `; None if it does not fit the grammar.

    Returns the values by name, the kind under the empty name and the bare word under `word`.
    """
    inner = line.removesuffix("\r").removesuffix(COMMENT_CLOSE)
    if ">" in inner or '"' in inner or len(inner) + 4 > len(line):
        return None
    kind, *tokens = inner.split(" ")
    if kind not in _BARE_WORDS:
        return None
    found = {"": kind}
    for token in tokens:
        name, equals, value = token.partition("=")
        if equals and name:
            found[name] = value
        elif token in _BARE_WORDS[kind]:
            found["word"] = token
        elif token:
            return None
    return {name: unquote_value(value) for name, value in found.items()} if "%" in inner else found


def parse_count(value: str) -> int:
    """Parse a marker's number. Raises ValueError for anything else and for impossibly long numbers."""
    if not _COUNT.fullmatch(value):
        raise ValueError(f"the number {value[:20]!r}")
    return int(value)


def count_attribute(attrs: Attributes, name: str) -> int:
    """Return a marker's count of this name; -1 if it is missing or not a number."""
    try:
        return parse_count(attrs[name])
    except (KeyError, ValueError):
        return -1


def quote_value(value: str) -> str:
    """Quote an attribute's value so that it cannot end the value, the line or the comment."""
    return value if value.isascii() and value.isalnum() else _percent_encode_unsafe(value)


@lru_cache(maxsize=64)
def _percent_encode_unsafe(value: str) -> str:
    """Percent-encode unsafe characters; cached because times and model names repeat."""
    return _UNSAFE.sub(_percent_encode, value)


def unquote_value(value: str) -> str:
    """Invert quote_value; a stray percent sign that a person wrote is kept."""
    return _PERCENT.sub(_percent_decode, value)


def compile_reader(kind: MarkerKind) -> Callable[[Attributes, str, Callable[[], str]], Any]:
    """Compile a function that creates an entry from a marker's values, its body and a fallback id."""
    values = {each: each.attrs_source() for each in kind.attributes if each.encoding.from_attrs}
    return compile_constructor(
        kind,
        f"read_{kind.name}(attrs, body, line_id)",
        values=values,
        present={each: f"{each.name!r} in attrs" for each in values},
        parse_count=parse_count,
    )


_read_head = compile_reader(HEAD)


def parse_head(text: str) -> SessionHead | None:
    """Parse the identity at the very start of a text; None for a text that only quotes such a line."""
    line = text.removeprefix("\ufeff").partition("\n")[0]
    if not line.startswith(_HEAD_PREFIX):
        return None
    attrs = parse_marker(line[len(COMMENT_OPEN) :])
    head: SessionHead | None = None if attrs is None else _read_head(attrs, "", str)
    return head if head and head.slug else None


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _percent_decode(match: re.Match[str]) -> str:
    try:
        return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return match[0]
