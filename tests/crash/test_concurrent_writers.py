"""Many processes change the same small files at once: every reader finds a whole one, and no change is lost."""

import asyncio
import json
import subprocess
from pathlib import Path

from commands import start_process

from retinue.agents.trust import TrustStore
from retinue.domain.session import NewSession
from retinue.domain.workspace import Workspace
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

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


async def test_every_reader_finds_a_whole_file_while_many_write(tmp_path: Path):
    """Shows: P05."""
    store = FileStore(tmp_path / "sessions", fixed_clock())
    new = NewSession(
        agent="x", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root=str(tmp_path))
    )
    session = await store.create(new)
    trust = tmp_path / "trust.json"
    writers = [
        await start_process(
            ["-c", WRITER, str(tmp_path / "sessions"), session.slug, str(trust), str(each), str(CHANGES)],
            stderr=subprocess.PIPE,
        )
        for each in range(WRITERS)
    ]  # fmt: skip
    ended = asyncio.gather(*(each.communicate() for each in writers))
    facts, names = Path(session.path) / "session.json", set[str]()
    while not ended.done():
        names.add(json.loads(facts.read_text()).get("name") or "")
        if trust.exists():
            json.loads(trust.read_text())
        await asyncio.sleep(0)
    assert [(each.returncode, err) for each, (_, err) in zip(writers, await ended, strict=True)] == [
        (0, b"")
    ] * WRITERS
    assert len(names) > WRITERS
    assert len(TrustStore(trust).list_states()) == WRITERS * CHANGES
    assert (await store.find(session.slug)).name in {f"{each} {CHANGES - 1}" for each in range(WRITERS)}
    store.close()
