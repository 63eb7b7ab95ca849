"""Raw measurements, kept in a file so that an interrupted benchmark can be continued."""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace


class Sample(Struct, frozen=True, kw_only=True):
    """A measurement of one system, or the reason why there is none."""

    row: str
    variant: str
    system: str
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    problem: str = ""
    able: bool = True
    """False: the system does not support the work."""
    mark: str = ""
    """Fingerprint of the system; samples of another fingerprint are ignored."""


class SampleSummary(Struct, frozen=True, kw_only=True):
    """Median, minimum and maximum of several samples."""

    value: float
    low: float
    high: float
    count: int


class Samples:
    """All samples in order.

    With a file, each sample is appended as it is taken. Existing samples are reused if they have the same
    fingerprint and did not fail; failed ones are tried again.
    """

    def __init__(self, file: Path | None = None, fingerprints: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._fingerprints = fingerprints or {}
        self.items: list[Sample] = []
        if file is not None and file.exists():
            stored = [Sample(**json.loads(line)) for line in file.read_text().splitlines()]
            self.items = [each for each in stored if self._is_usable(each)]

    def _is_usable(self, sample: Sample) -> bool:
        return sample.mark == self._fingerprints.get(sample.system, "") and not (
            sample.problem and sample.able
        )

    def add(self, sample: Sample) -> None:
        sample = replace(sample, mark=self._fingerprints.get(sample.system, ""))
        self.items.append(sample)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(sample)) + "\n")

    def select(self, row: str, variant: str, system: str) -> list[Sample]:
        return [
            each for each in self.items if (each.row, each.variant, each.system) == (row, variant, system)
        ]

    def summarize(self, row: str, variant: str, system: str, measure: str) -> SampleSummary | None:
        return summarize_values(
            each.facts[measure] for each in self.select(row, variant, system) if measure in each.facts
        )

    def first_problem(self, row: str, variant: str, system: str) -> str:
        return next((each.problem for each in self.select(row, variant, system) if each.problem), "")


def summarize_values(values: Iterable[float]) -> SampleSummary | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return SampleSummary(
        value=statistics.median(ordered), low=ordered[0], high=ordered[-1], count=len(ordered)
    )


def per_call_measures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the cost of one call in milliseconds and bytes (peak memory in MiB)."""
    count = max(1, int(result.get("count", 1)))
    measures = {"cpu": result["cpu"] * 1000 / count, "wall": result["wall"] * 1000 / count}
    if "written" in result:
        measures["written"] = result["written"] / count
    if "peak" in result:
        measures["peak"] = result["peak"] / 2**20
    if result.get("times"):
        measures["p95"] = sorted(result["times"])[int(len(result["times"]) * 0.95)] * 1000
    return measures
