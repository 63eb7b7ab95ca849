"""How tightly commands are held on this machine: found out by trying, shown everywhere, never assumed."""

from enum import StrEnum

from retinue.domain.value import value


class Level(StrEnum):
    """From the tightest down. Below strict a person is asked before every command."""

    STRICT = "strict"
    """A root of its own, no network, a filter on system calls, nothing inherited."""
    LANDLOCK = "landlock"
    """The machine's own root behind the kernel's file rules and the same filter."""
    NONE = "none"
    """Nothing holds a command but the person who allowed it."""

    def reaches(self, least: "Level") -> bool:
        return _ORDER.index(self) <= _ORDER.index(least)


_ORDER = (Level.STRICT, Level.LANDLOCK, Level.NONE)


@value
class Lack:
    """Why a level cannot be had on this machine, and what to do about it."""

    level: Level
    why: str
    do: str
