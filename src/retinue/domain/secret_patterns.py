"""Patterns of secrets: recognise keys by their form, in whole text and in a stream."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_MIN_TOKEN_CHARS = 20
"""Every pattern except URLs and private keys contains at least this many token characters in a row."""
MIN_SECRET_CHARS = 8
"""No pattern is shorter: `://:abc@` is one."""
MAX_SECRET_CHARS = 26_000
"""No pattern is longer, so at most this much of a stream is held back."""

_ALPHANUMERIC = "A-Za-z0-9"
_WORD_CHARS = _ALPHANUMERIC + r"_\-"
_BASE64_CHARS = _ALPHANUMERIC + "+/="
_VALUE_CHARS = _ALPHANUMERIC + r"_+/=.!@#%^&*~\-"

_TOKEN_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2}))"  # noqa: S105  (a pattern)
"""A position where a key may begin, which is not inside a word.

An escaped newline in JSON or a percent-encoded byte of a URL does not count as part of a word.
"""


@dataclass(frozen=True, slots=True)
class CharRepeat:
    """A number of characters of one kind."""

    chars: str
    min_chars: int
    max_chars: int
    is_secret: bool = False
    """Only this part is the secret; the label around it stays."""
    backtracks: bool = False
    """May give back characters for the part that follows."""
    is_lazy: bool = False


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A condition on the surrounding text, as an expression; unfinished text need not meet it."""

    expression: str


PatternPart = str | CharRepeat | Lookaround
SecretPattern = tuple[PatternPart, ...]


def _has_digit(chars: str) -> Lookaround:
    """Require a digit, because names in code may begin like keys but rarely contain one."""
    return Lookaround(rf"(?=[{chars}]{{0,512}}\d)")


def _has_digit_and_letter(chars: str) -> Lookaround:
    return Lookaround(rf"(?=[{chars}]{{0,512}}\d)(?=[{chars}]{{0,512}}[A-Za-z])")


def _not_followed_by(chars: str) -> Lookaround:
    return Lookaround(f"(?![{chars}])")


