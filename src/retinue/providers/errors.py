"""Trouble: what a driver says when a turn failed, with what the gateway needs to decide whether to ask again."""

import re
from datetime import datetime

from retinue.domain.redaction import SHORTEST
from retinue.domain.run import Reason
from retinue.domain.value import value
from retinue.errors import ModelFailed

MAX_MESSAGE = 500
UNSAID = "no reason given"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_KEY_SHAPE = re.compile(r"\b(?:sk|pk|key|xai|gsk)-[A-Za-z0-9_*.-]{6,}|\b[Bb]earer\s+\S{6,}")


@value
class Pause:
    """When the server wants to be asked again, in its own words: seconds from now, or a time."""

    seconds: float | None = None
    at: datetime | None = None


class Trouble(ModelFailed):
    """A failed attempt at a turn. `retry`: asking again may help; `gate`: nobody should ask this model for a while."""

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        retry: bool = False,
        gate: bool = False,
        pause: Pause | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.retry = retry
        self.gate = gate
        self.pause = pause or Pause()


@value
class Fate:
    """What becomes of a turn that failed in one way."""

    reason: Reason
    retry: bool = False
    gate: bool = False


RATE = Fate(reason=Reason.RATE_LIMITED, retry=True, gate=True)
PASSING = Fate(reason=Reason.PROVIDER, retry=True)
UNREACHABLE = Fate(reason=Reason.UNREACHABLE, retry=True)
INCOMPLETE = Fate(reason=Reason.INCOMPLETE, retry=True)
AUTH = Fate(reason=Reason.AUTH)
NOWHERE = Fate(reason=Reason.CONFIG)
REJECTED = Fate(reason=Reason.PROVIDER)
SPENT = Fate(reason=Reason.RATE_LIMITED)

BY_STATUS: dict[int, Fate] = {
    401: AUTH,
    403: AUTH,
    404: NOWHERE,
    408: PASSING,
    409: PASSING,
    425: PASSING,
    429: RATE,
    529: RATE,
}
"""Every other 5xx passes, every other status is a rejection."""
_STATUSES = range(400, 600)

BY_NAME: dict[str, Fate] = {
    "rate_limit_error": RATE,
    "rate_limit_exceeded": RATE,
    "overloaded_error": RATE,
    "overloaded": RATE,
    "insufficient_quota": SPENT,
    "billing_error": SPENT,
    "authentication_error": AUTH,
    "permission_error": AUTH,
    "invalid_api_key": AUTH,
    "not_found_error": NOWHERE,
    "model_not_found": NOWHERE,
    "invalid_request_error": REJECTED,
    "context_length_exceeded": REJECTED,
    "request_too_large": REJECTED,
}
"""What providers call their errors inside a stream; any other name passes."""


def trouble(message: str, fate: Fate, pause: Pause | None = None) -> Trouble:
    return Trouble(message, reason=fate.reason, retry=fate.retry, gate=fate.gate, pause=pause)


def by_status(status: int) -> Fate:
    if status in BY_STATUS:
        return BY_STATUS[status]
    return PASSING if status >= 500 else REJECTED  # noqa: PLR2004 — where server errors begin


def by_name(*names: object) -> Fate:
    """The first name that is known decides: servers put it under `code`, `type` or both."""
    for name in names:
        if isinstance(name, str) and name in BY_NAME:
            return BY_NAME[name]
    return PASSING


def by_code(code: object, kind: object) -> Fate:
    """An error inside a stream by its name, or else by its number, which is a status that came too late."""
    fate = by_name(code, kind)
    if fate is PASSING and isinstance(code, int) and code in _STATUSES:
        return by_status(code)
    return fate


def failure(said: str, secret: str) -> str:
    """The sentence about an error inside a stream, whether or not the server says why."""
    return f"the model's server failed: {quoted(said, secret) or UNSAID}"


def quoted(text: str, secret: str = "") -> str:
    """A server's words as a person may read them: one short line, without keys or control characters."""
    if len(secret) >= SHORTEST:
        text = text.replace(secret, "[key]")
    text = _KEY_SHAPE.sub("[key]", text[: MAX_MESSAGE * 4])
    text = _UNPRINTABLE.sub(" ", text).strip()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
