"""The lines that show a run tree: cards for child runs, single lines for other runs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.cli.ui.live_footer import line_text
from retinue.cli.ui.run_progress import TreeView
from retinue.cli.ui.run_tree import RunTree, depth_first_order, format_duration, run_labels, tool_call_summary
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run, RunRequest, Status, WaitReason

STARTED_AT = datetime(2026, 11, 15, tzinfo=UTC)
RULE = "─" * 59


def make_run(number: int, parent: int = 0, **fields: Any) -> Run:
    agent = fields.pop("agent", "researcher" if parent else "general")
    label = fields.pop("label", "")
    request = RunRequest(
        key=f"k{number}",
        agent=agent,
        task=f"task {number}",
        label=label,
        parent_run=run_id(parent) if parent else None,
    )
    run = Run(
        id=run_id(number),
        request=request,
        session_id=f"S{number}",
        slug=f"s{number}",
        session_key="k",
        agent=agent,
        transcript_path="/s/session.md",
        root_id=run_id(1),
        status=Status.RUNNING,
        created_at=STARTED_AT,
        started_at=STARTED_AT,
    )
    return replace(run, **fields)


def run_id(number: int) -> str:
    return f"R{number:05}"


def apply_event(
    tree: RunTree, kind: EventKind, number: int, parent: int = 1, *, after: float = 0, **data: Any
) -> None:
    tree.apply_event(
        Event(
            kind=kind,
            at=STARTED_AT + timedelta(seconds=after),
            session="S",
            run=run_id(number),
            parent_run=run_id(parent) if number > 1 else "",
            agent="researcher" if number > 1 else "general",
            data=data,
        )
    )


def make_tree(*runs: Run) -> RunTree:
    tree = RunTree()
    tree.update(runs)
    return tree


def visible_lines(tree: RunTree, *, after: float = 0, watched: int = 1, max_lines: int = 14) -> list[str]:
    view = TreeView(
        tree=tree,
        watched_run=run_id(watched) if watched else "",
        now=STARTED_AT + timedelta(seconds=after),
        width=60,
        max_lines=max_lines,
    )
    lines = view.lines()
    assert all(len(line_text(line)) < 60 for line in lines)
    return [line_text(line).rstrip() for line in lines]


@pytest.fixture
def tree() -> RunTree:
    """A parent that waits for a child that was just created."""
    return make_tree(
        make_run(1, status=Status.WAITING, waiting_for=WaitReason.CHILD),
        make_run(2, 1, label="analyze patterns"),
    )


def test_a_child_is_shown_as_a_card_between_rules_above_its_parent(tree: RunTree):
    """Shows: A051."""
    apply_event(tree, "run.state", 2, phase="wait")
    assert visible_lines(tree, after=2) == [
        RULE,
        "Researcher Task: analyze patterns   researcher#2 running 2s",
        "Waiting...",
        RULE,
        "general#1 waiting 2s",
    ]


def test_waiting_is_shown_only_after_the_model_was_silent_for_a_while(tree: RunTree):
    """Shows: A042."""
    apply_event(tree, "run.state", 2, phase="wait", after=10)
    assert "Waiting..." not in visible_lines(tree, after=11.4)
    assert "Waiting..." in visible_lines(tree, after=11.5)


def test_a_model_that_calls_tools_in_time_is_not_shown_as_waiting(tree: RunTree):
    """Shows: A042, A052."""
    apply_event(tree, "run.state", 2, phase="wait")
    apply_event(tree, "run.state", 2, phase="tool", calls=1, total=1, after=1)
    apply_event(tree, "tool.started", 2, tool="read", call="C", args='{"path": "src/x.py"}', after=1)
    assert visible_lines(tree, after=9)[2:4] == ["Calling Tools... (+1)", "  read src/x.py"]
    apply_event(tree, "tool.ended", 2, tool="read", call="C", ok=True, after=9)
    apply_event(tree, "run.state", 2, phase="wait", after=9)
    assert visible_lines(tree, after=10)[2:4] == ["Calling Tools... (+1)", "  read src/x.py"]
    assert visible_lines(tree, after=10.5)[2:4] == ["Waiting...", RULE]


def test_a_card_counts_all_calls_and_shows_the_latest(tree: RunTree):
    """Shows: A043, A044."""
    apply_event(tree, "run.state", 2, phase="tool", calls=2, total=2)
    for call in ("a", "b"):
        apply_event(tree, "tool.started", 2, tool="read", call=call, args=f'{{"path": "{call}.py"}}')
    assert visible_lines(tree)[2:5] == ["Calling Tools... (+2)", "  read a.py", "  read b.py"]
    apply_event(tree, "run.state", 2, phase="wait")
    apply_event(tree, "run.state", 2, phase="tool", calls=1, total=3)
    apply_event(tree, "tool.started", 2, tool="grep", call="c", args='{"pattern": "cron", "path": "src"}')
    assert visible_lines(tree)[2:5] == ["Calling Tools... (+3)", "  grep cron path=src", RULE]


def test_many_calls_are_counted_and_not_all_shown(tree: RunTree):
    apply_event(tree, "run.state", 2, phase="tool", calls=9, total=9)
    for call in "abcdefghi":
        apply_event(tree, "tool.started", 2, tool="ls", call=call, args="{}")
    assert visible_lines(tree)[2:7] == ["Calling Tools... (+9)", "  ls", "  ls", "  ls", "  … and 6 more"]


def test_a_card_shows_that_its_run_waits_for_an_approval(tree: RunTree):
    apply_event(tree, "run.state", 2, phase="approval")
    assert visible_lines(tree, after=3)[2] == "Waiting for approval"


def test_a_card_disappears_when_its_run_ends_with_any_status(tree: RunTree):
    """Shows: A054, A072."""
    for status in ("done", "failed", "cancelled"):
        tree.update([make_run(2, 1, label="analyze patterns")])
        assert RULE in visible_lines(tree)
        apply_event(tree, "run.ended", 2, status=status)
        assert visible_lines(tree, after=1) == ["general#1 waiting 1s"]


def test_late_events_of_an_ended_run_do_not_show_its_card_again(tree: RunTree):
    """Shows: A072."""
    apply_event(tree, "run.ended", 2, status="done")
    apply_event(tree, "tool.ended", 2, tool="read", call="C", ok=True)
    apply_event(tree, "run.state", 2, phase="wait")
    assert visible_lines(tree, after=1) == ["general#1 waiting 1s"]


def test_grandchildren_are_listed_in_the_card_of_their_parent(tree: RunTree):
    tree.update([make_run(3, 2, agent="scout", status=Status.QUEUED)])
    assert visible_lines(tree, after=4)[3:5] == ["  scout#3 queued 4s", RULE]


def test_two_cards_share_the_rule_between_them(tree: RunTree):
    tree.update([make_run(3, 1, agent="scout", label="look about")])
    assert [line.split("  ")[0] for line in visible_lines(tree)] == [
        RULE,
        "Researcher Task: analyze patterns",
        "",
        RULE,
        "Scout Task: look about",
        "",
        RULE,
        "general#1 waiting 0s",
    ]


def test_a_hundred_runs_are_shown_in_a_few_lines():
    """Shows: D033."""
    tree = make_tree(make_run(1), *(make_run(number, 1, status=Status.QUEUED) for number in range(2, 60)))
    tree.update([make_run(number, 1) for number in range(60, 102)])
    apply_event(tree, "tool.started", 60, tool="read", call="C", args='{"path": "src/x.py"}')
    lines = visible_lines(tree, after=75, max_lines=6)
    assert lines == [
        "researcher#60 running 1m 15s · read src/x.py",
        "researcher#61 running 1m 15s",
        "researcher#62 running 1m 15s",
        "researcher#63 running 1m 15s",
        "… and 96 more",
        "general#1 running 1m 15s",
    ]


def test_several_top_level_runs_are_one_line_each():
    other = make_run(9, agent="scout")
    tree = make_tree(make_run(1), replace(other, root_id=other.id))
    assert visible_lines(tree, watched=0, after=1) == ["general#1 running 1s", "scout#1 running 1s"]


def test_a_run_gets_its_line_only_after_half_a_second():
    assert visible_lines(make_tree(make_run(1)), after=0.4) == []
    assert visible_lines(make_tree(make_run(1)), after=0.6) == ["general#1 running 0s"]


def test_a_run_of_another_tree_is_not_shown(tree: RunTree):
    other = Event(
        kind="run.queued", at=STARTED_AT, session="S", run="other", parent_run="another", agent="spy"
    )
    assert not tree.apply_event(other)
    assert not any("spy" in line for line in visible_lines(tree))


def test_run_states_read_from_the_ledger_are_shown(tree: RunTree):
    tree.update(
        [make_run(2, 1, label="analyze patterns", status=Status.WAITING, waiting_for=WaitReason.APPROVAL)]
    )
    assert "researcher#2 waiting" in visible_lines(tree)[1]
    tree.remove([run_id(2)])
    assert visible_lines(tree, after=1) == ["general#1 waiting 1s"]


def test_control_sequences_in_labels_and_arguments_are_escaped(tree: RunTree):
    """Shows: U01."""
    tree.update([make_run(3, 1, label="\x1b[2J\u202eevil\n\n" + "x" * 500)])
    apply_event(tree, "tool.started", 3, tool="no\x1b[2J", call="C", args='{"path": "\\u001b]0;t\\u0007"}')
    apply_event(tree, "run.state", 1, phase="model", note="again in \x1b[6n 3 s")
    lines = "".join(visible_lines(tree, after=1))
    assert "␛[2J<U+202E>evil" in lines
    assert not {"\x1b", "\x07", "\u202e", "\n"} & set(lines)


@pytest.mark.parametrize(
    ("tool", "args", "summary"),
    [
        ("read", '{"path": "src/x.py"}', "read src/x.py"),
        ("grep", '{"pattern": "cron", "path": "src"}', "grep cron path=src"),
        ("edit", '{"path": "a", "all": true}', "edit a all=true"),
        ("ls", "", "ls"),
        ("ls", '{"path": ', 'ls {"path":'),
        ("ls", "[" * 100_000, f"ls {'[' * 76}…"),
        ("todo", '{"items": ["a", "b"]}', 'todo ["a", "b"]'),
    ],
)
def test_a_tool_call_is_summarized_in_one_line(tool: str, args: str, summary: str):
    assert tool_call_summary(tool, args) == summary


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (7_322, "2h 2m"), (-3, "0s")]
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str):
    assert format_duration(timedelta(seconds=seconds)) == text


def test_live_runs_are_listed_below_their_nearest_live_ancestor_and_numbered_with_ended_runs():
    """Shows: D033."""
    family = [
        make_run(1),
        make_run(2, 1, status=Status.DONE),
        make_run(3, 2),
        make_run(4, 1, agent="oracle"),
        make_run(5, 3),
    ]
    live = [run for run in reversed(family) if run.status.is_live]
    assert [(depth, run.id) for depth, run in depth_first_order(live, family)] == [
        (0, run_id(1)),
        (1, run_id(3)),
        (2, run_id(5)),
        (1, run_id(4)),
    ]
    assert run_labels(family)[run_id(4)] == "oracle#4"
