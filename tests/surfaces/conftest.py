"""The command as a person has it: a real process, with a scripted model, on pipes or on a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from commands import RETINUE, Started, ran

PATIENCE = 15.0
SETTLED = 0.03
"""A write of the command is read in pieces, all of them within this time."""


HELD = '''
import asyncio, os
from retinue import tool

@tool(effect="read")
async def hold(name: str) -> str:
    """Holds until the file of this name is gone."""
    while os.path.exists(name):
        await asyncio.sleep(0.01)
    return "held"
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(slots=True, kw_only=True)
class Glass:
    """What a terminal shows of the bytes it gets. It knows the sequences that Retinue writes; another one fails."""

    width: int = 80
    height: int = 24
    lines: list[list[str]] = field(default_factory=lambda: [[]])
    """All that was ever shown, what has scrolled out of sight included; a wide character takes two cells."""
    row: int = 0
    column: int = 0

    SEQUENCE = re.compile(r"\x1b\[(\??\d*)([AGKJmhl])")

    def takes(self, text: str) -> None:
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                found = self.SEQUENCE.match(text, at)
                assert found, f"the terminal would obey {text[at : at + 12]!r}"
                if found[2] in "AGKJ":
                    self._obeys(found[2], int(found[1] or 0))
                at = found.end()
                continue
            self._shows(char)
            at += 1

    def shown(self) -> list[str]:
        """The lines on the screen, without blanks at their ends and empty lines below the last."""
        lines = ["".join(line).rstrip() for line in self.lines[max(0, len(self.lines) - self.height) :]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _obeys(self, what: str, number: int) -> None:
        if what == "A":
            self.row = max(len(self.lines) - self.height, 0, self.row - (number or 1))
            self.column = min(self.column, self.width - 1)
        elif what == "G":
            self.column = min(number or 1, self.width) - 1
        elif what in "KJ":
            assert number == 0, "only what follows is erased"
            del self.lines[self.row][self.column :]
            if what == "J":
                for line in self.lines[self.row + 1 :]:
                    line.clear()

    def _shows(self, char: str) -> None:
        if char == "\n":
            self._down()
        elif char == "\r":
            self.column = 0
        elif char == "\t":
            self.column = min(self.width - 1, (self.column // 8 + 1) * 8)
        else:
            assert char.isprintable(), f"the terminal would obey {char!r}"
            self._puts(char)

    def _puts(self, char: str) -> None:
        wide = 1 + (unicodedata.east_asian_width(char) in "WF")
        if self.column + wide > self.width:
            self._down()
            self.column = 0
        line = self.lines[self.row]
        line.extend(" " * (self.column - len(line)))
        line[self.column : self.column + wide] = [char, *[""] * (wide - 1)]
        self.column += wide

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])


@dataclass(slots=True, kw_only=True)
class Screen:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: bytes = b""
    glass: Glass = field(default_factory=Glass)
    unlooked: bytes = b""
    """What the glass has not been given yet."""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def press(self, key: str) -> None:
        """Ctrl and a letter, as the terminal's own keys."""
        os.write(self.fd, bytes([ord(key.upper()) - 64]))

    def press_until(self, key: str, done: Callable[[], bool]) -> None:
        """Presses again now and then: the line editor may miss a key that comes while it prepares."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"Ctrl-{key} did nothing; seen: {self.seen!r}"
            self.press(key)
            quiet = time.monotonic() + 1
            while not done() and time.monotonic() < quiet:
                self._read(0.05)

    def until(self, text: str) -> str:
        """Everything seen so far, once it holds the text; what was seen before counts only once."""
        wanted = text.encode()
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} never came; seen: {self.seen!r}"
            assert self._read(), f"the command left before {text!r}; seen: {self.seen!r}"
        at = self.seen.index(wanted) + len(wanted)
        before, self.seen = self.seen[:at], self.seen[at:]
        return before.decode("utf-8", "replace")

    def shows(self, when: Callable[[list[str]], Any]) -> list[str]:
        """The lines on the screen, as soon as they are so and no more of them is on the way."""
        deadline = time.monotonic() + PATIENCE
        while not when(lines := self.look()) or self._read(SETTLED):
            assert time.monotonic() < deadline, f"it never showed; on the screen: {lines}"
            assert when(lines) or self._read(), f"the command left before; on the screen: {lines}"
        return lines

    def close(self) -> None:
        """The window is closed: whoever is at its other end hears of it."""
        os.close(self.fd)
        self.fd = -1

    def left(self) -> tuple[int, str]:
        """The exit code and the rest of the screen, once the command has left."""
        while self._read():
            pass
        return self.process.wait(PATIENCE), self.seen.decode("utf-8", "replace")

    def _read(self, patience: float = PATIENCE) -> bool:
        if not select.select([self.fd], [], [], patience)[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += piece
        self.unlooked += piece
        return bool(piece)

    def look(self) -> list[str]:
        """The lines on the screen now. What came of a character or a sequence that is not whole waits for the rest."""
        piece, self.unlooked = self.unlooked, b""
        begun = re.search(rb"\x1b(\[\??[\d;]*)?$|[\xc0-\xff][\x80-\xbf]{0,2}$", piece)
        if begun and not _whole(begun[0]):
            piece, self.unlooked = piece[: begun.start()], begun[0]
        self.glass.takes(piece.decode("utf-8", "replace"))
        return self.glass.shown()


def _whole(piece: bytes) -> bool:
    try:
        return not piece.startswith(b"\x1b") and bool(piece.decode())
    except UnicodeDecodeError:
        return False


@dataclass(slots=True, kw_only=True)
class Retinue:
    """The command, with a home, a configuration and a folder of this test's own."""

    env: dict[str, str]
    folder: Path
    screens: list[Screen] = field(default_factory=list[Screen])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __call__(self, *args: str, stdin: str | bytes = b"", **env: str) -> Ran:
        said = stdin.encode() if isinstance(stdin, str) else stdin
        how = {"env": self.env | env, "cwd": self.folder}
        done = ran([*RETINUE, *args], stdin=said, timeout=PATIENCE * 2, **how)
        return Ran(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def started(self, *args: str) -> subprocess.Popen[bytes]:
        """A command that goes on beside the test."""
        process = Started(
            [*RETINUE, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def on_terminal(self, *args: str, words: Sequence[str] = RETINUE, **env: str) -> Screen:
        ours, theirs = pty.openpty()
        glass = Glass(width=int(env.get("COLUMNS", "80")), height=int(env.get("LINES", "24")))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", glass.height, glass.width, 0, 0))
        process = Started(
            [*words, *args],
            terminal=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.env | {"TERM": "xterm"} | env,
            cwd=self.folder,
        )
        os.close(theirs)
        screen = Screen(process=process, fd=ours, glass=glass)
        self.screens.append(screen)
        return screen

    def plays(self, replies: object) -> None:
        """The model's words from now on: a list for any agent, or a table by agent."""
        path = self.folder.parent / "script.json"
        path.write_text(
            json.dumps(replies if isinstance(replies, dict) else {"*": replies}), encoding="utf-8"
        )
        self.env["RETINUE_MODEL"] = f"scripted:{path}"

    def close(self) -> None:
        for process in [*self.processes, *(screen.process for screen in self.screens)]:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE)
        for process in self.processes:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for screen in self.screens:
            if screen.fd >= 0:
                screen.close()


@pytest.fixture(scope="session")
def glass() -> Callable[..., Glass]:
    """What a terminal of a given size shows."""
    return Glass


@pytest.fixture
def retinue(isolated_env: dict[str, str], tmp_path: Path) -> Generator[Retinue]:
    folder = tmp_path / "work"
    folder.mkdir()
    command = Retinue(env=isolated_env, folder=folder)
    yield command
    command.close()


@pytest.fixture
def house(retinue: Retinue) -> Retinue:
    """Nobody is asked, and a tool works as long as a test wants it to."""
    (retinue.folder / "held.py").write_text(HELD)
    (retinue.folder / "gate").touch()
    agents = Path(retinue.env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir()
    (agents / "researcher.md").write_text("---\nname: researcher\ntools: [hold]\n---\nYou look.\n")
    settings = {"tools": ["held:hold"], "approvals": "auto"}
    (Path(retinue.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps(settings))
    retinue.env["PYTHONPATH"] = str(retinue.folder)
    return retinue


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Asks until the answer is true."""

    def ask(question: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (answer := question()):
            assert time.monotonic() < deadline, "it never became so"
            time.sleep(0.05)
        return answer

    return ask