_PREFIXED_TOKENS: tuple[SecretPattern, ...] = (
    ("sk-ant-", _has_digit(_WORD_CHARS), CharRepeat(_WORD_CHARS, 16, 512)),
    ("sk-proj-", _has_digit(_WORD_CHARS), CharRepeat(_WORD_CHARS, 16, 512)),
    ("sk-svcacct-", _has_digit(_WORD_CHARS), CharRepeat(_WORD_CHARS, 16, 512)),
    ("sk-admin-", _has_digit(_WORD_CHARS), CharRepeat(_WORD_CHARS, 16, 512)),
    ("sk-or-v1-", CharRepeat("a-f0-9", 32, 128)),
    ("sk-", _has_digit(_ALPHANUMERIC), CharRepeat(_ALPHANUMERIC, 20, 256)),
    ("gh", CharRepeat("pousr", 1, 1), "_", CharRepeat(_ALPHANUMERIC, 30, 255)),
    ("github_pat_", CharRepeat(_ALPHANUMERIC + "_", 22, 255)),
    ("glpat-", CharRepeat(_WORD_CHARS, 20, 255)),
    (
        "xox",
        CharRepeat("abeoprs", 1, 1),
        "-",
        _has_digit(_ALPHANUMERIC + r"\-"),
        CharRepeat(_ALPHANUMERIC + r"\-", 15, 255),
    ),
    ("xapp-", _has_digit(_ALPHANUMERIC + r"\-"), CharRepeat(_ALPHANUMERIC + r"\-", 20, 255)),
    ("AKIA", CharRepeat("A-Z0-9", 16, 16), _not_followed_by(_ALPHANUMERIC)),
    ("ASIA", CharRepeat("A-Z0-9", 16, 16), _not_followed_by(_ALPHANUMERIC)),
    ("AIza", CharRepeat(_WORD_CHARS, 30, 45), _not_followed_by(_WORD_CHARS)),
    ("ya29.", CharRepeat(_WORD_CHARS, 20, 1024)),
    ("GOCSPX-", CharRepeat(_WORD_CHARS, 20, 64)),
    (CharRepeat("rs", 1, 1), "k_live_", CharRepeat(_ALPHANUMERIC, 16, 255)),
    (CharRepeat("rs", 1, 1), "k_test_", CharRepeat(_ALPHANUMERIC, 16, 255)),
    ("whsec_", CharRepeat(_ALPHANUMERIC, 24, 255)),
    ("npm_", CharRepeat(_ALPHANUMERIC, 30, 64), _not_followed_by(_ALPHANUMERIC)),
    ("pypi-AgE", CharRepeat(_WORD_CHARS, 30, 1024)),
    ("hf_", CharRepeat(_ALPHANUMERIC, 30, 64), _not_followed_by(_ALPHANUMERIC)),
    (
        "eyJ",
        CharRepeat(_WORD_CHARS, 10, 1024),
        ".eyJ",
        CharRepeat(_WORD_CHARS, 8, 8192),
        ".",
        CharRepeat(_WORD_CHARS, 10, 1024),
    ),
    ("do", CharRepeat("opr", 1, 1), "_v1_", CharRepeat("a-f0-9", 32, 128)),
    ("SG.", CharRepeat(_WORD_CHARS, 16, 64), ".", CharRepeat(_WORD_CHARS, 16, 128)),
    (Lookaround(r"(?<=\d{8}:)"), "AA", CharRepeat(_WORD_CHARS, 33, 33), _not_followed_by(_WORD_CHARS)),
    ("gsk_", CharRepeat(_ALPHANUMERIC, 40, 128)),
    ("xai-", CharRepeat(_ALPHANUMERIC, 40, 128)),
    ("hvs.", CharRepeat(_WORD_CHARS, 24, 255)),
    ("shpat_", CharRepeat("a-f0-9", 32, 64)),
    ("AGE-SECRET-KEY-1", CharRepeat("A-Z0-9", 40, 80)),
)
"""Keys recognised by their own prefix: letters, digits, `_`, `-` and `.` only, at least 20 characters."""

_QUOTE = CharRepeat("\"' \\t:=\\\\", 1, 8)
_AWS_SECRET: SecretPattern = (
    CharRepeat(_BASE64_CHARS, 40, 40, is_secret=True),
    _not_followed_by(_BASE64_CHARS),
)


def _assignment_pattern(name: str) -> SecretPattern:
    """Return the pattern of a value assigned in a settings file; a call or a reference is not a value."""
    min_chars = max(12, _MIN_TOKEN_CHARS - len(name))
    value = CharRepeat(_VALUE_CHARS, min_chars, 512, is_secret=True)
    return (
        name,
        CharRepeat("\\\\\"'", 0, 2),
        _has_digit_and_letter(_VALUE_CHARS),
        value,
        Lookaround(rf"(?![{_VALUE_CHARS}(\[{{])"),
    )


_BEARER_TOKEN: SecretPattern = (
    _has_digit(_WORD_CHARS + ".+/="),
    CharRepeat(_WORD_CHARS + ".+/=", 20, 8192, is_secret=True),
)
_KEY_TYPE = CharRepeat("A-Z0-9 ", 0, 32, backtracks=True)

