"""Every place that stores text is purged with a session, or a reason says why not."""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import retinue
from retinue.app.purge import KEPT_PLACES, PURGE_FUNCTIONS
from retinue.ledger.database import open_memory_database
from retinue.ledger.purge import KEPT_TABLES, PURGED_TABLES

SOURCE = Path(retinue.__file__).parent
PLACE_IN_HOME = re.compile(r'(?:\bhome|_home|\.folder\.home) / (?:"([^"{]+)"|([A-Z][A-Z_]*))')
CONSTANT = r'^{name} = "([^"]+)"'
OTHER_HOMES = frozenset({"testing", "torture"})
"""Folders of the source whose `home` is not, or not only, a home of Retinue."""


def test_every_table_of_the_ledger_is_purged_or_kept_for_a_reason():
    with closing(open_memory_database()) as ledger:
        tables = {
            name
            for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type='table'")
            if not name.startswith("sqlite_")
        }
        assert tables == PURGED_TABLES | KEPT_TABLES.keys()
        assert not PURGED_TABLES & KEPT_TABLES.keys()
        assert _free_texts(ledger, KEPT_TABLES) == {
            ("daily_usage", "agent"), ("daily_usage", "day"), ("daily_usage", "model"),
            ("pruned_runs", "agent"), ("pruned_runs", "id"), ("pruned_runs", "reason"), ("pruned_runs", "result_hash"),
            ("pruned_runs", "session_id"), ("pruned_runs", "status"), ("retention", "name"),
        }  # fmt: skip


def test_every_place_of_a_home_is_purged_or_kept_for_a_reason():
    places = {place for path in SOURCE.rglob("*.py") for place in _places_named_in(path)}
    assert {"ledger.db", "sessions", "logs", "tmp", "programs", "worktrees"} <= places
    assert places <= PURGE_FUNCTIONS.keys() | KEPT_PLACES.keys()
    assert not PURGE_FUNCTIONS.keys() & KEPT_PLACES.keys()


def _free_texts(ledger: sqlite3.Connection, tables: Iterable[str]) -> set[tuple[str, str]]:
    return {
        (table, column)
        for table in tables
        for _, column, kind, *_ in ledger.execute(f"PRAGMA table_info({table})")
        if kind == "TEXT"
    }


def _places_named_in(path: Path) -> set[str]:
    """Return the names that a module joins to a home, by its literals and its constants."""
    if path.relative_to(SOURCE).parts[0] in OTHER_HOMES:
        return set()
    found: set[str] = set()
    for literal, constant in PLACE_IN_HOME.findall(path.read_text("utf-8")):
        found.add(literal.partition("/")[0] if literal else _value_of(constant))
    return found


def _value_of(constant: str) -> str:
    [value] = {
        found[1]
        for path in SOURCE.rglob("*.py")
        if (found := re.search(CONSTANT.format(name=constant), path.read_text("utf-8"), re.MULTILINE))
    }
    return value
