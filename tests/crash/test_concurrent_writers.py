"""Many processes change the same small files concurrently: readers see complete files, and no change is lost."""

import asyncio
import json
import subprocess
from pathlib import Path

from commands import start_process
from new_session import new_session

from retinue.agents.trust import TrustStore
from retinue.sessions.store import FileStore

WRITERS, CHANGES = 6, 30

WRITER = """
import asyncio, sys
from pathlib import Path
from retinue.worker.clock import system_clock
from retinue.sessions.store import FileStore
from retinue.agents.trust import TrustStore, scan_project

async def main(root, slug, trust, mine, changes):
    clock = system_clock()
    store = FileStore(Path(root), clock)
    for number in range(int(changes)):
        session = await store.find(slug)
        await store.update(session, name=f"{mine} {number}")
        place = Path(trust).parent / f"project-{mine}-{number}"
        (place / ".retinue/agents").mkdir(parents=True)
        TrustStore(Path(trust)).add(scan_project(str(place)), unique_suffix=clock.new_uuid())
    store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_readers_always_see_complete_files_while_many_processes_write(store: FileStore, tmp_path: Path):
    """Shows: P05."""
    session = await store.create(new_session())
    trust_file = tmp_path / "trust.json"
    writers = [
        await start_process(
            ["-c", WRITER, str(tmp_path / "sessions"), session.slug, str(trust_file), str(each), str(CHANGES)],
            stderr=subprocess.PIPE,
        )
        for each in range(WRITERS)
    ]  # fmt: skip
    ended = asyncio.gather(*(each.communicate() for each in writers))
    record, names = Path(session.path) / "session.json", set[str]()
    while not ended.done():
        names.add(json.loads(record.read_text()).get("name") or "")
        if trust_file.exists():
            json.loads(trust_file.read_text())
        await asyncio.sleep(0)
    assert [(each.returncode, err) for each, (_, err) in zip(writers, await ended, strict=True)] == [
        (0, b"")
    ] * WRITERS
    assert len(names) > WRITERS
    assert len(TrustStore(trust_file).list_states()) == WRITERS * CHANGES
    assert (await store.find(session.slug)).name in {f"{each} {CHANGES - 1}" for each in range(WRITERS)}
