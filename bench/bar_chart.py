"""Bar charts of the report as SVG on logarithmic scales, without a plotting library."""

import math
from collections.abc import Sequence
from html import escape

from msgspec import Struct

from bench.growth_plots import CURVES, render_curve
from bench.metrics import METRICS, Metric
from bench.report import Report, format_number

PANEL_WIDTH, PADDING, NAME_WIDTH, BAR_HEIGHT, BAR_GAP = 460, 16, 116, 14, 5
MIN_CURVE_HEIGHT = 190
"""Minimum height of a curve panel."""
SYSTEM_COLOURS = {"bare": "#8a8f98", "floor": "#b8bcc4", "retinue": "#2f81f7"}
PEER_COLOURS = ("#d29922", "#a371f7", "#3fb950", "#f778ba", "#e5534b")
SVG_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:13px}.dim{fill:#656d76}"
    ".limit{stroke:#cf222e;stroke-dasharray:3 2}.grid{stroke:#8a8f98;stroke-opacity:.25}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#8d96a0}}"
)
CHARTED_METRICS: Sequence[tuple[str, str, str]] = (
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


class Bar(Struct, frozen=True, kw_only=True):
    system: str
    value: float


def render_charts(report: Report) -> str:
    """Render an SVG document with a panel for each metric and each curve, two per row."""
    charts = [(metric, bars) for metric in _charted_metrics() if (bars := _metric_bars(report, metric))]
    height = _chart_height(max((len(bars) for _, bars in charts), default=0))
    colours = {system: _system_colour(report, system) for system in report.system_names}
    panels = [_render_panel(report, metric, bars) for metric, bars in charts]
    curve_size = (PANEL_WIDTH, max(height, MIN_CURVE_HEIGHT))
    panels += [
        panel_text for curve in CURVES if (panel_text := render_curve(report, curve, colours, curve_size))
    ]
    heights = [height] * len(charts) + [curve_size[1]] * (len(panels) - len(charts))
    elements: list[str] = []
    top = PADDING
    for index, panel in enumerate(panels):
        left = index % 2 * (PANEL_WIDTH + PADDING) + PADDING
        elements.append(f'<g transform="translate({left},{top})">{panel}</g>')
        if index % 2 or index + 1 == len(panels):
            top += max(heights[index - index % 2 : index + 1]) + PADDING
    title = "<title>The same work by each system; shorter is better</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * PANEL_WIDTH + 3 * PADDING} {top}" role="img">{title}'
        f"<style>{SVG_STYLE}</style>{''.join(elements)}</svg>\n"
    )


def _charted_metrics() -> list[Metric]:
    metrics = {(metric.row, metric.variant, metric.measure): metric for metric in METRICS}
    return [metrics[key] for key in CHARTED_METRICS]


def _metric_bars(report: Report, metric: Metric) -> list[Bar]:
    summaries = [(system, metric.summary(report.samples, system)) for system in report.system_names]
    return [
        Bar(system=name, value=summary.value) for name, summary in summaries if summary and summary.value > 0
    ]


def _chart_height(bar_count: int) -> int:
    return 26 + bar_count * (BAR_HEIGHT + BAR_GAP) + 8


def _render_panel(report: Report, metric: Metric, bars: Sequence[Bar]) -> str:
    values = [bar.value for bar in bars] + ([metric.max_target] if metric.max_target else [])
    low_power, high_power = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    max_width = PANEL_WIDTH - NAME_WIDTH - 92

    def bar_width(value: float) -> float:
        return max(2.0, (math.log10(value) - low_power) / max(1, high_power - low_power) * max_width)

    title = _panel_title(metric)
    elements = [
        f'<text class="title" y="13">{escape(title)} <tspan class="dim">({escape(metric.unit)})</tspan></text>'
    ]
    for index, bar in enumerate(bars):
        top = 26 + index * (BAR_HEIGHT + BAR_GAP)
        elements.append(f'<text y="{top + 11}">{escape(bar.system)}</text>')
        elements.append(
            f'<rect x="{NAME_WIDTH}" y="{top}" width="{bar_width(bar.value):.1f}" height="{BAR_HEIGHT}" rx="2" '
            f'fill="{_system_colour(report, bar.system)}"/>'
        )
        elements.append(
            f'<text x="{NAME_WIDTH + bar_width(bar.value) + 6:.1f}" y="{top + 11}">{format_number(bar.value)}</text>'
        )
    if metric.max_target:
        x, bottom = NAME_WIDTH + bar_width(metric.max_target), 26 + len(bars) * (BAR_HEIGHT + BAR_GAP)
        elements.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}"/>')
        elements.append(
            f'<text class="dim" x="{PANEL_WIDTH - 4}" y="13" text-anchor="end">at most {metric.max_target:g}</text>'
        )
    return "".join(elements)


def _panel_title(metric: Metric) -> str:
    if metric.title.startswith("…"):
        return f"{metric.variant.partition('-')[0]} {metric.row}, {metric.title.removeprefix('… ')}"
    return metric.title


def _system_colour(report: Report, system: str) -> str:
    if system in SYSTEM_COLOURS:
        return SYSTEM_COLOURS[system]
    peers = [each for each in report.system_names if each not in SYSTEM_COLOURS]
    return PEER_COLOURS[peers.index(system) % len(PEER_COLOURS)]
