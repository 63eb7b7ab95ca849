"""Ask the user at this terminal: questions, approvals, and Ctrl-C."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct, field

from retinue.cli.ui.approval_card import answer_prompt, approval_card_lines
from retinue.cli.ui.terminal import Terminal
from retinue.domain.approval import Answer, Approval
from retinue.domain.question import Question, resolve_answer
from retinue.errors import Cancelled, UserUnavailable

AskFunction = Callable[[str, Sequence[str]], Awaitable[str]]


_TERMINAL_LOCK = asyncio.Lock()
"""Shared by all prompters: there is a single user at this terminal."""

_ANSWERS = {
    "y": Answer.ALLOW,
    "yes": Answer.ALLOW,
    "allow": Answer.ALLOW,
    "n": Answer.DENY,
    "no": Answer.DENY,
    "deny": Answer.DENY,
}
_ADD_ANSWERS = {"a": Answer.ADD, "add": Answer.ADD}
SHOW_ANSWERS = frozenset({"s", "show"})
"""Inputs that are not an answer: show everything, then ask again."""


class UserPrompter(Struct, frozen=True, kw_only=True):
    """Ask the user one question at a time, however many agents ask."""

    terminal: Terminal
    lock: asyncio.Lock = field(default_factory=lambda: _TERMINAL_LOCK)

    def ask_function(self) -> AskFunction | None:
        """Return the ask method, or None if standard input or standard error is not a terminal."""
        return self.ask if sys.stdin.isatty() and self.terminal.err.isatty() else None

    async def ask(self, question: str, options: Sequence[str] = ()) -> str:
        async with self.lock:
            self._print_question(question, options)
            async with self._answering() as read_answer:
                return resolve_answer(await read_answer(), options)

    async def read_reply(self, question: Question, answered_elsewhere: asyncio.Event) -> str | None:
        """Ask a question and return the answer.

        Returns None if it was answered elsewhere, and an empty string if the user leaves it open.
        """
        async with self.lock:
            asker = self.terminal.agent_titles.title(question.agent)
            self._print_question(f"{asker}: {question.text}", question.options)
            async with self._answering() as read_answer:
                while not answered_elsewhere.is_set():
                    try:
                        line = await line_unless_set(read_answer(), answered_elsewhere)
                    except UserUnavailable:
                        return ""
                    if line is None or line:
                        return line
            return None

    async def read_decision(self, approval: Approval, answered_elsewhere: asyncio.Event) -> Answer | None:
        """Show an approval card and return the decision, typed after the card was visible.

        Returns None if it was answered elsewhere. End of input means deny.
        """
        async with self.lock:
            if self.terminal.prompt is None:
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._print_lines(approval_card_lines(approval, title=self.terminal.agent_titles.title))
            self.terminal.print_note(f"? {answer_prompt(approval)}", colour="1")
            async with self._answering() as read_answer:
                while not answered_elsewhere.is_set():
                    try:
                        line = await line_unless_set(read_answer(), answered_elsewhere)
                    except UserUnavailable:
                        return Answer.DENY
                    if line is None:
                        break
                    if (answer := accepted_answers(approval).get(line.lower())) is not None:
                        return answer
                    self._print_lines(
                        approval_card_lines(approval, full=True, title=self.terminal.agent_titles.title)
                        if line.lower() in SHOW_ANSWERS
                        else []
                    )
                    self.terminal.print_note(f"? {answer_prompt(approval)}", colour="1")
            return None

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[Callable[[], Coroutine[Any, Any, str]]]:
        """Yield the function that reads a line as an answer to the question that was just printed."""
        prompt = self.terminal.prompt
        if prompt is None:
            yield read_line
            return
        async with prompt.answering() as read_answer:
            yield read_answer

    def _print_question(self, question: str, options: Sequence[str]) -> None:
        self.terminal.print_note(f"? {question}", colour="1")
        for number, option in enumerate(options, 1):
            self.terminal.print_note(f"  {number}. {option}", colour="0")

    def _print_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.terminal.print_note(line, colour="0")


def accepted_answers(approval: Approval) -> dict[str, Answer]:
    """Return the inputs accepted below a card, and the answer that each gives."""
    return _ANSWERS | (_ADD_ANSWERS if approval.access == "scope" else {})


@contextmanager
def catch_interrupts() -> Generator[asyncio.Event]:
    """Set the yielded event on the first Ctrl-C; exit immediately on the second.

    Exiting is safe: everything acknowledged is already on disk.
    """
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_sigint() -> None:
        if interrupted.is_set():
            os._exit(Cancelled.exit_code)
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, on_sigint)
    try:
        yield interrupted
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def line_unless_set(line: Coroutine[Any, Any, str], answered_elsewhere: asyncio.Event) -> str | None:
    """Return the typed line, or None if the event is set first."""
    line_task = asyncio.ensure_future(line)
    other_task = asyncio.ensure_future(answered_elsewhere.wait())
    try:
        await asyncio.wait((line_task, other_task), return_when=asyncio.FIRST_COMPLETED)
        if not line_task.done():
            return None
        return line_task.result()
    finally:
        line_task.cancel()
        other_task.cancel()


async def read_line() -> str:
    """Read one line, edited by the terminal itself, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    received = b""
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        while not received.endswith(b"\n"):
            ready.clear()
            await ready.wait()
            chunk = os.read(sys.stdin.fileno(), 4096)
            if not chunk:
                raise UserUnavailable("the question was not answered")
            received += chunk
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return received.decode("utf-8", "replace").strip()
