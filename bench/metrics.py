"""The reported metrics: name, unit and target of each."""

from collections.abc import Sequence

from msgspec import Struct

from bench.samples import Samples, SampleSummary
from bench.scenarios import LONG_RUN_TURNS

MIB, KIB = "MiB", "KiB"


class Metric(Struct, frozen=True, kw_only=True):
    """A line of the report."""

    title: str
    row: str
    variant: str
    measure: str
    unit: str
    divisor: float = 1
    """Divisor of a sample's value."""
    max_target: float | None = None
    min_target: float | None = None
    max_peer_share: float | None = None
    """Maximum of Retinue's value as a fraction of the best other system's."""

    def summary(self, samples: Samples, system: str) -> SampleSummary | None:
        samples_summary = samples.summarize(self.row, self.variant, system, self.measure)
        if samples_summary is None:
            return None
        low, high = samples_summary.low / self.divisor, samples_summary.high / self.divisor
        return SampleSummary(
            value=samples_summary.value / self.divisor, low=low, high=high, count=samples_summary.count
        )

    def best_peer_value(self, samples: Samples, peers: Sequence[str]) -> float | None:
        values = [summary.value for peer in peers if (summary := self.summary(samples, peer)) is not None]
        return min(values) if values else None


def _children_metrics(count: int, latency: int, *, tool: bool = False) -> Sequence[Metric]:
    variant = f"{count}{'-tool' if tool else ''}-{latency}ms"
    title = (
        f"{count:,} children{' with a tool each' if tool else ''}{f', model {latency} ms' if latency else ''}"
    )
    has_target = count == 1000 and not latency and not tool  # noqa: PLR2004  (the size the target is defined for)
    return (
        Metric(title=title, row="children", variant=variant, measure="wall", unit="s", divisor=1000,
             max_target=2.5 if has_target else None, max_peer_share=1 / 3 if has_target else None),
        Metric(title="… CPU", row="children", variant=variant, measure="cpu", unit="s CPU", divisor=1000),
        Metric(title="… peak memory", row="children", variant=variant, measure="peak", unit=MIB),
    )  # fmt: skip


def _history_metrics(entries: int, max_target: float | None) -> Sequence[Metric]:
    return (
        Metric(title=f"a turn at {entries:,} entries", row="history", variant=f"{entries}", measure="cpu",
             unit="ms CPU", max_target=max_target),
        Metric(title="… bytes written for it", row="history", variant=f"{entries}", measure="written", unit="B",
             max_target=8192),
        Metric(title=f"loading {entries:,} entries", row="load", variant=f"{entries}", measure="cpu",
             unit="ms CPU", max_target=60 if entries == 10_000 else None),  # noqa: PLR2004  (the size the target is defined for)
    )  # fmt: skip


