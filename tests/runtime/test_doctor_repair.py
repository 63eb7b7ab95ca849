"""The doctor with `--repair`: folders and ledger are made to agree, what was done is said, and nothing is dropped."""

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
    async with retinue.open(config=config) as found:
        yield found


async def told(app: retinue.App, level: str, *, repair: bool = False) -> list[str]:
    return [one.message for one in await app.repair.diagnose(repair=repair) if one.status == level]


async def left(app: retinue.App, like: Run, **facts: Any) -> Run:
    """A run that a dead process left, made after another."""
    run = replace(like, status=Status.RUNNING, owner_id="", ended_at=None, reason=None, **facts)
    run = replace(
        run,
        id=app.context.clock.new_entry_id(),
        request=replace(run.request, key=app.context.clock.new_uuid()),
    )
    await app.context.ledger.write(lambda tx: tx.add_run(run))
    return run


async def posted(app: retinue.App, of: Run, by: Run, **facts: Any) -> Delivery:
    made = Delivery(
        id=app.context.clock.new_entry_id(),
        run=of.id,
        requester_run=by.id,
        session=by.session_id,
        answers_call=False,
        text="told",
        keep_session=True,
        created_at=app.context.clock.now(),
    )
    delivery = replace(made, **facts)
    await app.context.ledger.write(lambda tx: tx.add_delivery(delivery))
    return delivery


async def state(app: retinue.App, delivery: Delivery) -> DeliveryState:
    def step(tx: Transaction) -> DeliveryState:
        found = tx.get_delivery(delivery.id)
        assert found is not None
        return found.state

    return await app.context.ledger.read(step)


async def test_where_all_is_well_nothing_is_mended(app: retinue.App, tmp_path: Path):
    await app.run("Hello.", workspace=tmp_path)
    assert await told(app, "mended", repair=True) == []
    assert await told(app, "warn", repair=True) == []


