"""Growth charts: a cost over the length of a session or the number of children."""

import math
from collections.abc import Callable, Sequence
from html import escape

from msgspec import Struct

from bench.metrics import METRICS, Metric
from bench.report import Report

LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 60, 104, 26, 24


class Curve(Struct, frozen=True, kw_only=True):
    """A measure at several sizes."""

    title: str
    row: str
    measure: str
    sizes: Sequence[tuple[int, str]]
    """Each size, and the variant measured at it."""

    def metric_for(self, variant: str) -> Metric | None:
        key = (self.row, variant, self.measure)
        return next((each for each in METRICS if (each.row, each.variant, each.measure) == key), None)

    def points(self, report: Report, system: str) -> list[tuple[int, float]]:
        points: list[tuple[int, float]] = []
        for size, variant in self.sizes:
            metric = self.metric_for(variant)
            summary = None if metric is None else metric.summary(report.samples, system)
            if summary is not None and summary.value > 0:
                points.append((size, summary.value))
        return points


CURVES: Sequence[Curve] = (
    Curve(title="a turn by the length of its session (entries, ms CPU)", row="history", measure="cpu",
          sizes=tuple((size, str(size)) for size in (10, 1_000, 10_000, 100_000))),
    Curve(title="a parent by the number of its children (s)", row="children", measure="wall",
          sizes=((100, "100-0ms"), (1_000, "1000-0ms"))),
)  # fmt: skip


def render_curve(report: Report, curve: Curve, colours: dict[str, str], size: tuple[int, int]) -> str:
    """Render a panel with a line per system; empty if no system was measured at two sizes."""
    lines = {system: curve.points(report, system) for system in report.system_names}
    lines = {system: points for system, points in lines.items() if len(points) > 1}
    if not lines:
        return ""
    all_points = [point for points in lines.values() for point in points]
    sizes = [math.log10(point[0]) for point in all_points]
    x_position = _log_scale((min(sizes), max(sizes)), LEFT_MARGIN + 16, size[0] - RIGHT_MARGIN - 16)
    powers = _decades([point[1] for point in all_points])
    y_position = _log_scale((powers[0], powers[-1]), size[1] - BOTTOM_MARGIN, TOP_MARGIN + 6)
    elements = [f'<text class="title" y="13">{escape(curve.title)}</text>']
    for power in powers:
        y = y_position(10.0**power)
        elements.append(
            f'<line class="grid" x1="{LEFT_MARGIN}" x2="{size[0] - RIGHT_MARGIN}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        elements.append(
            f'<text class="dim" x="{LEFT_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{_format_power(power)}</text>'
        )
    elements += [
        f'<text class="dim" x="{x_position(label_size):.1f}" y="{size[1] - 6}" text-anchor="middle">{label_size:,}</text>'
        for label_size in sorted({point[0] for point in all_points})
    ]
    label_positions = _spread_labels({system: y_position(points[-1][1]) for system, points in lines.items()})
    for system, points in lines.items():
        path = " ".join(f"{x_position(x):.1f},{y_position(y):.1f}" for x, y in points)
        elements.append(
            f'<polyline fill="none" stroke-width="2" stroke="{colours[system]}" points="{path}"/>'
        )
        elements.append(
            f'<text x="{size[0] - RIGHT_MARGIN + 8}" y="{label_positions[system] + 4:.1f}" '
            f'style="fill:{colours[system]}">{escape(system)}</text>'
        )
    return "".join(elements)


def _decades(values: Sequence[float]) -> range:
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9) + 1)


def _format_power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _log_scale(powers: tuple[float, float], start: float, end: float) -> Callable[[float], float]:
    low, high = powers

    def position_of(value: float) -> float:
        return start + (math.log10(value) - low) / max(high - low, 1e-9) * (end - start)

    return position_of


def _spread_labels(wanted: dict[str, float]) -> dict[str, float]:
    """Return label positions from top to bottom, moved so that none overlaps another."""
    positions: dict[str, float] = {}
    last = 0.0
    for system, y in sorted(wanted.items(), key=lambda each: each[1]):
        last = max(y, last + 13)
        positions[system] = last
    return positions
