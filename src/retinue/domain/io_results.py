"""What comes of reaching into the world: files that were opened, found or written, commands that
ran, pages that were fetched."""

from retinue.domain.sandbox_level import Level
from retinue.domain.value import value


@value
class Opened:
    real: str
    data: bytes
    size: int
    """Of the whole file; more than len(data) when it was cut at max_bytes."""


@value
class Written:
    real: str
    made: bool
    """Whether there was no such file before."""
    size: int


@value
class Found:
    path: str
    """Relative to the folder that was asked for."""
    real: str
    kind: str
    """file, dir, link, other; cut: the last one found when there was more to look at than the limit"""
    size: int = 0


@value
class Ran:
    """What came of a command."""

    exit: int | None
    """None: it was ended, not by itself."""
    text: str
    """What it wrote, both streams as they came; the middle of a long text is left out and says so."""
    level: Level
    ms: int
    timed_out: bool = False
    kept: str = ""
    """Where the whole text is, by the name the agent knows, when the text here is cut."""
    notes: tuple[str, ...] = ()
    """What the agent must know besides: what was taken away, which limit was met."""


@value
class Fetched:
    """A page of the web."""

    url: str
    """Where it was found in the end."""
    status: int
    kind: str
    """Its media type."""
    text: str
    whole: bool = True
    """Whether that is all of it."""
