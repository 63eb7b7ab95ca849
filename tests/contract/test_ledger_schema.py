"""The ledger's schema: migration from older versions, and an index for every query."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ledger_file import change_ledger, query_ledger, write_runs
from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.delivery import DeliveryState
from retinue.domain.event import Event
from retinue.domain.run import Status
from retinue.errors import Failed
from retinue.interfaces import Transaction
from retinue.ledger import database
from retinue.ledger.repair import find_damage
from retinue.ledger.transaction import SqliteTransaction
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


async def test_a_ledger_of_a_newer_version_is_refused_and_left_unchanged(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    change_ledger(path, "PRAGMA user_version=9000")
    async with open_ledger(path) as ledger:
        with pytest.raises(Failed, match=r"newer Retinue \(schema version 9000, supported 15\)\. Upgrade"):
            await ledger.write(lambda tx: tx.add_run(make_run("r2")))
    assert query_ledger(path, "SELECT count(*) FROM runs") == [(1,)]


def create_old_ledger(path: Path, version: int) -> None:
    """Create a ledger of this schema version with one run and two events."""
    steps = sorted((Path(database.__file__).parent / "schema").glob("*.sql"))
    ask = (
        '{"key":"key of r1","agent":"main","task":"look around","typed":false,"session":null,"requester":"person",'
        '"parent_run":null,"door":"cli","source":"person","label":"","model":"m:small","thinking":null,'
        '"deadline_seconds":null,"wait":false,"wait_until":null,"unless_busy":false,"keep":true,"role":"subtask",'
        '"trigger":"tool","ceilings":[],"inbox":""}'
    )
    run = {
        "id": "r1", "ask_key": "key of r1", "session_id": "s", "slug": "main-1", "key": "main-1/main",
        "agent": "main", "status": "queued", "requester": "person", "root": "r1", "depth": 0, "door": "cli",
        "source": "person", "label": "", "task": "look around", "model": "", "thinking": "", "text": "",
        "error": "", "turns": 0, "tool_calls": 3, "input_tokens": 0, "output_tokens": 0, "attempts": 0,
        "owner": "", "scope_hash": "", "workspace": "", "path": "session.md", "ask": ask,
        "created_at": 1794768127123456,
    }  # fmt: skip
    with closing(sqlite3.connect(path)) as connection:
        for step in steps[:version]:
            connection.executescript(step.read_text("utf-8"))
        placeholders = ", ".join("?" * len(run))
        connection.execute(f"INSERT INTO runs ({', '.join(run)}) VALUES ({placeholders})", list(run.values()))
        for kind in ("run.queued", "run.started"):
            connection.execute("INSERT INTO events VALUES (NULL, 0, ?, 's', 'r1', '', 'main', '{}')", (kind,))
        connection.execute(f"PRAGMA user_version={version}")
        connection.commit()


async def test_migrated_runs_count_their_tool_calls_as_effective(tmp_path: Path):
    """Schema version 4 did not count effective calls, so every tool call of its runs counts as effective."""
    path = tmp_path / "ledger.db"
    create_old_ledger(path, 4)
    async with open_ledger(path) as ledger:
        run = await ledger.read(lambda tx: tx.get_run("r1"))
        assert run is not None
        assert (run.tool_calls, run.effective_calls) == (3, 3)


@pytest.mark.parametrize("version", range(4, 9))
async def test_an_older_ledger_is_migrated_and_usable(tmp_path: Path, version: int):
    path = tmp_path / "ledger.db"
    create_old_ledger(path, version)
    request = replace(make_run("r1").request, model="m:small")
    expected_run = make_run(
        "r1", request=request, root_id="r1", tool_calls=3, effective_calls=3 if version == 4 else 0
    )
    started = expected_run.start(owner_id="me", at=CREATED_AT, timeout=timedelta(hours=1))
    received_events: list[Event] = []
    async with open_ledger(path, on_event=received_events.append) as ledger:
        assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.find_runs(root="r1"))) == (
            expected_run,
            [expected_run],
        )

        def start_run(tx: Transaction) -> None:
            tx.update_run(started)
            tx.emit(Event(kind="run.ended", at=CREATED_AT, session="s", run="r1"))

        await ledger.write(start_run)
        assert await ledger.read(lambda tx: tx.get_run_by_key("key of r1")) == started
        stored_events = await ledger.read(lambda tx: tx.find_events())
        assert [(event.seq, event.kind) for event in stored_events] == [
            (1, "run.queued"), (2, "run.started"), (3, "run.ended"),
        ]  # fmt: skip
        assert received_events == stored_events[2:]
    assert query_ledger(path, "SELECT id FROM subagent_runs") == []  # a person requested it
    change_ledger(path, "UPDATE runs SET requester = 'main-1/main'")
    assert query_ledger(path, "SELECT task, model FROM subagent_runs") == [("look around", "m:small")]
    assert find_damage(path) is None


async def test_a_new_ledger_has_small_pages_and_an_older_one_keeps_its_page_size(tmp_path: Path):
    """SQLite writes whole pages, so small pages make small writes."""
    sizes: dict[str, int] = {}
    create_old_ledger(tmp_path / "old.db", 8)
    for name in ("old.db", "new.db"):
        async with open_ledger(tmp_path / name) as ledger:
            await ledger.write(lambda tx: tx.add_run(make_run("r2")))
        [(sizes[name],)] = query_ledger(tmp_path / name, "PRAGMA page_size")
    assert sizes == {"old.db": 4096, "new.db": 2048}


async def test_creating_and_changing_a_run_writes_few_pages(tmp_path: Path):
    path = tmp_path / "ledger.db"
    wal = path.with_name("ledger.db-wal")
    frame_bytes = 2048 + 24
    run = make_run("r1", root_id="r1")

    def with_event(change: Callable[[Transaction], None]) -> Callable[[Transaction], None]:
        def change_and_emit(tx: Transaction) -> None:
            change(tx)
            tx.emit(Event(kind="run.state", at=CREATED_AT, session="s", run="r1"))

        return change_and_emit

    async with open_ledger(path) as ledger:
        await ledger.write(with_event(lambda tx: tx.add_run(make_run("r0", root_id="r0"))))
        sizes = [wal.stat().st_size]
        ended = replace(run, status=Status.DONE, ended_at=CREATED_AT)
        changes: list[Callable[[Transaction], None]] = [
            lambda tx: tx.add_run(run),
            lambda tx: tx.update_run(ended),
        ]
        for change in changes:
            await ledger.write(with_event(change))
            sizes.append(wal.stat().st_size)
    created_pages, changed_pages = ((after - before) // frame_bytes for before, after in pairwise(sizes))
    # The table, both keys, the indexes by time, by session and of live runs, and the events.
    assert created_pages == 7
    # The table, the index of live runs, and the events.
    assert changed_pages == 3


async def test_a_failed_migration_is_rolled_back_and_repeated(tmp_path: Path):
    path = tmp_path / "ledger.db"
    change_ledger(path, "CREATE TABLE events (other_column TEXT)")
    async with open_ledger(path) as ledger:
        with pytest.raises(Failed, match="table events already exists"):
            await ledger.write(lambda tx: tx.find_runs())
        assert query_ledger(path, "SELECT name FROM sqlite_master") == [("events",)]
        change_ledger(path, "DROP TABLE events")
        assert await ledger.write(lambda tx: tx.find_runs()) == []


LIVE_STATUSES = (Status.QUEUED, Status.RUNNING, Status.WAITING)

INDEXED_QUERIES: list[Callable[[Transaction], object]] = [
    lambda tx: tx.get_run("x", with_children=True),
    lambda tx: tx.get_run_by_key("x"),
    lambda tx: tx.find_runs(session="x"),
    lambda tx: tx.find_runs(session="x", status=[Status.DONE], limit=3),
    lambda tx: tx.find_runs(root="x"),
    lambda tx: tx.find_runs(parent_run="x"),
    lambda tx: tx.find_runs(prefix="x"),
    lambda tx: tx.find_runs(status=LIVE_STATUSES),
    lambda tx: tx.find_runs(status=LIVE_STATUSES, session="x"),
    lambda tx: tx.find_runs(status=LIVE_STATUSES, parent_run="x", awaited=True),
    lambda tx: tx.find_runs(status=LIVE_STATUSES, root="x"),
    lambda tx: tx.find_runs(status=[Status.WAITING], due_by=CREATED_AT),
    lambda tx: tx.find_runs(status=[Status.QUEUED], started=True),
    lambda tx: tx.find_owner_ids([Status.RUNNING]),
    lambda tx: tx.count_runs(Status.RUNNING),
    lambda tx: tx.count_runs(Status.RUNNING, root="x"),
    lambda tx: tx.count_runs(Status.RUNNING, requester="x"),
    lambda tx: tx.count_runs(root="x"),
    lambda tx: tx.find_deliveries(run="x"),
    lambda tx: tx.find_deliveries(session="x", state=[DeliveryState.PENDING], answers_call=False),
    lambda tx: tx.find_deliveries(requester_run="x", state=[DeliveryState.PENDING], answers_call=True),
    lambda tx: tx.find_approvals(run="x", state=[ApprovalState.PENDING]),
    lambda tx: tx.has_undelivered_work("x", "x"),
    lambda tx: tx.find_approvals(state=[ApprovalState.PENDING]),
    lambda tx: tx.find_side_effects("x"),
    lambda tx: tx.find_events(after=7),
]


def query_plan(path: Path, query: Callable[[Transaction], object]) -> list[str]:
    """Return SQLite's query plan of each statement of the query."""
    statements: list[str] = []
    with closing(database.open_database(path)) as connection:
        connection.set_trace_callback(statements.append)
        query(SqliteTransaction(connection, path))
        connection.set_trace_callback(None)
        return [row[3] for sql in statements for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]


