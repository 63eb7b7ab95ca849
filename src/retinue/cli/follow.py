"""Follow runs live: text on standard output, progress on standard error, Ctrl-C to cancel."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from retinue.app import App
from retinue.cli.command import exit_code, run_output
from retinue.cli.run_waiter import load_run_trees, wait_for_runs
from retinue.cli.ui.run_progress import RunProgress
from retinue.cli.ui.run_tree import tool_call_summary
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import UserPrompter, catch_interrupts
from retinue.cli.watch import interjection_line, wait_for_watchers
from retinue.domain.continuation import CUT_STOP_REASON, INCOMPLETE_NOTICE, is_incomplete
from retinue.domain.event import Event
from retinue.domain.model_selection import model_label
from retinue.domain.number_format import format_count
from retinue.domain.run import Run, Status, WaitReason
from retinue.domain.transcript import Entry, Message, Notice, ToolCall

PROGRESS_BAR_CHARS = frozenset("█░")
"""Characters that mark a note as a progress bar, which the footer draws instead of a line."""


async def follow_run(app: App, terminal: Terminal, start_run: Callable[[], Awaitable[Run]]) -> Run:
    """Start a run and follow it to its end.

    Ctrl-C cancels the run; a second Ctrl-C exits immediately.
    """

    async def start_single() -> list[Run]:
        return [await start_run()]

    return (await follow_runs(app, terminal, start_single))[0]


async def follow_runs(
    app: App,
    terminal: Terminal,
    start_runs: Callable[[], Awaitable[Sequence[Run]]],
    *,
    cancel_on_interrupt: bool = True,
) -> list[Run]:
    """Start several runs and follow them until all have ended.

    The text of a single run is streamed; the texts of several are printed in order when all have ended.
    Without `cancel_on_interrupt`, Ctrl-C only detaches, and UserDetached is raised.
    """
    prompter = UserPrompter(terminal=terminal)
    printer = RunEventPrinter(terminal, is_prompting=prompter.lock.locked)
    with app.listen(printer.on_event), catch_interrupts() as interrupted, detach_on_hangup():
        runs = await start_runs()
        printer.has_several_runs = len(runs) > 1
        printer.add_runs(runs, await load_run_trees(app, runs))
        await app.daemon.follow(runs)
        ids = [run.id for run in runs]
        async with printer.progress.show(app):
            finished = await wait_for_runs(
                app,
                ids,
                interrupted,
                prompter,
                before_interrupt=printer.progress.stop,
                cancel_on_interrupt=cancel_on_interrupt,
            )
        printer.finish(finished)
        await wait_for_watchers(app, terminal, finished, interrupted)
    return finished


@contextmanager
def detach_on_hangup() -> Generator[None]:
    """Keep the runs going when the terminal is closed (SIGHUP); their output is discarded."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    terminal_descriptors = [number for number in (1, 2) if os.isatty(number)]
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, redirect_output_to_null, terminal_descriptors)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def redirect_output_to_null(descriptors: Sequence[int]) -> None:
    """Discard what is written to these descriptors from now on."""
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    for number in descriptors:
        os.dup2(null_descriptor, number)


async def print_result(app: App, terminal: Terminal, run: Run) -> int:
    """Print how a run ended and where its transcript is, and return the exit code."""
    approval_ids = await app.approvals.pending_ids(run)
    if terminal.json:
        terminal.print_json(
            run_output(app, run)
            | {"approvals": approval_ids, "sandbox": await app.runs.lowest_sandbox_level(run)}
        )
    for approval_id in approval_ids:
        answer = f"retinue approvals answer {approval_id} allow"
        terminal.print_note(
            f'Approval {approval_id} is pending. View it with "retinue approvals show {approval_id}", then answer: {answer} (or deny)',
            colour="33",
        )
    tree = await load_run_trees(app, [run])
    for tree_run in tree:
        if tree_run.waiting_for is WaitReason.PERSON and not tree_run.is_suspended_for_person:
            terminal.print_note(reply_hint(tree_run, terminal.agent_titles.title), colour="33")
    for question in await app.runs.open_questions(run):
        asker = terminal.agent_titles.title(question.agent)
        terminal.print_note(f"{asker} asks: {question.text_with_options()}", colour="33")
    if run.status is not Status.DONE:
        terminal.print_note(status_sentence(run, tree, terminal.agent_titles.title), colour="31")
    elif is_incomplete(run):
        terminal.print_note(INCOMPLETE_NOTICE, colour="33")
    is_demonstration = run.model.startswith("local:")
    if is_demonstration or not terminal.json:
        model_note = f" ({model_label(run.model)})" if is_demonstration else ""
        location = run.transcript_path if app.config.is_persistent else "deleted (--forget)"
        terminal.print_note(f"{run.slug}: {location}{model_note}")
    return exit_code(run)


