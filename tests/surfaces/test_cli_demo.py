"""The demonstration and the models: what is counted, what is shown, and which models there are."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cli_fixture import CliFixture

from retinue.cli.demo import View, told
from retinue.cli.ui.terminal import Terminal
from retinue.demo.local_model import Count, Ending, Seen, counted
from retinue.domain.run import Run, Status
from retinue.domain.transcript import Called, Entry, Said
from retinue.testing.ledgers import a_run

FIRST, SECOND = 100, 200


def child(name: str, status: Status) -> Run:
    run = a_run(name, status=status, root="parent", agent="explorer")
    return replace(run, ask=replace(run.ask, parent_run="parent", task=f"read {name}.md"))


def asked(name: str) -> Said:
    return Said(id=f"{name}-u", by="user", text=f"read {name}.md")


def read(name: str) -> list[Entry]:
    """A child that has called and not been answered yet."""
    return [
        asked(name),
        Said(id=f"{name}-a", by="agent", text="", calls=1),
        Called(id=f"{name}-c", tool="read", args=f'{{"path": "{name}.md"}}'),
    ]


def tree(status: Status, **entries: Sequence[Entry]) -> Seen:
    runs = (a_run("parent", status=status, root="parent"), *(child(name, status) for name in entries))
    spawns: list[Entry] = [
        Said(id="u", by="user", text="Ask them"),
        Said(id="a", by="agent", text="", calls=len(entries)),
        *(Called(id=f"s-{name}", tool="spawn_subagent", args='{"prompt": "read"}') for name in entries),
    ]
    return Seen(runs=runs, entries={"parent": spawns, **entries})


CUT = tree(Status.RUNNING, bees=read("bees"), tides=[asked("tides")])
END = tree(Status.DONE, bees=read("bees"), tides=read("tides"))


def test_the_kill_is_judged_by_what_was_asked_of_the_model_before_and_after_it():
    """Replies on disk are asked for never again; what was under way is, and is counted apart."""
    before = [(FIRST, "u"), (FIRST, "bees-u"), (FIRST, "tides-u")]
    found = counted(CUT, END, [*before, (SECOND, "tides-u"), (SECOND, "bees-c:result")], SECOND)
    assert (found.resumed, found.cut_off, found.answered, found.in_flight) == (3, 3, 2, 1)
    assert (found.asked_again, found.repeated, found.kept) == (0, 0, True)
    twice = counted(CUT, END, [*before, (SECOND, "bees-u")], SECOND)
    assert (twice.asked_again, twice.kept) == (1, False)
    born_twice = replace(END, runs=(*END.runs, child("bees", Status.DONE)))
    assert counted(CUT, born_twice, before, SECOND).repeated == 1
    assert not counted(CUT, CUT, before, SECOND).kept


def test_the_middle_is_when_some_have_spoken_and_not_all_are_done():
    assert not CUT.midway()
    assert tree(Status.RUNNING, bees=read("bees"), tides=read("tides")).midway()
    assert not END.midway()
    assert not Seen().midway()


def view() -> tuple[View, Terminal, io.StringIO]:
    out = io.StringIO()
    terminal = Terminal(json=False, out=out, err=io.StringIO())
    return View(terminal, clock=iter(range(100)).__next__), terminal, out


def test_each_thing_is_told_once_in_lines_that_fit():
    seen = tree(Status.RUNNING, bees=[*read("bees"), Said(id="end", by="agent", text="They dance. " * 20)])
    shows, _, out = view()
    shows.show(seen)
    shows.killed(4711, seen)
    shows.show(seen)
    lines = out.getvalue().splitlines()
    assert [line[9:46].rstrip() for line in lines] == [
        "main               → spawn_subagent r",
        "explorer bees.md   → read bees.md",
        "explorer bees.md   “They dance. They",
        "kill -9 4711: the worker and its 2 ru",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("count", "seen", "words"),
    [
        (None, Seen(runs=(a_run("parent"),), entries={}), "did not hand anything on"),
        (None, END, "before there was a middle"),
        (
            Count(cut_off=4, resumed=4, answered=3, asked_again=0, in_flight=3, handed_on=3, started=3),
            END,
            "4 of 4 resumed, 0 answered calls asked again, 0 effects repeated",
        ),
    ],
)
def test_what_went_otherwise_is_said_too(count: Count | None, seen: Seen, words: str):
    _, terminal, out = view()
    told(terminal, Ending(seen=seen, count=count, said=""))
    assert words in out.getvalue()


def test_models_are_listed_and_the_small_one_is_linked_into_a_home(retinue: CliFixture):
    """`scripts/bootstrap` brings the weights for the tests: no home has to fetch them again."""
    rows = {row["model"]: row for row in retinue("models", "list", "--json", "--home", "fresh").json}
    assert (rows["local:smollm2"]["usable"], rows["local:smollm2"]["state"]) == (
        False,
        "retinue models pull smollm2",
    )
    pulled = retinue("models", "pull", "--json", "--home", "fresh").json
    assert (pulled["model"], pulled["downloaded"]) == ("local:smollm2", False)
    rows = {row["model"]: row for row in retinue("models", "list", "--json", "--home", "fresh").json}
    assert (rows["local:smollm2"]["usable"], rows["local:smollm2"]["path"]) == (True, pulled["path"])
    assert rows["local:smollm2"]["demonstration"] is True
    assert retinue("models", "pull", "huge", "--home", "fresh").code == 7
