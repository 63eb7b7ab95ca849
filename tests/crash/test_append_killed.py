"""SIGKILL while a real process writes: what it was told is on disk stays, and what it held is free at once."""

import asyncio
import random
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from commands import start_process

from retinue.domain.session import NewSession
from retinue.domain.transcript import Message, ToolCall
from retinue.domain.workspace import Workspace
from retinue.errors import SessionLocked
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

WRITER = """
import asyncio, sys
from pathlib import Path
from retinue.domain.transcript import ToolCall, ToolResult, Message
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

async def main(root, ref, seed):
    store = FileStore(Path(root), fixed_clock(seed=int(seed)))
    async with store.open(await store.find(ref)) as talk:
        print("open", flush=True)
        for turn in range(100_000):
            reply, call = f"a{seed}-{turn}", f"c{seed}-{turn}"
            body = "words <!-- user -->\\n" * (turn * 37 % 400)
            await talk.append(Message(id=reply, role="agent", text=body, tool_call_count=1), ToolCall(id=call, tool="t", args="{}"))
            print(reply, call, flush=True)
            await talk.append(ToolResult(call_id=call, text=body))
            print("r" + call, flush=True)
            if turn % 3 == 0:
                await talk.write_idle_prompt()

asyncio.run(main(*sys.argv[1:]))
"""

MAKER = """
import asyncio, sys
from pathlib import Path
from retinue.domain.workspace import Workspace
from retinue.domain.session import NewSession
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

async def main(root, seed):
    store = FileStore(Path(root), fixed_clock(seed=int(seed)))
    print("open", flush=True)
    while True:
        await store.create(NewSession(agent="x", preset_text="---\\n---\\nP\\n", preset_hash="", workspace=Workspace(root="/")))
        print("made", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


def new() -> NewSession:
    return NewSession(
        agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/")
    )


async def started(program: str, *arguments: str) -> asyncio.subprocess.Process:
    process = await start_process(["-c", program, *arguments], stdout=subprocess.PIPE, limit=1 << 20)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    return process


async def killed(process: asyncio.subprocess.Process, *, lines: int = 0, then: float = 0) -> list[str]:
    """What it had been told by then: so many lines at least, and whatever came in the seconds after them."""
    assert process.stdout is not None
    first = b"".join([await process.stdout.readline() for _ in range(lines)])
    await asyncio.sleep(then)
    process.kill()
    said, _ = await process.communicate()
    return (first + said).decode().rpartition("\n")[0].split()


async def test_no_acknowledged_entry_is_lost_however_the_writer_dies(store: FileStore):
    """Shows: P03, P04, A049."""
    session = await store.create(new())
    chance = random.Random(7)
    acknowledged: list[str] = []
    for seed in range(1, 7):
        process = await started(WRITER, str(store.root), session.id, str(seed))
        acknowledged += await killed(process, lines=4, then=chance.uniform(0, 0.13))
        entries, _ = await store.read_entries(session)
        there = [each.id if isinstance(each, ToolCall | Message) else f"r{each.id}" for each in entries]
        assert len(set(there)) == len(there)
        assert [each for each in there if each in set(acknowledged)] == acknowledged
        async with store.open(session) as conversation:
            assert conversation.entries == entries
            calls = sum(isinstance(each, ToolCall) for each in entries)
            assert sum(each.tool_call_count for each in entries if isinstance(each, Message)) == calls
    assert len(acknowledged) > 20


async def test_a_dead_owner_frees_the_session_at_once_and_a_living_one_is_named(store: FileStore):
    """Shows: P19, P20."""
    session = await store.create(new())
    process = await started(WRITER, str(store.root), session.id, "1")
    with pytest.raises(SessionLocked, match=f"open in PID {process.pid} on host "):
        async with store.open(session):
            pass
    await killed(process)
    async with store.open(session) as conversation:
        await conversation.append(Message(id="mine", role="user", text="mine now"))


async def test_a_killed_maker_leaves_no_half_session(store: FileStore):
    """Shows: P32."""
    chance = random.Random(11)
    told: list[str] = []
    for seed in range(1, 4):
        process = await started(MAKER, str(store.root), str(seed))
        told += await killed(process, lines=1, then=chance.uniform(0, 0.05))
    made = await store.sessions()
    assert len(made) >= len(told) >= 3
    for session in made:
        assert await store.problems(session) == ()
        assert sorted(path.name for path in Path(session.path).iterdir()) == [
            "preset.md",
            "scope-plan.yml",
            "session.json",
            "session.md",
        ]
        assert (await store.find(session.slug)).id == session.id
