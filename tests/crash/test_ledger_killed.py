"""SIGKILL at any instant: what a step's asker was told is there afterwards, whole and once."""

import random
import sqlite3
import subprocess
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from commands import WarmProcess

from retinue.ledger.ledger import SqliteLedger

WRITER = """
    import asyncio, itertools, sys
    from datetime import UTC, datetime
    from pathlib import Path
    from retinue.domain.event import Event
    from retinue.domain.run import RunRequest, Run
    from retinue.ledger.ledger import SqliteLedger

    AT = datetime(2026, 1, 1, tzinfo=UTC)

    async def lane(ledger, name):
        for number in itertools.count():
            run = Run(id=f"{name}/{number}", request=RunRequest(key=f"{name}/{number}", agent="main", task=None),
                      session_id="s", slug="s", session_key="s/main", agent="main", transcript_path="", text="x" * 2000, created_at=AT)
            def step(tx):
                tx.add_run(run)
                tx.emit(Event(kind="run.queued", at=AT, session="s", run=run.id))
            await ledger.write(step)
            sys.stdout.write(run.id + "\\n")
            sys.stdout.flush()

    async def main():
        ledger = SqliteLedger(Path(sys.argv[1]))
        await asyncio.gather(*(lane(ledger, f"{sys.argv[2]}.{lane_number}") for lane_number in range(8)))

    asyncio.run(main())
"""


def killed(path: Path, life: str, after: float) -> set[str]:
    """A process that writes until it is killed; the ids it was told are on disk."""
    with WarmProcess(["-c", textwrap.dedent(WRITER), str(path), life], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(after)
        process.kill()
        told = (first + process.stdout.read()).decode()
    # A line without its end was not yet told.
    return set(told[: told.rfind("\n") + 1].split())


@pytest.mark.parametrize("seed", range(3))
async def test_everything_acknowledged_survives_repeated_kills_and_no_step_is_half_there(
    tmp_path: Path, seed: int
):
    path = tmp_path / "ledger.db"
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    for life in ("first", "second", "third"):
        acknowledged |= killed(path, life, chance.uniform(0, 0.05))
    ledger = SqliteLedger(path)
    runs = await ledger.read(lambda tx: tx.find_runs())
    events = await ledger.read(lambda tx: tx.find_events(limit=1_000_000))
    await ledger.close()
    assert len(acknowledged) >= 3
    assert acknowledged <= {run.id for run in runs}
    assert sorted(event.run for event in events) == sorted(run.id for run in runs)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(run.text == "x" * 2000 for run in runs)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
