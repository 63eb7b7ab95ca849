"""Times as text: ISO 8601, in UTC."""

from datetime import datetime


def iso_timestamp(at: datetime | None) -> str | None:
    """Format a time as ISO 8601 in UTC, to the millisecond, ending in Z."""
    if at is None:
        return None
    return f"{iso_timestamp_seconds(at)[:19]}.{at.microsecond // 1000:03d}Z"


def iso_timestamp_seconds(at: datetime) -> str:
    """Format a time to the second, as in transcript entries and plans.

    The last result is cached, because many entries are stamped within one second.
    """
    second = (at.year, at.month, at.day, at.hour, at.minute, at.second)
    cached_second, text = _last_timestamp[0]
    if cached_second != second:
        text = f"{at.isoformat(timespec='seconds')[:19]}Z"
        _last_timestamp[0] = (second, text)
    return text


_last_timestamp: list[tuple[tuple[int, ...], str]] = [((), "")]
"""The most recently formatted second and its text."""
