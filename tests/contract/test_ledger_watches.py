"""Who watches whom, and what watchers said, come back from every ledger as they were put."""

import sqlite3
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.watch import Interjection, Severity, Watch
from retinue.interfaces import Ledger, Transaction
from retinue.ledger import repair
from retinue.ledger.ledger import SqliteLedger
from retinue.testing.memory_ledger import MemoryLedger

AT = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "memory"])
async def ledger(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[SqliteLedger | MemoryLedger]:
    opened = SqliteLedger(tmp_path / "ledger.db") if request.param == "sqlite" else MemoryLedger()
    yield opened
    await opened.close()


def a_watch(name: str, **facts: Any) -> Watch:
    watch = Watch(
        id=name, session="s1", slug="main-1", watcher="w1", agent="pair", last_update_at=AT, created_at=AT
    )
    return replace(watch, **facts)


def a_word(name: str, **facts: Any) -> Interjection:
    said = Interjection(
        id=name,
        call=f"call of {name}",
        run="r1",
        watch="a",
        session="s1",
        slug="main-1",
        watcher="w1",
        agent="pair",
        severity=Severity.WARNING,
        reason="It drifts.",
        created_at=AT,
    )
    return replace(said, **facts)


async def test_watches_are_found_by_whom_they_watch_and_whether_they_are_on(ledger: Ledger):
    first, second = a_watch("a"), a_watch("b", session="s2", watcher="w2", last_entry_id="01J\udc80")

    def put(tx: Transaction) -> None:
        tx.save_watch(second)
        tx.save_watch(first)
        assert tx.find_watches(session="s1") == [first]

    await ledger.write(put)
    assert await ledger.read(lambda tx: tx.find_watches()) == [first, replace(second, last_entry_id="01J\ufffd")]
    off = replace(first.mark_notified("01K", at=AT), on=False)
    await ledger.write(lambda tx: tx.save_watch(off))
    assert await ledger.read(lambda tx: [each.id for each in tx.find_watches(on=True)]) == ["b"]
    assert await ledger.read(lambda tx: tx.find_watches(watcher="w1", on=False)) == [off]
    with pytest.raises(TypeError, match="a read transaction cannot write"):
        await ledger.read(lambda tx: tx.save_watch(first))


async def test_what_watchers_said_is_found_by_call_run_and_session_until_it_is_dismissed(ledger: Ledger):
    words = [a_word("a"), a_word("b", run="r2"), a_word("c", session="s2", suggestion="Stop.")]

    def put(tx: Transaction) -> None:
        for each in words:
            tx.save_interjection(each)

    await ledger.write(put)
    assert await ledger.read(lambda tx: tx.find_interjections(call="call of b")) == [words[1]]
    assert await ledger.read(lambda tx: tx.find_interjections(run="r1")) == [words[0], words[2]]
    assert await ledger.read(lambda tx: tx.find_interjections(limit=2)) == words[1:]
    gone = words[0].dismiss("person", at=AT)
    assert gone.dismiss("another", at=AT) == gone
    await ledger.write(lambda tx: tx.save_interjection(gone))
    assert await ledger.read(lambda tx: tx.find_interjections(session="s1", open_=True)) == [words[1]]
    assert await ledger.read(lambda tx: tx.find_interjections(open_=False)) == [gone]
    with pytest.raises(TypeError, match="a read transaction cannot write"):
        await ledger.read(lambda tx: tx.save_interjection(gone))


async def test_a_step_that_raises_changes_no_watch(ledger: Ledger):
    def half(tx: Transaction) -> None:
        tx.save_watch(a_watch("a"))
        tx.save_interjection(a_word("a"))
        raise KeyError

    with pytest.raises(KeyError):
        await ledger.write(half)
    assert await ledger.read(lambda tx: (tx.find_watches(), tx.find_interjections())) == ([], [])


async def test_a_damaged_watch_is_found_when_the_ledger_is_looked_through(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    await ledger.write(lambda tx: tx.save_watch(a_watch("a")))
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE watches SET watch='{}'")
    connection.close()
    assert "watch" in str(repair.find_damage(tmp_path / "ledger.db"))
