"""Growth as a picture: how a cost rises with the length of a session or the number of children."""

import math
from collections.abc import Callable, Sequence
from html import escape

from retinue.domain.value import value
from retinue.trials.bench.lines import LINES, Line
from retinue.trials.bench.report import Report

LEFT, RIGHT, TOP, BOTTOM = 60, 104, 26, 24


@value
class Curve:
    """One measure at several sizes."""

    title: str
    row: str
    measure: str
    sizes: Sequence[tuple[int, str]]
    """Each size, and the variant that was measured at it."""

    def line(self, variant: str) -> Line | None:
        wanted = (self.row, variant, self.measure)
        return next((each for each in LINES if (each.row, each.variant, each.measure) == wanted), None)

    def points(self, report: Report, system: str) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for size, variant in self.sizes:
            line = self.line(variant)
            figure = None if line is None else line.figure(report.samples, system)
            if figure is not None and figure.value > 0:
                found.append((size, figure.value))
        return found


CURVES: Sequence[Curve] = (
    Curve(title="a turn by the length of its session (entries, ms CPU)", row="history", measure="cpu",
          sizes=tuple((size, str(size)) for size in (10, 1_000, 10_000, 100_000))),
    Curve(title="a parent by the number of its children (s)", row="children", measure="wall",
          sizes=((100, "100-0ms"), (1_000, "1000-0ms"))),
)  # fmt: skip


def drawn(report: Report, curve: Curve, colours: dict[str, str], size: tuple[int, int]) -> str:
    """A panel with a line for each system; empty when nothing was measured at two sizes."""
    lines = {system: curve.points(report, system) for system in report.systems}
    lines = {system: points for system, points in lines.items() if len(points) > 1}
    if not lines:
        return ""
    every = [point for points in lines.values() for point in points]
    sizes = [math.log10(point[0]) for point in every]
    across = _scale((min(sizes), max(sizes)), LEFT + 16, size[0] - RIGHT - 16)
    powers = _powers([point[1] for point in every])
    up = _scale((powers[0], powers[-1]), size[1] - BOTTOM, TOP + 6)
    pieces = [f'<text class="title" y="13">{escape(curve.title)}</text>']
    for power in powers:
        y = up(10.0**power)
        pieces.append(f'<line class="grid" x1="{LEFT}" x2="{size[0] - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        pieces.append(
            f'<text class="dim" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_round(power)}</text>'
        )
    pieces += [
        f'<text class="dim" x="{across(at):.1f}" y="{size[1] - 6}" text-anchor="middle">{at:,}</text>'
        for at in sorted({point[0] for point in every})
    ]
    named = _apart({system: up(points[-1][1]) for system, points in lines.items()})
    for system, points in lines.items():
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        pieces.append(f'<polyline fill="none" stroke-width="2" stroke="{colours[system]}" points="{path}"/>')
        pieces.append(
            f'<text x="{size[0] - RIGHT + 8}" y="{named[system] + 4:.1f}" '
            f'style="fill:{colours[system]}">{escape(system)}</text>'
        )
    return "".join(pieces)


def _powers(values: Sequence[float]) -> range:
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9) + 1)


def _round(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _scale(powers: tuple[float, float], begin: float, end: float) -> Callable[[float], float]:
    low, high = powers

    def place(value: float) -> float:
        return begin + (math.log10(value) - low) / max(high - low, 1e-9) * (end - begin)

    return place


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Where names stand, from top to bottom, none over another."""
    placed: dict[str, float] = {}
    last = 0.0
    for system, y in sorted(wanted.items(), key=lambda each: each[1]):
        last = max(y, last + 13)
        placed[system] = last
    return placed
