"""SIGKILL at any moment: every acknowledged ledger transaction is complete and stored once."""

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

    async def write_runs(ledger, name):
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
        await asyncio.gather(*(write_runs(ledger, f"{sys.argv[2]}.{writer}") for writer in range(8)))

    asyncio.run(main())
"""


def write_until_killed(path: Path, name: str, delay_s: float) -> set[str]:
    """Start a process that writes until it is killed, and return the ids of its acknowledged runs."""
    with WarmProcess(["-c", textwrap.dedent(WRITER), str(path), name], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(delay_s)
        process.kill()
        output = (first + process.stdout.read()).decode()
    # An incomplete last line was not acknowledged.
    return set(output[: output.rfind("\n") + 1].split())


@pytest.mark.parametrize("seed", range(3))
async def test_acknowledged_transactions_survive_repeated_kills_and_none_is_partial(
    tmp_path: Path, seed: int
):
    path = tmp_path / "ledger.db"
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    for name in ("first", "second", "third"):
        acknowledged |= write_until_killed(path, name, rng.uniform(0, 0.05))
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