_LABELLED_SECRETS: tuple[SecretPattern, ...] = (
    ("Bearer", CharRepeat(" ", 1, 4), *_BEARER_TOKEN),
    ("bearer", CharRepeat(" ", 1, 4), *_BEARER_TOKEN),
    (
        "Basic ",
        Lookaround(rf"(?=[{_ALPHANUMERIC}+/]{{0,512}}[\d=])"),
        CharRepeat(_BASE64_CHARS, 20, 1024, is_secret=True),
    ),
    (
        "api-key: ",
        _has_digit_and_letter(_WORD_CHARS + "."),
        CharRepeat(_WORD_CHARS + ".", 20, 512, is_secret=True),
    ),
    ("secret_access_key", _QUOTE, *_AWS_SECRET),
    ("SECRET_ACCESS_KEY", _QUOTE, *_AWS_SECRET),
    ("SecretAccessKey", _QUOTE, *_AWS_SECRET),
    ("secretAccessKey", _QUOTE, *_AWS_SECRET),
    ("AccountKey=", CharRepeat(_BASE64_CHARS, 40, 128, is_secret=True)),
    ("SharedAccessKey=", CharRepeat(_BASE64_CHARS, 40, 128, is_secret=True)),
    _assignment_pattern("PASSWORD="),
    _assignment_pattern("PGPASSWORD="),
    _assignment_pattern("SECRET="),
    _assignment_pattern("TOKEN="),
    _assignment_pattern("KEY="),
)
"""Values recognised by the label before them."""

_URL_PASSWORD: SecretPattern = (
    "://",
    CharRepeat(r"^\s/:@?#\"'<>\\", 0, 128),
    ":",
    Lookaround(r"(?![$<{*\[%])"),
    CharRepeat(r"^\s/:@\"'<>\\\[", 3, 256, is_secret=True),
    "@",
)
_MAX_URL_PASSWORD_CHARS = 3 + 128 + 1 + 256

_MAX_PRIVATE_KEY_CHARS = 16_384
_PRIVATE_KEY_HEADER: SecretPattern = (
    "-----BEGIN ",
    _KEY_TYPE,
    "PRIVATE KEY",
    CharRepeat("A-Z ", 0, 8),
    "-----",
)
_PRIVATE_KEY: SecretPattern = (
    *_PRIVATE_KEY_HEADER,
    CharRepeat(r"\s\S", 1, _MAX_PRIVATE_KEY_CHARS, is_lazy=True),
    "-----END ",
    _KEY_TYPE,
    "PRIVATE KEY",
    CharRepeat("A-Z ", 0, 8),
    "-----",
)


def _full_expression(pattern: SecretPattern) -> str:
    """Return the expression of a whole secret, with possessive repetition so that long text stays fast."""
    expression = ""
    for part in pattern:
        if isinstance(part, CharRepeat):
            quantifier_suffix = "?" if part.is_lazy else "" if part.backtracks else "+"
            repeated = f"[{part.chars}]{{{part.min_chars},{part.max_chars}}}{quantifier_suffix}"
            expression += f"({repeated})" if part.is_secret else repeated
        else:
            expression += part.expression if isinstance(part, Lookaround) else re.escape(part)
    return expression


def _prefix_expression(pattern: SecretPattern) -> str:
    """Return an expression for every text that could become the secret if continued."""
    elements: list[str] = []
    for part in pattern:
        if isinstance(part, CharRepeat):
            elements.append(f"[{part.chars}]{{{min(part.min_chars, 1)},{part.max_chars}}}")
        elif isinstance(part, Lookaround):
            if part.expression.startswith("(?<="):
                elements.append(part.expression)
        else:
            elements += [re.escape(char) for char in part]
    nested = ""
    for step in reversed(elements):
        nested = step + (f"(?:{nested})?" if nested else "")
    return nested


def _literal_prefixes(pattern: SecretPattern) -> list[str]:
    """Return the literal prefixes of a pattern."""
    found = [""]
    for part in pattern:
        if isinstance(part, str):
            found = [prefix + part for prefix in found]
        elif isinstance(part, CharRepeat):
            if (part.min_chars, part.max_chars) != (1, 1):
                break
            found = [prefix + char for prefix in found for char in part.chars]
    return found


