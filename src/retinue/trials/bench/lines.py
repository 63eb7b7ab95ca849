"""What is shown of the samples: each line, its unit, and what it should be at most."""

from collections.abc import Sequence

from retinue.domain.value import value
from retinue.trials.bench.samples import Figure, Samples
from retinue.trials.bench.scenes import LOOKS

MIB, KIB = "MiB", "KiB"


@value
class Line:
    """One line of the table."""

    what: str
    row: str
    variant: str
    measure: str
    unit: str
    scale: float = 1
    """What a sample's number is divided by."""
    most: float | None = None
    least: float | None = None
    share: float | None = None
    """The part of the best peer's figure that ours should be at most."""

    def figure(self, samples: Samples, system: str) -> Figure | None:
        found = samples.figure(self.row, self.variant, system, self.measure)
        if found is None:
            return None
        low, high = found.low / self.scale, found.high / self.scale
        return Figure(value=found.value / self.scale, low=low, high=high, count=found.count)

    def best_peer(self, samples: Samples, peers: Sequence[str]) -> float | None:
        found = [figure.value for peer in peers if (figure := self.figure(samples, peer)) is not None]
        return min(found) if found else None


def _children(count: int, latency: int, *, tool: bool = False) -> Sequence[Line]:
    variant = f"{count}{'-tool' if tool else ''}-{latency}ms"
    what = (
        f"{count:,} children{' with a tool each' if tool else ''}{f', model {latency} ms' if latency else ''}"
    )
    judged = count == 1000 and not latency and not tool  # noqa: PLR2004  (what the target speaks of)
    return (
        Line(what=what, row="children", variant=variant, measure="wall", unit="s", scale=1000,
             most=2.5 if judged else None, share=1 / 3 if judged else None),
        Line(what="… CPU", row="children", variant=variant, measure="cpu", unit="s CPU", scale=1000),
        Line(what="… peak memory", row="children", variant=variant, measure="peak", unit=MIB),
    )  # fmt: skip


def _history(entries: int, most: float | None) -> Sequence[Line]:
    return (
        Line(what=f"a turn at {entries:,} entries", row="history", variant=f"{entries}", measure="cpu",
             unit="ms CPU", most=most),
        Line(what="… bytes written for it", row="history", variant=f"{entries}", measure="written", unit="B",
             most=8192),
        Line(what=f"loading {entries:,} entries", row="load", variant=f"{entries}", measure="cpu",
             unit="ms CPU", most=60 if entries == 10_000 else None),  # noqa: PLR2004  (the size it is said of)
    )  # fmt: skip


LINES: Sequence[Line] = (
    Line(what="one turn with one tool, persisted", row="turn", variant="persisted", measure="cpu",
         unit="ms CPU", most=1.2, share=1 / 4),
    Line(what="… wall time", row="turn", variant="persisted", measure="wall", unit="ms"),
    Line(what="… persistence off", row="turn", variant="forgotten", measure="cpu", unit="ms CPU"),
    Line(what="… off, wall time", row="turn", variant="forgotten", measure="wall", unit="ms"),
    Line(what="… in a new session", row="turn", variant="new", measure="cpu", unit="ms CPU"),
    Line(what=f"a model call in a run of {LOOKS}, with its tool", row="turn", variant="long", measure="cpu",
         unit="ms CPU", scale=LOOKS),
    *_children(100, 0), *_children(100, 50), *_children(1000, 0), *_children(1000, 50),
    *_children(1000, 0, tool=True),
    Line(what="a reply of two words", row="stream", variant="short", measure="cpu", unit="ms CPU"),
    Line(what="a reply of 200 tokens, streamed", row="stream", variant="tokens", measure="cpu", unit="ms CPU",
         most=5),
    Line(what="… a token every 2 ms", row="stream", variant="paced", measure="cpu", unit="ms CPU"),
    Line(what="cold start to the first answer", row="start", variant="cold", measure="wall", unit="s",
         scale=1000, most=0.5),
    Line(what="… CPU", row="start", variant="cold", measure="cpu", unit="s CPU", scale=1000),
    Line(what="retinue --help", row="start", variant="help", measure="wall", unit="s", scale=1000, most=0.15),
    *_history(10, None), *_history(1_000, 3), *_history(10_000, 25), *_history(100_000, None),
    Line(what="an idle agent among 1,000", row="idle", variant="1000", measure="each", unit=KIB, most=8),
    Line(what="… waking it, 95 of 100 within", row="idle", variant="1000", measure="p95", unit="ms", most=100),
    Line(what="5,000 idle agents, the whole process", row="idle", variant="5000", measure="whole", unit=MIB,
         most=1024),
    Line(what="… waking one, 95 of 100 within", row="idle", variant="5000", measure="p95", unit="ms",
         most=100),
    Line(what="a conversation held open, of 1,000", row="idle", variant="held", measure="each", unit=KIB, most=8),
    Line(what="1,000 agents waiting for a person", row="waiting", variant="approval", measure="cores",
         unit="cores", most=0.01),
    Line(what="1,000 agents waiting for a model", row="waiting", variant="model", measure="cores",
         unit="cores", most=0.01),
    Line(what="prompt prefix kept, Chat Completions", row="prefix", variant="openai", measure="least",
         unit="%", least=95),
    Line(what="prompt prefix kept, Messages", row="prefix", variant="anthropic", measure="least",
         unit="%", least=95),
    Line(what="a durable entry", row="small", variant="entry", measure="wall", unit="ms", most=1),
    Line(what="a durable step of the ledger", row="small", variant="step", measure="wall", unit="ms",
         most=0.25),
    Line(what="a guarded open and read", row="small", variant="guarded", measure="wall", unit="µs",
         scale=0.001, most=50),
    Line(what="a command in the sandbox", row="small", variant="command", measure="wall", unit="ms", most=30),
)  # fmt: skip
"""In the order in which they are shown."""


def grown(title: str, variant: str, unit: str, *, measure: str = "cpu", scale: float = 1) -> Line:
    return Line(what=title, row="growth", variant=variant, measure=measure, unit=unit, scale=scale)


GROWN: Sequence[Line] = (
    *(grown(f"a turn among {count:,} agents", f"turn-{count}", "ms CPU") for count in (20, 1_000)),
    *(grown(f"100 children among {count:,} agents", f"children-{count}", "s", measure="wall", scale=1000)
      for count in (20, 1_000)),
    *(grown(f"200 tokens among {count:,} agents", f"stream-{count}", "ms CPU") for count in (20, 1_000)),
    *(grown(f"cold start among {count:,} agents", f"start-{count}", "s", measure="wall", scale=1000)
      for count in (20, 1_000)),
    *(grown(f"100 children at {size:,} entries", f"children-at-{size}", "s", measure="wall", scale=1000)
      for size in (10, 1_000, 10_000)),
    *(grown(f"200 tokens at {size:,} entries", f"stream-at-{size}", "ms CPU")
      for size in (10, 1_000, 10_000)),
    *(grown(f"cold start at {size:,} entries", f"start-at-{size}", "s", measure="wall", scale=1000)
      for size in (10, 1_000, 10_000)),
)  # fmt: skip
"""How the first four rows grow with the number of agents and the length of the session."""
