"""The command line of Retinue as a real process, on pipes or on a terminal."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from commands import RETINUE, CommandResult, WarmProcess, run_process
from terminal import TIMEOUT_S, TerminalEmulator, TerminalProcess

T = TypeVar("T")


class WaitUntil(Protocol):
    """Ask a question until the answer is true, and return the answer."""

    def __call__(self, question: Callable[[], T | None]) -> T: ...


@dataclass(slots=True, kw_only=True)
class CliFixture:
    """The command, with a home, a configuration and a folder of this test's own."""

    env: dict[str, str]
    folder: Path
    screens: list[TerminalProcess] = field(default_factory=list[TerminalProcess])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __call__(self, *args: str, stdin: str | bytes = b"", **env: str) -> CommandResult:
        said = stdin.encode() if isinstance(stdin, str) else stdin
        how = {"env": self.env | env, "cwd": self.folder}
        done = run_process([*RETINUE, *args], stdin=said, timeout=TIMEOUT_S * 2, **how)
        return CommandResult(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """A command that goes on beside the test."""
        process = WarmProcess(
            [*RETINUE, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def open_terminal(self, *args: str, words: Sequence[str] = RETINUE, **env: str) -> TerminalProcess:
        ours, theirs = pty.openpty()
        glass = TerminalEmulator(width=int(env.get("COLUMNS", "80")), height=int(env.get("LINES", "24")))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", glass.height, glass.width, 0, 0))
        process = WarmProcess(
            [*words, *args],
            terminal=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.env | {"TERM": "xterm"} | env,
            cwd=self.folder,
        )
        os.close(theirs)
        screen = TerminalProcess(process=process, fd=ours, emulator=glass)
        self.screens.append(screen)
        return screen

    def script_model(self, replies: list[Any] | dict[str, Any]) -> None:
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
                process.wait(TIMEOUT_S)
        for process in self.processes:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for screen in self.screens:
            if screen.fd >= 0:
                screen.close()
