"""Redaction: secrets leave a text before it is stored, logged or told."""

import base64
from collections.abc import Callable, Iterable
from urllib.parse import quote

SHORTEST = 8
"""A shorter value would take ordinary words with it."""


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Replaces each value, also where it is written in base64 or for a URL. Doing it twice changes nothing."""
    forms = sorted(
        {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}, key=len
    )
    forms.reverse()

    def redact(text: str) -> str:
        for form in forms:
            if form in text:
                text = text.replace(form, f"[secret of {len(form)} characters]")
        return text

    return redact


def _forms(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode()).decode()
    return {secret, quote(secret, safe=""), encoded, encoded.rstrip("=")}
