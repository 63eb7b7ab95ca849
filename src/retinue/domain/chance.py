"""Time, ids and randomness as values: whoever needs them is given them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Time, ids and randomness, given and never asked for."""

    now: Callable[[], datetime]
    """UTC."""
    entry_id: Callable[[], str]
    """ULID: sorts by time, unique."""
    uuid: Callable[[], str]
    """UUIDv7."""
    uniform: Callable[[float, float], float]
