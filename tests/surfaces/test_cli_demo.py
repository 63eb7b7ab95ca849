"""The demonstration with a killed worker, its report, and the list of models."""

import io
from collections.abc import Sequence

import pytest
from cli_fixture import CliFixture
from msgspec.structs import replace

from retinue.cli.demo import DemoView, print_demo_result
from retinue.cli.ui.terminal import Terminal
from retinue.demo.local_model import DemoOutcome, KillReport, TreeSnapshot, measure_kill
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Entry, Message, ToolCall
from retinue.testing.ledgers import make_run

FIRST_PID, SECOND_PID = 100, 200


def make_child(name: str, status: Status) -> Run:
    run = make_run(name, status=status, root_id="parent", agent="explorer")
    return replace(run, request=replace(run.request, parent_run="parent", task=f"read {name}.md"))


def task_message(name: str) -> Message:
    return Message(id=f"{name}-u", role="user", text=f"read {name}.md")


def entries_with_open_call(name: str) -> list[Entry]:
    """A child run with one unanswered tool call."""
    return [
        task_message(name),
        Message(id=f"{name}-a", role="agent", text="", tool_call_count=1),
        ToolCall(id=f"{name}-c", tool="read", args=f'{{"path": "{name}.md"}}'),
    ]


def make_tree(status: Status, **entries: Sequence[Entry]) -> TreeSnapshot:
    runs = (
        make_run("parent", status=status, root_id="parent"),
        *(make_child(name, status) for name in entries),
    )
    spawns: list[Entry] = [
        Message(id="u", role="user", text="Ask them"),
        Message(id="a", role="agent", text="", tool_call_count=len(entries)),
        *(ToolCall(id=f"s-{name}", tool="spawn_subagent", args='{"prompt": "read"}') for name in entries),
    ]
    return TreeSnapshot(runs=runs, entries={"parent": spawns, **entries})


INTERRUPTED_TREE = make_tree(
    Status.RUNNING, bees=entries_with_open_call("bees"), tides=[task_message("tides")]
)
FINISHED_TREE = make_tree(
    Status.DONE, bees=entries_with_open_call("bees"), tides=entries_with_open_call("tides")
)


def test_the_report_of_a_kill_compares_the_model_requests_before_and_after_it():
    """A stored reply is never requested again; a reply that was being streamed is, and is counted separately."""
    before = [(FIRST_PID, "u"), (FIRST_PID, "bees-u"), (FIRST_PID, "tides-u")]
    report = measure_kill(
        INTERRUPTED_TREE,
        FINISHED_TREE,
        [*before, (SECOND_PID, "tides-u"), (SECOND_PID, "bees-c:result")],
        SECOND_PID,
    )
    assert (report.resumed_runs, report.interrupted_runs, report.answered_turns, report.in_flight_turns) == (
        3,
        3,
        2,
        1,
    )
    assert (report.repeated_turns, report.duplicate_children, report.is_lossless) == (0, 0, True)
    repeated = measure_kill(INTERRUPTED_TREE, FINISHED_TREE, [*before, (SECOND_PID, "bees-u")], SECOND_PID)
    assert (repeated.repeated_turns, repeated.is_lossless) == (1, False)
    with_duplicate_child = replace(FINISHED_TREE, runs=(*FINISHED_TREE.runs, make_child("bees", Status.DONE)))
    assert measure_kill(INTERRUPTED_TREE, with_duplicate_child, before, SECOND_PID).duplicate_children == 1
    assert not measure_kill(INTERRUPTED_TREE, INTERRUPTED_TREE, before, SECOND_PID).is_lossless


def test_a_tree_is_midway_when_some_runs_replied_and_not_all_are_done():
    assert not INTERRUPTED_TREE.is_midway()
    assert make_tree(
        Status.RUNNING, bees=entries_with_open_call("bees"), tides=entries_with_open_call("tides")
    ).is_midway()
    assert not FINISHED_TREE.is_midway()
    assert not TreeSnapshot().is_midway()


def make_view() -> tuple[DemoView, Terminal, io.StringIO]:
    output = io.StringIO()
    terminal = Terminal(json=False, out=output, err=io.StringIO())
    return DemoView(terminal, clock=iter(range(100)).__next__), terminal, output


def test_each_thing_is_printed_once_in_lines_that_fit():
    snapshot = make_tree(
        Status.RUNNING,
        bees=[*entries_with_open_call("bees"), Message(id="end", role="agent", text="They dance. " * 20)],
    )
    view, _, output = make_view()
    view.show(snapshot)
    view.on_worker_killed(4711, snapshot)
    view.show(snapshot)
    lines = output.getvalue().splitlines()
    assert [line[9:46].rstrip() for line in lines] == [
        "main               → spawn_subagent r",
        "explorer bees.md   → read bees.md",
        "explorer bees.md   “They dance. They",
        "kill -9 4711: killed the worker with",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("kill_report", "snapshot", "expected"),
    [
        (None, TreeSnapshot(runs=(make_run("parent"),), entries={}), "started no sub-agents"),
        (None, FINISHED_TREE, "finished before the worker could be killed"),
        (
            KillReport(
                interrupted_runs=4,
                resumed_runs=4,
                answered_turns=3,
                repeated_turns=0,
                in_flight_turns=3,
                requested_children=3,
                started_children=3,
            ),
            FINISHED_TREE,
            "4 of 4 runs resumed, 0 answered model calls repeated, 0 side effects repeated",
        ),
    ],
)
def test_an_unusual_outcome_is_described(
    kill_report: KillReport | None, snapshot: TreeSnapshot, expected: str
):
    _, terminal, output = make_view()
    print_demo_result(terminal, DemoOutcome(snapshot=snapshot, kill_report=kill_report, last_output=""))
    assert expected in output.getvalue()


def test_models_are_listed_and_the_small_model_is_linked_into_a_home(cli: CliFixture):
    """`scripts/bootstrap` downloads the weights for the tests, so no home downloads them again."""
    rows = {row["model"]: row for row in cli("models", "list", "--json", "--home", "fresh").json}
    assert (rows["local:smollm2"]["usable"], rows["local:smollm2"]["state"]) == (
        False,
        "retinue models pull smollm2",
    )
    pulled = cli("models", "pull", "--json", "--home", "fresh").json
    assert (pulled["model"], pulled["downloaded"]) == ("local:smollm2", False)
    rows = {row["model"]: row for row in cli("models", "list", "--json", "--home", "fresh").json}
    assert (rows["local:smollm2"]["usable"], rows["local:smollm2"]["path"]) == (True, pulled["path"])
    assert rows["local:smollm2"]["demonstration"] is True
    assert cli("models", "pull", "huge", "--home", "fresh").code == 7
