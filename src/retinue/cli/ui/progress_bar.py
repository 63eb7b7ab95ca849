"""A progress bar for downloads; invisible unless standard error is a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from retinue.cli.ui.terminal import Terminal

BAR_WIDTH = 30


@contextmanager
def show_progress_bar(terminal: Terminal, label: str, total_bytes: int) -> Generator[Callable[[float], None]]:
    """Show a progress bar while the context is open; yields a setter for the fraction done."""
    footer = terminal.footer

    def update(fraction: float) -> None:
        if footer is not None:
            footer.draw(
                [
                    (
                        (f"{label} ", ""),
                        *bar_spans(fraction),
                        (
                            f" {format_megabytes(total_bytes * fraction)} of {format_megabytes(total_bytes)}",
                            "2",
                        ),
                    )
                ]
            )

    try:
        yield update
    finally:
        if footer is not None:
            footer.draw(())


def bar_spans(fraction: float) -> tuple[tuple[str, str], tuple[str, str]]:
    filled = round(BAR_WIDTH * max(0.0, min(1.0, fraction)))
    return ("━" * filled, "36"), ("━" * (BAR_WIDTH - filled), "2")


def format_megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1_000_000:.0f} MB"
