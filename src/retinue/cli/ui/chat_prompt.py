"""The live prompt of `retinue chat`: edit the next message while output appears above it.

Imports prompt_toolkit, so import this module only when a chat starts on a terminal.
"""

import asyncio
import errno
import os
import select
import sys
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import PromptSession

from retinue.cli.ui.live_footer import FooterLine, TerminalSize, display_width, terminal_size
from retinue.domain.sanitize import safe_name
from retinue.errors import UserUnavailable

PROMPT = "> "
ANSWER_PROMPT = "answer> "
CONTINUATION = "  "
INTERRUPT_HINT = "(press Ctrl-C again, or Ctrl-D, to exit)"
FRAME_SECONDS = 0.03
"""Time in which output is collected, so that a stream of small pieces does not redraw the prompt for each."""
MIN_INPUT_LINES = 4
"""Rows of the screen that are left for the input."""
STYLES: Mapping[str, str] = {
    "1": "bold", "2": "fg:ansibrightblack", "31": "fg:ansired", "32": "fg:ansigreen", "33": "fg:ansiyellow",
    "36": "fg:ansicyan",
}  # fmt: skip
"""Style of prompt_toolkit for each colour of a footer line."""


class ChatPrompt:
    """The prompt, and above it the live lines: the unfinished line of output, progress and queued messages.

    It takes the place of the terminal's footer: text is written above it, and it never blocks the event loop.

    Args:
        out: The terminal.
        commands: Returns the words that complete a line that starts with a slash.
        on_submit: Called with each message.
        on_interrupt: Called on Ctrl-C; returns whether there was an answer to stop.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        commands: Callable[[], Iterable[str]],
        on_submit: Callable[[str], None],
        on_interrupt: Callable[[], bool],
    ) -> None:
        self.stream = out
        self.commands = commands
        self.current_size: Callable[[], TerminalSize] = lambda: terminal_size(out)
        self.is_paused: Callable[[], bool] = lambda: False
        self.on_submit = on_submit
        self.on_interrupt = on_interrupt
        self.queued: Sequence[str] = ()
        """Messages that wait for the foreground answer; shown above the prompt."""
        self._unfinished_line = ""
        self._footer_lines: Sequence[FooterLine] = ()
        self._pending_text: list[str] = []
        self._is_flush_scheduled = False
        self._is_left = False
        self._answers: asyncio.Queue[str | None] | None = None
        """The answers to the question that is open; None for its end."""
        self._is_hint_shown = False
        self._output = _PromptOutput(out, self._window_size, term=os.environ.get("TERM"), enable_cpr=False)
        self._session = self._create_session()

    def _create_session(self) -> PromptSession[str]:
        is_command = Condition(lambda: self._session.default_buffer.text.startswith("/"))
        session: PromptSession[str] = PromptSession(
            self._live_fragments,
            multiline=True,
            prompt_continuation=CONTINUATION,
            key_bindings=self._create_key_bindings(),
            completer=_CommandCompleter(self._matching_commands),
            complete_while_typing=is_command,
            reserve_space_for_menu=6,
            history=InMemoryHistory(),
            input_processors=[_HiddenCharacters()],
            enable_suspend=True,
            erase_when_done=True,
            output=self._output,
        )
        session.app.after_render += self._on_rendered
        return session

    def _on_rendered(self, _app: Application[str]) -> None:
        self._output.release()

    def _window_size(self) -> Size:
        size = self.current_size()
        return Size(rows=size.height, columns=size.width)

    async def run(self) -> bool:
        """Edit messages until the user exits; return False if the terminal was closed instead."""
        if self._is_left:
            return True
        self._output.keeps_bracketed_paste = True
        try:
            await self._session.app.run_async(set_exception_handler=False)
        except EOFError:
            return False
        finally:
            self._output.release()
            self._flush_at_end()
        return True

    def leave(self) -> None:
        """End `run`, also if it has not begun."""
        self._is_left = True
        app = self._session.app
        if app.is_running and not app.is_done:
            self._output.keeps_bracketed_paste = False
            app.exit(result="")

    # the footer

    def write_above(self, text: str) -> None:
        """Print text above the prompt; an unfinished line is shown until the rest of it arrives."""
        self._pending_text.append(text)
        if not self._is_flush_scheduled and self._session.app.is_running:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_later(FRAME_SECONDS, self._flush)

    def draw(self, lines: Sequence[FooterLine]) -> None:
        """Show these lines above the prompt."""
        if tuple(lines) != tuple(self._footer_lines):
            self._footer_lines = tuple(lines)
            self.refresh()

    def refresh(self) -> None:
        """Draw the prompt again."""
        self._session.app.invalidate()

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        app = self._session.app
        if not app.is_running or app.is_done:
            return
        finished, newline, self._unfinished_line = self._take_pending().rpartition("\n")
        if newline:
            self._output.hold()
            app.renderer.erase()
            self._output.write_raw(finished + newline)
        app.invalidate()

    def _take_pending(self) -> str:
        text = self._unfinished_line + "".join(self._pending_text)
        self._pending_text.clear()
        return text

    def _flush_at_end(self) -> None:
        text, self._unfinished_line = self._take_pending(), ""
        if text:
            self._output.write_raw(text if text.endswith("\n") else f"{text}\n")
            self._output.flush()

    # questions

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[Callable[[], Coroutine[Any, Any, str]]]:
        """Take lines as answers to the question that was just printed; yields the function that reads one.

        What was typed before the question was visible is never an answer: it is kept, and
        restored at the prompt afterwards. Ctrl-D raises UserUnavailable.
        """
        self._flush()
        await self._read_typed_keys()
        buffer = self._session.default_buffer
        draft, answers = buffer.document, asyncio.Queue[str | None]()
        self._answers = answers
        buffer.reset()
        self.refresh()

        async def read_answer() -> str:
            if (answer := await answers.get()) is None:
                raise UserUnavailable("the question was not answered")
            return answer.strip()

        try:
            yield read_answer
        finally:
            self._answers = None
            buffer.reset(draft)
            self.refresh()

    async def _read_typed_keys(self) -> None:
        """Let the prompt read the keys that were pressed so far."""
        descriptor, app = sys.stdin.fileno(), self._session.app
        while app.is_running and not app.is_done and select.select([descriptor], [], [], 0)[0]:  # noqa: ASYNC110  (no event: the kernel has the keys)
            await asyncio.sleep(0)

    # keys

    def _create_key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        for sequence, handler in (
            (("enter",), self._submit),
            (("escape", "enter"), _insert_newline),
            (("tab",), self._complete),
            (("c-c",), self._interrupt),
            (("<sigint>",), self._interrupt),
        ):
            keys.add(*sequence)(handler)
        is_empty = Condition(lambda: not self._session.default_buffer.text)
        keys.add("c-d", filter=is_empty)(self._end_of_input)
        return keys

    def _submit(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.text.rstrip("\n")
        self._is_hint_shown = False
        if self._answers is not None:
            buffer.reset()
            self._answers.put_nowait(text)
            return
        buffer.reset(append_to_history=bool(text.strip()))
        if text.strip():
            self.on_submit(text)

    def _matching_commands(self, typed: str) -> list[str]:
        """Return the commands that start with the typed text; none while a question is answered."""
        if self._answers is not None or not typed.startswith("/"):
            return []
        return [command for command in self.commands() if command.startswith(typed)]

    def _complete(self, event: KeyPressEvent) -> None:
        """Complete the only matching command, or show the matching ones and step through them."""
        buffer = event.current_buffer
        typed = buffer.document.text_before_cursor
        matches = self._matching_commands(typed)
        if len(matches) == 1:
            buffer.insert_text(matches[0][len(typed) :])
        elif buffer.complete_state is not None:
            buffer.complete_next()
        elif matches:
            buffer.start_completion()

    def _interrupt(self, event: KeyPressEvent) -> None:
        """Stop the foreground answer, else discard the typed text, else exit at the second press."""
        buffer: Buffer = event.current_buffer
        if self.on_interrupt():
            self._is_hint_shown = False
        elif buffer.text:
            buffer.reset()
        elif self._is_hint_shown:
            self.leave()
        else:
            self._is_hint_shown = True
            self.write_above(f"{INTERRUPT_HINT}\n")

    def _end_of_input(self, _event: KeyPressEvent) -> None:
        if self._answers is None:
            self.leave()
        else:
            self._answers.put_nowait(None)

    # what is shown

    def _live_fragments(self) -> StyleAndTextTuples:
        size = self.current_size()
        lines: list[FooterLine] = [
            ((row, ""),) for row in wrap_to_width(self._unfinished_line, size.width - 1)
        ]
        footer_lines = [*self._footer_lines, *(((f"queued: {text}", "2"),) for text in self.queued)]
        room = max(0, size.height - MIN_INPUT_LINES - len(footer_lines))
        shown = [*lines[max(0, len(lines) - room) :], *footer_lines][: max(0, size.height - MIN_INPUT_LINES)]
        fragments: StyleAndTextTuples = []
        for line in shown:
            fragments += [(STYLES.get(colour, ""), text) for text, colour in line]
            fragments.append(("", "\n"))
        fragments.append((STYLES["36"], PROMPT if self._answers is None else ANSWER_PROMPT))
        return fragments


class _CommandCompleter(Completer):
    """Complete the command at the start of a message."""

    def __init__(self, matching_commands: Callable[[str], Sequence[str]]) -> None:
        self._matching_commands = matching_commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  (prompt_toolkit's interface)
        typed = document.text_before_cursor
        for command in self._matching_commands(typed):
            yield Completion(command, start_position=-len(typed), display=safe_name(command))


class _HiddenCharacters(Processor):
    """Show control and invisible characters of the typed or pasted text, as in all other output."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = transformation_input.fragments
        text = fragment_list_to_text(fragments)
        if safe_name(text) == text:
            return Transformation(fragments)
        shown = [(style, safe_name(char)) for style, piece, *_ in fragments for char in piece]
        starts = [0, *accumulate(len(piece) for _, piece in shown)]
        return Transformation(
            [*shown],
            source_to_display=lambda at: starts[min(at, len(starts) - 1)],
            display_to_source=lambda at: max(0, bisect_right(starts, at) - 1),
        )


class _PromptOutput(Vt100_Output):
    """The terminal: writes each frame at once, and keeps bracketed paste on from the first frame to the last.

    prompt_toolkit turns bracketed paste off and on again whenever something is printed above the prompt;
    text pasted in between would arrive as separate lines.
    """

    keeps_bracketed_paste = False
    _is_held = False

    def hold(self) -> None:
        """Keep what is written until `release`."""
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self.flush()

    def flush(self) -> None:
        if self._is_held:
            return
        try:
            super().flush()
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal was closed
                raise

    def disable_bracketed_paste(self) -> None:
        if not self.keeps_bracketed_paste:
            super().disable_bracketed_paste()


def _insert_newline(event: KeyPressEvent) -> None:
    event.current_buffer.newline(copy_margin=False)


def wrap_to_width(text: str, width: int) -> list[str]:
    """Split a line into rows of at most this display width."""
    rows: list[str] = []
    row, row_width = "", 0
    for char in text.expandtabs():
        char_width = display_width(char)
        if row and row_width + char_width > max(1, width):
            rows.append(row)
            row, row_width = "", 0
        row, row_width = row + char, row_width + char_width
    return [*rows, row] if row else rows
