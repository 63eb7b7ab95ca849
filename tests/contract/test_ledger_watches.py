"""Who watches whom, and what watchers said, come back from every ledger as they were put."""

import sqlite3
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.watch import Interjection, Severity, Watch
from retinue.interfaces import Ledger, Tx
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
    watch = Watch(id=name, session="s1", slug="main-1", watcher="w1", agent="pair", told_at=AT, created_at=AT)
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
    first, second = a_watch("a"), a_watch("b", session="s2", watcher="w2", heard="01J\udc80")

    def put(tx: Tx) -> None:
        tx.set_watch(second)
        tx.set_watch(first)
        assert tx.watches(session="s1") == [first]

    await ledger.do(put)
    assert await ledger.look(lambda tx: tx.watches()) == [first, replace(second, heard="01J\ufffd")]
    off = replace(first.hears("01K", at=AT), on=False)
    await ledger.do(lambda tx: tx.set_watch(off))
    assert await ledger.look(lambda tx: [each.id for each in tx.watches(on=True)]) == ["b"]
    assert await ledger.look(lambda tx: tx.watches(watcher="w1", on=False)) == [off]
    with pytest.raises(TypeError, match="a look only reads"):
        await ledger.look(lambda tx: tx.set_watch(first))


async def test_what_watchers_said_is_found_by_call_run_and_session_until_it_is_dismissed(ledger: Ledger):
    words = [a_word("a"), a_word("b", run="r2"), a_word("c", session="s2", suggestion="Stop.")]

    def put(tx: Tx) -> None:
        for each in words:
            tx.set_interjection(each)

    await ledger.do(put)
    assert await ledger.look(lambda tx: tx.interjections(call="call of b")) == [words[1]]
    assert await ledger.look(lambda tx: tx.interjections(run="r1")) == [words[0], words[2]]
    assert await ledger.look(lambda tx: tx.interjections(limit=2)) == words[1:]
    gone = words[0].dismissed("person", at=AT)
    assert gone.dismissed("another", at=AT) == gone
    await ledger.do(lambda tx: tx.set_interjection(gone))
    assert await ledger.look(lambda tx: tx.interjections(session="s1", open_=True)) == [words[1]]
    assert await ledger.look(lambda tx: tx.interjections(open_=False)) == [gone]
    with pytest.raises(TypeError, match="a look only reads"):
        await ledger.look(lambda tx: tx.set_interjection(gone))


async def test_a_step_that_raises_changes_no_watch(ledger: Ledger):
    def half(tx: Tx) -> None:
        tx.set_watch(a_watch("a"))
        tx.set_interjection(a_word("a"))
        raise KeyError

    with pytest.raises(KeyError):
        await ledger.do(half)
    assert await ledger.look(lambda tx: (tx.watches(), tx.interjections())) == ([], [])


async def test_a_damaged_watch_is_found_when_the_ledger_is_looked_through(tmp_path: Path):
    ledger = SqliteLedger(tmp_path / "ledger.db")
    await ledger.do(lambda tx: tx.set_watch(a_watch("a")))
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE watches SET watch='{}'")
    connection.close()
    assert "watch" in str(repair.damage(tmp_path / "ledger.db"))
