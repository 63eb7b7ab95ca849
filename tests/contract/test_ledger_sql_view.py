"""The SQL view for other programs: columns, statuses and units of the seed."""

from datetime import timedelta
from pathlib import Path

from ledger_file import query_ledger
from msgspec.structs import replace

from retinue.domain.run import Reason, RunRequest, Status
from retinue.interfaces import Transaction
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger

SEED_COLUMNS = [
    ("id", "TEXT"),
    ("session_key", "TEXT"),
    ("requester_key", "TEXT"),
    ("task", "TEXT"),
    ("label", "TEXT"),
    ("model", "TEXT"),
    ("status", "TEXT"),
    ("result", "TEXT"),
    ("error", "TEXT"),
    ("started_at", "INTEGER"),
    ("finished_at", "INTEGER"),
    ("duration_ms", "INTEGER"),
]


SUBAGENT_REQUEST = RunRequest(key="k", agent="main", task="look around", requester="main-1/main")


async def test_the_view_holds_only_runs_that_another_session_requested(tmp_path: Path):
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("by-person")))
        await ledger.write(lambda tx: tx.add_run(make_run("by-agent", request=SUBAGENT_REQUEST)))
    assert query_ledger(path, "SELECT id FROM subagent_runs") == [("by-agent",)]


async def test_the_view_has_the_columns_of_the_seed_in_its_order(tmp_path: Path):
    """Shows: E022."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r0", request=SUBAGENT_REQUEST, text="")))
    columns = query_ledger(path, "SELECT name FROM pragma_table_info('subagent_runs')")
    assert [name for (name,) in columns] == [name for name, _ in SEED_COLUMNS]
    column_types = query_ledger(
        path, f"SELECT {', '.join(f'typeof({name})' for name, _ in SEED_COLUMNS)} FROM subagent_runs"
    )
    assert column_types == [
        ("text", "text", "text", "text", "null", "null", "text", "null", "null", "integer", "null", "null")
    ]


STATUSES = [
    (Status.QUEUED, "running"),
    (Status.RUNNING, "running"),
    (Status.WAITING, "running"),
    (Status.DONE, "completed"),
    (Status.FAILED, "failed"),
    (Status.CANCELLED, "failed"),
    (Status.LOST, "failed"),
    (Status.TIMED_OUT, "timeout"),
]


async def test_the_view_maps_every_status_to_one_of_the_four_of_the_seed(tmp_path: Path):
    """Shows: E023."""
    path = tmp_path / "ledger.db"
    async with open_ledger(path) as ledger:
        for status, _ in STATUSES:
            request = replace(SUBAGENT_REQUEST, key=status.value)
            run = make_run(status.value, request=request, status=status)
            await ledger.write(lambda tx, run=run: tx.add_run(run))
    assert {status for status, _ in STATUSES} == set(Status)
    assert dict(query_ledger(path, "SELECT id, status FROM subagent_runs")) == dict(STATUSES)


async def test_the_view_has_the_values_of_each_run_in_the_units_of_the_seed(tmp_path: Path):
    """Shows: E022, E009."""
    path = tmp_path / "ledger.db"
    request = RunRequest(
        key="k1",
        agent="main",
        task="Research",
        requester="agent:main:main",
        label="research",
        model="m:small",
    )
    completed = make_run(
        "done",
        request=request,
        session_key="agent:main:subagent:1",
        status=Status.DONE,
        text="XFS is from 1993.",
    )
    completed = replace(
        completed,
        started_at=CREATED_AT + timedelta(seconds=1),
        ended_at=CREATED_AT + timedelta(seconds=3, microseconds=500),
    )
    minimal_request = RunRequest(key="k2", agent="main", task=None, requester="agent:main:main")
    async with open_ledger(path) as ledger:

        def add_runs(tx: Transaction) -> None:
            tx.add_run(completed)
            tx.add_run(
                make_run("live", request=minimal_request, status=Status.RUNNING, text="half", model="m:large")
            )
            tx.add_run(
                make_run(
                    "cut",
                    request=replace(minimal_request, key="k3", task="look around"),
                    status=Status.CANCELLED,
                    reason=Reason.USER_CANCEL,
                    text="half",
                    ended_at=CREATED_AT,
                )
            )

        await ledger.write(add_runs)
        stored = await ledger.read(lambda tx: tx.get_run("done"))
    created_at_ms = 1794768127123
    rows = {row[0]: row[1:] for row in query_ledger(path, "SELECT * FROM subagent_runs")}
    assert stored is not None
    assert rows["done"] == (
        "agent:main:subagent:1", "agent:main:main", "Research", "research", "m:small",
        "completed", "XFS is from 1993.", None, created_at_ms + 1000, created_at_ms + 3000, stored.duration_ms,
    )  # fmt: skip
    assert rows["live"] == (
        "main-1/main", "agent:main:main", "", None, "m:large", "running", None, None, created_at_ms, None, None
    )  # fmt: skip
    assert rows["cut"] == (
        "main-1/main", "agent:main:main", "look around", None, None, "failed", "half", "user_cancel", created_at_ms, created_at_ms, None
    )  # fmt: skip
