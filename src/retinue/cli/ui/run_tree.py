"""An in-memory model of run trees for display, fed by events and ledger rows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from retinue.cli.ui.terminal import one_line
from retinue.domain.event import Event
from retinue.domain.run import Run, Status, WaitReason

NO_TITLES: Mapping[str, str] = {}
MAX_SUMMARY_CHARS = 80
"""Maximum number of characters of a summary."""


class RunNode(Struct, frozen=True, kw_only=True):
    """A live run, as known from events and from its ledger row."""

    id: str
    agent: str
    title: str = ""
    """Display name of the agent; empty if it is the same as `agent`."""
    number: int
    """Position in its tree by creation: the root run is 1."""
    parent_id: str = ""
    task: str = ""
    """Short description of its task; empty until the ledger row was read."""
    status: Status = Status.QUEUED
    waiting_for: str = ""
    started_at: datetime
    """When the run was first started; until then, when it was created."""
    model_asked_at: datetime | None = None
    """Start of the current model request; None once a tool was called."""
    tool_call_count: int = 0
    """Number of tool calls so far."""
    latest_calls: tuple[tuple[str, str], ...] = ()
    """Ids and summaries of the latest tool calls."""
    open_call_ids: frozenset[str] = frozenset()
    """Ids of the latest calls that have no result yet."""
    note: str = ""

    @property
    def display_name(self) -> str:
        return f"{self.title or self.agent}#{self.number}"

    @property
    def activity(self) -> str:
        """Current activity, if it says more than the status."""
        if self.status is Status.WAITING:
            return (
                ""
                if self.waiting_for in ("", WaitReason.CHILD)
                else f"for {WAITING_FOR_TEXTS.get(self.waiting_for, self.waiting_for)}"
            )
        open_calls = [summary for call, summary in self.latest_calls if call in self.open_call_ids]
        return open_calls[-1] if open_calls else self.note

    def is_model_silent(self, now: datetime, threshold: timedelta) -> bool:
        """Return whether the model has been silent for longer than the threshold."""
        return self.model_asked_at is not None and now - self.model_asked_at >= threshold

    def duration_text(self, now: datetime) -> str:
        return format_duration(now - self.started_at)


WAITING_FOR_TEXTS: Mapping[str, str] = {
    WaitReason.APPROVAL: "approval",
    WaitReason.PERSON: "your message",
    WaitReason.MODEL: "its model",
    WaitReason.DISK: "disk space",
}


@dataclass(slots=True)
class RunTree:
    """The live runs of one or more trees. A run's number is never reused."""

    live: dict[str, RunNode] = field(default_factory=dict[str, RunNode])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    parent_ids: dict[str, str] = field(default_factory=dict[str, str])
    """Parent of each run, including runs that have ended."""
    tree_sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Number of runs in each tree, by root id."""
    titles: Mapping[str, str] = field(default_factory=dict[str, str])
    """Display names by agent, of agents that have one."""

    def update(self, runs: Iterable[Run]) -> None:
        """Merge ledger rows; runs that have ended are removed."""
        for run in sorted(runs, key=lambda run: run.id):
            number = self._assign_number(run.id, run.request.parent_run or "", run.root_id)
            if run.status.is_final:
                self.live.pop(run.id, None)
                continue
            known = self.live.get(run.id)
            row = RunNode(
                id=run.id,
                agent=run.agent,
                title=self.titles.get(run.agent, ""),
                number=number,
                parent_id=run.request.parent_run or "",
                task=task_summary(run),
                status=run.status,
                waiting_for=run.waiting_for or "",
                started_at=run.started_at or run.created_at,
                tool_call_count=run.tool_calls,
            )
            self.live[run.id] = row if known is None else _merge_row(known, row)

    def remove(self, run_ids: Iterable[str]) -> None:
        """Remove runs that have ended without an event."""
        for run_id in run_ids:
            self.live.pop(run_id, None)

    def contains(self, event: Event) -> bool:
        """Return whether an event belongs to one of these trees."""
        return event.run in self.numbers or event.parent_run in self.numbers

    def add_root(self, run_id: str, root_id: str) -> None:
        """Count a run without a parent, whose events follow, to the tree of another run."""
        self._assign_number(run_id, "", root_id)

    def apply_event(self, event: Event) -> bool:
        """Apply an event, and return whether anything visible changed."""
        if not self.contains(event):
            return False
        if event.kind == "run.ended":
            return self.live.pop(event.run, None) is not None
        handler = _EVENT_HANDLERS.get(event.kind)
        if handler is None:
            return False
        before = self.live.get(event.run)
        if before is None and event.kind not in ("run.queued", "run.started"):
            return False
        after = handler(before or self._make_node(event), event)
        self.live[event.run] = after
        return after != before

    def incomplete_ids(self) -> list[str]:
        """Return the ids of runs known only from events, whose rows say more."""
        return [each.id for each in self.live.values() if not each.task]

    def children_by_parent(self) -> dict[str, list[RunNode]]:
        """Return the live children of each live run in order of creation, and the roots under "".

        A run whose parent has ended is listed under its nearest live ancestor.
        """
        children: dict[str, list[RunNode]] = {}
        for node in sorted(self.live.values(), key=lambda node: node.id):
            parent = self._live_ancestor(node.id)
            children.setdefault(parent if parent in self.live else "", []).append(node)
        return children

    def display_name(self, run_id: str, agent: str) -> str:
        name = self.titles.get(agent, agent)
        return f"{name}#{self.numbers[run_id]}" if run_id in self.numbers else name

    def _live_ancestor(self, run_id: str) -> str:
        ancestor = self.parent_ids.get(run_id, "")
        while ancestor and ancestor not in self.live and ancestor in self.parent_ids:
            ancestor = self.parent_ids[ancestor]
        return ancestor

    def _make_node(self, event: Event) -> RunNode:
        number = self._assign_number(event.run, event.parent_run, self._root_id(event.parent_run))
        return RunNode(
            id=event.run,
            agent=event.agent,
            title=self.titles.get(event.agent, ""),
            number=number,
            parent_id=event.parent_run,
            started_at=event.at,
        )

    def _assign_number(self, run_id: str, parent: str, root: str) -> int:
        if run_id not in self.numbers:
            root = root or run_id
            self.tree_sizes[root] = self.tree_sizes.get(root, 0) + 1
            self.numbers[run_id] = self.tree_sizes[root]
            self.parent_ids[run_id] = parent
        return self.numbers[run_id]

    def _root_id(self, run_id: str) -> str:
        while parent := self.parent_ids.get(run_id):
            run_id = parent
        return run_id


def _merge_row(known: RunNode, row: RunNode) -> RunNode:
    """Merge a ledger row into a node.

    Events contain the current activity; the row contains the task and changes by other processes.
    """
    return replace(
        known,
        task=row.task,
        status=row.status,
        waiting_for=row.waiting_for,
        started_at=row.started_at,
        tool_call_count=max(known.tool_call_count, row.tool_call_count),
    )


def _apply_queued(node: RunNode, _event: Event) -> RunNode:
    return replace(node, status=Status.QUEUED)


def _apply_started(node: RunNode, event: Event) -> RunNode:
    is_first_attempt = (
        node.status is Status.QUEUED and event.data.get("attempt", 1) == 1 and not node.tool_call_count
    )
    return replace(
        node,
        status=Status.RUNNING,
        waiting_for="",
        started_at=event.at if is_first_attempt else node.started_at,
        model_asked_at=None,
    )


def _apply_state(node: RunNode, event: Event) -> RunNode:
    phase = event.data.get("phase")
    if event.data.get("torn_tail_path"):
        return node
    if phase == "wait":
        return replace(node, status=Status.RUNNING, waiting_for="", model_asked_at=event.at, note="")
    if phase == "tool":
        total = event.data.get("total", node.tool_call_count)
        return replace(
            node,
            status=Status.RUNNING,
            model_asked_at=None,
            note="",
            tool_call_count=total,
            latest_calls=(),
            open_call_ids=frozenset(),
        )
    if note := event.data.get("note"):
        return replace(node, note=one_line(note, MAX_SUMMARY_CHARS))
    return replace(node, status=Status.WAITING, waiting_for=phase or "", model_asked_at=None)


def _apply_tool_started(node: RunNode, event: Event) -> RunNode:
    call = event.data["call"]
    summary = tool_call_summary(event.data["tool"], event.data.get("args") or "")
    calls = (
        node.latest_calls
        if any(call == each for each, _ in node.latest_calls)
        else (*node.latest_calls, (call, summary))
    )
    return replace(node, latest_calls=calls, open_call_ids=node.open_call_ids | {call})


def _apply_tool_ended(node: RunNode, event: Event) -> RunNode:
    return replace(node, open_call_ids=node.open_call_ids - {event.data["call"]})


_EVENT_HANDLERS: Mapping[str, Callable[[RunNode, Event], RunNode]] = {
    "run.queued": _apply_queued,
    "run.started": _apply_started,
    "run.state": _apply_state,
    "tool.started": _apply_tool_started,
    "tool.ended": _apply_tool_ended,
}
"""Handler for each kind of event that changes a node."""


def task_summary(run: Run) -> str:
    """Return a run's label or task, shortened."""
    return one_line(run.request.label or run.request.task or "its task", MAX_SUMMARY_CHARS)