METRICS: Sequence[Metric] = (
    Metric(title="one turn with one tool, persisted", row="turn", variant="persisted", measure="cpu",
         unit="ms CPU", max_target=1.2, max_peer_share=1 / 4),
    Metric(title="… wall time", row="turn", variant="persisted", measure="wall", unit="ms"),
    Metric(title="… persistence off", row="turn", variant="forgotten", measure="cpu", unit="ms CPU"),
    Metric(title="… off, wall time", row="turn", variant="forgotten", measure="wall", unit="ms"),
    Metric(title="… in a new session", row="turn", variant="new", measure="cpu", unit="ms CPU"),
    Metric(title=f"a model call in a run of {LONG_RUN_TURNS}, with its tool", row="turn", variant="long", measure="cpu",
         unit="ms CPU", divisor=LONG_RUN_TURNS),
    *_children_metrics(100, 0), *_children_metrics(100, 50), *_children_metrics(1000, 0), *_children_metrics(1000, 50),
    *_children_metrics(1000, 0, tool=True),
    Metric(title="a reply of two words", row="stream", variant="short", measure="cpu", unit="ms CPU"),
    Metric(title="a reply of 200 tokens, streamed", row="stream", variant="tokens", measure="cpu", unit="ms CPU",
         max_target=5),
    Metric(title="… a token every 2 ms", row="stream", variant="paced", measure="cpu", unit="ms CPU"),
    Metric(title="cold start to the first reply", row="start", variant="cold", measure="wall", unit="s",
         divisor=1000, max_target=0.5),
    Metric(title="… CPU", row="start", variant="cold", measure="cpu", unit="s CPU", divisor=1000),
    Metric(title="retinue --help", row="start", variant="help", measure="wall", unit="s", divisor=1000, max_target=0.15),
    *_history_metrics(10, None), *_history_metrics(1_000, 3), *_history_metrics(10_000, 25), *_history_metrics(100_000, None),
    Metric(title="an idle agent among 1,000", row="idle", variant="1000", measure="each", unit=KIB, max_target=8),
    Metric(title="… waking it, 95th percentile", row="idle", variant="1000", measure="p95", unit="ms", max_target=100),
    Metric(title="5,000 idle agents, the whole process", row="idle", variant="5000", measure="whole", unit=MIB,
         max_target=1024),
    Metric(title="… waking one, 95th percentile", row="idle", variant="5000", measure="p95", unit="ms",
         max_target=100),
    Metric(title="one of 1,000 open conversations", row="idle", variant="held", measure="each", unit=KIB, max_target=8),
    Metric(title="1,000 agents waiting for a person", row="waiting", variant="approval", measure="cores",
         unit="cores", max_target=0.01),
    Metric(title="1,000 agents waiting for a model", row="waiting", variant="model", measure="cores",
         unit="cores", max_target=0.01),
    Metric(title="reused prompt prefix, Chat Completions", row="prefix", variant="openai", measure="least",
         unit="%", min_target=95),
    Metric(title="reused prompt prefix, Messages", row="prefix", variant="anthropic", measure="least",
         unit="%", min_target=95),
    Metric(title="a durable entry", row="small", variant="entry", measure="wall", unit="ms", max_target=1),
    Metric(title="a ledger transaction", row="small", variant="step", measure="wall", unit="ms",
         max_target=0.25),
    Metric(title="a guarded open and read", row="small", variant="guarded", measure="wall", unit="µs",
         divisor=0.001, max_target=50),
    Metric(title="a command in the sandbox", row="small", variant="command", measure="wall", unit="ms", max_target=30),
)  # fmt: skip
"""In report order."""


def growth_metric(title: str, variant: str, unit: str, *, measure: str = "cpu", scale: float = 1) -> Metric:
    return Metric(title=title, row="growth", variant=variant, measure=measure, unit=unit, divisor=scale)


GROWTH_METRICS: Sequence[Metric] = (
    *(growth_metric(f"a turn among {count:,} agents", f"turn-{count}", "ms CPU") for count in (20, 1_000)),
    *(growth_metric(f"100 children among {count:,} agents", f"children-{count}", "s", measure="wall", scale=1000)
      for count in (20, 1_000)),
    *(growth_metric(f"200 tokens among {count:,} agents", f"stream-{count}", "ms CPU") for count in (20, 1_000)),
    *(growth_metric(f"cold start among {count:,} agents", f"start-{count}", "s", measure="wall", scale=1000)
      for count in (20, 1_000)),
    *(growth_metric(f"100 children at {size:,} entries", f"children-at-{size}", "s", measure="wall", scale=1000)
      for size in (10, 1_000, 10_000)),
    *(growth_metric(f"200 tokens at {size:,} entries", f"stream-at-{size}", "ms CPU")
      for size in (10, 1_000, 10_000)),
    *(growth_metric(f"cold start at {size:,} entries", f"start-at-{size}", "s", measure="wall", scale=1000)
      for size in (10, 1_000, 10_000)),
)  # fmt: skip
"""Growth of the first four rows with the number of agents and the session length."""
