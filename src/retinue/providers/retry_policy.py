"""The retry policy: which provider errors are retried, how often, and the time limits of an attempt."""

import math

from msgspec import Struct

from retinue.domain.run import Reason
from retinue.providers.errors import ProviderError, RetryAfter
from retinue.providers.stream_timeout import StreamTimeoutSettings


class RetrySettings(Struct, frozen=True, kw_only=True):
    """How often and how long a request is attempted, with times in seconds."""

    max_attempts: int = 5
    """Attempts after transient failures: a broken connection, a server error, an incomplete reply."""
    max_rate_limited_attempts: int = 8
    """Number of rate limits in a row before giving up."""
    backoff_s: float = 1.0
    max_backoff_s: float = 30.0
    max_retry_after_s: float = 120.0
    retry_window_s: float = 600.0
    """No attempt begins later than this after the first."""
    timeouts: StreamTimeoutSettings = StreamTimeoutSettings()


CLI_AGENT_TIMEOUTS = StreamTimeoutSettings(
    idle_s=1800.0, no_output_s=math.inf, total_s=math.inf, retry_after_timeout=False
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
