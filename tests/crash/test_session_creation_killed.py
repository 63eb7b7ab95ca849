"""SIGKILL at every step of creating a session: the session is complete or absent, and a later sweep removes the rest."""

import os
import time
from pathlib import Path

import pytest
from commands import run_process
from crash_programs import kill_at_step
from new_session import new_session

from retinue.sessions.store import FileStore

STEPS = ("open", "os.mkdir", "os.rename", "os.symlink", "os.link", "os.remove", "os.rmdir", "shutil.rmtree")

CREATE_SESSIONS = """
import asyncio
from pathlib import Path
from retinue.domain.workspace import Workspace
from retinue.domain.session import NewSession
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

root, kind, parent = sys.argv[1:]

async def make(seed):
    global steps_left
    store = FileStore(Path(root), fixed_clock(seed=seed))
    above = await store.find(parent)
    steps_left = seed
    if kind == "branch":
        await store.branch(above, name="b")
    else:
        await store.create(NewSession(
            agent="x", preset_text="---\\n---\\nP\\n", preset_hash="", workspace=Workspace(root="/"),
            parent=above if kind == "child" else None, description="d" if kind == "child" else "",
        ))

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


def hidden_files(root: Path) -> list[Path]:
    return [
        path for path in root.rglob(".*") if path.name not in {".staging", ".swept", ".index", ".changes"}
    ]


def run_until_done(root: str, kind: str, parent: str) -> tuple[int, int]:
    """Return how often the program was killed, and its exit code when it was not."""
    result = run_process(["-c", kill_at_step(STEPS) + CREATE_SESSIONS, root, kind, parent], timeout=60)
    assert result.returncode == 0, result.stderr
    kill_count, code = map(int, result.stdout.split())
    return kill_count, code


@pytest.mark.parametrize(("kind", "minimum_kills"), [("session", 12), ("child", 9), ("branch", 10)])
async def test_creation_killed_at_any_step_leaves_complete_sessions_and_files_that_a_sweep_removes(
    store: FileStore, kind: str, minimum_kills: int
):
    """Shows: P32."""
    parent = await store.create(new_session("parent"))
    kill_count, code = run_until_done(str(store.root), kind, parent.id)
    assert code == 0
    assert kill_count >= minimum_kills
    sessions = await store.sessions()
    assert len(sessions) >= 2
    for session in sessions:
        assert await store.problems(session) == ()
        assert (await store.find(session.id)).path == session.path
        files = {path.name for path in Path(session.path).iterdir()}
        assert files >= {"preset.md", "scope-plan.yml", "session.json", "session.md"}
    leftovers = hidden_files(store.root)
    assert leftovers
    old = time.time() - 4000
    for path in leftovers:
        os.utime(path, (old, old), follow_symlinks=False)
    store.sweep()
    assert hidden_files(store.root) == []
    assert await store.sessions() == sessions
