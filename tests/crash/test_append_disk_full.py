"""A disk that takes no more: nothing half written stays, nothing unwritten is acknowledged, and it goes on later."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

WRITER = """
import asyncio, json, resource, signal, sys
from pathlib import Path
from retinue.domain.transcript import Notice
from retinue.domain.workspace import Workspace
from retinue.errors import DiskError
from retinue.domain.session import NewSession
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main(root):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = FileStore(Path(root), fixed_clock())
    session = await store.create(NewSession(agent="x", preset_text="---\\n---\\nP\\n", preset_hash="", workspace=Workspace(root="/")))
    file = Path(session.path) / "session.md"
    told, refused, sizes, error = [], [], [], ""
    async with store.open(session) as talk:
        for number in range(30):
            limit(3000 if number % 10 < 8 else resource.RLIM_INFINITY)
            before = file.stat().st_size
            try:
                await talk.append(Notice(id=f"n{number}", topic="x", text="y" * 300), Notice(id=f"m{number}", topic="x", text="z"))
                told += [f"n{number}", f"m{number}"]
            except DiskError as caught:
                error = str(caught)
                refused.append(number)
                sizes.append(file.stat().st_size - before)
            assert [each.id for each in talk.entries] == told
    limit(resource.RLIM_INFINITY)
    entries, problems = await store.read_entries(session)
    print(json.dumps({"told": told, "refused": refused, "sizes": sizes, "error": error, "problems": problems,
                      "there": [each.id for each in entries], "path": str(file)}))
    store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_full_disk_refuses_the_entry_whole_and_a_later_one_is_taken(tmp_path: Path):
    """Shows: P03, P04."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path / "sessions"), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    seen = json.loads(out)
    assert len(seen["refused"]) >= 5
    assert set(seen["sizes"]) == {0}
    assert seen["there"] == seen["told"]
    assert seen["problems"] == []
    assert seen["told"][-1] == "m29"
    assert seen["error"].startswith(f"Cannot write {seen['path']}: File too large")
