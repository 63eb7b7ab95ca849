"""When an entry is on disk: seen from outside, by the system calls of a process that writes one."""

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


LEFT = "<!-- user id=one -->\\nfirst words\\n"


async def main() -> None:
    store = FileStore(Path(sys.argv[1]), system_clock())
    new = NewSession(agent="general", preset_text="You help.\\n", preset_hash="", workspace=Workspace(root="/"))
    mine, other = await store.create(new), await store.create(new)
    if sys.argv[2] == "found":
        Path(mine.path, "session.md").write_text(LEFT)
        store = FileStore(Path(sys.argv[1]), system_clock())
        mine = await store.find(mine.id)
    async with store.open(other if sys.argv[3] == "beside" else mine) as talk:
        if sys.argv[3] == "beside":
            async with store.open(mine) as talk:
                await said(talk)
        else:
            await said(talk)
    store.close()


async def said(talk) -> None:
    if sys.argv[2] == "found":
        await talk.write_idle_prompt()
        return
    await talk.append(Message(id="one", role="user", text="first words"), sync=False)
    if sys.argv[2] == "followed":
        await talk.append(Message(id="two", role="agent", text="second words"))
    if sys.argv[2] == "again":
        await talk.append(Message(id="one", role="user", text="first words"))
    if sys.argv[2] == "resting":
        await talk.write_idle_prompt()


asyncio.run(main())
"""
CALL = re.compile(r"(write|fsync)\(\d+<[^>]*/session\.md>(.*)")


def called(tmp_path: Path, *words: str) -> list[str]:
    """What was done to conversations, in order."""
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "-y", "-s", "200", "-e", "trace=write,fsync", "-o", str(trace))
    subprocess.run([*strace, sys.executable, "-c", PROGRAM, str(tmp_path / "home"), *words], check=True)
    found: list[str] = []
    for name, rest in CALL.findall(trace.read_text()):
        said = next((each for each in ("first", "second") if f"{each} words" in rest), "")
        found.append("sync" if name == "fsync" else said or "line")
    return found


@pytest.mark.parametrize("company", ["alone", "beside"])
@pytest.mark.parametrize(
    ("then", "seen"),
    [
        ("followed", ["first", "second", "sync"]),
        ("resting", ["first", "line", "sync"]),
        ("closed", ["first", "sync"]),
        ("again", ["first", "sync"]),
        ("found", ["first", "sync"]),
    ],
)
def test_what_is_added_without_a_sync_is_on_disk_with_what_comes_next(
    tmp_path: Path, then: str, seen: list[str], company: str
):
    assert called(tmp_path, then, company) == seen


BROKEN = """
import asyncio, errno, os, sys
from pathlib import Path

from retinue.domain.session import NewSession
from retinue.domain.transcript import Message
from retinue.domain.workspace import Workspace
from retinue.worker.clock import system_clock
from retinue.errors import DiskError
from retinue.sessions.store import FileStore

real = os.fsync


def fails(_file):
    raise OSError(errno.EIO, "the disk is broken")


async def main():
    store = FileStore(Path(sys.argv[1]), system_clock())
    new = NewSession(agent="general", preset_text="You help.\\n", preset_hash="", workspace=Workspace(root="/"))
    session = await store.create(new)
    async with store.open(session) as talk:
        await talk.append(Message(id="one", role="user", text="first words"), sync=False)
        second = Message(id="two", role="agent", text="second words")
        os.fsync = fails
        try:
            await talk.append(second)
        except DiskError:
            print("refused", Path(session.path, "session.md").stat().st_size)
        os.fsync = real
        await talk.append(second)
    print(*[each.text for each in (await store.read_entries(session))[0]], sep="|")
    store.close()


asyncio.run(main())
"""


def test_what_a_failed_sync_may_have_lost_is_written_anew_before_what_follows(tmp_path: Path):
    """Nobody knows whether a disk that failed has what was written before: it goes, and comes again in its order."""
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path / "home")], check=True, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["refused 0", "first words|second words"]