_WORD_BOUND_PATTERNS = (*_PREFIXED_TOKENS, *_LABELLED_SECRETS)
_KEY_HEADER_START, _KEY_FOOTER_START = "-----BEGIN ", "-----END "
_WORD_BOUND_PREFIXES = tuple(
    prefix for pattern in _WORD_BOUND_PATTERNS for prefix in _literal_prefixes(pattern)
)
_ALL_PREFIXES = (*_WORD_BOUND_PREFIXES, "://", _KEY_HEADER_START)
_PARTIAL_PREFIXES = frozenset(prefix[:size] for prefix in _ALL_PREFIXES for size in range(1, len(prefix)))
_MAX_PARTIAL_PREFIX = max(map(len, _PARTIAL_PREFIXES))

# Compiled on first use: most texts need no expression, and start-up must be fast.


@cache
def _prefix_regex() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _ALL_PREFIXES)))


@cache
def _word_bound_regex() -> re.Pattern[str]:
    return re.compile(f"{_TOKEN_START}(?:{'|'.join(map(_full_expression, _WORD_BOUND_PATTERNS))})")


@cache
def _url_regex() -> re.Pattern[str]:
    return re.compile(_full_expression(_URL_PASSWORD))


@cache
def _private_key_regex() -> re.Pattern[str]:
    return re.compile(_full_expression(_PRIVATE_KEY))


@cache
def _unfinished_key_regex() -> re.Pattern[str]:
    """Return the expression for a private key without its footer: its header and the lines that follow."""
    between, header = r"(?:\\[nr]|[\s>|\"'+])", r"[A-Za-z][A-Za-z-]{2,20}: (?:(?!-----)[^\n\\]){1,80}"
    line, last = (
        rf"{between}*+(?:{header}|[{_BASE64_CHARS}]{{16,100}})",
        rf"{between}*(?=[A-Za-z]*[0-9+/=])[{_BASE64_CHARS}]{{1,15}}",
    )
    return re.compile(f"{_full_expression(_PRIVATE_KEY_HEADER)}(?:{line})*(?:{last})?")


@cache
def _open_secret_regex() -> re.Pattern[str]:
    word_bound, others = (
        "|".join(map(_prefix_expression, patterns))
        for patterns in (_WORD_BOUND_PATTERNS, (_URL_PASSWORD, _PRIVATE_KEY))
    )
    return re.compile(rf"(?:{_TOKEN_START}(?:{word_bound})|{others})\Z")


_SECRET_CHAR_MASK = bytes(
    0x61 if code < 0x80 and (chr(code).isalnum() or chr(code) in "_-.+/=\"'\\!@#%^&*~") else 0x20  # noqa: PLR2004  (ASCII)
    for code in range(256)
)
_RUN_MARK = b"a" * _MIN_TOKEN_CHARS
_MAX_LABEL_CHARS = 28
"""The longest label before a value."""
_MAX_CHARS_AFTER_RUN = 600
"""Characters that may belong to a value after the run it begins in."""


class Span(NamedTuple):
    """A secret from `start` to `end`; `prefix_start` is where the text that reveals it begins."""

    prefix_start: int
    start: int
    end: int


def find_secrets(text: str, start: int = 0) -> list[Span]:
    """Find the secrets in a text, ordered and without overlap.

    None begins before `start`, although the text before it is considered.
    """
    if len(text) - start < MIN_SECRET_CHARS:
        return []
    candidates = [*_find_token_secrets(text, start)] if len(text) - start >= _MIN_TOKEN_CHARS else []
    if "@" in text:
        candidates += _find_url_passwords(text, start)
    if _KEY_HEADER_START in text:
        candidates += _find_private_keys(text, start)
    if len(candidates) < 2:  # noqa: PLR2004  (nothing to sort)
        return candidates
    merged: list[Span] = []
    for each in sorted(candidates, key=lambda each: each.start):
        if merged and each.start < (last := merged[-1]).end:
            merged[-1] = Span(min(last.prefix_start, each.prefix_start), last.start, max(last.end, each.end))
        else:
            merged.append(each)
    return merged