def tool_call_summary(tool: str, args: str) -> str:
    """Summarise a tool call: the tool, its first argument, and the others by name."""
    try:
        arguments: Any = json.loads(args or "{}", strict=False)
    except (ValueError, RecursionError):
        arguments = args
    if not isinstance(arguments, dict):
        return one_line(f"{tool} {arguments}", MAX_SUMMARY_CHARS)
    parts: list[str] = []
    for name, argument in cast("dict[str, Any]", arguments).items():
        text = argument if isinstance(argument, str) else json.dumps(argument, ensure_ascii=False)
        parts.append(text if not parts else f"{name}={text}")
    return one_line(" ".join((tool, *parts)), MAX_SUMMARY_CHARS)


def format_duration(duration: timedelta) -> str:
    """Return a duration in at most two units."""
    seconds = max(0, int(duration.total_seconds()))
    if seconds < 60:  # noqa: PLR2004  (a minute)
        return f"{seconds}s"
    if seconds < 3600:  # noqa: PLR2004  (an hour)
        return f"{seconds // 60}m {seconds % 60}s"
    return f"{seconds // 3600}h {seconds // 60 % 60}m"


def run_labels(tree_runs: Sequence[Run], titles: Mapping[str, str] = NO_TITLES) -> dict[str, str]:
    """Return a label for each run: its agent and its position in the tree, like `explore#2`."""
    tree = RunTree(titles=titles)
    tree.update(tree_runs)
    return {run.id: tree.display_name(run.id, run.agent) for run in tree_runs}


def depth_first_order(runs: Sequence[Run], tree_runs: Iterable[Run]) -> list[tuple[int, Run]]:
    """Return these runs in tree order with their depth.

    A run whose parent is not among them is placed below its nearest ancestor that is. `tree_runs` holds all
    runs of their trees.
    """
    listed = {run.id for run in runs}
    parent_ids = {run.id: run.request.parent_run or "" for run in (*tree_runs, *runs)}
    children: dict[str, list[Run]] = {}
    for run in runs:
        parent = parent_ids[run.id]
        while parent and parent not in listed:
            parent = parent_ids.get(parent, "")
        children.setdefault(parent, []).append(run)
    ordered: list[tuple[int, Run]] = []

    def append_run(run: Run, depth: int) -> None:
        ordered.append((depth, run))
        for each in sorted(children.get(run.id, ()), key=lambda each: each.id):
            append_run(each, depth + 1)

    for run in children.get("", ()):
        append_run(run, 0)
    return ordered