def table_accesses(path: Path, query: Callable[[Transaction], object]) -> list[str]:
    """Return one line for each table or index that the query reads."""
    lines = query_plan(path, query)
    return [line for line in lines if line.startswith(("SCAN ", "SEARCH ")) and line != "SCAN CONSTANT ROW"]


async def test_every_query_uses_an_index(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    for query in INDEXED_QUERIES:
        accesses = table_accesses(path, query)
        assert accesses
        assert [line for line in accesses if not line.startswith("SEARCH ")] == []
    assert table_accesses(path, lambda tx: tx.find_runs(limit=3)) == [
        "SCAN runs USING INDEX runs_by_creation"
    ]
    assert table_accesses(path, lambda tx: tx.find_deliveries(with_session_to_delete=True)) == [
        "SCAN deliveries USING INDEX deliveries_uncleared"
    ]


async def test_the_newest_live_run_is_found_without_sorting(tmp_path: Path):
    """This query runs at the end of every child run."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    filter_sets: list[dict[str, Any]] = [
        {"session": "x"},
        {"parent_run": "x"},
        {"parent_run": "x", "awaited": True},
    ]
    for filters in filter_sets:
        lines = query_plan(
            path, lambda tx, filters=filters: tx.find_runs(status=LIVE_STATUSES, limit=1, **filters)
        )
        assert [line for line in lines if "TEMP B-TREE" in line] == []


async def test_live_children_are_found_by_an_index(tmp_path: Path):
    """This query runs at the end of every child run."""
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    accesses = [
        table_accesses(path, lambda tx, awaited=awaited: tx.has_live_children("x", awaited=awaited))
        for awaited in (None, True)
    ]
    assert accesses == [
        ["SEARCH runs USING INDEX runs_live_of_parent (parent_run=? AND awaited>?)"],
        ["SEARCH runs USING INDEX runs_live_of_parent (parent_run=? AND awaited=?)"],
    ]


async def test_live_runs_are_counted_by_a_covering_index(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await write_runs(path, 1)
    for filters in ({}, {"root": "x"}, {"requester": "x"}):
        [access] = table_accesses(path, lambda tx, filters=filters: tx.count_runs(Status.RUNNING, **filters))
        assert access == "SEARCH runs USING COVERING INDEX runs_live (status=?)"
