"""The ledger's tables: brought up to date from any version, and searched by an index whatever is asked."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.approval import ApprovalState
from retinue.domain.delivery import DeliveryState as Delivered
from retinue.domain.event import Event
from retinue.domain.run import Status
from retinue.errors import Failed
from retinue.interfaces import Transaction
from retinue.ledger import database
from retinue.ledger.repair import find_damage
from retinue.ledger.transaction import SqliteTransaction
from retinue.testing.ledgers import CREATED_AT, make_run, open_ledger


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def told(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


async def made(path: Path) -> None:
    async with open_ledger(path) as ledger:
        await ledger.write(lambda tx: tx.add_run(make_run("r0")))


async def test_a_ledger_of_a_newer_retinue_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await made(path)
    told(path, "PRAGMA user_version=9000")
    async with open_ledger(path) as ledger:
        with pytest.raises(Failed, match=r"newer Retinue \(schema version 9000, supported 9\)\. Upgrade"):
            await ledger.write(lambda tx: tx.add_run(make_run("r2")))
    assert asked(path, "SELECT count(*) FROM runs") == [(1,)]


def an_older_ledger(path: Path, version: int) -> None:
    """As it was left by a Retinue that knew the schema up to this version: one run, and two events of it."""
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
    with closing(sqlite3.connect(path)) as old:
        for step in steps[:version]:
            old.executescript(step.read_text("utf-8"))
        marks = ", ".join("?" * len(run))
        old.execute(f"INSERT INTO runs ({', '.join(run)}) VALUES ({marks})", list(run.values()))
        for kind in ("run.queued", "run.started"):
            old.execute("INSERT INTO events VALUES (NULL, 0, ?, 's', 'r1', '', 'main', '{}')", (kind,))
        old.execute(f"PRAGMA user_version={version}")
        old.commit()


async def test_runs_of_an_older_ledger_keep_the_work_that_they_did(tmp_path: Path):
    """Before, a ledger did not count what a run's calls came to: nobody is said to have done nothing for that."""
    path = tmp_path / "ledger.db"
    an_older_ledger(path, 4)
    async with open_ledger(path) as ledger:
        run = await ledger.read(lambda tx: tx.get_run("r1"))
        assert run is not None
        assert (run.tool_calls, run.effective_calls) == (3, 3)


@pytest.mark.parametrize("version", range(4, 9))
async def test_an_older_ledger_is_brought_up_to_date_and_goes_on(tmp_path: Path, version: int):
    path = tmp_path / "ledger.db"
    an_older_ledger(path, version)
    kept = replace(make_run("r1").request, model="m:small")
    born = make_run("r1", request=kept, root_id="r1", tool_calls=3, effective_calls=3 if version == 4 else 0)
    started = born.start(owner_id="me", at=CREATED_AT, deadline_at=None)
    heard: list[Event] = []
    async with open_ledger(path, on_event=heard.append) as ledger:
        assert await ledger.read(lambda tx: (tx.get_run("r1"), tx.find_runs(root="r1"))) == (born, [born])

        def step(tx: Transaction) -> None:
            tx.update_run(started)
            tx.emit(Event(kind="run.ended", at=CREATED_AT, session="s", run="r1"))

        await ledger.write(step)
        assert await ledger.read(lambda tx: tx.get_run_by_key("key of r1")) == started
        told = await ledger.read(lambda tx: tx.find_events())
        assert [(event.seq, event.kind) for event in told] == [
            (1, "run.queued"), (2, "run.started"), (3, "run.ended"),
        ]  # fmt: skip
        assert heard == told[2:]
    assert asked(path, "SELECT task, model FROM subagent_runs") == [("look around", "m:small")]
    assert find_damage(path) is None


async def test_a_new_ledger_has_small_pages_and_an_older_one_keeps_its_own(tmp_path: Path):
    """A step writes whole pages, however little it changes on them."""
    sizes: dict[str, int] = {}
    an_older_ledger(tmp_path / "old.db", 8)
    for name in ("old.db", "new.db"):
        async with open_ledger(tmp_path / name) as ledger:
            await ledger.write(lambda tx: tx.add_run(make_run("r2")))
        [(sizes[name],)] = asked(tmp_path / name, "PRAGMA page_size")
    assert sizes == {"old.db": 4096, "new.db": 2048}


