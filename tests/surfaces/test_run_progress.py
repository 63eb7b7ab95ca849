"""What is drawn of a tree of runs, line by line: cards for children, lines for the others."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.cli.ui.live_footer import line_text
from retinue.cli.ui.run_progress import TreeView
from retinue.cli.ui.run_tree import RunTree, depth_first_order, format_duration, run_labels, tool_call_summary
from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run, RunRequest, Status, WaitReason

BEGUN = datetime(2026, 11, 15, tzinfo=UTC)
RULE = "─" * 59


def a_run(number: int, parent: int = 0, **facts: Any) -> Run:
    agent = facts.pop("agent", "researcher" if parent else "general")
    label = facts.pop("label", "")
    asked = RunRequest(
        key=f"k{number}",
        agent=agent,
        task=f"task {number}",
        label=label,
        parent_run=an_id(parent) if parent else None,
    )
    run = Run(
        id=an_id(number),
        request=asked,
        session_id=f"S{number}",
        slug=f"s{number}",
        session_key="k",
        agent=agent,
        transcript_path="/s/session.md",
        root_id=an_id(1),
        status=Status.RUNNING,
        created_at=BEGUN,
        started_at=BEGUN,
    )
    return replace(run, **facts)


def an_id(number: int) -> str:
    return f"R{number:05}"


def told(
    tree: RunTree, kind: EventKind, number: int, parent: int = 1, *, after: float = 0, **data: Any
) -> None:
    tree.apply_event(
        Event(
            kind=kind,
            at=BEGUN + timedelta(seconds=after),
            session="S",
            run=an_id(number),
            parent_run=an_id(parent) if number > 1 else "",
            agent="researcher" if number > 1 else "general",
            data=data,
        )
    )


def a_family(*runs: Run) -> RunTree:
    tree = RunTree()
    tree.update(runs)
    return tree


def seen(tree: RunTree, *, after: float = 0, watched: int = 1, most: int = 14) -> list[str]:
    view = TreeView(
        tree=tree,
        watched_run=an_id(watched) if watched else "",
        now=BEGUN + timedelta(seconds=after),
        width=60,
        max_lines=most,
    )
    lines = view.lines()
    assert all(len(line_text(line)) < 60 for line in lines)
    return [line_text(line).rstrip() for line in lines]


@pytest.fixture
def pair() -> RunTree:
    """A parent that waits for a child, which has just been asked for."""
    return a_family(
        a_run(1, status=Status.WAITING, waiting_for=WaitReason.CHILD), a_run(2, 1, label="analyze patterns")
    )


def test_a_child_is_a_card_between_rules_below_the_run_that_asked(pair: RunTree):
    """Shows: A051."""
    told(pair, "run.state", 2, phase="wait")
    assert seen(pair, after=2) == [
        RULE,
        "Researcher Task: analyze patterns   researcher#2 running 2s",
        "Waiting...",
        RULE,
        "general#1 waiting 2s",
    ]


def test_a_silent_model_is_told_of_after_a_while_and_not_before(pair: RunTree):
    """Shows: A042."""
    told(pair, "run.state", 2, phase="wait", after=10)
    assert "Waiting..." not in seen(pair, after=11.4)
    assert "Waiting..." in seen(pair, after=11.5)


def test_a_model_that_calls_tools_in_time_is_not_said_to_be_silent(pair: RunTree):
    """Shows: A042, A052."""
    told(pair, "run.state", 2, phase="wait")
    told(pair, "run.state", 2, phase="tool", calls=1, total=1, after=1)
    told(pair, "tool.started", 2, tool="read", call="C", args='{"path": "src/x.py"}', after=1)
    assert seen(pair, after=9)[2:4] == ["Calling Tools... (+1)", "  read src/x.py"]
    told(pair, "tool.ended", 2, tool="read", call="C", ok=True, after=9)
    told(pair, "run.state", 2, phase="wait", after=9)
    assert seen(pair, after=10)[2:4] == ["Calling Tools... (+1)", "  read src/x.py"]
    assert seen(pair, after=10.5)[2:4] == ["Waiting...", RULE]


def test_a_card_counts_all_calls_and_shows_the_latest(pair: RunTree):
    """Shows: A043, A044."""
    told(pair, "run.state", 2, phase="tool", calls=2, total=2)
    for call in ("a", "b"):
        told(pair, "tool.started", 2, tool="read", call=call, args=f'{{"path": "{call}.py"}}')
    assert seen(pair)[2:5] == ["Calling Tools... (+2)", "  read a.py", "  read b.py"]
    told(pair, "run.state", 2, phase="wait")
    told(pair, "run.state", 2, phase="tool", calls=1, total=3)
    told(pair, "tool.started", 2, tool="grep", call="c", args='{"pattern": "cron", "path": "src"}')
    assert seen(pair)[2:5] == ["Calling Tools... (+3)", "  grep cron path=src", RULE]


def test_many_calls_are_counted_and_not_all_shown(pair: RunTree):
    told(pair, "run.state", 2, phase="tool", calls=9, total=9)
    for call in "abcdefghi":
        told(pair, "tool.started", 2, tool="ls", call=call, args="{}")
    assert seen(pair)[2:7] == ["Calling Tools... (+9)", "  ls", "  ls", "  ls", "  … and 6 more"]


def test_a_card_says_what_its_agent_waits_for_a_person_with(pair: RunTree):
    told(pair, "run.state", 2, phase="approval")
    assert seen(pair, after=3)[2] == "Waiting for an approval"


def test_a_card_goes_with_its_run_however_that_ended(pair: RunTree):
    """Shows: A054, A072."""
    for status in ("done", "failed", "cancelled"):
        pair.update([a_run(2, 1, label="analyze patterns")])
        assert RULE in seen(pair)
        told(pair, "run.ended", 2, status=status)
        assert seen(pair, after=1) == ["general#1 waiting 1s"]


def test_nothing_that_is_told_late_brings_a_card_back(pair: RunTree):
    """Shows: A072."""
    told(pair, "run.ended", 2, status="done")
    told(pair, "tool.ended", 2, tool="read", call="C", ok=True)
    told(pair, "run.state", 2, phase="wait")
    assert seen(pair, after=1) == ["general#1 waiting 1s"]


def test_the_children_of_a_child_stand_in_its_card(pair: RunTree):
    pair.update([a_run(3, 2, agent="scout", status=Status.QUEUED)])
    assert seen(pair, after=4)[3:5] == ["  scout#3 queued 4s", RULE]


def test_two_cards_share_the_rule_between_them(pair: RunTree):
    pair.update([a_run(3, 1, agent="scout", label="look about")])
    assert [line.split("  ")[0] for line in seen(pair)] == [
        RULE,
        "Researcher Task: analyze patterns",
        "",
        RULE,
        "Scout Task: look about",
        "",
        RULE,
        "general#1 waiting 0s",
    ]


def test_a_hundred_runs_are_a_few_lines():
    """Shows: D033."""
    tree = a_family(a_run(1), *(a_run(number, 1, status=Status.QUEUED) for number in range(2, 60)))
    tree.update([a_run(number, 1) for number in range(60, 102)])
    told(tree, "tool.started", 60, tool="read", call="C", args='{"path": "src/x.py"}')
    lines = seen(tree, after=75, most=6)
    assert lines == [
        "researcher#60 running 1m 15s · read src/x.py",
        "researcher#61 running 1m 15s",
        "researcher#62 running 1m 15s",
        "researcher#63 running 1m 15s",
        "… and 96 more",
        "general#1 running 1m 15s",
    ]


def test_several_runs_beside_each_other_are_lines():
    other = a_run(9, agent="scout")
    tree = a_family(a_run(1), replace(other, root_id=other.id))
    assert seen(tree, watched=0, after=1) == ["general#1 running 1s", "scout#1 running 1s"]


def test_a_run_that_has_just_begun_gets_no_line():
    assert seen(a_family(a_run(1)), after=0.4) == []
    assert seen(a_family(a_run(1)), after=0.6) == ["general#1 running 0s"]


def test_a_run_of_another_tree_is_not_shown(pair: RunTree):
    other = Event(kind="run.queued", at=BEGUN, session="S", run="other", parent_run="another", agent="spy")
    assert not pair.apply_event(other)
    assert not any("spy" in line for line in seen(pair))


def test_what_the_ledger_knows_of_other_processes_is_shown(pair: RunTree):
    pair.update(
        [a_run(2, 1, label="analyze patterns", status=Status.WAITING, waiting_for=WaitReason.APPROVAL)]
    )
    assert "researcher#2 waiting" in seen(pair)[1]
    pair.remove([an_id(2)])
    assert seen(pair, after=1) == ["general#1 waiting 1s"]


def test_names_and_words_cannot_command_the_terminal(pair: RunTree):
    """Shows: U01."""
    pair.update([a_run(3, 1, label="\x1b[2J\u202eevil\n\n" + "x" * 500)])
    told(pair, "tool.started", 3, tool="no\x1b[2J", call="C", args='{"path": "\\u001b]0;t\\u0007"}')
    told(pair, "run.state", 1, phase="model", note="again in \x1b[6n 3 s")
    lines = "".join(seen(pair, after=1))
    assert "␛[2J<U+202E>evil" in lines
    assert not {"\x1b", "\x07", "\u202e", "\n"} & set(lines)


@pytest.mark.parametrize(
    ("tool", "args", "words"),
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
def test_a_call_is_told_in_words(tool: str, args: str, words: str):
    assert tool_call_summary(tool, args) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (7_322, "2h 2m"), (-3, "0s")]
)
def test_a_time_has_at_most_two_units(seconds: float, words: str):
    assert format_duration(timedelta(seconds=seconds)) == words


def test_runs_are_listed_below_whoever_asked_and_count_those_that_have_ended():
    """Shows: D033."""
    family = [
        a_run(1),
        a_run(2, 1, status=Status.DONE),
        a_run(3, 2),
        a_run(4, 1, agent="oracle"),
        a_run(5, 3),
    ]
    live = [run for run in reversed(family) if run.status.is_live]
    assert [(depth, run.id) for depth, run in depth_first_order(live, family)] == [
        (0, an_id(1)),
        (1, an_id(3)),
        (2, an_id(5)),
        (1, an_id(4)),
    ]
    assert run_labels(family)[an_id(4)] == "oracle#4"
