"""Provider errors, and the retry policy for each kind."""

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


class ProviderError(ModelFailed):
    """A failed attempt to get a reply.

    `retry` means another attempt may succeed; `close_rate_limit_gate` means no run should call this model for
    a while.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        retry: bool = False,
        close_rate_limit_gate: bool = False,
        retry_after: RetryAfter | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.retry = retry
        self.close_rate_limit_gate = close_rate_limit_gate
        self.retry_after = retry_after or RetryAfter()


class ErrorPolicy(Struct, frozen=True, kw_only=True):
    """Treatment of one kind of provider error."""

    reason: Reason
    retry: bool = False
    close_rate_limit_gate: bool = False


RATE_LIMITED = ErrorPolicy(reason=Reason.RATE_LIMITED, retry=True, close_rate_limit_gate=True)
SERVER_ERROR = ErrorPolicy(reason=Reason.PROVIDER, retry=True)
UNREACHABLE = ErrorPolicy(reason=Reason.UNREACHABLE, retry=True)
INCOMPLETE = ErrorPolicy(reason=Reason.INCOMPLETE, retry=True)
AUTH = ErrorPolicy(reason=Reason.AUTH)
MISCONFIGURED = ErrorPolicy(reason=Reason.CONFIG)
REJECTED = ErrorPolicy(reason=Reason.PROVIDER)
QUOTA_EXCEEDED = ErrorPolicy(reason=Reason.RATE_LIMITED)

POLICY_BY_STATUS: dict[int, ErrorPolicy] = {
    401: AUTH,
    403: AUTH,
    404: MISCONFIGURED,
    408: SERVER_ERROR,
    409: SERVER_ERROR,
    425: SERVER_ERROR,
    429: RATE_LIMITED,
    529: RATE_LIMITED,
}
"""Every other 5xx status is a server error, every other status a rejected request."""
_ERROR_STATUSES = range(400, 600)

POLICY_BY_ERROR_NAME: dict[str, ErrorPolicy] = {
    "rate_limit_error": RATE_LIMITED,
    "rate_limit_exceeded": RATE_LIMITED,
    "overloaded_error": RATE_LIMITED,
    "overloaded": RATE_LIMITED,
    "insufficient_quota": QUOTA_EXCEEDED,
    "billing_error": QUOTA_EXCEEDED,
    "authentication_error": AUTH,
    "permission_error": AUTH,
    "invalid_api_key": AUTH,
    "not_found_error": MISCONFIGURED,
    "model_not_found": MISCONFIGURED,
    "invalid_request_error": REJECTED,
    "context_length_exceeded": REJECTED,
    "request_too_large": REJECTED,
}
"""Error names that providers send inside a stream; any other name is a server error."""


def provider_error(message: str, policy: ErrorPolicy, retry_after: RetryAfter | None = None) -> ProviderError:
    return ProviderError(
        message,
        reason=policy.reason,
        retry=policy.retry,
        close_rate_limit_gate=policy.close_rate_limit_gate,
        retry_after=retry_after,
    )


def policy_for_status(status: int) -> ErrorPolicy:
    if status in POLICY_BY_STATUS:
        return POLICY_BY_STATUS[status]
    return SERVER_ERROR if status >= 500 else REJECTED  # noqa: PLR2004 — where server errors begin


def policy_for_error_name(*names: object) -> ErrorPolicy:
    """Return the policy of the first known name; servers put it under `code`, `type` or both."""
    for name in names:
        if isinstance(name, str) and name in POLICY_BY_ERROR_NAME:
            return POLICY_BY_ERROR_NAME[name]
    return SERVER_ERROR


def policy_for_stream_error(code: object, error_type: object) -> ErrorPolicy:
    """Return the policy of an error inside a stream, by its name or else by its HTTP status."""
    policy = policy_for_error_name(code, error_type)
    if policy is SERVER_ERROR and isinstance(code, int) and code in _ERROR_STATUSES:
        return policy_for_status(code)
    return policy


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
