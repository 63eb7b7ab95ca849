"""The grammar of marker lines: the invisible line before each entry of session.md."""

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

MARKER_KINDS = ("retinue", "user", "agent", "call", "result", "notice")
FORMAT_VERSION = "1"
COMMENT_OPEN = "<!-- "
COMMENT_CLOSE = " -->"
HEAD_PREFIX = f"{COMMENT_OPEN}retinue {FORMAT_VERSION} session="

MARKER_START = re.compile(rf"(?:{'|'.join(MARKER_KINDS)})\b")
"""Matches what follows `<!-- ` on a line that claims to be a Retinue marker."""
_BARE_WORDS = {"result": ("ok", "failed"), "retinue": (FORMAT_VERSION,)}
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
    if kind not in MARKER_KINDS:
        return None
    found = {"": kind}
    for token in tokens:
        name, equals, value = token.partition("=")
        if equals and name:
            found[name] = value
        elif token in _BARE_WORDS.get(kind, ()):
            found["word"] = token
        elif token:
            return None
    return {name: unquote_value(value) for name, value in found.items()} if "%" in inner else found


def format_attribute(name: str, value: str) -> str:
    """Format one `name=value` pair of a marker; empty for an empty value."""
    if not value:
        return ""
    return f" {name}={value if value.isalnum() and value.isascii() else _percent_encode_unsafe(value)}"


def format_number(name: str, value: int) -> str:
    return f" {name}={value}" if value else ""


def parse_count(value: str) -> int:
    """Parse a marker's number. Raises ValueError for anything else and for impossibly long numbers."""
    if not _COUNT.fullmatch(value):
        raise ValueError(f"the number {value[:20]!r}")
    return int(value)


def count_attribute(attrs: Attributes, name: str) -> int:
    """Return a marker's count of this name; -1 if it is missing or no number."""
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


class SessionHead(Struct, frozen=True, kw_only=True):
    """The session identity in a file's first line."""

    slug: str
    id: str = ""
    branch: str = ""
    parent: str = ""


def parse_head(text: str) -> SessionHead | None:
    """Parse the identity at the very start of a text; None for a text that only quotes such a line."""
    line = text.removeprefix("\ufeff").partition("\n")[0]
    if not line.startswith(HEAD_PREFIX):
        return None
    attrs = parse_marker(line[len(COMMENT_OPEN) :])
    if attrs is None or not attrs["session"]:
        return None
    return SessionHead(
        slug=attrs["session"],
        id=attrs.get("id", ""),
        branch=attrs.get("branch", ""),
        parent=attrs.get("parent", ""),
    )


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _percent_decode(match: re.Match[str]) -> str:
    try:
        return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return match[0]
