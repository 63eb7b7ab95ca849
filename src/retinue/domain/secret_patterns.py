"""Shapes of secrets: what a key looks like when nobody told us its value, whole or still being spoken."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_RUN_OF = 20
"""No shape but those of URLs and private keys is without so many characters in a row that a word could have."""
SHORTEST = 8
"""No shape is shorter: `://:abc@` is one."""
LONGEST = 26_000
"""No shape is longer. So much of a stream is held back at most."""

_LETTERS = "A-Za-z0-9"
_WORD = _LETTERS + r"_\-"
_BASE64 = _LETTERS + "+/="
_VALUE = _LETTERS + r"_+/=.!@#%^&*~\-"

_EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2}))"
"""Where a key may begin: not within a word. An escaped line end in JSON, or a byte of a URL, is no word."""


@dataclass(frozen=True, slots=True)
class Run:
    """So many characters of a kind."""

    chars: str
    least: int
    most: int
    secret: bool = False
    """Only this much of the shape is a secret; what names it stays."""
    gives: bool = False
    """It may give back what it took, for the part that follows."""
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A condition on what is around, as an expression. Words still being spoken need not meet one."""

    text: str


Part = str | Run | Look
Shape = tuple[Part, ...]


def _digit(chars: str) -> Look:
    """Names in code begin like keys too, and have no digit."""
    return Look(rf"(?=[{chars}]{{0,512}}\d)")


def _mixed(chars: str) -> Look:
    return Look(rf"(?=[{chars}]{{0,512}}\d)(?=[{chars}]{{0,512}}[A-Za-z])")


def _ends(chars: str) -> Look:
    return Look(f"(?![{chars}])")


_TOKENS: tuple[Shape, ...] = (
    ("sk-ant-", _digit(_WORD), Run(_WORD, 16, 512)),
    ("sk-proj-", _digit(_WORD), Run(_WORD, 16, 512)),
    ("sk-svcacct-", _digit(_WORD), Run(_WORD, 16, 512)),
    ("sk-admin-", _digit(_WORD), Run(_WORD, 16, 512)),
    ("sk-or-v1-", Run("a-f0-9", 32, 128)),
    ("sk-", _digit(_LETTERS), Run(_LETTERS, 20, 256)),
    ("gh", Run("pousr", 1, 1), "_", Run(_LETTERS, 30, 255)),
    ("github_pat_", Run(_LETTERS + "_", 22, 255)),
    ("glpat-", Run(_WORD, 20, 255)),
    ("xox", Run("abeoprs", 1, 1), "-", _digit(_LETTERS + r"\-"), Run(_LETTERS + r"\-", 15, 255)),
    ("xapp-", _digit(_LETTERS + r"\-"), Run(_LETTERS + r"\-", 20, 255)),
    ("AKIA", Run("A-Z0-9", 16, 16), _ends(_LETTERS)),
    ("ASIA", Run("A-Z0-9", 16, 16), _ends(_LETTERS)),
    ("AIza", Run(_WORD, 30, 45), _ends(_WORD)),
    ("ya29.", Run(_WORD, 20, 1024)),
    ("GOCSPX-", Run(_WORD, 20, 64)),
    (Run("rs", 1, 1), "k_live_", Run(_LETTERS, 16, 255)),
    (Run("rs", 1, 1), "k_test_", Run(_LETTERS, 16, 255)),
    ("whsec_", Run(_LETTERS, 24, 255)),
    ("npm_", Run(_LETTERS, 30, 64), _ends(_LETTERS)),
    ("pypi-AgE", Run(_WORD, 30, 1024)),
    ("hf_", Run(_LETTERS, 30, 64), _ends(_LETTERS)),
    ("eyJ", Run(_WORD, 10, 1024), ".eyJ", Run(_WORD, 8, 8192), ".", Run(_WORD, 10, 1024)),
    ("do", Run("opr", 1, 1), "_v1_", Run("a-f0-9", 32, 128)),
    ("SG.", Run(_WORD, 16, 64), ".", Run(_WORD, 16, 128)),
    (Look(r"(?<=\d{8}:)"), "AA", Run(_WORD, 33, 33), _ends(_WORD)),
    ("gsk_", Run(_LETTERS, 40, 128)),
    ("xai-", Run(_LETTERS, 40, 128)),
    ("hvs.", Run(_WORD, 24, 255)),
    ("shpat_", Run("a-f0-9", 32, 64)),
    ("AGE-SECRET-KEY-1", Run("A-Z0-9", 40, 80)),
)
"""Keys that their own beginning gives away: letters, digits, `_`, `-` and `.` only, at least 20 of them."""

_QUOTE = Run("\"' \\t:=\\\\", 1, 8)
_AWS: Shape = (Run(_BASE64, 40, 40, secret=True), _ends(_BASE64))


def _assigned(name: str) -> Shape:
    """As a file of settings says it. A call or a reference to something else is no value."""
    least = max(12, _RUN_OF - len(name))
    value = Run(_VALUE, least, 512, secret=True)
    return (name, Run("\\\\\"'", 0, 2), _mixed(_VALUE), value, Look(rf"(?![{_VALUE}(\[{{])"))


