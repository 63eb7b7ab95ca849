"""Look at live processes of this machine: their command lines, and the open descriptors of this process."""

import random
from pathlib import Path


def unique_duration() -> str:
    """Return a number of seconds for `sleep` that no other process uses."""
    return f"1000.{random.randrange(10**9)}"


def processes_with(argument: str) -> list[str]:
    """Return the pids of all live processes, in any sandbox, with the text in their command line."""
    pids: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if argument.encode() in command_line and state != "Z":
            pids.append(process.name)
    return pids


def open_descriptor_count() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
