"""SIGKILL while a process writes: acknowledged entries stay, and its locks are released at once."""

import asyncio
import random
import subprocess
from pathlib import Path

import pytest
from commands import start_process
from new_session import new_session

from retinue.domain.transcript import Message, ToolCall
from retinue.errors import SessionLocked
from retinue.sessions.store import FileStore

WRITER = """
import asyncio, sys
from pathlib import Path
from retinue.domain.transcript import ToolCall, ToolResult, Message
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

async def main(root, ref, seed):
    store = FileStore(Path(root), fixed_clock(seed=int(seed)))
    async with store.open(await store.find(ref)) as conversation:
        print("open", flush=True)
        for turn in range(100_000):
            reply, call = f"a{seed}-{turn}", f"c{seed}-{turn}"
            body = "words <!-- user -->\\n" * (turn * 37 % 400)
            await conversation.append(Message(id=reply, role="agent", text=body, tool_call_count=1), ToolCall(id=call, tool="t", args="{}"))
            print(reply, call, flush=True)
            await conversation.append(ToolResult(call_id=call, text=body))
            print("r" + call, flush=True)
            if turn % 3 == 0:
                await conversation.write_idle_prompt()

asyncio.run(main(*sys.argv[1:]))
"""

CREATOR = """
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


async def start_program(program: str, *arguments: str) -> asyncio.subprocess.Process:
    process = await start_process(["-c", program, *arguments], stdout=subprocess.PIPE, limit=1 << 20)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    return process


async def kill_after(process: asyncio.subprocess.Process, *, lines: int = 0, delay_s: float = 0) -> list[str]:
    """Kill a process after a number of lines and a delay, and return the words it has printed."""
    assert process.stdout is not None
    first = b"".join([await process.stdout.readline() for _ in range(lines)])
    await asyncio.sleep(delay_s)
    process.kill()
    rest, _ = await process.communicate()
    return (first + rest).decode().rpartition("\n")[0].split()


async def test_no_acknowledged_entry_is_lost_when_the_writer_is_killed(store: FileStore):
    """Shows: P03, P04, A049."""
    session = await store.create(new_session())
    rng = random.Random(7)
    acknowledged: list[str] = []
    for seed in range(1, 7):
        process = await start_program(WRITER, str(store.root), session.id, str(seed))
        acknowledged += await kill_after(process, lines=4, delay_s=rng.uniform(0, 0.13))
        entries, _ = await store.read_entries(session)
        ids = [each.id if isinstance(each, ToolCall | Message) else f"r{each.id}" for each in entries]
        assert len(set(ids)) == len(ids)
        assert [each for each in ids if each in set(acknowledged)] == acknowledged
        async with store.open(session) as conversation:
            assert conversation.entries == entries
            calls = sum(isinstance(each, ToolCall) for each in entries)
            assert sum(each.tool_call_count for each in entries if isinstance(each, Message)) == calls
    assert len(acknowledged) > 20


async def test_a_locked_session_names_its_process_and_is_free_once_that_process_is_killed(store: FileStore):
    """Shows: P19, P20."""
    session = await store.create(new_session())
    process = await start_program(WRITER, str(store.root), session.id, "1")
    with pytest.raises(SessionLocked, match=f"open in PID {process.pid} on host "):
        async with store.open(session):
            pass
    await kill_after(process)
    async with store.open(session) as conversation:
        await conversation.append(Message(id="mine", role="user", text="mine now"))


async def test_a_process_killed_while_creating_sessions_leaves_only_complete_sessions(store: FileStore):
    """Shows: P32."""
    rng = random.Random(11)
    acknowledged: list[str] = []
    for seed in range(1, 4):
        process = await start_program(CREATOR, str(store.root), str(seed))
        acknowledged += await kill_after(process, lines=1, delay_s=rng.uniform(0, 0.05))
    sessions = await store.sessions()
    assert len(sessions) >= len(acknowledged) >= 3
    for session in sessions:
        assert await store.problems(session) == ()
        assert sorted(path.name for path in Path(session.path).iterdir()) == [
            "preset.md",
            "scope-plan.yml",
            "session.json",
            "session.md",
        ]
        assert (await store.find(session.slug)).id == session.id
