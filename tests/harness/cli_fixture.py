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
    """Poll until the answer is true, and return it."""

    def __call__(self, question: Callable[[], T | None]) -> T: ...


@dataclass(slots=True, kw_only=True)
class CliFixture:
    """The `retinue` command with a home, a configuration and a working folder of one test."""

    env: dict[str, str]
    folder: Path
    screens: list[TerminalProcess] = field(default_factory=list[TerminalProcess])
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __call__(self, *args: str, stdin: str | bytes = b"", **env: str) -> CommandResult:
        stdin_bytes = stdin.encode() if isinstance(stdin, str) else stdin
        options = {"env": self.env | env, "cwd": self.folder}
        result = run_process([*RETINUE, *args], stdin=stdin_bytes, timeout=TIMEOUT_S * 2, **options)
        return CommandResult(code=result.returncode, out=result.stdout.decode(), err=result.stderr.decode())

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command that runs while the test continues."""
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

    def open_terminal(self, *args: str, command: Sequence[str] = RETINUE, **env: str) -> TerminalProcess:
        ours, theirs = pty.openpty()
        emulator = TerminalEmulator(width=int(env.get("COLUMNS", "80")), height=int(env.get("LINES", "24")))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", emulator.height, emulator.width, 0, 0))
        process = WarmProcess(
            [*command, *args],
            terminal=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.env | {"TERM": "xterm"} | env,
            cwd=self.folder,
        )
        os.close(theirs)
        screen = TerminalProcess(process=process, fd=ours, emulator=emulator)
        self.screens.append(screen)
        return screen

    def script_model(self, replies: list[Any] | dict[str, Any]) -> None:
        """Set what the model replies from now on: a list for all agents, or a dictionary by agent."""
        path = self.folder.parent / "script.json"
        path.write_text(
            json.dumps(replies if isinstance(replies, dict) else {"*": replies}), encoding="utf-8"
        )
        self.env["RETINUE_MODEL"] = f"scripted:{path}"

    def open_gate(self) -> None:
        """Let calls of the tool `hold` return that wait for the file `gate`."""
        (self.folder / "gate").unlink()

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
