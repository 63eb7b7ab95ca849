"""`retinue doctor --repair` fixes disagreements between files and ledger, reports what it did, and drops nothing."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import retinue
from retinue.app.repair import NEW_LEDGER_ADVICE
from retinue.config.load import Config, load_config
from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import Reason, Run, Status
from retinue.domain.transcript import ToolResult
from retinue.errors import Unreadable
from retinue.interfaces import Transaction


@pytest.fixture
def config(tmp_path: Path) -> Config:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["One.", "Two.", "Three."]))
    return load_config(
        {
            "RETINUE_HOME": str(tmp_path / "home"),
            "RETINUE_CONFIG": str(tmp_path / "config"),
            "RETINUE_MODEL": f"scripted:{script}",
        }
    )


@pytest.fixture
async def app(config: Config) -> AsyncGenerator[retinue.App]:
    async with retinue.open(config=config) as opened:
        yield opened


async def find_messages(app: retinue.App, status: str, *, repair: bool = False) -> list[str]:
    return [
        finding.message for finding in await app.repair.diagnose(repair=repair) if finding.status == status
    ]


async def add_abandoned_run(app: retinue.App, finished: Run) -> Run:
    """Add a running run without an owner, in the session of a finished one."""
    run = replace(finished, status=Status.RUNNING, owner_id="", ended_at=None, reason=None)
    run = replace(
        run,
        id=app.context.clock.new_entry_id(),
        request=replace(run.request, key=app.context.clock.new_uuid()),
    )
    await app.context.ledger.write(lambda tx: tx.add_run(run))
    return run


async def add_delivery(app: retinue.App, run: Run, requester: Run, **fields: Any) -> Delivery:
    default = Delivery(
        id=app.context.clock.new_entry_id(),
        run=run.id,
        requester_run=requester.id,
        session=requester.session_id,
        answers_call=False,
        text="Result.",
        keep_session=True,
        created_at=app.context.clock.now(),
    )
    delivery = replace(default, **fields)
    await app.context.ledger.write(lambda tx: tx.add_delivery(delivery))
    return delivery


async def delivery_state(app: retinue.App, delivery: Delivery) -> DeliveryState:
    def step(tx: Transaction) -> DeliveryState:
        current = tx.get_delivery(delivery.id)
        assert current is not None
        return current.state

    return await app.context.ledger.read(step)


async def test_a_consistent_home_needs_no_repair(app: retinue.App, tmp_path: Path):
    await app.run("Hello.", workspace=tmp_path)
    assert await find_messages(app, "repaired", repair=True) == []
    assert await find_messages(app, "warn", repair=True) == []


async def test_a_run_whose_session_is_gone_is_reported_and_with_repair_marked_as_lost(
    app: retinue.App, tmp_path: Path
):
    """Shows: P18."""
    done = await app.run("Hello.", workspace=tmp_path)
    run = await add_abandoned_run(app, done)
    shutil.rmtree(Path(done.transcript_path).parents[2])
    [message, missing, interrupted] = await find_messages(app, "warn")
    assert missing == f"{done.transcript_path} is missing; run {done.id} wrote it"
    assert message == f"run {run.id} is running, and its session is gone: {run.transcript_path}"
    assert interrupted == "1 run interrupted"
    assert (await app.runs.find(run.id)).status is Status.RUNNING
    [repaired] = await find_messages(app, "repaired", repair=True)
    assert f"run {run.id} is now lost" in repaired
    ended = await app.runs.find(run.id)
    assert (ended.status, ended.reason) == (Status.LOST, Reason.STALE)
    [missing] = await find_messages(app, "warn")
    assert "is missing" in missing
    assert (await app.runs.find(done.id)).text == "One."


async def test_a_run_without_a_session_is_left_alone_while_a_process_owns_it(
    app: retinue.App, tmp_path: Path
):
    done = await app.run("Hello.", workspace=tmp_path)
    run = await add_abandoned_run(app, done)
    await app.context.ledger.write(lambda tx: tx.update_run(replace(run, owner_id=app.owner_id)))
    shutil.rmtree(Path(done.transcript_path).parents[2])
    assert await find_messages(app, "repaired", repair=True) == []
    assert (await app.runs.find(run.id)).status is Status.RUNNING


async def test_a_result_that_no_run_will_receive_is_marked_as_failed_and_kept(
    app: retinue.App, tmp_path: Path
):
    """Shows: P18."""
    requester = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    other = await app.run("Look again.", workspace=tmp_path)
    for_call = await add_delivery(app, child, requester, answers_call=True)
    for_deleted_session = await add_delivery(app, other, requester, session="gone")
    assert len(await find_messages(app, "warn")) == 2
    assert await delivery_state(app, for_call) is DeliveryState.PENDING
    repaired = await find_messages(app, "repaired", repair=True)
    assert [child.id in repaired[0], other.id in repaired[1]] == [True, True]
    assert (
        await delivery_state(app, for_call)
        is await delivery_state(app, for_deleted_session)
        is DeliveryState.FAILED
    )
    assert await find_messages(app, "warn") == []
    assert (await app.runs.find(child.id)).text == "One."


async def test_a_result_that_the_next_message_delivers_is_reported_and_left_pending(
    app: retinue.App, tmp_path: Path
):
    requester = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    delivery = await add_delivery(app, child, requester)
    for repair in (False, True):
        [message] = await find_messages(app, "warn", repair=repair)
        assert f"the result of run {child.id} is not delivered yet: session {requester.session_id}" in message
    assert await delivery_state(app, delivery) is DeliveryState.PENDING
    await app.run("And now?", session=requester.session_id)
    assert await delivery_state(app, delivery) is DeliveryState.DELIVERED


async def test_repair_deletes_temporary_sessions_that_a_crash_left_behind(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    requester = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    await add_delivery(app, child, requester, keep_session=False, state=DeliveryState.DELIVERED)
    assert await find_messages(app, "warn") == ["not deleted: 1 temporary session"]
    assert await find_messages(app, "repaired", repair=True) == ["deleted 1 temporary session"]
    assert [session.id for session in await app.sessions.list()] == [requester.session_id]
    assert await find_messages(app, "warn") == []


async def test_repair_removes_old_unfinished_folders_and_tmp_folders_of_deleted_sessions(
    app: retinue.App, config: Config, tmp_path: Path
):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    long_ago = time.time() - 40 * 24 * 3600
    staging = config.home / "sessions" / ".staging"
    staging.mkdir(exist_ok=True)
    old, young = staging / "old", staging / "young"
    of_deleted_session, of_session = config.home / "tmp" / "gone", config.home / "tmp" / run.session_id
    for folder in (old, young, of_deleted_session, of_session):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    for folder in (old, of_deleted_session, of_session):
        os.utime(folder, (long_ago, long_ago))
    assert await find_messages(app, "warn") == ["2 folders left behind by crashes or deleted sessions"]
    assert old.exists()
    await find_messages(app, "repaired", repair=True)
    assert [folder.exists() for folder in (old, young, of_deleted_session, of_session)] == [
        False,
        True,
        False,
        True,
    ]


async def test_replies_missing_from_a_transcript_are_reported_with_their_number(
    app: retinue.App, tmp_path: Path
):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    file = Path(run.transcript_path)
    file.write_text(file.read_text().partition("<!-- agent")[0])
    [message] = await find_messages(app, "warn", repair=True)
    assert message == f"run {run.id} is done, but {run.transcript_path} has only 0 of its 1 replies"
    assert (await app.runs.find(run.id)).text == "One."


async def damage_home(config: Config, tmp_path: Path) -> Run:
    """Create two sessions, one with an open tool call, and erase the first page of the ledger."""
    async with retinue.open(config=config) as app:
        await app.run("Hello.", workspace=tmp_path)
        run = await app.run("Hello again.", workspace=tmp_path)
    file = Path(run.transcript_path)
    last_message = file.read_text().rindex("<!-- user id=")
    call = '<!-- call id=01CALL tool=bash run=01GONE -->\n{"command": "true"}\n\n'
    file.write_text(file.read_text()[:last_message] + call)
    ledger = config.home / "ledger.db"
    ledger.write_bytes(bytes(4096) + ledger.read_bytes()[4096:])
    return run


async def test_repair_keeps_a_copy_of_a_damaged_ledger_and_creates_a_new_one_with_every_session(
    config: Config, tmp_path: Path
):
    """Shows: P16."""
    run = await damage_home(config, tmp_path)
    damaged = (config.home / "ledger.db").read_bytes()
    async with retinue.open(config=config) as app:
        with pytest.raises(Unreadable, match="retinue doctor --repair"):
            await app.run("Go on.", session=run.session_id)
        [finding] = [each for each in await app.repair.diagnose() if each.status == "bad"]
        assert finding.advice == "`retinue doctor --repair` keeps a copy and creates a new one"
        assert (config.home / "ledger.db").read_bytes() == damaged
        [repaired] = [each for each in await app.repair.diagnose(repair=True) if each.status == "repaired"]
        assert repaired.advice == NEW_LEDGER_ADVICE
        [copy] = config.home.glob("ledger.db.damaged-*")
        assert str(copy) in repaired.message
        assert copy.read_bytes() == damaged
        assert len(await app.sessions.list()) == 2
        assert await find_messages(app, "bad") == []
        again = await app.run("Go on.", session=run.session_id)
        assert again.status is Status.DONE
        [result] = [
            each for each in await app.sessions.entries(run.session_id) if isinstance(each, ToolResult)
        ]
        assert "Its outcome is unknown" in result.text


OPEN_HOME = """
import asyncio, sys
import retinue

async def main():
    async with retinue.open(home=sys.argv[1]) as app:
        if sys.argv[2] == "ledger":
            await app.runs.list(live=False)
        print("open", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
"""


@pytest.mark.parametrize("opened", ["home", "ledger"])
async def test_a_damaged_ledger_is_not_replaced_while_another_process_has_the_home_open(
    config: Config, tmp_path: Path, opened: str
):
    """Shows: P16."""
    async with retinue.open(config=config) as app:
        await app.run("Hello.", workspace=tmp_path)
    other = subprocess.Popen(  # noqa: ASYNC220  (Popen returns at once)
        [sys.executable, "-c", OPEN_HOME, str(config.home), opened],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with closing(sqlite3.connect(config.home / "ledger.db")) as connection, connection:
        connection.execute("UPDATE runs SET status='sleeping'")
    async with retinue.open(config=config) as app:
        problems = await find_messages(app, "bad", repair=True)
        assert f"is in use by other processes. End them first: process {other.pid}" in problems[-1]
        assert list(config.home.glob("ledger.db.damaged-*")) == []
        other.communicate("\n")
        assert len(await find_messages(app, "repaired", repair=True)) == 1
        assert list(config.home.glob("ledger.db.damaged-*")) != []
