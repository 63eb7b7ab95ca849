"""A run as it goes: what is shown of each event, to a person and to a pipe."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.cli.command import exit_code
from retinue.cli.follow import RunEventPrinter, status_sentence
from retinue.cli.ui.terminal import Terminal
from retinue.domain.event import Event, EventKind
from retinue.domain.question import resolve_answer
from retinue.domain.run import Run, RunRequest, Status, WaitReason

NOW = datetime(2026, 11, 15, tzinfo=UTC)


class Watched(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


RUN = Run(
    id="R",
    request=RunRequest(key="k", agent="general", task="do it"),
    session_id="S",
    slug="s",
    session_key="s/main",
    agent="general",
    transcript_path="/s/session.md",
    created_at=NOW,
)


def a_run(**facts: Any) -> Run:
    return replace(RUN, **facts)


def an_event(kind: EventKind, run: str = "R", **data: Any) -> Event:
    above = "" if run == "R" else "R"
    return Event(kind=kind, at=NOW, session="S", run=run, parent_run=above, agent="scout", data=data)


def followed(out: io.StringIO, err: io.StringIO, *events: Event, run: Run | None = None) -> RunEventPrinter:
    follower = RunEventPrinter(Terminal(json=False, out=out, err=err))
    follower.add_runs([run or a_run()])
    for event in events:
        follower.on_event(event)
    return follower


RETRIED = (
    an_event("text.delta", text="The cap"),
    an_event("text.discarded"),
    an_event("text.delta", text="The capital"),
    an_event("text.delta", text=" is Paris."),
    an_event("entry.saved", entry="E"),
)


def test_a_pipe_never_sees_what_was_taken_back():
    out, err = io.StringIO(), io.StringIO()
    followed(out, err, *RETRIED)
    assert (out.getvalue(), err.getvalue()) == ("The capital is Paris.\n", "")


def test_a_person_sees_words_as_they_come_and_is_told_when_they_are_taken_back(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Watched()
    followed(screen, screen, *RETRIED)
    assert screen.getvalue() == "The cap\n(requested again)\nThe capital is Paris.\n"


def test_only_the_words_of_the_run_itself_are_its_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = io.StringIO(), Watched()
    followed(
        out,
        err,
        an_event("tool.started", tool="agent", call="C", args='{"task":\n"x"}'),
        an_event("run.queued", run="child"),
        an_event("text.delta", run="child", text="not this"),
        an_event("tool.started", run="child", tool="read", call="D", args='{"path": "\x1b[2J"}'),
        an_event("tool.ended", run="child", tool="read", call="D", ok=False),
        an_event("run.ended", run="child", status="done"),
        an_event("run.state", phase="model", note="rate limited, again in 3 s"),
        an_event("text.delta", text="this"),
        an_event("entry.saved", entry="E"),
    )
    assert out.getvalue() == "this\n"
    assert err.getvalue().splitlines() == [
        "· agent x",
        "· scout#2: read ␛[2J",
        "· scout#2: read failed",
        "· scout#2 done in 0s",
        "· rate limited, again in 3 s",
    ]


def test_what_was_heard_before_the_run_was_known_is_shown_too():
    out = io.StringIO()
    follower = RunEventPrinter(Terminal(json=False, out=out, err=io.StringIO()))
    follower.on_event(an_event("text.delta", text="early"))
    follower.add_runs([a_run()])
    follower.finish([a_run(text="early")])
    assert out.getvalue() == "early\n"


def test_words_that_never_came_in_pieces_are_shown_whole():
    out = io.StringIO()
    followed(out, io.StringIO()).finish([a_run(text="all at once")])
    assert out.getvalue() == "all at once\n"


def test_a_reader_that_left_does_not_disturb_the_run():
    follower = followed(Gone(), io.StringIO(), *RETRIED)
    follower.finish([a_run(text="The capital is Paris.")])
    assert follower.output_closed


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (a_run(status=Status.DONE), 0),
        (a_run(status=Status.FAILED), 1),
        (a_run(status=Status.LOST), 1),
        (a_run(status=Status.TIMED_OUT), 4),
        (a_run(status=Status.CANCELLED), 5),
        (a_run(status=Status.WAITING, waiting_for=WaitReason.APPROVAL), 6),
        (a_run(status=Status.WAITING, waiting_for=WaitReason.PERSON), 6),
    ],
)
def test_every_end_has_its_exit_code(run: Run, code: int):
    assert exit_code(run) == code


def test_an_end_is_one_sentence():
    assert status_sentence(a_run(status=Status.TIMED_OUT, error="the deadline passed")) == (
        "run R timed out: the deadline passed"
    )


def waiting(waiting_for: WaitReason, **facts: Any) -> Run:
    return replace(a_run(status=Status.WAITING, waiting_for=waiting_for), **facts)


def test_a_run_that_waits_says_for_what_and_what_to_do():
    assert status_sentence(waiting(WaitReason.APPROVAL)) == (
        'run R waits for an approval (see "retinue approvals list")'
    )
    assert status_sentence(waiting(WaitReason.PERSON, slug="s-1")) == (
        'run R waits for your message (reply with "retinue send s-1 TEXT")'
    )


def test_a_run_that_waits_for_others_says_what_each_of_them_waits_for():
    top = waiting(WaitReason.CHILD)
    ask = replace(top.request, parent_run=top.id)
    yes = waiting(WaitReason.APPROVAL, id="S", agent="helper", slug="s-2", request=ask)
    words = waiting(WaitReason.PERSON, id="T", agent="writer", slug="s-3", request=ask)
    done = replace(yes, id="U", status=Status.DONE)
    stranger = replace(yes, id="V", agent="stranger", request=replace(ask, parent_run="elsewhere"))
    assert status_sentence(top, [done, words, yes, stranger, top]) == (
        'run R waits for helper (s-2), which waits for an approval (see "retinue approvals list"); '
        'and for writer (s-3), which waits for your message (reply with "retinue send s-3 TEXT")'
    )
    between = replace(top, id="S", agent="helper", slug="s-2", request=ask)
    below = replace(words, request=replace(ask, parent_run="S"))
    assert status_sentence(top, [top, between, below]) == (
        "run R waits for helper (s-2), which waits for writer (s-3), which waits for your message "
        '(reply with "retinue send s-3 TEXT")'
    )


def test_a_number_picks_an_option_and_words_stand_for_themselves():
    assert resolve_answer("2", ["deny", "allow"]) == "allow"
    assert resolve_answer("3", ["deny", "allow"]) == "3"
    assert resolve_answer("maybe", ["deny", "allow"]) == "maybe"
