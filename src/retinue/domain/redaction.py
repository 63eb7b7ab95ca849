"""Redaction: remove secrets from text before it is stored, logged or sent."""

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from retinue.domain import secret_patterns

MIN_SECRET_CHARS = 8
"""Shorter values could also occur in ordinary words."""
_MAX_CLEAN_TEXTS = 64
_MAX_CLEAN_TEXT_CHARS = 32_768
"""Size limits of the cache of texts without secrets; the same text is often redacted several times."""
_CONTEXT_CHARS = 16
"""Characters before a text that can change how it is classified."""


class Redactor:
    """Replace each known secret, also in base64 or URL encoding, and everything that looks like a key.

    Idempotent.
    """

    __slots__ = ("_clean_texts", "_encoded_secrets", "_forms_by_first_char")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._encoded_secrets: tuple[str, ...] = ()
        self._forms_by_first_char: dict[str, list[str]] = {}
        self._clean_texts: set[str] = set()
        for secret in secrets:
            self.add_secret(secret)

    def add_secret(self, secret: str) -> None:
        """Redact one more secret from now on, such as a key named by an agent definition."""
        if len(secret) >= MIN_SECRET_CHARS and secret not in self._encoded_secrets:
            forms = {*self._encoded_secrets, *_encoded_forms(secret)}
            self._encoded_secrets = tuple(sorted(forms, key=lambda form: (-len(form), form)))
            # Another thread may still add texts that were clean before this secret: they go into the old set.
            self._clean_texts = set()
            self._forms_by_first_char = {}
            for form in self._encoded_secrets:
                self._forms_by_first_char.setdefault(form[0], []).append(form)

    def __call__(self, text: str) -> str:
        clean_texts = self._clean_texts
        if text in clean_texts:
            return text
        redacted = _redact_patterns_in(self.redact_known_values(text))
        if redacted is text and len(text) <= _MAX_CLEAN_TEXT_CHARS:
            if len(clean_texts) >= _MAX_CLEAN_TEXTS:
                clean_texts.clear()
            clean_texts.add(text)
        return redacted

    def redact_known_values(self, text: str) -> str:
        """Return the text without the known secret values."""
        for form in self._encoded_secrets:
            if form in text:
                text = text.replace(form, _redaction_mark(len(form)))
        return text

    def undecided_suffix_length(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a known secret."""
        longest = len(self._encoded_secrets[0]) - 1 if self._encoded_secrets else 0
        for at in range(max(0, len(text) - longest), len(text)):
            forms = self._forms_by_first_char.get(text[at])
            if forms and any(form.startswith(text[at:]) for form in forms):
                return len(text) - at
        return 0


class StreamRedactor:
    """Redact text that arrives in pieces; a possible beginning of a secret is held back.

    First known values, then patterns in what remains, so the pieces together equal the redacted whole text.
    """

    __slots__ = ("_context", "_redact", "_undecided_patterns", "_undecided_values")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._undecided_values = ""
        self._undecided_patterns = ""
        self._context = ""

    def feed(self, piece: str) -> str:
        text = self._redact.redact_known_values(self._undecided_values + piece)
        decided = len(text) - self._redact.undecided_suffix_length(text)
        self._undecided_values = text[decided:]
        return self._redact_patterns(text[:decided])

    def flush(self) -> str:
        """Return the text still held back; nothing follows."""
        undecided, self._undecided_values = self._undecided_values, ""
        text, start = self._context + self._undecided_patterns + undecided, len(self._context)
        self._undecided_patterns = self._context = ""
        return _redact_patterns_in(text, start)

    def _redact_patterns(self, piece: str) -> str:
        text, start = self._context + self._undecided_patterns + piece, len(self._context)
        found = secret_patterns.find_secrets(text, start)
        end = secret_patterns.undecided_start(text, found, start)
        shown = _replace_spans(text, [each for each in found if each.end <= end], start, end)
        self._undecided_patterns = text[end:]
        self._context = text[max(0, end - _CONTEXT_CHARS) : end]
        return shown


def _redact_patterns_in(text: str, start: int = 0) -> str:
    found = secret_patterns.find_secrets(text, start)
    return _replace_spans(text, found, start, len(text)) if found or start else text


def _replace_spans(text: str, found: list[secret_patterns.Span], start: int, end: int) -> str:
    """Return the text from start to end with a mark in place of each secret."""
    if not found:
        return text[start:end]
    pieces: list[str] = []
    for _, begin, after in found:
        pieces += (text[start:begin], _redaction_mark(after - begin))
        start = after
    return "".join([*pieces, text[start:end]])


def _redaction_mark(length: int) -> str:
    return f"[secret of {length} characters]"


def _encoded_forms(secret: str) -> set[str]:
    """Return the forms in which a secret may occur in a text.

    These are the secret itself, its JSON and URL encodings, and base64 at any position of a longer value.
    """
    raw = secret.encode("utf-8", "surrogatepass")
    url = quote(secret, safe="", errors="replace")
    forms = {secret, json.dumps(secret)[1:-1], url, url.lower(), quote_plus(secret, errors="replace")}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        # Characters that also depend on neighbouring bytes are left out: 0, 2 or 3 before, at most one after.
        inner = encoded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) >= MIN_SECRET_CHARS}
