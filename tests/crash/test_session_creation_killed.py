"""SIGKILL at every step of making a session: there is a whole one or none, and a later start clears what is left."""

import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from commands import run_process

from retinue.domain.session import NewSession
from retinue.domain.workspace import Workspace
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

STEPS = ("open", "os.mkdir", "os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir", "shutil.rmtree")

MAKER = f"""
import asyncio, os, signal, sys
from pathlib import Path
from retinue.domain.workspace import Workspace
from retinue.domain.session import NewSession
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

root, what, parent = sys.argv[1:]
left = 0

def step(event, args):
    global left
    if event in {STEPS!r} and left:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

async def make(seed):
    global left
    store = FileStore(Path(root), fixed_clock(seed=seed))
    above = await store.find(parent)
    left = seed
    if what == "branch":
        await store.branch(above, name="b")
    else:
        await store.create(NewSession(
            agent="x", preset_text="---\\n---\\nP\\n", preset_hash="", workspace=Workspace(root="/"),
            parent=above if what == "child" else None, description="d" if what == "child" else "",
        ))

sys.addaudithook(step)
for seed in range(1, 200):
    child = os.fork()
    if not child:
        asyncio.run(make(seed))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        print(seed - 1, os.waitstatus_to_exitcode(status))
        break
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    found = FileStore(tmp_path / "sessions", fixed_clock())
    yield found
    found.close()


def new(agent: str) -> NewSession:
    return NewSession(agent=agent, preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/"))


def hidden(root: Path) -> list[Path]:
    return [
        path for path in root.rglob(".*") if path.name not in {".staging", ".swept", ".index", ".changes"}
    ]


def played(root: str, what: str, parent: str) -> tuple[int, int]:
    """How often the maker was killed, and how it ended when it was not."""
    told = run_process(["-c", MAKER, root, what, parent], timeout=60)
    assert told.returncode == 0, told.stderr
    killed, code = map(int, told.stdout.split())
    return killed, code


@pytest.mark.parametrize(("what", "least"), [("session", 12), ("child", 9), ("branch", 10)])
async def test_a_maker_killed_at_any_step_leaves_no_half_session_and_nothing_for_long(
    store: FileStore, what: str, least: int
):
    """Shows: P32."""
    parent = await store.create(new("parent"))
    killed, code = played(str(store.root), what, parent.id)
    assert code == 0
    assert killed >= least
    whole = await store.sessions()
    assert len(whole) >= 2
    for session in whole:
        assert await store.problems(session) == ()
        assert (await store.find(session.id)).path == session.path
        files = {path.name for path in Path(session.path).iterdir()}
        assert files >= {"preset.md", "scope-plan.yml", "session.json", "session.md"}
    left = hidden(store.root)
    assert left
    long_ago = time.time() - 4000
    for path in left:
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    store.sweep()
    assert hidden(store.root) == []
    assert await store.sessions() == whole