def undecided_start(text: str, secrets: list[Span], start: int = 0) -> int:
    """Return the position from which the text is, or may become, a secret.

    In a stream, the text from there on must wait for more input.
    """
    at = max(start, len(text) - MAX_SECRET_CHARS)
    first = len(text)
    for each in secrets:
        if each.end == len(text) or _is_unfinished_key(text, each):
            first = min(first, each.prefix_start)
        elif text.find(_KEY_FOOTER_START, each.start, each.end) >= 0:
            at = max(at, each.end)
    open_secret = _open_secret_regex().search(text, at) if _may_contain_open_secret(text, at) else None
    if open_secret is None:
        return len(text)
    first = min(first, open_secret.start())
    for each in reversed(secrets):
        if each.prefix_start < first < each.end:
            first = each.prefix_start
    return first


def _may_contain_open_secret(text: str, at: int) -> bool:
    """Return True if a prefix occurs, or the text ends within one that does not continue a word."""
    for size in range(1, min(_MAX_PARTIAL_PREFIX, len(text) - at) + 1):
        if text[-size:] in _PARTIAL_PREFIXES and not (
            text[-size].isalnum() and _ends_in_word(text[: len(text) - size])
        ):
            return True
    return _prefix_regex().search(text, at) is not None


def _ends_in_word(before: str) -> bool:
    """Return True if the text ends in a word; the expression handles escapes, which also end in a letter or digit."""
    last = before[-1:]
    return last.isascii() and last.isalnum() and not {"\\", "%"} & set(before[-6:])


def _is_unfinished_key(text: str, each: Span) -> bool:
    begins = text.find(_KEY_HEADER_START, each.start, each.end)
    return begins >= 0 and text.find(_KEY_FOOTER_START, begins, each.end) < 0


def _find_token_secrets(text: str, start: int) -> Iterator[Span]:
    """Find labelled and prefixed secrets.

    The expression is tried only where a prefix is near a long enough row of token characters.
    """
    mask = text.encode("latin-1", "replace").translate(_SECRET_CHAR_MASK)
    regions: list[tuple[int, int]] = []
    at = mask.find(_RUN_MARK)
    while at >= 0:
        end = mask.find(b" ", at + _MIN_TOKEN_CHARS)
        end = len(text) if end < 0 else end
        regions.append((max(start, at - _MAX_LABEL_CHARS), end))
        at = mask.find(_RUN_MARK, end)
    if not regions:
        return
    region_text = "\n".join([text[begin:end] for begin, end in regions])
    for prefix in _WORD_BOUND_PREFIXES:
        if prefix in region_text:
            break
    else:
        return
    after = 0
    for begin, end in regions:
        for match in _word_bound_regex().finditer(text, max(begin, after), end + _MAX_CHARS_AFTER_RUN):
            if match.start() >= end:
                break
            yield Span(match.start(), *match.span(match.lastindex or 0))
            after = match.end()


def _find_url_passwords(text: str, start: int) -> Iterator[Span]:
    at = text.find("@", start)
    while at >= 0:
        begin = text.rfind("://", max(start, at - _MAX_URL_PASSWORD_CHARS), at)
        if begin >= 0 and (match := _url_regex().match(text, begin)) is not None and match.end() == at + 1:
            yield Span(begin, *match.span(1))
        at = text.find("@", at + 1)


def _find_private_keys(text: str, start: int) -> Iterator[Span]:
    at = text.find(_KEY_HEADER_START, start)
    while at >= 0:
        has_footer = text.find(_KEY_FOOTER_START, at, at + _MAX_PRIVATE_KEY_CHARS) >= 0
        match = (
            _private_key_regex().match(text, at) if has_footer else None
        ) or _unfinished_key_regex().match(text, at)
        if match:
            yield Span(at, *match.span())
        at = text.find(_KEY_HEADER_START, at + 1 if match is None else match.end())
