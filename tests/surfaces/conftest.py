"""The command as a person has it: a real process, with a scripted model, on pipes or on a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 15.0


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
class Screen:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: bytes = b""

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
        return bool(piece)


@dataclass(slots=True, kw_only=True)
class Retinue:
    """The command, with a home, a configuration and a folder of this test's own."""

    env: dict[str, str]
    folder: Path
    screens: list[Screen] = field(default_factory=list[Screen])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __call__(self, *args: str, stdin: str | bytes = b"", **env: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "retinue", *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.env | env,
            cwd=self.folder,
            timeout=PATIENCE * 2,
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def started(self, *args: str) -> subprocess.Popen[bytes]:
        """A command that goes on beside the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def on_terminal(self, *args: str, **env: str) -> Screen:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.env | {"TERM": "xterm"} | env,
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (no thread runs here)
        )
        os.close(theirs)
        screen = Screen(process=process, fd=ours)
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
            os.close(screen.fd)


@pytest.fixture
def retinue(isolated_env: dict[str, str], tmp_path: Path) -> Generator[Retinue]:
    folder = tmp_path / "work"
    folder.mkdir()
    command = Retinue(env=isolated_env, folder=folder)
    yield command
    command.close()


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
