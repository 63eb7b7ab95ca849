"""The person at this terminal: questions put to them, and the keys with which they stop a run."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from retinue.cli.ui.approval_card import card, choices
from retinue.cli.ui.terminal import Terminal
from retinue.domain.approval import Answer, Approval
from retinue.domain.question import Question, chosen
from retinue.domain.value import value
from retinue.errors import Cancelled, NobodyHere

Asker = Callable[[str, Sequence[str]], Awaitable[str]]


_TURN = asyncio.Lock()
"""There is one person at one terminal, whoever asks."""

_ANSWERS = {
    "y": Answer.ALLOW,
    "yes": Answer.ALLOW,
    "allow": Answer.ALLOW,
    "n": Answer.DENY,
    "no": Answer.DENY,
    "deny": Answer.DENY,
}
_MORE = {"a": Answer.ADD, "add": Answer.ADD}
SHOW = frozenset({"s", "show"})
"""No answer: everything is shown, and asked again."""


@value
class Person:
    """Answers one question at a time, however many agents ask."""

    terminal: Terminal
    turn: asyncio.Lock = field(default_factory=lambda: _TURN)

    def answerer(self) -> Asker | None:
        """None where nobody can be asked: standard input or standard error is no terminal."""
        return self.ask if sys.stdin.isatty() and self.terminal.err.isatty() else None

    async def ask(self, question: str, options: Sequence[str] = ()) -> str:
        async with self.turn:
            self._put(question, options)
            return chosen(await _line(), options)

    async def reply(self, question: Question, elsewhere: asyncio.Event) -> str | None:
        """The person's words to a question; None when it is settled elsewhere, nothing when they leave it open."""
        async with self.turn:
            self._put(f"{question.agent}: {question.text}", question.options)
            while not elsewhere.is_set():
                try:
                    line = await _first(_line(), elsewhere)
                except NobodyHere:
                    return ""
                if line is None or line:
                    return line
            return None

    async def decide(self, approval: Approval, elsewhere: asyncio.Event) -> Answer | None:
        """The person's word on an approval, typed after they could see it; None when it is settled elsewhere. Leaving
        is a no."""
        async with self.turn:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._show(card(approval))
            self.terminal.note(f"? {choices(approval)}", colour="1")
            while not elsewhere.is_set():
                try:
                    line = await _first(_line(), elsewhere)
                except NobodyHere:
                    return Answer.DENY
                if line is None:
                    break
                if (said := answers(approval).get(line.lower())) is not None:
                    return said
                self._show(card(approval, whole=True) if line.lower() in SHOW else [])
                self.terminal.note(f"? {choices(approval)}", colour="1")
            return None

    def _put(self, question: str, options: Sequence[str]) -> None:
        self.terminal.note(f"? {question}", colour="1")
        for number, option in enumerate(options, 1):
            self.terminal.note(f"  {number}. {option}", colour="0")

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.terminal.note(line, colour="0")


def answers(approval: Approval) -> dict[str, Answer]:
    """What may be typed below a card, and what it says."""
    return _ANSWERS | (_MORE if approval.touch == "more" else {})


@contextmanager
def interrupts() -> Generator[asyncio.Event]:
    """Ctrl-C sets the event once; a second one leaves at once: what was acknowledged is on disk already."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def press() -> None:
        if pressed.is_set():
            os._exit(Cancelled.exit_code)
        pressed.set()

    loop.add_signal_handler(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _first(line: Coroutine[Any, Any, str], elsewhere: asyncio.Event) -> str | None:
    """What is typed, unless something else comes first."""
    typing = asyncio.ensure_future(line)
    other = asyncio.ensure_future(elsewhere.wait())
    try:
        await asyncio.wait((typing, other), return_when=asyncio.FIRST_COMPLETED)
        if not typing.done():
            return None
        return typing.result()
    finally:
        typing.cancel()
        other.cancel()


async def _line() -> str:
    """One line that the terminal itself edits; the loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    typed = b""
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        while not typed.endswith(b"\n"):
            ready.clear()
            await ready.wait()
            piece = os.read(sys.stdin.fileno(), 4096)
            if not piece:
                raise NobodyHere("the question was left without an answer")
            typed += piece
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return typed.decode("utf-8", "replace").strip()
