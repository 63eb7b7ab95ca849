"""What a followed run prints of each event, on a terminal and into a pipe."""

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


class TerminalOutput(io.StringIO):
    """An output stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedOutput(io.StringIO):
    """An output stream whose reader has closed it."""

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


def make_run(**fields: Any) -> Run:
    return replace(RUN, **fields)


def make_event(kind: EventKind, run: str = "R", **data: Any) -> Event:
    parent_run = "" if run == "R" else "R"
    return Event(kind=kind, at=NOW, session="S", run=run, parent_run=parent_run, agent="scout", data=data)


def print_events(
    out: io.StringIO, err: io.StringIO, *events: Event, run: Run | None = None
) -> RunEventPrinter:
    printer = RunEventPrinter(Terminal(json=False, out=out, err=err))
    printer.add_runs([run or make_run()])
    for event in events:
        printer.on_event(event)
    return printer


RETRIED = (
    make_event("text.delta", text="The cap"),
    make_event("text.discarded"),
    make_event("text.delta", text="The capital"),
    make_event("text.delta", text=" is Paris."),
    make_event("entry.saved", entry="E"),
)


def test_a_pipe_never_gets_discarded_text():
    out, err = io.StringIO(), io.StringIO()
    print_events(out, err, *RETRIED)
    assert (out.getvalue(), err.getvalue()) == ("The capital is Paris.\n", "")


def test_a_terminal_shows_text_as_it_streams_and_reports_when_it_was_discarded(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = TerminalOutput()
    print_events(terminal, terminal, *RETRIED)
    assert terminal.getvalue() == "The cap\n(requested again)\nThe capital is Paris.\n"


def test_only_the_text_of_the_followed_run_is_printed_as_its_reply(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = io.StringIO(), TerminalOutput()
    print_events(
        out,
        err,
        make_event("tool.started", tool="agent", call="C", args='{"task":\n"x"}'),
        make_event("run.queued", run="child"),
        make_event("text.delta", run="child", text="not this"),
        make_event("tool.started", run="child", tool="read", call="D", args='{"path": "\x1b[2J"}'),
        make_event("tool.ended", run="child", tool="read", call="D", ok=False),
        make_event("run.ended", run="child", status="done"),
        make_event("run.state", phase="model", note="rate limited, again in 3 s"),
        make_event("text.delta", text="this"),
        make_event("entry.saved", entry="E"),
    )
    assert out.getvalue() == "this\n"
    assert err.getvalue().splitlines() == [
        "· agent x",
        "· scout#2: read ␛[2J",
        "· scout#2: read failed",
        "· scout#2 done in 0s",
        "· rate limited, again in 3 s",
    ]


def test_events_before_the_run_is_known_are_printed_too():
    out = io.StringIO()
    printer = RunEventPrinter(Terminal(json=False, out=out, err=io.StringIO()))
    printer.on_event(make_event("text.delta", text="early"))
    printer.add_runs([make_run()])
    printer.finish([make_run(text="early")])
    assert out.getvalue() == "early\n"


def test_a_reply_without_deltas_is_printed_whole():
    out = io.StringIO()
    print_events(out, io.StringIO()).finish([make_run(text="all at once")])
    assert out.getvalue() == "all at once\n"


def test_a_closed_output_does_not_disturb_the_run():
    printer = print_events(ClosedOutput(), io.StringIO(), *RETRIED)
    printer.finish([make_run(text="The capital is Paris.")])
    assert printer.output_closed


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (make_run(status=Status.DONE), 0),
        (make_run(status=Status.FAILED), 1),
        (make_run(status=Status.LOST), 1),
        (make_run(status=Status.TIMED_OUT), 4),
        (make_run(status=Status.CANCELLED), 5),
        (make_run(status=Status.WAITING, waiting_for=WaitReason.APPROVAL), 6),
        (make_run(status=Status.WAITING, waiting_for=WaitReason.PERSON), 6),
    ],
)
def test_every_final_status_has_its_exit_code(run: Run, code: int):
    assert exit_code(run) == code


def test_the_status_of_an_ended_run_is_one_sentence():
    assert status_sentence(make_run(status=Status.TIMED_OUT, error="the deadline passed")) == (
        "run R timed out: the deadline passed"
    )


def make_waiting_run(waiting_for: WaitReason, **fields: Any) -> Run:
    return replace(make_run(status=Status.WAITING, waiting_for=waiting_for), **fields)


def test_the_status_of_a_waiting_run_reports_what_it_waits_for_and_what_to_do():
    assert status_sentence(make_waiting_run(WaitReason.APPROVAL)) == (
        'run R is waiting for approval (see "retinue approvals list")'
    )
    assert status_sentence(make_waiting_run(WaitReason.PERSON, slug="s-1")) == (
        'run R is waiting for your message (reply with "retinue send s-1 TEXT")'
    )


def test_the_status_of_a_run_that_waits_for_children_reports_what_each_of_them_waits_for():
    top = make_waiting_run(WaitReason.CHILD)
    request = replace(top.request, parent_run=top.id)
    needs_approval = make_waiting_run(
        WaitReason.APPROVAL, id="S", agent="helper", slug="s-2", request=request
    )
    needs_message = make_waiting_run(WaitReason.PERSON, id="T", agent="writer", slug="s-3", request=request)
    done = replace(needs_approval, id="U", status=Status.DONE)
    unrelated = replace(
        needs_approval, id="V", agent="stranger", request=replace(request, parent_run="elsewhere")
    )
    assert status_sentence(top, [done, needs_message, needs_approval, unrelated, top]) == (
        'run R is waiting for helper (s-2), which is waiting for approval (see "retinue approvals list"); '
        'and for writer (s-3), which is waiting for your message (reply with "retinue send s-3 TEXT")'
    )
    middle = replace(top, id="S", agent="helper", slug="s-2", request=request)
    lowest = replace(needs_message, request=replace(request, parent_run="S"))
    assert status_sentence(top, [top, middle, lowest]) == (
        "run R is waiting for helper (s-2), which is waiting for writer (s-3), which is waiting for your message "
        '(reply with "retinue send s-3 TEXT")'
    )


def test_the_status_of_a_waiting_run_has_the_display_names_of_the_agents_it_waits_for():
    top = make_waiting_run(WaitReason.CHILD)
    child = make_waiting_run(
        WaitReason.APPROVAL, id="S", agent="helper", slug="s-2", request=replace(top.request, parent_run="R")
    )
    assert status_sentence(top, [top, child], {"helper": "Personal Helper"}.__getitem__).startswith(
        "run R is waiting for Personal Helper (s-2), which is waiting for approval"
    )


def test_a_number_chooses_an_option_and_other_text_is_the_answer_itself():
    assert resolve_answer("2", ["deny", "allow"]) == "allow"
    assert resolve_answer("3", ["deny", "allow"]) == "3"
    assert resolve_answer("maybe", ["deny", "allow"]) == "maybe"
