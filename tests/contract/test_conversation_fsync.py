"""When an entry is synced to disk, observed by the system calls of a process that appends one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
import sys
from pathlib import Path

from retinue.domain.session import NewSession
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.worker.clock import system_clock
from retinue.sessions.store import FileStore


UNSYNCED = "<!-- user id=one -->\\nfirst words\\n"


async def main() -> None:
    store = FileStore(Path(sys.argv[1]), system_clock())
    new = NewSession(agent="general", preset_text="You help.\\n", preset_hash="", workspace=Workspace(root="/"))
    mine, other = await store.create(new), await store.create(new)
    if sys.argv[2] == "reopened":
        Path(mine.path, "session.md").write_text(UNSYNCED)
        store = FileStore(Path(sys.argv[1]), system_clock())
        mine = await store.find(mine.id)
    async with store.open(other if sys.argv[3] == "with another" else mine) as conversation:
        if sys.argv[3] == "with another":
            async with store.open(mine) as conversation:
                await write_entries(conversation)
        else:
            await write_entries(conversation)
    store.close()


async def write_entries(conversation) -> None:
    if sys.argv[2] == "reopened":
        await conversation.write_idle_prompt()
        return
    await conversation.append(Message(id="one", role="user", text="first words"), sync=False)
    if sys.argv[2] == "next entry":
        await conversation.append(Message(id="two", role="agent", text="second words"))
    if sys.argv[2] == "same entry":
        await conversation.append(Message(id="one", role="user", text="first words"))
    if sys.argv[2] == "idle prompt":
        await conversation.write_idle_prompt()


asyncio.run(main())
"""
SYSCALL = re.compile(r"(write|fsync)\(\d+<[^>]*/session\.md>(.*)")


def trace_conversation_writes(tmp_path: Path, *args: str) -> list[str]:
    """Return the writes and syncs of conversation files, in order."""
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "-y", "-s", "200", "-e", "trace=write,fsync", "-o", str(trace))
    subprocess.run([*strace, sys.executable, "-c", PROGRAM, str(tmp_path / "home"), *args], check=True)
    operations: list[str] = []
    for name, rest in SYSCALL.findall(trace.read_text()):
        text = next((each for each in ("first", "second") if f"{each} words" in rest), "")
        operations.append("sync" if name == "fsync" else text or "line")
    return operations


@pytest.mark.parametrize("other_conversation", ["alone", "with another"])
@pytest.mark.parametrize(
    ("next_step", "expected"),
    [
        ("next entry", ["first", "second", "sync"]),
        ("idle prompt", ["first", "line", "sync"]),
        ("closed", ["first", "sync"]),
        ("same entry", ["first", "sync"]),
        ("reopened", ["first", "sync"]),
    ],
)
def test_an_unsynced_entry_is_synced_with_the_next_operation(
    tmp_path: Path, next_step: str, expected: list[str], other_conversation: str
):
    assert trace_conversation_writes(tmp_path, next_step, other_conversation) == expected


FAILING_SYNC_PROGRAM = """
import asyncio, errno, os, sys
from pathlib import Path

from retinue.domain.session import NewSession
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.worker.clock import system_clock
from retinue.errors import DiskError
from retinue.sessions.store import FileStore

real_fsync = os.fsync


def failing_fsync(_file):
    raise OSError(errno.EIO, "the disk is broken")


async def main():
    store = FileStore(Path(sys.argv[1]), system_clock())
    new = NewSession(agent="general", preset_text="You help.\\n", preset_hash="", workspace=Workspace(root="/"))
    session = await store.create(new)
    async with store.open(session) as conversation:
        await conversation.append(Message(id="one", role="user", text="first words"), sync=False)
        second = Message(id="two", role="agent", text="second words")
        os.fsync = failing_fsync
        try:
            await conversation.append(second)
        except DiskError:
            print("refused", Path(session.path, "session.md").stat().st_size)
        os.fsync = real_fsync
        await conversation.append(second)
    print(*[each.text for each in (await store.read_entries(session))[0]], sep="|")
    store.close()


asyncio.run(main())
"""


def test_entries_are_written_again_after_a_failed_sync(tmp_path: Path):
    """After a failed sync the earlier writes may be lost, so they are removed and written again in order."""
    result = subprocess.run(
        [sys.executable, "-c", FAILING_SYNC_PROGRAM, str(tmp_path / "home")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.splitlines() == ["refused 0", "first words|second words"]