_BEARER: Shape = (_digit(_WORD + ".+/="), Run(_WORD + ".+/=", 20, 8192, secret=True))
_ARMOUR = Run("A-Z0-9 ", 0, 32, gives=True)

_NAMED: tuple[Shape, ...] = (
    ("Bearer", Run(" ", 1, 4), *_BEARER),
    ("bearer", Run(" ", 1, 4), *_BEARER),
    ("Basic ", Look(rf"(?=[{_LETTERS}+/]{{0,512}}[\d=])"), Run(_BASE64, 20, 1024, secret=True)),
    ("api-key: ", _mixed(_WORD + "."), Run(_WORD + ".", 20, 512, secret=True)),
    ("secret_access_key", _QUOTE, *_AWS),
    ("SECRET_ACCESS_KEY", _QUOTE, *_AWS),
    ("SecretAccessKey", _QUOTE, *_AWS),
    ("secretAccessKey", _QUOTE, *_AWS),
    ("AccountKey=", Run(_BASE64, 40, 128, secret=True)),
    ("SharedAccessKey=", Run(_BASE64, 40, 128, secret=True)),
    _assigned("PASSWORD="),
    _assigned("PGPASSWORD="),
    _assigned("SECRET="),
    _assigned("TOKEN="),
    _assigned("KEY="),
)
"""Values that the words before them give away."""

_URL: Shape = (
    "://",
    Run(r"^\s/:@?#\"'<>\\", 0, 128),
    ":",
    Look(r"(?![$<{*\[%])"),
    Run(r"^\s/:@\"'<>\\\[", 3, 256, secret=True),
    "@",
)
_URL_LONGEST = 3 + 128 + 1 + 256

_KEY_LONGEST = 16_384
_BEGIN: Shape = ("-----BEGIN ", _ARMOUR, "PRIVATE KEY", Run("A-Z ", 0, 8), "-----")
_WHOLE: Shape = (
    *_BEGIN,
    Run(r"\s\S", 1, _KEY_LONGEST, lazy=True),
    "-----END ",
    _ARMOUR,
    "PRIVATE KEY",
    Run("A-Z ", 0, 8),
    "-----",
)


def _expression(shape: Shape) -> str:
    """The whole shape. A run that gives nothing back cannot make a long text slow."""
    found = ""
    for part in shape:
        if isinstance(part, Run):
            greed = "?" if part.lazy else "" if part.gives else "+"
            many = f"[{part.chars}]{{{part.least},{part.most}}}{greed}"
            found += f"({many})" if part.secret else many
        else:
            found += part.text if isinstance(part, Look) else re.escape(part)
    return found


def _beginning(shape: Shape) -> str:
    """Every text that could become the shape by going on."""
    steps: list[str] = []
    for part in shape:
        if isinstance(part, Run):
            steps.append(f"[{part.chars}]{{{min(part.least, 1)},{part.most}}}")
        elif isinstance(part, Look):
            if part.text.startswith("(?<="):
                steps.append(part.text)
        else:
            steps += [re.escape(char) for char in part]
    nested = ""
    for step in reversed(steps):
        nested = step + (f"(?:{nested})?" if nested else "")
    return nested


def _leads(shape: Shape) -> list[str]:
    """The literals a shape begins with."""
    found = [""]
    for part in shape:
        if isinstance(part, str):
            found = [lead + part for lead in found]
        elif isinstance(part, Run):
            if (part.least, part.most) != (1, 1):
                break
            found = [lead + char for lead in found for char in part.chars]
    return found


_WORDED = (*_TOKENS, *_NAMED)
_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "
_LEADS = tuple(lead for shape in _WORDED for lead in _leads(shape))
_ALL_LEADS = (*_LEADS, "://", _KEY_BEGINS)
_STARTS = frozenset(lead[:size] for lead in _ALL_LEADS for size in range(1, len(lead)))
_LONGEST_START = max(map(len, _STARTS))

# Compiled on first use: most texts hold nothing that needs an expression, and start-up is a promise.


@cache
def _lead() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _ALL_LEADS)))


@cache
def _worded() -> re.Pattern[str]:
    return re.compile(f"{_EDGE}(?:{'|'.join(map(_expression, _WORDED))})")


@cache
def _url() -> re.Pattern[str]:
    return re.compile(_expression(_URL))


@cache
def _whole_key() -> re.Pattern[str]:
    return re.compile(_expression(_WHOLE))


@cache
def _cut_key() -> re.Pattern[str]:
    """A private key whose end is missing: its lines as far as they go."""
    between, header = r"(?:\\[nr]|[\s>|\"'+])", r"[A-Za-z][A-Za-z-]{2,20}: (?:(?!-----)[^\n\\]){1,80}"
    line, last = (
        rf"{between}*+(?:{header}|[{_BASE64}]{{16,100}})",
        rf"{between}*(?=[A-Za-z]*[0-9+/=])[{_BASE64}]{{1,15}}",
    )
    return re.compile(f"{_expression(_BEGIN)}(?:{line})*(?:{last})?")


