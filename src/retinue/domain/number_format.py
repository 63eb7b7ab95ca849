"""Numbers in text for people."""


def format_count(number: int, noun: str) -> str:
    """Return the number with the noun in singular or plural, as in `1 run` or `1,200 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
