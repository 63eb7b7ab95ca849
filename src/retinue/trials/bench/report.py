"""The figures of one benchmark beside each other: who took how much, over the bare calls, and what held."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from retinue.domain.value import value
from retinue.trials.bench.lines import GROWN, LINES, Line
from retinue.trials.bench.samples import Figure, Samples

BARE, FLOOR, OURS = "bare", "floor", "retinue"


@value
class Verdict:
    """One target, and whether it held here."""

    what: str
    wanted: str
    value: str
    held: bool
    floor: str = ""
    """What the same promises cost here at least."""


@value
class Report:
    """All that is known after measuring."""

    samples: Samples
    systems: Sequence[str]
    peers: Sequence[str] = ()
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Peers that could not be installed, and why."""
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    def lines(self, *, growth: bool = False) -> list[Line]:
        """Those of which something was measured."""
        return [
            each
            for each in (GROWN if growth else LINES)
            if any(self.samples.of(each.row, each.variant, system) for system in self.systems)
        ]

    def over_bare(self, line: Line, system: str) -> float | None:
        bare, own = line.figure(self.samples, BARE), line.figure(self.samples, system)
        if bare is None or own is None or system == BARE or not bare.value:
            return None
        return own.value / bare.value

    def ceiling(self) -> float | None:
        found = self.samples.figure("server", "ceiling", "server", "rate")
        return None if found is None else found.value

    def verdicts(self) -> list[Verdict]:
        found: list[Verdict] = []
        for line in self.lines():
            own = line.figure(self.samples, OURS)
            if own is not None:
                least = line.figure(self.samples, FLOOR)
                floor = "" if least is None else f"{number(least.value)} {line.unit}"
                judged = [*_judged(line, own), *_beside(line, own, line.best_peer(self.samples, self.peers))]
                found += [replace(each, floor=floor) for each in judged]
        return found

    def problems(self) -> list[tuple[str, str, str]]:
        """Who could not, or did not, do what, and why: each reason once for a system."""
        seen: dict[tuple[str, str, str], None] = {}
        for sample in self.samples.all:
            if sample.problem:
                seen[(sample.system, f"{sample.row} {sample.variant}", sample.problem)] = None
        return list(seen)

    def as_json(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for line in (*self.lines(), *self.lines(growth=True)):
            rows += [self._row(line, system) for system in self.systems]
        return {
            "machine": dict(self.machine),
            "versions": {name: dict(versions) for name, versions in self.versions.items()},
            "missing": dict(self.missing),
            "server_requests_per_second": self.ceiling(),
            "rows": [row for row in rows if row["value"] is not None or row["problem"]],
            "targets": [
                {
                    "what": each.what,
                    "wanted": each.wanted,
                    "value": each.value,
                    "held": each.held,
                    "floor": each.floor or None,
                }
                for each in self.verdicts()
            ],
        }

    def _row(self, line: Line, system: str) -> dict[str, Any]:
        figure = line.figure(self.samples, system)
        ratio = self.over_bare(line, system)
        return {
            "row": line.row,
            "variant": line.variant,
            "what": line.what,
            "system": system,
            "unit": line.unit,
            "value": None if figure is None else round(figure.value, 4),
            "low": None if figure is None else round(figure.low, 4),
            "high": None if figure is None else round(figure.high, 4),
            "samples": 0 if figure is None else figure.count,
            "over_bare": None if ratio is None else round(ratio, 2),
            "most": line.most,
            "problem": self.samples.problem(line.row, line.variant, system),
        }


def number(value: float) -> str:
    """Three digits that matter."""
    for limit, digits in ((100, 0), (10, 1), (1, 2), (0.1, 3)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.4f}" if value else "0"


def _judged(line: Line, own: Figure) -> list[Verdict]:
    value = f"{number(own.value)} {line.unit}"
    found: list[Verdict] = []
    if line.most is not None:
        wanted = f"at most {line.most:,g} {line.unit}"
        found.append(Verdict(what=line.what, wanted=wanted, value=value, held=own.value <= line.most))
    if line.least is not None:
        wanted = f"at least {line.least:,g} {line.unit}"
        found.append(Verdict(what=line.what, wanted=wanted, value=value, held=own.value >= line.least))
    return found


def _beside(line: Line, own: Figure, best: float | None) -> list[Verdict]:
    if line.share is None or best is None:
        return []
    return [
        Verdict(
            what=line.what,
            wanted=f"at most 1/{round(1 / line.share)} of the best peer ({number(best)} {line.unit})",
            value=f"1/{number(best / own.value)}"
            if own.value < best
            else f"{number(own.value / best)} times",
            held=own.value <= best * line.share,
        )
    ]