def status_sentence(run: Run, tree: Sequence[Run] = (), title: Callable[[str], str] = str) -> str:
    """Describe in one sentence a run that is not done.

    `tree` holds the related runs, for a run that waits for another; `title` returns the display name of an agent.
    """
    if run.status is Status.WAITING:
        return f"run {run.id} {waiting_description(run, tree, title)}"
    if run.status is Status.QUEUED:
        return (
            f"run {run.id} is queued behind another run of {run.slug}, which is waiting for you. "
            f'Wait for it with "retinue wait {run.id}".'
        )
    reason = f" ({run.reason})" if run.reason else ""
    return f"run {run.id} {str(run.status).replace('_', ' ')}{reason}{': ' if run.error else ''}{run.error}"


def waiting_description(run: Run, tree: Sequence[Run], title: Callable[[str], str]) -> str:
    """Describe what a run waits for and what the user can do about it.

    For a run that waits for a child, describes what the child waits for.
    """
    if run.waiting_for is WaitReason.APPROVAL:
        return 'is waiting for approval (see "retinue approvals list")'
    if run.is_suspended_for_person:
        return f"is waiting for you: {run.error}"
    if run.waiting_for is WaitReason.MODEL:
        return (
            f'is waiting for its model: {run.error} (cancel it, or "retinue runs resume {run.id} --model M")'
        )
    if run.waiting_for is WaitReason.PERSON:
        return f'is waiting for your message (reply with "retinue send {run.slug} TEXT")'
    if run.waiting_for is not WaitReason.CHILD:
        return f'is waiting for {run.waiting_for or "something"} (see "retinue runs show {run.id}")'
    live_children = [each for each in tree if each.request.parent_run == run.id and each.status.is_live]
    descriptions = [
        f"{title(each.agent)} ({each.slug}), which "
        + (waiting_description(each, tree, title) if each.status is Status.WAITING else f"is {each.status}")
        for each in sorted(live_children, key=lambda each: each.id)
    ]
    return (
        f"is waiting for {'; and for '.join(descriptions)}"
        if descriptions
        else 'is waiting for a sub-agent (see "retinue runs list")'
    )


def reply_hint(run: Run, title: Callable[[str], str] = str) -> str:
    """Tell the user how to reply to a run that waits for a message."""
    return f'{title(run.agent)} is waiting for your message. Continue it with "retinue send {run.slug} TEXT".'


