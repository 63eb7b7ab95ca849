"""Appending to a full disk: no partial entry stays, no unwritten entry is acknowledged, and later appends succeed."""

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
    acknowledged, refused, sizes, error = [], [], [], ""
    async with store.open(session) as conversation:
        for number in range(30):
            limit(3000 if number % 10 < 8 else resource.RLIM_INFINITY)
            before = file.stat().st_size
            try:
                await conversation.append(Notice(id=f"n{number}", topic="x", text="y" * 300), Notice(id=f"m{number}", topic="x", text="z"))
                acknowledged += [f"n{number}", f"m{number}"]
            except DiskError as caught:
                error = str(caught)
                refused.append(number)
                sizes.append(file.stat().st_size - before)
            assert [each.id for each in conversation.entries] == acknowledged
    limit(resource.RLIM_INFINITY)
    entries, problems = await store.read_entries(session)
    print(json.dumps({"acknowledged": acknowledged, "refused": refused, "sizes": sizes, "error": error, "problems": problems,
                      "stored": [each.id for each in entries], "path": str(file)}))
    store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_full_disk_refuses_a_whole_append_and_a_later_append_succeeds(tmp_path: Path):
    """Shows: P03, P04."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path / "sessions"), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    outcome = json.loads(out)
    assert len(outcome["refused"]) >= 5
    assert set(outcome["sizes"]) == {0}
    assert outcome["stored"] == outcome["acknowledged"]
    assert outcome["problems"] == []
    assert outcome["acknowledged"][-1] == "m29"
    assert outcome["error"].startswith(f"Cannot write {outcome['path']}: File too large")
