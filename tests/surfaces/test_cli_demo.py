"""The demonstration and the models: what is counted, what is shown, and which models there are."""

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

FIRST, SECOND = 100, 200


def child(name: str, status: Status) -> Run:
    run = make_run(name, status=status, root_id="parent", agent="explorer")
    return replace(run, request=replace(run.request, parent_run="parent", task=f"read {name}.md"))


def asked(name: str) -> Message:
    return Message(id=f"{name}-u", role="user", text=f"read {name}.md")


def read(name: str) -> list[Entry]:
    """A child that has called and not been answered yet."""
    return [
        asked(name),
        Message(id=f"{name}-a", role="agent", text="", tool_call_count=1),
        ToolCall(id=f"{name}-c", tool="read", args=f'{{"path": "{name}.md"}}'),
    ]


def tree(status: Status, **entries: Sequence[Entry]) -> TreeSnapshot:
    runs = (make_run("parent", status=status, root_id="parent"), *(child(name, status) for name in entries))
    spawns: list[Entry] = [
        Message(id="u", role="user", text="Ask them"),
        Message(id="a", role="agent", text="", tool_call_count=len(entries)),
        *(ToolCall(id=f"s-{name}", tool="spawn_subagent", args='{"prompt": "read"}') for name in entries),
    ]
    return TreeSnapshot(runs=runs, entries={"parent": spawns, **entries})


CUT = tree(Status.RUNNING, bees=read("bees"), tides=[asked("tides")])
END = tree(Status.DONE, bees=read("bees"), tides=read("tides"))


def test_the_kill_is_judged_by_what_was_asked_of_the_model_before_and_after_it():
    """Replies on disk are asked for never again; what was under way is, and is counted apart."""
    before = [(FIRST, "u"), (FIRST, "bees-u"), (FIRST, "tides-u")]
    found = measure_kill(CUT, END, [*before, (SECOND, "tides-u"), (SECOND, "bees-c:result")], SECOND)
    assert (found.resumed_runs, found.interrupted_runs, found.answered_turns, found.in_flight_turns) == (
        3,
        3,
        2,
        1,
    )
    assert (found.repeated_turns, found.duplicate_children, found.is_lossless) == (0, 0, True)
    twice = measure_kill(CUT, END, [*before, (SECOND, "bees-u")], SECOND)
    assert (twice.repeated_turns, twice.is_lossless) == (1, False)
    born_twice = replace(END, runs=(*END.runs, child("bees", Status.DONE)))
    assert measure_kill(CUT, born_twice, before, SECOND).duplicate_children == 1
    assert not measure_kill(CUT, CUT, before, SECOND).is_lossless


def test_the_middle_is_when_some_have_spoken_and_not_all_are_done():
    assert not CUT.is_midway()
    assert tree(Status.RUNNING, bees=read("bees"), tides=read("tides")).is_midway()
    assert not END.is_midway()
    assert not TreeSnapshot().is_midway()


def view() -> tuple[DemoView, Terminal, io.StringIO]:
    out = io.StringIO()
    terminal = Terminal(json=False, out=out, err=io.StringIO())
    return DemoView(terminal, clock=iter(range(100)).__next__), terminal, out


def test_each_thing_is_told_once_in_lines_that_fit():
    seen = tree(
        Status.RUNNING, bees=[*read("bees"), Message(id="end", role="agent", text="They dance. " * 20)]
    )
    shows, _, out = view()
    shows.show(seen)
    shows.on_worker_killed(4711, seen)
    shows.show(seen)
    lines = out.getvalue().splitlines()
    assert [line[9:46].rstrip() for line in lines] == [
        "main               → spawn_subagent r",
        "explorer bees.md   → read bees.md",
        "explorer bees.md   “They dance. They",
        "kill -9 4711: killed the worker with",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("count", "seen", "words"),
    [
        (None, TreeSnapshot(runs=(make_run("parent"),), entries={}), "did not start sub-agents"),
        (None, END, "finished before the worker could be killed"),
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
            END,
            "4 of 4 runs resumed, 0 answered model calls repeated, 0 side effects repeated",
        ),
    ],
)
def test_what_went_otherwise_is_said_too(count: KillReport | None, seen: TreeSnapshot, words: str):
    _, terminal, out = view()
    print_demo_result(terminal, DemoOutcome(snapshot=seen, kill_report=count, last_output=""))
    assert words in out.getvalue()


def test_models_are_listed_and_the_small_one_is_linked_into_a_home(cli: CliFixture):
    """`scripts/bootstrap` brings the weights for the tests: no home has to fetch them again."""
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