@cache
def _opening() -> re.Pattern[str]:
    worded, others = ("|".join(map(_beginning, shapes)) for shapes in (_WORDED, (_URL, _WHOLE)))
    return re.compile(rf"(?:{_EDGE}(?:{worded})|{others})\Z")


_MASK = bytes(
    0x61 if code < 0x80 and (chr(code).isalnum() or chr(code) in "_-.+/=\"'\\!@#%^&*~") else 0x20  # noqa: PLR2004  (ASCII)
    for code in range(256)
)
_RUN = b"a" * _RUN_OF
_BEFORE = 28
"""Where a value is found by the words before it, they are no longer."""
_BEYOND = 600
"""What may belong to a value beyond the run that it begins in."""


class Span(NamedTuple):
    """A secret from `begin` to `end`, and the `lead` that gave it away before that."""

    lead: int
    begin: int
    end: int


def spans(text: str, start: int = 0) -> list[Span]:
    """Where secrets stand in a text, apart from each other and in order. None begins before `start`, though what
    stands there is looked at."""
    if len(text) - start < SHORTEST:
        return []
    found = [*_near_runs(text, start)] if len(text) - start >= _RUN_OF else []
    if "@" in text:
        found += _in_urls(text, start)
    if _KEY_BEGINS in text:
        found += _private_keys(text, start)
    if len(found) < 2:  # noqa: PLR2004  (nothing to sort)
        return found
    apart: list[Span] = []
    for each in sorted(found, key=lambda each: each.begin):
        if apart and each.begin < (last := apart[-1]).end:
            apart[-1] = Span(min(last.lead, each.lead), last.begin, max(last.end, each.end))
        else:
            apart.append(each)
    return apart


def undecided(text: str, found: list[Span], start: int = 0) -> int:
    """From where on a text must wait for what follows: it ends within what is, or may become, a secret."""
    at = max(start, len(text) - LONGEST)
    first = len(text)
    for each in found:
        if each.end == len(text) or _cut_short(text, each):
            first = min(first, each.lead)
        elif text.find(_KEY_ENDS, each.begin, each.end) >= 0:
            at = max(at, each.end)
    opened = _opening().search(text, at) if _may_be_open(text, at) else None
    if opened is None:
        return len(text)
    first = min(first, opened.start())
    for each in reversed(found):
        if each.lead < first < each.end:
            first = each.lead
    return first


def _may_be_open(text: str, at: int) -> bool:
    """Whether a beginning stands there whole, or the text ends within one that no word runs into."""
    for size in range(1, min(_LONGEST_START, len(text) - at) + 1):
        if text[-size:] in _STARTS and not (text[-size].isalnum() and _in_word(text[: len(text) - size])):
            return True
    return _lead().search(text, at) is not None


def _in_word(before: str) -> bool:
    """Escapes aside, which end in a letter or digit too: the expression knows them."""
    last = before[-1:]
    return last.isascii() and last.isalnum() and not {"\\", "%"} & set(before[-6:])


def _cut_short(text: str, each: Span) -> bool:
    begins = text.find(_KEY_BEGINS, each.begin, each.end)
    return begins >= 0 and text.find(_KEY_ENDS, begins, each.end) < 0


def _near_runs(text: str, start: int) -> Iterator[Span]:
    """Only where enough characters in a row could be a key, and a beginning stands near, is the expression tried."""
    mask = text.encode("latin-1", "replace").translate(_MASK)
    places: list[tuple[int, int]] = []
    at = mask.find(_RUN)
    while at >= 0:
        end = mask.find(b" ", at + _RUN_OF)
        end = len(text) if end < 0 else end
        places.append((max(start, at - _BEFORE), end))
        at = mask.find(_RUN, end)
    if not places:
        return
    near = "\n".join([text[begin:end] for begin, end in places])
    for lead in _LEADS:
        if lead in near:
            break
    else:
        return
    after = 0
    for begin, end in places:
        for found in _worded().finditer(text, max(begin, after), end + _BEYOND):
            if found.start() >= end:
                break
            yield Span(found.start(), *found.span(found.lastindex or 0))
            after = found.end()


def _in_urls(text: str, start: int) -> Iterator[Span]:
    at = text.find("@", start)
    while at >= 0:
        begin = text.rfind("://", max(start, at - _URL_LONGEST), at)
        if begin >= 0 and (found := _url().match(text, begin)) is not None and found.end() == at + 1:
            yield Span(begin, *found.span(1))
        at = text.find("@", at + 1)


def _private_keys(text: str, start: int) -> Iterator[Span]:
    at = text.find(_KEY_BEGINS, start)
    while at >= 0:
        ends = text.find(_KEY_ENDS, at, at + _KEY_LONGEST) >= 0
        found = (_whole_key().match(text, at) if ends else None) or _cut_key().match(text, at)
        if found:
            yield Span(at, *found.span())
        at = text.find(_KEY_BEGINS, at + 1 if found is None else found.end())
