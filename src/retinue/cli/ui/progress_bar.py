"""A bar that grows while something is brought: in place on a terminal, and silent where nobody watches."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from retinue.cli.ui.terminal import Terminal

LENGTH = 30


@contextmanager
def bar(terminal: Terminal, what: str, size: int) -> Generator[Callable[[float], None]]:
    """Hears parts from 0 to 1 of so many bytes, and is gone afterwards."""
    footer = terminal.footer

    def told(part: float) -> None:
        if footer is not None:
            footer.show(
                [((f"{what} ", ""), *drawn(part), (f" {megabytes(size * part)} of {megabytes(size)}", "2"))]
            )

    try:
        yield told
    finally:
        if footer is not None:
            footer.show(())


def drawn(part: float) -> tuple[tuple[str, str], tuple[str, str]]:
    full = round(LENGTH * max(0.0, min(1.0, part)))
    return ("━" * full, "36"), ("━" * (LENGTH - full), "2")


def megabytes(size: float) -> str:
    return f"{size / 1_000_000:.0f} MB"