async def test_a_run_writes_few_pages_when_it_is_born_and_fewer_when_it_moves(tmp_path: Path):
    path = tmp_path / "ledger.db"
    log = path.with_name("ledger.db-wal")
    frame = 2048 + 24
    run = make_run("r1", root_id="r1")

    def step(change: Callable[[Transaction], None]) -> Callable[[Transaction], None]:
        def both(tx: Transaction) -> None:
            change(tx)
            tx.emit(Event(kind="run.state", at=CREATED_AT, session="s", run="r1"))

        return both

    async with open_ledger(path) as ledger:
        await ledger.write(step(lambda tx: tx.add_run(make_run("r0", root_id="r0"))))
        sizes = [log.stat().st_size]
        ended = replace(run, status=Status.DONE, ended_at=CREATED_AT)
        changes: list[Callable[[Transaction], None]] = [
            lambda tx: tx.add_run(run),
            lambda tx: tx.update_run(ended),
        ]
        for change in changes:
            await ledger.write(step(change))
            sizes.append(log.stat().st_size)
    born, moved = ((after - before) // frame for before, after in pairwise(sizes))
    # The table, both keys, by time, by session, what is live, the events.
    assert born == 7
    # The table, what is live, the events.
    assert moved == 3


async def test_a_schema_step_that_was_cut_off_leaves_nothing_and_is_made_again(tmp_path: Path):
    path = tmp_path / "ledger.db"
    told(path, "CREATE TABLE events (foreign_to_us TEXT)")
    async with open_ledger(path) as ledger:
        with pytest.raises(Failed, match="table events already exists"):
            await ledger.write(lambda tx: tx.find_runs())
        assert asked(path, "SELECT name FROM sqlite_master") == [("events",)]
        told(path, "DROP TABLE events")
        assert await ledger.write(lambda tx: tx.find_runs()) == []


LIVE = (Status.QUEUED, Status.RUNNING, Status.WAITING)

QUESTIONS: list[Callable[[Transaction], object]] = [
    lambda tx: tx.get_run("x", with_children=True),
    lambda tx: tx.get_run_by_key("x"),
    lambda tx: tx.find_runs(session="x"),
    lambda tx: tx.find_runs(session="x", status=[Status.DONE], limit=3),
    lambda tx: tx.find_runs(root="x"),
    lambda tx: tx.find_runs(parent_run="x"),
    lambda tx: tx.find_runs(prefix="x"),
    lambda tx: tx.find_runs(status=LIVE),
    lambda tx: tx.find_runs(status=LIVE, session="x"),
    lambda tx: tx.find_runs(status=LIVE, parent_run="x", awaited=True),
    lambda tx: tx.find_runs(status=LIVE, root="x"),
    lambda tx: tx.find_runs(status=[Status.WAITING], due_by=CREATED_AT),
    lambda tx: tx.find_runs(status=[Status.QUEUED], started=True),
    lambda tx: tx.find_owner_ids([Status.RUNNING]),
    lambda tx: tx.count_runs(Status.RUNNING),
    lambda tx: tx.count_runs(Status.RUNNING, root="x"),
    lambda tx: tx.count_runs(Status.RUNNING, requester="x"),
    lambda tx: tx.count_runs(root="x"),
    lambda tx: tx.find_deliveries(run="x"),
    lambda tx: tx.find_deliveries(session="x", state=[Delivered.PENDING], answers=False),
    lambda tx: tx.find_deliveries(by="x", state=[Delivered.PENDING], answers=True),
    lambda tx: tx.find_approvals(run="x", state=[ApprovalState.PENDING]),
    lambda tx: tx.has_undelivered_work("x", "x"),
    lambda tx: tx.find_approvals(state=[ApprovalState.PENDING]),
    lambda tx: tx.find_side_effects("x"),
    lambda tx: tx.find_events(after=7),
]


def plan(path: Path, question: Callable[[Transaction], object]) -> list[str]:
    """How the database finds what is asked for, in its own words."""
    said: list[str] = []
    with closing(database.open_database(path)) as connection:
        connection.set_trace_callback(said.append)
        question(SqliteTransaction(connection, path))
        connection.set_trace_callback(None)
        return [row[3] for sql in said for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]


def searches(path: Path, question: Callable[[Transaction], object]) -> list[str]:
    """One line for each table or index that it goes through."""
    lines = plan(path, question)
    return [line for line in lines if line.startswith(("SCAN ", "SEARCH ")) and line != "SCAN CONSTANT ROW"]


async def test_whatever_is_asked_for_is_searched_by_an_index(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await made(path)
    for question in QUESTIONS:
        found = searches(path, question)
        assert found
        assert [line for line in found if not line.startswith("SEARCH ")] == []
    assert searches(path, lambda tx: tx.find_runs(limit=3)) == ["SCAN runs USING INDEX runs_by_creation"]
    assert searches(path, lambda tx: tx.find_deliveries(uncleared=True)) == [
        "SCAN deliveries USING INDEX deliveries_uncleared"
    ]


async def test_the_newest_of_many_that_are_live_is_found_without_sorting_them(tmp_path: Path):
    """Each of a thousand children asks at its end whether another of them is live."""
    path = tmp_path / "ledger.db"
    await made(path)
    wishes: list[dict[str, Any]] = [
        {"session": "x"},
        {"parent_run": "x"},
        {"parent_run": "x", "awaited": True},
    ]
    for wish in wishes:
        lines = plan(path, lambda tx, wish=wish: tx.find_runs(status=LIVE, limit=1, **wish))
        assert [line for line in lines if "TEMP B-TREE" in line] == []


async def test_whether_anybody_is_at_work_for_a_run_is_found_by_its_index_alone(tmp_path: Path):
    """Each of a thousand children asks it at its end."""
    path = tmp_path / "ledger.db"
    await made(path)
    found = [
        searches(path, lambda tx, each=each: tx.has_live_children("x", awaited=each)) for each in (None, True)
    ]
    assert found == [
        ["SEARCH runs USING INDEX runs_live_of_parent (parent_run=?)"],
        ["SEARCH runs USING INDEX runs_live_of_parent (parent_run=? AND awaited=?)"],
    ]


async def test_those_that_are_live_are_counted_without_reading_their_rows(tmp_path: Path):
    path = tmp_path / "ledger.db"
    await made(path)
    for wish in ({}, {"root": "x"}, {"requester": "x"}):
        [found] = searches(path, lambda tx, wish=wish: tx.count_runs(Status.RUNNING, **wish))
        assert found == "SEARCH runs USING COVERING INDEX runs_live (status=?)"
