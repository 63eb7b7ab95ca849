"""The retry policy: which provider errors are retried, how often, and the time limits of an attempt."""

import math

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.run import Reason
from retinue.providers.errors import ProviderError, Refusal, RetryAfter
from retinue.providers.interface import ServerSettings
from retinue.providers.stream_timeout import StreamTimeoutSettings


class RetrySettings(Struct, frozen=True, kw_only=True):
    """How long a request is attempted, with times in seconds."""

    retry_window_s: float = 600.0
    """No attempt begins later than this after the first; then the run waits for the model's server."""
    max_incomplete_replies: int = 8
    """Attempts that produced output and then failed: each was paid for. After this many, the run waits."""
    backoff_s: float = 1.0
    max_backoff_s: float = 30.0
    max_retry_after_s: float = 120.0
    timeouts: StreamTimeoutSettings = StreamTimeoutSettings()


def retry_settings(server: ServerSettings) -> RetrySettings:
    """Return the settings for a provider's requests, with defaults for what the user did not set."""
    settings = RetrySettings()
    timeouts = settings.timeouts
    if (idle_s := server.idle_seconds) is not None:
        timeouts = replace(timeouts, first_byte_s=idle_s, idle_s=idle_s, no_output_s=2 * idle_s)
    if server.reply_seconds is not None:
        timeouts = replace(timeouts, total_s=server.reply_seconds)
    window_s = settings.retry_window_s if server.retry_seconds is None else server.retry_seconds
    return replace(settings, retry_window_s=window_s, timeouts=timeouts)


CLI_AGENT_TIMEOUTS = StreamTimeoutSettings(
    first_byte_s=1800.0, idle_s=1800.0, no_output_s=math.inf, total_s=math.inf, retry_after_timeout=False
)
"""Timeouts for CLI agents.

A CLI agent may run for long and its actions must not be repeated: its run's deadline is the limit.
"""


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
UNPAID = ErrorPolicy(reason=Reason.RATE_LIMITED)

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
_NO_REPLY_STATUSES = range(201, 300)
"""A success, but without the reply that was requested."""
_ERROR_STATUSES = range(400, 600)

POLICY_BY_ERROR_NAME: dict[str, ErrorPolicy] = {
    "rate_limit_error": RATE_LIMITED,
    "rate_limit_exceeded": RATE_LIMITED,
    "overloaded_error": RATE_LIMITED,
    "overloaded": RATE_LIMITED,
    "insufficient_quota": RATE_LIMITED,
    "billing_error": UNPAID,
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


def provider_error(
    message: str,
    policy: ErrorPolicy,
    retry_after: RetryAfter | None = None,
    *,
    refusal: Refusal | None = None,
) -> ProviderError:
    return ProviderError(
        message,
        reason=policy.reason,
        retry=policy.retry,
        close_rate_limit_gate=policy.close_rate_limit_gate,
        retry_after=retry_after,
        refusal=refusal,
    )


def policy_for_status(status: int) -> ErrorPolicy:
    if status in POLICY_BY_STATUS:
        return POLICY_BY_STATUS[status]
    return SERVER_ERROR if status in _NO_REPLY_STATUSES or status >= 500 else REJECTED  # noqa: PLR2004 — where server errors begin


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
