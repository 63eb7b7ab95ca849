"""Redaction: secrets leave a text before it is stored, logged or told."""

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from retinue.domain import secret_patterns

SHORTEST = 8
"""A shorter value would take ordinary words with it."""
_MOST_KNOWN = 64
_LONGEST_KNOWN = 32_768
"""So many texts, none longer, are remembered to hold no secret: one text passes here several times on its way."""
_AROUND = 16
"""So many characters before a text can change what it is taken for."""


class Redactor:
    """Replaces each secret it knows, also where it is written in base64 or for a URL, and whatever has the shape of a
    key. Doing it twice changes nothing."""

    __slots__ = ("_by_first", "_clean", "_forms")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms: tuple[str, ...] = ()
        self._by_first: dict[str, list[str]] = {}
        self._clean: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str) -> None:
        """One more secret, from now on: a definition may name a key of its own."""
        if len(secret) >= SHORTEST and secret not in self._forms:
            forms = {*self._forms, *_forms(secret)}
            self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
            # Another thread may be adding what it found clean by what was known until now: that goes into the old set.
            self._clean = set()
            self._by_first = {}
            for form in self._forms:
                self._by_first.setdefault(form[0], []).append(form)

    def __call__(self, text: str) -> str:
        clean = self._clean
        if text in clean:
            return text
        found = _without(self.values(text))
        if found is text and len(text) <= _LONGEST_KNOWN:
            if len(clean) >= _MOST_KNOWN:
                clean.clear()
            clean.add(text)
        return found

    def values(self, text: str) -> str:
        """The text without the values that are known."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, _mark(len(form)))
        return text

    def undecided(self, text: str) -> int:
        """How many characters at the end may be the beginning of a known value that goes on."""
        longest = len(self._forms[0]) - 1 if self._forms else 0
        for at in range(max(0, len(text) - longest), len(text)):
            forms = self._by_first.get(text[at])
            if forms and any(form.startswith(text[at:]) for form in forms):
                return len(text) - at
        return 0


class Veil:
    """A redactor for words that come in pieces: what may be the beginning of a secret waits for what follows.
    First the values, then the shapes in what that leaves: together they show what the whole text would."""

    __slots__ = ("_before", "_held", "_redact", "_waiting")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._held = ""
        self._waiting = ""
        self._before = ""

    def shown(self, piece: str) -> str:
        text = self._redact.values(self._held + piece)
        kept = len(text) - self._redact.undecided(text)
        self._held = text[kept:]
        return self._shapeless(text[:kept])

    def rest(self) -> str:
        """Nothing follows: what waited is whole."""
        held, self._held = self._held, ""
        text, start = self._before + self._waiting + held, len(self._before)
        self._waiting = self._before = ""
        return _without(text, start)

    def _shapeless(self, piece: str) -> str:
        text, start = self._before + self._waiting + piece, len(self._before)
        found = secret_patterns.spans(text, start)
        end = secret_patterns.undecided(text, found, start)
        shown = _cut(text, [each for each in found if each.end <= end], start, end)
        self._waiting = text[end:]
        self._before = text[max(0, end - _AROUND) : end]
        return shown


def _without(text: str, start: int = 0) -> str:
    found = secret_patterns.spans(text, start)
    return _cut(text, found, start, len(text)) if found or start else text


def _cut(text: str, found: list[secret_patterns.Span], start: int, end: int) -> str:
    """The text from start to end, with a mark in the place of each secret."""
    if not found:
        return text[start:end]
    pieces: list[str] = []
    for _, begin, after in found:
        pieces += (text[start:begin], _mark(after - begin))
        start = after
    return "".join([*pieces, text[start:end]])


def _mark(length: int) -> str:
    return f"[secret of {length} characters]"


def _forms(secret: str) -> set[str]:
    """A secret as texts hold it: itself, in JSON, in a URL, and in base64 wherever in a longer value it stands."""
    raw = secret.encode("utf-8", "surrogatepass")
    url = quote(secret, safe="", errors="replace")
    forms = {secret, json.dumps(secret)[1:-1], url, url.lower(), quote_plus(secret, errors="replace")}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # What its neighbours decide too is left out: 0, 2 or 3 characters before, and at most one after.
        inner = encoded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= SHORTEST}
