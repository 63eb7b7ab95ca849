"""The work that is measured: what is prepared, what is done, and how often."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from retinue.domain.value import value
from retinue.trials.bench.scenes import ALL, ANSWER, HELLO, LOOKS, SEEN, WORDS

Order = tuple[str, Mapping[str, Any]]


@value
class Work:
    """One measurement that every system takes part in, unless it says otherwise."""

    row: str
    variant: str
    scene: str
    """`{door}` stands for how a system's parent starts its children."""
    what: str
    expect: str
    title: str
    count: int = 20
    peer_count: int = 0
    """How often the others do it for one sample, if not as often."""
    prepare: tuple[Order, ...] = ()
    keep: bool = True
    latency: int = 0
    fresh: bool = False
    """Each time under another number, because the work makes something new."""
    rounds: int = 3
    peer_rounds: int = 0
    systems: frozenset[str] = field(default_factory=frozenset[str])
    """Whose work it is; none: everybody's."""
    makes: int = 0
    """Sessions that one sample must have left behind, or it does not count."""
    seconds: float = 120
    """How long one sample, or its preparation, may take."""

    def times(self, *, peer: bool) -> int:
        return (peer and self.peer_count) or self.count


OURS = frozenset({"retinue"})
OUR_OWN = frozenset({"bare", "floor", "retinue"})
SESSIONS: Order = ("sessions", {"count": 20})


def past(entries: int) -> Order:
    """A conversation of ordinary words, so many entries long."""
    return ("past", {"lines": [f"Line {number}. " + "word " * 30 for number in range(entries)]})


TURN = (
    Work(row="turn", variant="persisted", title="one turn with one tool call, persisted", scene="turn",
         what="turn", expect=ANSWER, prepare=(SESSIONS,), rounds=5),
    Work(row="turn", variant="forgotten", title="the same, persistence off", scene="turn",
         what="turn", expect=ANSWER, prepare=(SESSIONS,), rounds=5, keep=False),
    Work(row="turn", variant="new", title="the same in a new session", scene="turn",
         what="first", expect=ANSWER, fresh=True, rounds=5),
    Work(row="turn", variant="long", title=f"a run of {LOOKS} turns, each with a tool", scene="look",
         what="look", expect=SEEN, fresh=True, count=4, rounds=5, systems=OURS),
)  # fmt: skip


def children(count: int, latency: int, *, tool: bool = False) -> Work:
    kind = "-tool" if tool else ""
    words = f"{latency} ms of model latency" if latency else "a model that answers at once"
    return Work(
        row="children",
        variant=f"{count}{kind}-{latency}ms",
        title=f"a parent and {count:,} children{' with a tool call each' if tool else ''}, {words}",
        scene=f"crowd-{count}-{{door}}{kind}",
        what="crowd",
        expect=ALL,
        count=1,
        fresh=True,
        latency=latency,
        makes=count + 1,
        peer_rounds=1 if tool else 3,
        prepare=(("first", {"number": 0}),),
        seconds=180,
    )


CHILDREN = (
    children(100, 0), children(100, 50), children(1000, 0), children(1000, 50), children(1000, 0, tool=True),
)  # fmt: skip
STREAM = (
    Work(row="stream", variant="short", title="a reply of two words", scene="talk",
         what="hello", expect=HELLO, prepare=(SESSIONS,), rounds=5),
    Work(row="stream", variant="tokens", title="a reply of 200 tokens, streamed", scene="talk",
         what="stream", expect=WORDS, prepare=(SESSIONS,), rounds=5, peer_rounds=3),
    Work(row="stream", variant="paced", title="the same, a token every 2 ms", scene="paced", count=5,
         what="stream", expect=WORDS, prepare=(("sessions", {"count": 5}),), rounds=3),
)  # fmt: skip


def history(entries: int) -> Sequence[Work]:
    systems = OUR_OWN if entries > 10_000 else frozenset[str]()  # noqa: PLR2004  (a peer takes minutes)
    few = entries >= 10_000  # noqa: PLR2004  (a peer takes seconds for each)
    return (
        Work(row="history", variant=f"{entries}", title=f"a turn with one tool call at {entries:,} entries",
             scene="turn", what="turn", expect=ANSWER, prepare=(past(entries),), count=5 if systems else 20,
             peer_count=1 if few else 3, systems=systems, seconds=180),
        Work(row="load", variant=f"{entries}", title=f"loading {entries:,} entries", scene="turn", what="load",
             expect="", prepare=(past(entries),), count=3, systems=systems, seconds=180),
    )  # fmt: skip


HISTORY = tuple(work for entries in (10, 1_000, 10_000, 100_000) for work in history(entries))


def among(count: int) -> Sequence[Work]:
    """The first four rows where so many agents are already."""
    there: Order = ("sessions", {"count": count})
    return (
        Work(row="growth", variant=f"turn-{count}", title=f"a turn among {count:,} agents", scene="turn",
             what="turn", expect=ANSWER, prepare=(there,), systems=OURS, seconds=300),
        Work(row="growth", variant=f"children-{count}", title=f"100 children among {count:,} agents",
             scene="crowd-100-{door}", what="crowd", expect=ALL, prepare=(there,), count=1, fresh=True,
             systems=OURS, seconds=300),
        Work(row="growth", variant=f"stream-{count}", title=f"200 tokens among {count:,} agents", scene="talk",
             what="stream", expect=WORDS, prepare=(there,), systems=OURS, seconds=300),
    )  # fmt: skip


def after(entries: int) -> Sequence[Work]:
    """Streaming and children where the conversation is long; turns there are a row of their own."""
    long = past(entries)
    return (
        Work(row="growth", variant=f"stream-at-{entries}", title=f"200 tokens at {entries:,} entries",
             scene="talk", what="stream", expect=WORDS, prepare=(long,), count=5, systems=OURS),
        Work(row="growth", variant=f"children-at-{entries}", title=f"100 children at {entries:,} entries",
             scene="crowd-100-{door}", what="crowd_after", expect=ALL, prepare=(long,), count=1,
             fresh=True, systems=OURS),
    )  # fmt: skip


AGENTS, LENGTHS = (20, 1_000), (10, 1_000, 10_000)
GROWTH = (
    *(work for count in AGENTS for work in among(count)),
    *(work for entries in LENGTHS for work in after(entries)),
)
WORKS: Mapping[str, Sequence[Work]] = {
    "turn": TURN,
    "children": CHILDREN,
    "stream": STREAM,
    "history": HISTORY,
    "growth": GROWTH,
}
"""Row → its measurements that need nothing but this. The other rows are measured in ways of their own."""
