"""The report as a picture: bars on scales of powers of ten, drawn by hand so that nothing need be installed."""

import math
from collections.abc import Sequence
from html import escape

from retinue.domain.value import value
from retinue.trials.bench.curves import CURVES, drawn
from retinue.trials.bench.lines import LINES, Line
from retinue.trials.bench.report import Report, number

WIDTH, PAD, NAME, BAR, GAP = 460, 16, 116, 14, 5
SMALLEST = 190
"""How high a curve is drawn at least."""
COLOURS = {"bare": "#8a8f98", "floor": "#b8bcc4", "retinue": "#2f81f7"}
OTHERS = ("#d29922", "#a371f7", "#3fb950", "#f778ba", "#e5534b")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:13px}.dim{fill:#656d76}"
    ".limit{stroke:#cf222e;stroke-dasharray:3 2}.grid{stroke:#8a8f98;stroke-opacity:.25}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#8d96a0}}"
)
SHOWN: Sequence[tuple[str, str, str]] = (
    ("turn", "persisted", "cpu"),
    ("children", "1000-0ms", "wall"),
    ("history", "1000", "cpu"),
    ("history", "10000", "cpu"),
    ("stream", "tokens", "cpu"),
    ("start", "cold", "wall"),
    ("idle", "1000", "each"),
    ("children", "1000-0ms", "peak"),
)
"""Row, variant and measure of each panel."""


@value
class Bar:
    system: str
    value: float


def plot(report: Report) -> str:
    """An SVG document with a panel for each row and each curve, two beside each other."""
    rows = [(line, bars) for line in _lines() if (bars := _bars(report, line))]
    height = _height(max((len(bars) for _, bars in rows), default=0))
    colours = {system: _colour(report, system) for system in report.systems}
    panels = [_panel(report, line, bars) for line, bars in rows]
    size = (WIDTH, max(height, SMALLEST))
    panels += [found for curve in CURVES if (found := drawn(report, curve, colours, size))]
    heights = [height] * len(rows) + [size[1]] * (len(panels) - len(rows))
    pieces: list[str] = []
    top = PAD
    for number_, panel in enumerate(panels):
        left = number_ % 2 * (WIDTH + PAD) + PAD
        pieces.append(f'<g transform="translate({left},{top})">{panel}</g>')
        if number_ % 2 or number_ + 1 == len(panels):
            top += max(heights[number_ - number_ % 2 : number_ + 1]) + PAD
    title = "<title>The same work by each system; shorter is better</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + 3 * PAD} {top}" role="img">{title}'
        f"<style>{STYLE}</style>{''.join(pieces)}</svg>\n"
    )


def _lines() -> list[Line]:
    found = {(line.row, line.variant, line.measure): line for line in LINES}
    return [found[key] for key in SHOWN]


def _bars(report: Report, line: Line) -> list[Bar]:
    figures = [(system, line.figure(report.samples, system)) for system in report.systems]
    return [Bar(system=name, value=figure.value) for name, figure in figures if figure and figure.value > 0]


def _height(bars: int) -> int:
    return 26 + bars * (BAR + GAP) + 8


def _panel(report: Report, line: Line, bars: Sequence[Bar]) -> str:
    values = [bar.value for bar in bars] + ([line.most] if line.most else [])
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    room = WIDTH - NAME - 92

    def place(value: float) -> float:
        return max(2.0, (math.log10(value) - low) / max(1, high - low) * room)

    what = _named(line)
    pieces = [
        f'<text class="title" y="13">{escape(what)} <tspan class="dim">({escape(line.unit)})</tspan></text>'
    ]
    for at, bar in enumerate(bars):
        top = 26 + at * (BAR + GAP)
        pieces.append(f'<text y="{top + 11}">{escape(bar.system)}</text>')
        pieces.append(
            f'<rect x="{NAME}" y="{top}" width="{place(bar.value):.1f}" height="{BAR}" rx="2" '
            f'fill="{_colour(report, bar.system)}"/>'
        )
        pieces.append(
            f'<text x="{NAME + place(bar.value) + 6:.1f}" y="{top + 11}">{number(bar.value)}</text>'
        )
    if line.most:
        x, bottom = NAME + place(line.most), 26 + len(bars) * (BAR + GAP)
        pieces.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}"/>')
        pieces.append(
            f'<text class="dim" x="{WIDTH - 4}" y="13" text-anchor="end">at most {line.most:g}</text>'
        )
    return "".join(pieces)


def _named(line: Line) -> str:
    if line.what.startswith("…"):
        return f"{line.variant.partition('-')[0]} {line.row}, {line.what.removeprefix('… ')}"
    return line.what


def _colour(report: Report, system: str) -> str:
    if system in COLOURS:
        return COLOURS[system]
    others = [each for each in report.systems if each not in COLOURS]
    return OTHERS[others.index(system) % len(OTHERS)]
