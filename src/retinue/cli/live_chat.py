"""Chat on a terminal: the prompt stays live while agents work, in the foreground and in the background."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from retinue.app import App
from retinue.cli.follow import RunEventPrinter, redirect_output_to_null, status_sentence
from retinue.cli.run_waiter import (
    load_run_trees,
    prompt_for_approval,
    prompt_for_reply,
    resume_orphans_forever,
)
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import UserPrompter
from retinue.domain.event import Event
from retinue.domain.number_format import format_count
from retinue.domain.run import Run, Status, WaitReason
from retinue.errors import RetinueError

REQUEST_POLL_SECONDS = 1.0
"""Interval at which to check whether runs of other processes ask the user something."""
MAX_ECHO_LINES = 12
"""Number of lines of a sent message that stay on the screen."""
MAX_QUEUED_CHARS = 60
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
HANGUP_EXIT_CODE = 128 + signal.SIGHUP
ASKING_PHASES = (WaitReason.APPROVAL, WaitReason.PERSON)


class FrontRun:
    """The answer that the user waits for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_cancelled = False
        self.detached = asyncio.Event()
        """Set when the user moves the answer to the background."""


class LiveChat:
    """Follow one answer in the foreground and any number of runs in the background, and keep the prompt live.

    Args:
        app: The application.
        terminal: The terminal.
        commands: Returns the slash commands, for completion.
        is_immediate: Returns whether a line is a command that need not wait for the foreground answer.
        titles: Display names by agent, of agents that have one.
    """

    def __init__(
        self,
        app: App,
        terminal: Terminal,
        *,
        commands: Callable[[], Iterable[str]],
        is_immediate: Callable[[str], bool],
        titles: dict[str, str],
    ) -> None:
        from retinue.cli.ui.chat_prompt import ChatPrompt  # noqa: PLC0415  (prompt_toolkit is slow to import)

        self.app = app
        self.terminal = terminal
        self.is_immediate = is_immediate
        self.prompter = UserPrompter(terminal=terminal)
        self.prompt = ChatPrompt(
            terminal.out, commands=commands, on_submit=self._on_submit, on_interrupt=self.cancel_front
        )
        with terminal.use_prompt(self.prompt):
            self.printer = ChatEventPrinter(terminal, on_reply_ended=self._on_reply_ended)
        self.printer.progress.tree.titles = titles
        self.front: FrontRun | None = None
        self.messages: list[str] = []
        """Lines that wait until the foreground answer has ended."""
        self._message_added = asyncio.Event()
        self._commands: asyncio.Queue[str] = asyncio.Queue()
        self._ended_replies: asyncio.Queue[Event] = asyncio.Queue()
        self._followed: dict[str, Run] = {}
        """The runs that this chat started, by id, until nothing of their trees is active."""
        self._followed_ids: list[str] = []
        self._declined_questions: set[str] = set()
        self._requests_changed = asyncio.Event()
        self._asking = asyncio.Lock()
        self._exit_code = 0
        self._terminal_descriptors = [number for number in (1, 2) if os.isatty(number)]
        self._cancellation: asyncio.Future[None] | None = None

    # the whole chat

    async def run(self, handle_line: Callable[[str], Awaitable[bool]]) -> None:
        """Pass lines to `handle_line` until it returns False or the user exits.

        Lines wait for the foreground answer, except commands that are immediate.
        """

        async def send_messages() -> None:
            while True:
                await self._next_message()
                text = self.messages.pop(0)
                self._show_queued()
                self._echo(text)
                if not await handle_line(text):
                    self.prompt.leave()

        async def run_commands() -> None:
            while True:
                text = await self._commands.get()
                self._echo(text)
                if not await handle_line(text):
                    self.prompt.leave()

        with (
            self.terminal.use_prompt(self.prompt),
            self.app.listen(self._on_event),
            self._leave_on_signals(),
        ):
            async with self.printer.progress.show(self.app), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(each)
                    for each in (
                        send_messages(),
                        run_commands(),
                        self._print_ended_replies(),
                        self._answer_requests(),
                        resume_orphans_forever(self.app, self._followed_ids),
                    )
                ]
                is_open = await self.prompt.run()
                for task in tasks:
                    task.cancel()
            if not is_open or self._exit_code == HANGUP_EXIT_CODE:
                await self._finish_without_terminal()
        await self._print_exit_notes()
        if self._exit_code:
            raise SystemExit(self._exit_code)

    @contextmanager
    def _leave_on_signals(self) -> Generator[None]:
        """Restore the terminal before a signal ends the process."""
        loop = asyncio.get_running_loop()

        def leave(number: int) -> None:
            self._exit_code = 128 + number
            self.prompt.leave()

        handled = [each for each in TERMINATION_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, leave, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def _finish_without_terminal(self) -> None:
        """Wait until the runs have ended after the terminal was closed; their output is discarded."""
        redirect_output_to_null(self._terminal_descriptors)
        for run in list(self._followed.values()):
            with suppress(RetinueError):
                await self.app.runs.wait(run.id)

    async def _print_exit_notes(self) -> None:
        if self.messages:
            self.terminal.print_note(
                f"{format_count(len(self.messages), 'queued message')} not sent.", colour="33"
            )
        active = [run for run in await self._active_runs() if run.status is not Status.WAITING]
        if not active:
            return
        count = f"{len(active)} runs are" if len(active) > 1 else "1 run is"
        if self.app.daemon.link is not None:
            self.terminal.print_note(
                f'{count} still active: the daemon continues the work. See "retinue runs list".', colour="33"
            )
        elif self.app.config.is_persistent:
            self.terminal.print_note(
                f'{count} still active: exiting interrupts the work. Continue with "retinue runs resume".',
                colour="33",
            )
        else:
            self.terminal.print_note(f"{count} still active: exiting ends the work.", colour="33")

    async def _active_runs(self) -> list[Run]:
        roots = list(self._followed.values())
        return [run for run in await load_run_trees(self.app, roots) if run.status.is_live]

    # lines

    def _on_submit(self, text: str) -> None:
        if self.is_immediate(text):
            self._commands.put_nowait(text)
            return
        self.messages.append(text)
        self._message_added.set()
        self._show_queued()

    async def _next_message(self) -> None:
        while not self.messages:
            self._message_added.clear()
            await self._message_added.wait()

    def _show_queued(self) -> None:
        self.prompt.queued = (
            [one_line(text, MAX_QUEUED_CHARS) for text in self.messages] if self.front is not None else []
        )
        self.prompt.refresh()

    def _echo(self, text: str) -> None:
        """Print a line that the user sent, so that it stays above the answer."""
        self.printer.break_line()
        lines = text.split("\n")
        for number, line in enumerate(lines[:MAX_ECHO_LINES]):
            self.terminal.print_line(f"{'  ' if number else '> '}{line}")
        if len(lines) > MAX_ECHO_LINES:
            self.terminal.print_line(f"  … {len(lines) - MAX_ECHO_LINES} more lines")

    # the foreground answer

    async def follow(self, start_run: Callable[[], Awaitable[Run]]) -> Run:
        """Start a run and follow it in the foreground until it ends, needs the user, or is moved to the background."""
        with self.printer.expect_run():
            run = await start_run()
            self.front = front = FrontRun(run)
            self.printer.set_front(run, await load_run_trees(self.app, [run]))
        self._followed[run.id] = run
        self._followed_ids[:] = list(self._followed)
        self._show_queued()
        await self.app.daemon.follow([run])
        try:
            run = await self._wait_for_front(front)
        finally:
            self.front = None
            self._show_queued()
        self.printer.close_front([] if front.detached.is_set() and run.status.is_live else [run])
        return run

    async def _wait_for_front(self, front: FrontRun) -> Run:
        over = asyncio.ensure_future(self._wait_until_over(front.run))
        detached = asyncio.ensure_future(front.detached.wait())
        try:
            await asyncio.wait((over, detached), return_when=asyncio.FIRST_COMPLETED)
            return over.result() if over.done() else await self.app.runs.find(front.run.id)
        finally:
            over.cancel()
            detached.cancel()

    async def _wait_until_over(self, run: Run) -> Run:
        """Wait until the run has ended, or waits for an answer that the user has declined to give."""
        is_waiting = False
        while True:
            run = await self.app.runs.wait_until_replied(run.id)
            if run.status.is_final or run.waits_for_background:
                return run
            if await self._ask(run):
                is_waiting = False
            elif is_waiting:
                return run
            else:
                is_waiting = True  # check again: another task may have asked the same question meanwhile

    def cancel_front(self) -> bool:
        """Stop the foreground answer and what it waits for; return False if there is none to stop."""
        front = self.front
        if front is None or front.is_cancelled:
            return False
        front.is_cancelled = True

        async def cancel() -> None:
            with suppress(RetinueError):
                await self.app.runs.cancel(front.run.id, keep_background=True)

        self._cancellation = asyncio.ensure_future(cancel())
        return True

    def detach_front(self) -> Run | None:
        """Move the foreground answer to the background, and return it."""
        if self.front is None:
            return None
        self.front.detached.set()
        return self.front.run

    # questions

    async def _answer_requests(self) -> None:
        """Ask the user what runs in the background need, as soon as they need it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_POLL_SECONDS):
                    await self._requests_changed.wait()
            self._requests_changed.clear()
            with suppress(RetinueError):
                await self._forget_ended_runs()
                for run in list(self._followed.values()):
                    await self._ask(run)

    async def _forget_ended_runs(self) -> None:
        if not self._followed:
            return
        live_roots = {run.root_id for run in await self._active_runs()}
        for run in list(self._followed.values()):
            if run.root_id not in live_roots and (self.front is None or self.front.run.id != run.id):
                del self._followed[run.id]
        self._followed_ids[:] = list(self._followed)
        self.printer.progress.root_ids &= live_roots

    async def _ask(self, run: Run) -> bool:
        """Ask the user for the approvals and answers that a run's tree needs; return whether any was given."""
        if self.prompter.ask_function() is None:
            return False
        async with self._asking:
            approvals = await self.app.approvals.pending(run)
            for approval in approvals:
                await prompt_for_approval(self.app, approval, self.prompter)
            questions = [
                each
                for each in ([] if approvals else await self.app.runs.open_questions(run))
                if each.tool_call.id not in self._declined_questions
            ]
            for question in questions:
                named = replace(
                    question, agent=self.printer.progress.tree.titles.get(question.agent, question.agent)
                )
                if not await prompt_for_reply(self.app, named, self.prompter):
                    self._declined_questions.add(question.tool_call.id)
        if approvals or questions:
            await self.app.daemon.follow([run])
        return bool(approvals or questions)

    # events

    def _on_event(self, event: Event) -> None:
        self.printer.on_event(event)
        if event.kind == "approval.asked" or (
            event.kind == "run.state" and event.data.get("phase") in ASKING_PHASES
        ):
            self._requests_changed.set()

    def _on_reply_ended(self, event: Event) -> None:
        self._ended_replies.put_nowait(event)

    async def _print_ended_replies(self) -> None:
        """Print the answers of runs that ended in the background."""
        while True:
            event = await self._ended_replies.get()
            with suppress(RetinueError):
                run = await self.app.runs.find(event.run)
                self.printer.print_reply(run)
                if run.status is not Status.DONE:
                    self.terminal.print_note(
                        status_sentence(
                            run, await load_run_trees(self.app, [run]), self.terminal.agent_titles.title
                        ),
                        colour="31",
                    )


class ChatEventPrinter(RunEventPrinter):
    """Print the events of the foreground answer as they arrive, and those of background runs when a run ends.

    Args:
        terminal: The terminal.
        on_reply_ended: Called with the last event of a run that answers in one of the chat's conversations,
            but not in the foreground.
    """

    def __init__(self, terminal: Terminal, *, on_reply_ended: Callable[[Event], None]) -> None:
        super().__init__(terminal)
        self.on_reply_ended = on_reply_ended
        self.shown_interjections: set[str] = set()
        """Ids of the watchers' messages that were printed."""
        self._is_expecting_run = False
        self._session_roots: dict[str, str] = {}
        """The tree of each conversation's latest run: a run that reads an announcement belongs to it."""

    @contextmanager
    def expect_run(self) -> Generator[None]:
        """Keep events of unknown runs while a run is being started, until its id is known."""
        self._is_expecting_run = True
        try:
            yield
        finally:
            self._is_expecting_run = False
            self.early_events.clear()

    def set_front(self, run: Run, tree_runs: list[Run]) -> None:
        """Print the text of this run as it arrives."""
        self._is_expecting_run = False
        self._session_roots[run.session_id] = run.root_id
        self.run_ids, self.has_printed_text = frozenset(), False
        self.turn_text.clear()
        self.add_runs([run], tree_runs)

    def close_front(self, runs: list[Run]) -> None:
        """End the output of the foreground answer: with its final text, unless it was detached."""
        self.finish(runs)
        self.run_ids = frozenset()
        self.progress.watched_run = ""
        self.progress.changed.set()

    def break_line(self) -> None:
        """End the unfinished line of a streaming answer, so that other output has lines of its own."""
        self._guard_output(self._end_line)

    def print_reply(self, run: Run) -> None:
        """Print the answer of a run that ended in the background."""
        self._guard_output(lambda: self._print_reply(run))

    def _print_reply(self, run: Run) -> None:
        if not run.text:
            return
        front_has_text = self.has_printed_text
        self._end_line()
        self._print_text(run.text)
        self._end_line()
        self.has_printed_text = front_has_text

    def _is_early(self, event: Event) -> bool:
        return self._is_expecting_run and not self.progress.tree.contains(event)

    def on_event(self, event: Event) -> None:
        if (
            event.kind in ("run.queued", "run.started")
            and event.session in self._session_roots
            and not self._is_early(event)
            and not self.progress.tree.contains(event)
        ):
            self.progress.tree.add_root(event.run, self._session_roots[event.session])
        super().on_event(event)
        is_reply = event.kind == "run.ended" and event.session in self._session_roots
        if is_reply and event.run not in self.run_ids and not self._is_early(event):
            self.on_reply_ended(event)

    def on_interjection(self, event: Event) -> None:
        super().on_interjection(event)
        self.shown_interjections.add(event.data["interjection"])
