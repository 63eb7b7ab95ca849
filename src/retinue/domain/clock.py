"""Time, ids and randomness as values: whoever needs them is given them."""

from collections.abc import Callable
from datetime import datetime

from retinue.domain.value import value


@value
class Chance:
    """Time, ids and randomness, given and never asked for."""

    now: Callable[[], datetime]
    """UTC."""
    entry_id: Callable[[], str]
    """ULID: sorts by time, unique."""
    uuid: Callable[[], str]
    """UUIDv7."""
    uniform: Callable[[float, float], float]
