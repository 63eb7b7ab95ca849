"""The error of a failed attempt, and the safe text of a server's message."""

import re
from datetime import datetime

from msgspec import Struct

from retinue.domain.redaction import MIN_SECRET_CHARS
from retinue.domain.run import Reason
from retinue.errors import ModelFailed

MAX_MESSAGE_CHARS = 500
NO_REASON_GIVEN = "no reason given"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_KEY_PATTERN = re.compile(r"\b(?:sk|pk|key|xai|gsk)-[A-Za-z0-9_*.-]{6,}|\b[Bb]earer\s+\S{6,}")


class RetryAfter(Struct, frozen=True, kw_only=True):
    """When the server asks to be called again: in a number of seconds or at a time."""

    seconds: float | None = None
    at: datetime | None = None


class Refusal(Struct, frozen=True, kw_only=True):
    """An error response that may say what is wrong with the request."""

    status: int
    message: str = ""
    """For people."""
    param: str = ""
    """The field that the server names."""
    text: str = ""
    """All of the body, in lower case."""


class ProviderError(ModelFailed):
    """A failed attempt to get a reply.

    `retry` means another attempt may succeed; `close_rate_limit_gate` means no run should call this model for
    a while. `refusal` is the response of a server that did not accept the request.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        retry: bool = False,
        close_rate_limit_gate: bool = False,
        retry_after: RetryAfter | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.retry = retry
        self.close_rate_limit_gate = close_rate_limit_gate
        self.retry_after = retry_after or RetryAfter()
        self.refusal = refusal


def server_failure_message(server_text: str, secret: str) -> str:
    """Return the message for an error inside a stream, with the server's reason if it gave one."""
    return f"the model's server failed: {sanitize_server_text(server_text, secret) or NO_REASON_GIVEN}"


def sanitize_server_text(text: str, secret: str = "") -> str:
    """Return a server's text as one short line, without keys and control characters."""
    if len(secret) >= MIN_SECRET_CHARS:
        text = text.replace(secret, "[key]")
    text = _KEY_PATTERN.sub("[key]", text[: MAX_MESSAGE_CHARS * 4])
    text = _UNPRINTABLE.sub(" ", text).strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
