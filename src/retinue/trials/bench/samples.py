"""What was measured: every sample by itself, kept in a file so that a benchmark that was stopped goes on."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from retinue.domain.value import value


@value
class Sample:
    """One measurement of one system, or why there is none."""

    row: str
    variant: str
    system: str
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    problem: str = ""
    able: bool = True
    """False: the system says that it cannot."""
    mark: str = ""
    """Which making of the system it was: samples of another one do not count."""


@value
class Figure:
    """The median of several samples, and how far they lie apart."""

    value: float
    low: float
    high: float
    count: int


class Samples:
    """All of them, in order. With a file each is written down as it comes, and those are taken up that were written
    before: of the same making of their system, and not failed, which is tried again."""

    def __init__(self, file: Path | None = None, marks: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._marks = marks or {}
        self.all: list[Sample] = []
        if file is not None and file.exists():
            found = [Sample(**json.loads(line)) for line in file.read_text().splitlines()]
            self.all = [each for each in found if self._counts(each)]

    def _counts(self, sample: Sample) -> bool:
        return sample.mark == self._marks.get(sample.system, "") and not (sample.problem and sample.able)

    def add(self, sample: Sample) -> None:
        sample = replace(sample, mark=self._marks.get(sample.system, ""))
        self.all.append(sample)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(sample)) + "\n")

    def of(self, row: str, variant: str, system: str) -> list[Sample]:
        return [each for each in self.all if (each.row, each.variant, each.system) == (row, variant, system)]

    def figure(self, row: str, variant: str, system: str, measure: str) -> Figure | None:
        return figure(each.facts[measure] for each in self.of(row, variant, system) if measure in each.facts)

    def problem(self, row: str, variant: str, system: str) -> str:
        return next((each.problem for each in self.of(row, variant, system) if each.problem), "")


def figure(values: Iterable[float]) -> Figure | None:
    found = sorted(values)
    if not found:
        return None
    return Figure(value=statistics.median(found), low=found[0], high=found[-1], count=len(found))


def facts_of(told: Mapping[str, Any]) -> dict[str, float]:
    """What one order took, for each time the work was done: milliseconds and bytes."""
    count = max(1, int(told.get("count", 1)))
    facts = {"cpu": told["cpu"] * 1000 / count, "wall": told["wall"] * 1000 / count}
    if "written" in told:
        facts["written"] = told["written"] / count
    if "peak" in told:
        facts["peak"] = told["peak"] / 2**20
    if told.get("times"):
        facts["p95"] = sorted(told["times"])[int(len(told["times"]) * 0.95)] * 1000
    return facts
