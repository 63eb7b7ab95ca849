"""The grammar of a marker line: the invisible line that opens each entry of session.md."""

import re
from collections.abc import Mapping
from functools import lru_cache

from retinue.domain.value import value

KINDS = ("retinue", "user", "agent", "call", "result", "notice")
FORMAT = "1"
OPEN = "<!-- "
CLOSE = " -->"
SIGNATURE = f"{OPEN}retinue {FORMAT} session="

BEGINS = re.compile(rf"(?:{'|'.join(KINDS)})\b")
"""What stands after `<!-- ` on a line that claims to be one of ours."""
_WORDS = {"result": ("ok", "failed"), "retinue": (FORMAT,)}
"""Words a marker may hold beside its `name=value` pairs."""
_UNSAFE = re.compile('[\\s>"%\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]')
_COUNT = re.compile(r"[0-9]{1,18}")
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")

Attributes = Mapping[str, str]


def attributes(line: str) -> Attributes | None:
    """What a marker line says after its `<!-- `: its kind under the empty name, its bare word under `word`,
    and its values. None when the line does not fit the grammar."""
    inner = line.removesuffix("\r").removesuffix(CLOSE)
    if ">" in inner or '"' in inner or len(inner) + 4 > len(line):
        return None
    kind, *tokens = inner.split(" ")
    if kind not in KINDS:
        return None
    found = {"": kind}
    for token in tokens:
        name, equals, value = token.partition("=")
        if equals and name:
            found[name] = value
        elif token in _WORDS.get(kind, ()):
            found["word"] = token
        elif token:
            return None
    return {name: unquoted(value) for name, value in found.items()} if "%" in inner else found


def attribute(name: str, value: str) -> str:
    """One pair as it stands in a marker; nothing for an empty value."""
    if not value:
        return ""
    return f" {name}={value if value.isalnum() and value.isascii() else _sound(value)}"


def number(name: str, value: int) -> str:
    return f" {name}={value}" if value else ""


def counted(value: str) -> int:
    """A number as a marker bears it. What is none, or counts nothing that exists, raises ValueError."""
    if not _COUNT.fullmatch(value):
        raise ValueError(f"the number {value[:20]!r}")
    return int(value)


def number_in(known: Attributes, name: str) -> int:
    """What a marker counts under this name; -1 when it does not say, or says no number."""
    try:
        return counted(known[name])
    except (KeyError, ValueError):
        return -1


def quoted(value: str) -> str:
    """An attribute's value: nothing in it can end the value, the line or the comment."""
    return value if value.isascii() and value.isalnum() else _sound(value)


@lru_cache(maxsize=64)
def _sound(value: str) -> str:
    """Times and models' names come again and again."""
    return _UNSAFE.sub(_percent, value)


def unquoted(value: str) -> str:
    """The inverse of quoted; what a person wrote with a stray percent sign stays as it is."""
    return _PERCENT.sub(_unpercent, value)


@value
class Head:
    """The identity a file carries in its first line."""

    slug: str
    id: str = ""
    branch: str = ""
    parent: str = ""


def read_head(text: str) -> Head | None:
    """The identity at the very start of a text, or None: a text that only quotes such a line has none."""
    line = text.removeprefix("\ufeff").partition("\n")[0]
    if not line.startswith(SIGNATURE):
        return None
    known = attributes(line[len(OPEN) :])
    if known is None or not known["session"]:
        return None
    return Head(
        slug=known["session"],
        id=known.get("id", ""),
        branch=known.get("branch", ""),
        parent=known.get("parent", ""),
    )


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _unpercent(found: re.Match[str]) -> str:
    try:
        return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return found[0]
