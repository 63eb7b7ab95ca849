"""SIGKILL at every step of removing a deleted session's folder: the purge can be repeated by each of its ids."""

import json
import shutil
from pathlib import Path

from commands import run_process
from crash_programs import kill_at_step
from new_session import new_session

from retinue.sessions.store import FileStore

PURGE_KILLED_AT_EACH_STEP = """
import asyncio, json, shutil
from pathlib import Path
from retinue.errors import NotFound
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_clock

root, ids = Path(sys.argv[1]), json.loads(sys.argv[2])

async def purge(session_id):
    store = FileStore(root / "sessions", system_clock())
    session, folder = await store.find_deleted(session_id)
    store.remove_deleted_folder(folder, store.purge_target(session, folder))

# Not the lock, nor the list of ids: they hold no text.
def files_below(folder):
    return [str(each) for each in folder.rglob("*") if each.is_file() and each.name not in (".changes", ".purged")]

outcomes, steps, is_killed = [], 0, True
while is_killed:
    steps += 1
    shutil.rmtree(root / "sessions", ignore_errors=True)
    shutil.copytree(root / "saved", root / "sessions", symlinks=True)
    session_id = ids[steps % len(ids)]
    if (pid := os.fork()) == 0:
        steps_left = steps
        asyncio.run(purge(session_id))
        os._exit(0)
    is_killed = os.waitpid(pid, 0)[1] == signal.SIGKILL
    try:
        steps_left = 0
        asyncio.run(purge(session_id))
    except NotFound:
        pass
    outcomes.append(files_below(root / "sessions"))
print(json.dumps(outcomes))
"""


async def test_the_purge_of_a_session_can_be_repeated_after_a_kill_at_any_step(
    store: FileStore, tmp_path: Path, isolated_env: dict[str, str]
):
    ids = await _delete_session_with_branches(store)
    shutil.copytree(store.root, tmp_path / "saved", symlinks=True)
    program = kill_at_step(["os.remove", "os.rmdir", "os.rename"]) + PURGE_KILLED_AT_EACH_STEP
    done = run_process(["-c", program, str(tmp_path), json.dumps(ids)], timeout=60, env=isolated_env)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) > 20
    assert [left for left in outcomes if left] == []


async def _delete_session_with_branches(store: FileStore) -> list[str]:
    """Delete a session with a child and a branch, and return the ids of all of them."""
    parent = await store.create(new_session())
    await store.save_draft(parent, "A draft.")
    await store.create(new_session(parent=parent, description="look"))
    await store.branch(parent, name="other")
    found = await store.sessions()
    await store.delete(parent)
    return [each.id for each in found]
