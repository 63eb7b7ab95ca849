"""Clock, id and random number sources, as values that are passed in."""

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct


class Clock(Struct, frozen=True, kw_only=True):
    """Sources of time, ids and randomness, passed in so that tests can fix them."""

    now: Callable[[], datetime]
    """Current time, UTC."""
    new_entry_id: Callable[[], str]
    """A new ULID: unique, sorts by time."""
    new_uuid: Callable[[], str]
    """A new UUIDv7."""
    uniform: Callable[[float, float], float]