class RunEventPrinter:
    """Print the events of the followed runs and of their descendants."""

    def __init__(self, terminal: Terminal, *, is_prompting: Callable[[], bool] = lambda: False) -> None:
        self.terminal = terminal
        self.progress = RunProgress(terminal.footer, is_prompting=is_prompting, titles=terminal.agent_titles)
        self.shows_notes = terminal.err.isatty()
        self.run_ids: frozenset[str] = frozenset()
        self.session_ids: frozenset[str] = frozenset()
        self.has_several_runs = False
        """True while several runs are followed at once: their text is then not streamed."""
        self.early_events: list[Event] = []
        self.turn_text: list[str] = []
        self.runs_with_schema: frozenset[str] = frozenset()
        """Runs of which only the valid answer is printed, so that standard output is JSON."""
        self.local_runs: set[str] = set()
        """Runs whose text arrives as events, because this process or its daemon runs them."""
        self.printed_calls: set[str] = set()
        """Calls that were printed already: a resumed run repeats its open calls."""
        self.runs_in_outage: set[str] = set()
        """Runs that wait for their model's server, which was printed."""
        self.has_printed_text = False
        self.mid_line = False
        self._is_cut = False
        self.output_closed = False

    def add_runs(self, runs: Sequence[Run], tree_runs: Sequence[Run] = ()) -> None:
        """Follow these runs, and print the events that arrived before their ids were known."""
        self.run_ids |= {run.id for run in runs}
        self.session_ids |= {run.session_id for run in runs}
        self.runs_with_schema |= {run.id for run in runs if run.request.output_schema is not None}
        self.progress.add_runs(runs, tree_runs)
        events, self.early_events = self.early_events, []
        for event in events:
            self.on_event(event)

    def on_event(self, event: Event) -> None:
        """Print an event.

        Never raises: a listener must not disturb the run, even if the output is closed.
        """
        if self._is_early(event):
            self.early_events.append(event)
            return
        if event.kind == "interjection.posted" and event.session in self.session_ids:
            self._guard_output(lambda: self.on_interjection(event))
        if (handler := _EVENT_HANDLERS.get(event.kind)) is not None and self.progress.tree.contains(event):
            self._guard_output(lambda: handler(self, event))
        self.progress.on_event(event)

    def _is_early(self, event: Event) -> bool:  # noqa: ARG002  (a chat decides by the event)
        """Return whether the event may belong to a run that is just being started."""
        return not self.run_ids

    def finish(self, runs: Sequence[Run]) -> None:
        """Print final texts that were not streamed, such as those from an exit tool."""
        self._guard_output(lambda: self._print_final_text(runs))

    def on_entry(self, entry: Entry) -> None:
        """Print an entry that another process appended to the transcript."""
        self._guard_output(lambda: self._print_entry(entry))

    def close(self) -> None:
        """Complete the last line."""
        self._guard_output(lambda: self._print_final_text(()))

    def _guard_output(self, print_output: Callable[[], None]) -> None:
        if self.output_closed:
            return
        try:
            print_output()
        except OSError:
            self.output_closed = True

    def _print_final_text(self, runs: Sequence[Run]) -> None:
        self._flush_turn_text()
        for run in runs:
            if run.id in self.runs_with_schema and not (run.status is Status.DONE and run.report.has_output):
                continue
            if run.text and (self.has_several_runs or run.exit_tool or not self.has_printed_text):
                self._print_text(run.text)
                self._end_line()
        self._end_line()

    def on_text_delta(self, event: Event) -> None:
        self.runs_in_outage.discard(event.run)
        if event.run not in self.run_ids - self.runs_with_schema or self.has_several_runs:
            return
        if self.terminal.streams_text:
            self._print_text(event.data["text"])
        else:
            self.turn_text.append(event.data["text"])

    def on_text_discarded(self, event: Event) -> None:
        if event.run not in self.run_ids:
            return
        self.turn_text.clear()
        if self.mid_line:
            self._print_note("(requested again)")

    def on_entry_saved(self, event: Event) -> None:
        if event.run in self.run_ids:
            self.local_runs.add(event.run)
            self._flush_turn_text()
            # A reply that was cut off is continued on the same line.
            is_notice = event.data.get("entry_kind") == "notice"
            self._is_cut = event.data.get("stop_reason") == CUT_STOP_REASON or (self._is_cut and is_notice)
            if not self._is_cut:
                self._end_line()

    def _print_entry(self, entry: Entry) -> None:
        if isinstance(entry, Message) and entry.role == "agent":
            self._print_text(entry.text)
            self._end_line()
        elif isinstance(entry, Message):
            self._print_note(f"> {one_line(entry.text)}")
        elif isinstance(entry, ToolCall):
            self._print_note(f"· {tool_call_summary(entry.tool, entry.args)}")
        elif isinstance(entry, Notice):
            self._print_note(f"· {one_line(entry.text)}")

    def on_tool_started(self, event: Event) -> None:
        """Print a tool call, unless it belongs to a child that has a card in the footer."""
        call_id = event.data.get("call", "")
        if call_id in self.printed_calls or (
            event.run not in self.run_ids and self.progress.footer is not None
        ):
            return
        self.printed_calls.add(call_id)
        self._print_note(
            f"{self._note_prefix(event)}{tool_call_summary(event.data['tool'], event.data.get('args') or '')}"
        )

    def on_tool_ended(self, event: Event) -> None:
        if not event.data.get("ok") and (event.run in self.run_ids or self.progress.footer is None):
            self._print_note(f"{self._note_prefix(event)}{event.data['tool']} failed")

    def on_run_state(self, event: Event) -> None:
        if error := event.data.get("error"):
            is_outage = event.data.get("phase") == WaitReason.MODEL
            if is_outage and event.run in self.runs_in_outage:
                return  # the server was asked again, and is still down
            if is_outage:
                self.runs_in_outage.add(event.run)
            waits = "waiting for its model: " if is_outage else ""
            self.terminal.print_note(f"{self._note_prefix(event)}{waits}{error}", colour="33")
        elif event.data.get("note") and (
            event.data.get("torn_tail_path")
            or event.data.get("fallback")
            or event.data.get("phase") == WaitReason.DISK
        ):
            self.terminal.print_note(f"{self._note_prefix(event)}{event.data['note']}", colour="33")
        elif (note := event.data.get("note")) and PROGRESS_BAR_CHARS.isdisjoint(note):
            self._print_note(f"{self._note_prefix(event)}{note}")

    def on_interjection(self, event: Event) -> None:
        """Print a watcher's message immediately: it concerns what is happening now."""
        self._end_line()
        text, colour = interjection_line(event, self.terminal.agent_titles)
        self.terminal.print_note(text, colour=colour)

    def on_run_ended(self, event: Event) -> None:
        if event.run not in self.run_ids:
            self._print_note(self._end_note(event))

    def _end_note(self, event: Event) -> str:
        node = self.progress.tree.live.get(event.run)
        name = self.progress.tree.display_name(event.run, event.agent)
        duration_note = "" if node is None else f" in {node.duration_text(event.at)}"
        call_note = (
            ""
            if node is None or not node.tool_call_count
            else f", {format_count(node.tool_call_count, 'call')}"
        )
        return f"· {name} {event.data.get('status')}{duration_note}{call_note}"

    def _note_prefix(self, event: Event) -> str:
        is_single = event.run in self.run_ids and not self.has_several_runs
        return "· " if is_single else f"· {self.progress.tree.display_name(event.run, event.agent)}: "

    def _print_note(self, text: str) -> None:
        if self.shows_notes:
            self._end_line()
            self.terminal.print_note(text)

    def _flush_turn_text(self) -> None:
        if self.turn_text:
            self._print_text("".join(self.turn_text))
            self.turn_text.clear()

    def _print_text(self, text: str) -> None:
        if self.terminal.json or not text:
            return
        self.has_printed_text = True
        self.mid_line = not text.endswith("\n")
        self.terminal.print_text(text)

    def _end_line(self) -> None:
        if self.mid_line:
            self.mid_line = False
            self.terminal.print_text("\n")


_EVENT_HANDLERS: Mapping[str, Callable[[RunEventPrinter, Event], None]] = {
    "text.delta": RunEventPrinter.on_text_delta,
    "text.discarded": RunEventPrinter.on_text_discarded,
    "entry.saved": RunEventPrinter.on_entry_saved,
    "tool.started": RunEventPrinter.on_tool_started,
    "tool.ended": RunEventPrinter.on_tool_ended,
    "run.state": RunEventPrinter.on_run_state,
    "run.ended": RunEventPrinter.on_run_ended,
}
"""Handler for each kind of event that is printed."""
