"""Watches and interjections in every ledger."""

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

NOW = datetime(2026, 11, 15, 18, 42, 7, 123456, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "memory"])
async def ledger(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[SqliteLedger | MemoryLedger]:
    opened = SqliteLedger(tmp_path / "ledger.db") if request.param == "sqlite" else MemoryLedger()
    yield opened
    await opened.close()


def make_watch(name: str, **fields: Any) -> Watch:
    watch = Watch(
        id=name, session="s1", slug="main-1", watcher="w1", agent="pair", last_update_at=NOW, created_at=NOW
    )
    return replace(watch, **fields)


def make_interjection(name: str, **fields: Any) -> Interjection:
    interjection = Interjection(
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
        created_at=NOW,
    )
    return replace(interjection, **fields)


async def test_watches_are_found_by_session_watcher_and_state(ledger: Ledger):
    first, second = make_watch("a"), make_watch("b", session="s2", watcher="w2", last_entry_id="01J\udc80")

    def save_watches(tx: Transaction) -> None:
        tx.save_watch(second)
        tx.save_watch(first)
        assert tx.find_watches(session="s1") == [first]

    await ledger.write(save_watches)
    assert await ledger.read(lambda tx: tx.find_watches()) == [
        first,
        replace(second, last_entry_id="01J\ufffd"),
    ]
    disabled = replace(first.mark_notified("01K", at=NOW), on=False)
    await ledger.write(lambda tx: tx.save_watch(disabled))
    assert await ledger.read(lambda tx: [each.id for each in tx.find_watches(on=True)]) == ["b"]
    assert await ledger.read(lambda tx: tx.find_watches(watcher="w1", on=False)) == [disabled]
    with pytest.raises(TypeError, match="a read transaction cannot write"):
        await ledger.read(lambda tx: tx.save_watch(first))


async def test_interjections_are_found_by_call_run_session_and_state(ledger: Ledger):
    interjections = [
        make_interjection("a"),
        make_interjection("b", run="r2"),
        make_interjection("c", session="s2", suggestion="Stop."),
    ]

    def save_interjections(tx: Transaction) -> None:
        for each in interjections:
            tx.save_interjection(each)

    await ledger.write(save_interjections)
    assert await ledger.read(lambda tx: tx.find_interjections(call="call of b")) == [interjections[1]]
    assert await ledger.read(lambda tx: tx.find_interjections(run="r1")) == [
        interjections[0],
        interjections[2],
    ]
    assert await ledger.read(lambda tx: tx.find_interjections(limit=2)) == interjections[1:]
    dismissed = interjections[0].dismiss("person", at=NOW)
    assert dismissed.dismiss("another", at=NOW) == dismissed
    await ledger.write(lambda tx: tx.save_interjection(dismissed))
    assert await ledger.read(lambda tx: tx.find_interjections(session="s1", open_=True)) == [interjections[1]]
    assert await ledger.read(lambda tx: tx.find_interjections(open_=False)) == [dismissed]
    with pytest.raises(TypeError, match="a read transaction cannot write"):
        await ledger.read(lambda tx: tx.save_interjection(dismissed))


async def test_a_failed_transaction_changes_no_watch(ledger: Ledger):
    def write_and_fail(tx: Transaction) -> None:
        tx.save_watch(make_watch("a"))
        tx.save_interjection(make_interjection("a"))
        raise KeyError

    with pytest.raises(KeyError):
        await ledger.write(write_and_fail)
    assert await ledger.read(lambda tx: (tx.find_watches(), tx.find_interjections())) == ([], [])


async def test_a_damaged_watch_is_found_by_the_damage_check(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    await ledger.write(lambda tx: tx.save_watch(make_watch("a")))
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE watches SET watch='{}'")
    connection.close()
    assert "watch" in str(repair.find_damage(tmp_path / "ledger.db"))
