"""The workloads: preparation, the measured command, and the number of repetitions."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from bench.scenarios import (
    ALL_REPORTED,
    HELLO,
    LONG_RUN_TURNS,
    LOOK_REPLY,
    NOTE_REPLY,
    STREAM_REPLY,
)

SubjectCommand = tuple[str, Mapping[str, Any]]


class Workload(Struct, frozen=True, kw_only=True):
    """A measurement of all systems, unless limited to some."""

    row: str
    variant: str
    scenario: str
    """`{tool}` is replaced by the tool with which the system starts children."""
    command: str
    expected_reply: str
    title: str
    repeat_count: int = 20
    peer_repeat_count: int = 0
    """Repetitions for other systems, if different."""
    preparation: tuple[SubjectCommand, ...] = ()
    is_persistent: bool = True
    latency_ms: int = 0
    uses_new_numbers: bool = False
    """Each repetition has a new number, because the work creates something new."""
    rounds: int = 3
    peer_rounds: int = 0
    system_names: frozenset[str] = field(default_factory=frozenset[str])
    """Names of the systems to measure; empty: all."""
    min_new_sessions: int = 0
    """Sessions that one sample must leave behind to count."""
    timeout_s: float = 120
    """Time limit of a sample or its preparation."""

    def repeat_count_for(self, *, is_peer: bool) -> int:
        return (is_peer and self.peer_repeat_count) or self.repeat_count


RETINUE_ONLY = frozenset({"retinue"})
NON_PEERS = frozenset({"bare", "floor", "retinue"})
CREATE_SESSIONS: SubjectCommand = ("create_sessions", {"count": 20})


def history_command(entries: int) -> SubjectCommand:
    """Return the command that writes a conversation of this many ordinary entries."""
    return ("write_history", {"lines": [f"Line {number}. " + "word " * 30 for number in range(entries)]})


TURN_WORKLOADS = (
    Workload(row="turn", variant="persisted", title="one turn with one tool call, persisted", scenario="turn",
         command="run_turn", expected_reply=NOTE_REPLY, preparation=(CREATE_SESSIONS,), rounds=5),
    Workload(row="turn", variant="forgotten", title="the same, persistence off", scenario="turn",
         command="run_turn", expected_reply=NOTE_REPLY, preparation=(CREATE_SESSIONS,), rounds=5, is_persistent=False),
    Workload(row="turn", variant="new", title="the same in a new session", scenario="turn",
         command="run_new_session", expected_reply=NOTE_REPLY, uses_new_numbers=True, rounds=5),
    Workload(row="turn", variant="long", title=f"a run of {LONG_RUN_TURNS} turns, each with a tool", scenario="look",
         command="run_long", expected_reply=LOOK_REPLY, uses_new_numbers=True, repeat_count=4, rounds=5, system_names=RETINUE_ONLY),
)  # fmt: skip


def children_workload(count: int, latency_ms: int, *, with_tool: bool = False) -> Workload:
    suffix = "-tool" if with_tool else ""
    model_text = f"{latency_ms} ms of model latency" if latency_ms else "a model that answers at once"
    return Workload(
        row="children",
        variant=f"{count}{suffix}-{latency_ms}ms",
        title=f"a parent and {count:,} children{' with a tool call each' if with_tool else ''}, {model_text}",
        scenario=f"spawn-{count}-{{tool}}{suffix}",
        command="spawn_children",
        expected_reply=ALL_REPORTED,
        repeat_count=1,
        uses_new_numbers=True,
        latency_ms=latency_ms,
        min_new_sessions=count + 1,
        peer_rounds=1 if with_tool else 3,
        preparation=(("run_new_session", {"number": 0}),),
        timeout_s=180,
    )


CHILDREN_WORKLOADS = (
    children_workload(100, 0), children_workload(100, 50), children_workload(1000, 0), children_workload(1000, 50), children_workload(1000, 0, with_tool=True),
)  # fmt: skip
STREAM_WORKLOADS = (
    Workload(row="stream", variant="short", title="a reply of two words", scenario="talk",
         command="run_short_turn", expected_reply=HELLO, preparation=(CREATE_SESSIONS,), rounds=5),
    Workload(row="stream", variant="tokens", title="a reply of 200 tokens, streamed", scenario="talk",
         command="stream_reply", expected_reply=STREAM_REPLY, preparation=(CREATE_SESSIONS,), rounds=5, peer_rounds=3),
    Workload(row="stream", variant="paced", title="the same, a token every 2 ms", scenario="paced", repeat_count=5,
         command="stream_reply", expected_reply=STREAM_REPLY, preparation=(("create_sessions", {"count": 5}),), rounds=3),
)  # fmt: skip


def history_workloads(entries: int) -> Sequence[Workload]:
    systems = NON_PEERS if entries > 10_000 else frozenset[str]()  # noqa: PLR2004  (another system takes minutes)
    is_slow_for_peers = entries >= 10_000  # noqa: PLR2004  (another system takes seconds for each)
    return (
        Workload(row="history", variant=f"{entries}", title=f"a turn with one tool call at {entries:,} entries",
             scenario="turn", command="run_turn", expected_reply=NOTE_REPLY, preparation=(history_command(entries),), repeat_count=5 if systems else 20,
             peer_repeat_count=1 if is_slow_for_peers else 3, system_names=systems, timeout_s=180),
        Workload(row="load", variant=f"{entries}", title=f"loading {entries:,} entries", scenario="turn", command="load_history",
             expected_reply="", preparation=(history_command(entries),), repeat_count=3, system_names=systems, timeout_s=180),
    )  # fmt: skip


HISTORY_WORKLOADS = tuple(
    work for entries in (10, 1_000, 10_000, 100_000) for work in history_workloads(entries)
)


def agent_growth_workloads(count: int) -> Sequence[Workload]:
    """Return workloads of the first four rows with `count` existing agents."""
    create_agents: SubjectCommand = ("create_sessions", {"count": count})
    return (
        Workload(row="growth", variant=f"turn-{count}", title=f"a turn among {count:,} agents", scenario="turn",
             command="run_turn", expected_reply=NOTE_REPLY, preparation=(create_agents,), system_names=RETINUE_ONLY, timeout_s=300),
        Workload(row="growth", variant=f"children-{count}", title=f"100 children among {count:,} agents",
             scenario="spawn-100-{tool}", command="spawn_children", expected_reply=ALL_REPORTED, preparation=(create_agents,), repeat_count=1, uses_new_numbers=True,
             system_names=RETINUE_ONLY, timeout_s=300),
        Workload(row="growth", variant=f"stream-{count}", title=f"200 tokens among {count:,} agents", scenario="talk",
             command="stream_reply", expected_reply=STREAM_REPLY, preparation=(create_agents,), system_names=RETINUE_ONLY, timeout_s=300),
    )  # fmt: skip


def history_growth_workloads(entries: int) -> Sequence[Workload]:
    """Return streaming and children workloads in a long conversation; turns have a separate row."""
    write_history = history_command(entries)
    return (
        Workload(row="growth", variant=f"stream-at-{entries}", title=f"200 tokens at {entries:,} entries",
             scenario="talk", command="stream_reply", expected_reply=STREAM_REPLY, preparation=(write_history,), repeat_count=5, system_names=RETINUE_ONLY),
        Workload(row="growth", variant=f"children-at-{entries}", title=f"100 children at {entries:,} entries",
             scenario="spawn-100-{tool}", command="spawn_children_in_history", expected_reply=ALL_REPORTED, preparation=(write_history,), repeat_count=1,
             uses_new_numbers=True, system_names=RETINUE_ONLY),
    )  # fmt: skip


AGENT_COUNTS, HISTORY_LENGTHS = (20, 1_000), (10, 1_000, 10_000)
GROWTH_WORKLOADS = (
    *(work for count in AGENT_COUNTS for work in agent_growth_workloads(count)),
    *(work for entries in HISTORY_LENGTHS for work in history_growth_workloads(entries)),
)
WORKLOADS: Mapping[str, Sequence[Workload]] = {
    "turn": TURN_WORKLOADS,
    "children": CHILDREN_WORKLOADS,
    "stream": STREAM_WORKLOADS,
    "history": HISTORY_WORKLOADS,
    "growth": GROWTH_WORKLOADS,
}
"""Workloads by row. The other rows are in SPECIAL_MEASUREMENTS."""