async def test_a_run_whose_session_is_gone_is_told_and_ended_on_request(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    done = await app.run("Hello.", workspace=tmp_path)
    run = await left(app, done)
    shutil.rmtree(Path(done.transcript_path).parents[2])
    [what, interrupted] = await told(app, "warn")
    assert what == f"run {run.id} is running, and its session is gone: {run.transcript_path}"
    assert interrupted == "1 runs interrupted"
    assert (await app.runs.find(run.id)).status is Status.RUNNING
    [mended] = await told(app, "mended", repair=True)
    assert f"run {run.id} is now lost" in mended
    now = await app.runs.find(run.id)
    assert (now.status, now.reason) == (Status.LOST, Reason.STALE)
    assert await told(app, "warn") == []
    assert (await app.runs.find(done.id)).text == "One."


async def test_a_run_of_a_gone_session_that_somebody_works_is_left_to_them(app: retinue.App, tmp_path: Path):
    done = await app.run("Hello.", workspace=tmp_path)
    run = await left(app, done)
    await app.context.ledger.write(lambda tx: tx.update_run(replace(run, owner_id=app.owner_id)))
    shutil.rmtree(Path(done.transcript_path).parents[2])
    assert await told(app, "mended", repair=True) == []
    assert (await app.runs.find(run.id)).status is Status.RUNNING


async def test_a_result_that_waits_for_nobody_is_told_to_a_person_and_stays(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    asker = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    other = await app.run("Look again.", workspace=tmp_path)
    to_a_call = await posted(app, child, asker, answers_call=True)
    to_no_session = await posted(app, other, asker, session="gone")
    assert len(await told(app, "warn")) == 2
    assert await state(app, to_a_call) is DeliveryState.PENDING
    mended = await told(app, "mended", repair=True)
    assert [child.id in mended[0], other.id in mended[1]] == [True, True]
    assert await state(app, to_a_call) is await state(app, to_no_session) is DeliveryState.FAILED
    assert await told(app, "warn") == []
    assert (await app.runs.find(child.id)).text == "One."


async def test_a_result_that_the_next_message_will_bring_is_told_and_left(app: retinue.App, tmp_path: Path):
    asker = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    delivery = await posted(app, child, asker)
    for repair in (False, True):
        [what] = await told(app, "warn", repair=repair)
        assert f"the result of run {child.id} is not delivered yet: session {asker.session_id}" in what
    assert await state(app, delivery) is DeliveryState.PENDING
    await app.run("And now?", session=asker.session_id)
    assert await state(app, delivery) is DeliveryState.DELIVERED


async def test_sessions_that_were_not_to_be_kept_are_put_aside_on_request(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    asker = await app.run("Hello.", workspace=tmp_path)
    child = await app.run("Look.", workspace=tmp_path)
    await posted(app, child, asker, keep=False, state=DeliveryState.DELIVERED)
    assert await told(app, "warn") == ["1 temporary sessions were not deleted"]
    assert await told(app, "mended", repair=True) == ["1 temporary sessions were deleted"]
    assert [each.id for each in await app.sessions.list()] == [asker.session_id]
    assert await told(app, "warn") == []


async def test_folders_that_nobody_finishes_any_more_are_removed_on_request(
    app: retinue.App, config: Config, tmp_path: Path
):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    long_ago = time.time() - 40 * 24 * 3600
    staging = config.home / "sessions" / ".staging"
    staging.mkdir(exist_ok=True)
    old, young = staging / "old", staging / "young"
    gone, own = config.home / "tmp" / "gone", config.home / "tmp" / run.session_id
    for folder in (old, young, gone, own):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    for folder in (old, gone, own):
        os.utime(folder, (long_ago, long_ago))
    assert await told(app, "warn") == ["2 folders were left behind by crashes or deleted sessions"]
    assert old.exists()
    await told(app, "mended", repair=True)
    assert [each.exists() for each in (old, young, gone, own)] == [False, True, False, True]


async def test_replies_that_are_missing_are_counted(app: retinue.App, tmp_path: Path):
    """Shows: P18."""
    run = await app.run("Hello.", workspace=tmp_path)
    file = Path(run.transcript_path)
    file.write_text(file.read_text().partition("<!-- agent")[0])
    [what] = await told(app, "warn", repair=True)
    assert what == f"run {run.id} is done, but {run.transcript_path} has only 0 of its 1 replies"
    assert (await app.runs.find(run.id)).text == "One."


async def spoiled(config: Config, tmp_path: Path) -> Run:
    """Two conversations, one with a call that was never answered, and a ledger whose first page is gone."""
    async with retinue.open(config=config) as app:
        await app.run("Hello.", workspace=tmp_path)
        run = await app.run("Hello again.", workspace=tmp_path)
    file = Path(run.transcript_path)
    at = file.read_text().rindex("<!-- user id=")
    call = '<!-- call id=01CALL tool=bash run=01GONE -->\n{"command": "true"}\n\n'
    file.write_text(file.read_text()[:at] + call)
    ledger = config.home / "ledger.db"
    ledger.write_bytes(bytes(4096) + ledger.read_bytes()[4096:])
    return run


async def test_a_damaged_ledger_is_kept_aside_on_request_and_every_session_is_there(
    config: Config, tmp_path: Path
):
    """Shows: P16."""
    run = await spoiled(config, tmp_path)
    bad = (config.home / "ledger.db").read_bytes()
    async with retinue.open(config=config) as app:
        with pytest.raises(Unreadable, match="retinue doctor --repair"):
            await app.run("Go on.", session=run.session_id)
        [found] = [one for one in await app.repair.diagnose() if one.status == "bad"]
        assert found.advice == "`retinue doctor --repair` keeps a copy and creates a new one"
        assert (config.home / "ledger.db").read_bytes() == bad
        [mended] = [one for one in await app.repair.diagnose(repair=True) if one.status == "mended"]
        assert mended.advice == NEW_LEDGER_ADVICE
        [kept] = config.home.glob("ledger.db.damaged-*")
        assert str(kept) in mended.message
        assert kept.read_bytes() == bad
        assert len(await app.sessions.list()) == 2
        assert await told(app, "bad") == []
        again = await app.run("Go on.", session=run.session_id)
        assert again.status is Status.DONE
        [result] = [
            each for each in await app.sessions.entries(run.session_id) if isinstance(each, ToolResult)
        ]
        assert "Its outcome is unknown" in result.text


OPENS = """
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


@pytest.mark.parametrize("what", ["home", "ledger"])
async def test_a_ledger_that_another_process_has_is_not_set_aside(config: Config, tmp_path: Path, what: str):
    """Shows: P16."""
    async with retinue.open(config=config) as app:
        await app.run("Hello.", workspace=tmp_path)
    other = subprocess.Popen(  # noqa: ASYNC220  (it begins at once)
        [sys.executable, "-c", OPENS, str(config.home), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with closing(sqlite3.connect(config.home / "ledger.db")) as connection, connection:
        connection.execute("UPDATE runs SET status='sleeping'")
    async with retinue.open(config=config) as app:
        bad = await told(app, "bad", repair=True)
        assert f"is in use by other processes. End them first: process {other.pid}" in bad[-1]
        assert list(config.home.glob("ledger.db.damaged-*")) == []
        other.communicate("\n")
        assert len(await told(app, "mended", repair=True)) == 1
        assert list(config.home.glob("ledger.db.damaged-*")) != []
