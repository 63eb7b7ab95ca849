"""Redaction: secrets leave a text before it is stored, logged or told."""

import base64
from collections.abc import Iterable
from urllib.parse import quote

SHORTEST = 8
"""A shorter value would take ordinary words with it."""


class Redactor:
    """Replaces each secret, also where it is written in base64 or for a URL. Doing it twice changes nothing."""

    __slots__ = ("_forms",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms: tuple[str, ...] = ()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str) -> None:
        """One more secret, from now on: a definition may name a key of its own."""
        if len(secret) >= SHORTEST and secret not in self._forms:
            forms = {*self._forms, *_forms(secret)}
            self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, f"[secret of {len(form)} characters]")
        return text

    def undecided(self, text: str) -> int:
        """How many characters at the end may be the beginning of a secret that goes on."""
        most = 0
        for form in self._forms:
            at = text.find(form[0], max(0, len(text) - len(form) + 1))
            while at >= 0:
                if form.startswith(text[at:]):
                    most = max(most, len(text) - at)
                    break
                at = text.find(form[0], at + 1)
        return most


class Veil:
    """A redactor for words that come in pieces: what may be the beginning of a secret waits for what follows."""

    __slots__ = ("_held", "_redact")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._held = ""

    def shown(self, piece: str) -> str:
        text = self._redact(self._held + piece)
        kept = len(text) - self._redact.undecided(text)
        self._held = text[kept:]
        return text[:kept]

    def rest(self) -> str:
        """Nothing follows: what waited was no secret."""
        held, self._held = self._held, ""
        return held


def _forms(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return {secret, quote(secret, safe="", errors="replace"), encoded}
