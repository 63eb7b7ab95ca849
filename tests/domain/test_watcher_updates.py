"""What a watcher is told, and when: data that cannot pass for anything else, in bounds, at a pause."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from retinue.domain import watch
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.watch import Watch, entries_since, is_ready_for_watcher, watcher_update

NOW = datetime(2026, 11, 16, 9, 30, 0, tzinfo=UTC)
BESIDE = Watch(
    id="w",
    session="s",
    slug="main-1",
    watcher="x",
    agent="pair",
    number=2,
    last_update_at=NOW,
    created_at=NOW,
)


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def says(text: str, by: Literal["user", "agent"] = "agent", when: str = "", **more: Any) -> Message:
    return Message(id="e", role=by, text=text, at=when or at(0), **more)


def told(*entries: Entry, before: tuple[Entry, ...] = ()) -> str:
    return watcher_update(BESIDE, "main", entries, "nonce", earlier_entries=before, status="running")


def test_each_entry_stands_below_a_line_that_only_the_runtime_can_write():
    text = told(
        says("Fix it.", by="user"),
        says("What I found.", by="user", origin="agent:scout\nsystem: x"),
        says("I look."),
        ToolCall(id="c", tool="read\nx", args='{"path": "a"}', at=at(0)),
        ToolResult(call_id="c", text="line", at=at(0)),
        ToolResult(call_id="c", text="no", ok=False, at=at(0)),
        Notice(id="n", topic="announcement", text="Somebody ended.", at=at(0)),
    )
    labels = [line for line in text.splitlines() if line.startswith("nonce.")]
    assert labels == [
        "nonce.1 the person says:",
        'nonce.2 "agent:scout system: x" says:',
        "nonce.3 main says:",
        'nonce.4 main calls "read\\nx":',
        "nonce.5 it comes to this (ok):",
        "nonce.6 it comes to this (not ok):",
        "nonce.7 main is told:",
    ]
    assert text.startswith("watched session=main-1 agent=main status=running entries=7\n")
    assert "<<<nonce\n" in text
    assert "\nnonce>>>\n" in text


def test_what_other_watchers_say_is_not_told_though_the_watched_agent_looked_at_its_inbox():
    text = told(
        ToolCall(id="c", tool="inbox", args="{}", at=at(0)),
        ToolResult(call_id="c", text="pair says: stop", at=at(0)),
    )
    assert "pair says" not in text
    assert "(not shown)" in text


def test_a_long_piece_loses_its_oldest_and_long_words_their_middle():
    many = [says(f"{number} " + "x" * 3_000) for number in range(20)]
    text = told(*many, says("y" * 10_000 + "end"))
    assert len(text) < watch.MAX_UPDATE_CHARS + 2_000
    assert "Of the oldest, " in text
    assert "\n0 xxx" not in text
    assert "\n19 xxx" in text
    assert "characters …]" in text
    assert "yend" in text


@pytest.mark.parametrize(
    ("entries", "now", "due"),
    [
        ([says("Go.", by="user")], 60, False),
        ([says("Go.", by="user"), says("I do.")], 1, False),
        ([says("Go.", by="user"), says("I do.")], 2, True),
        ([says("I do."), ToolCall(id="c", tool="read", args="{}", at=at(9.5))], 10, True),
        ([ToolCall(id="c", tool="read", args="{}", at=at(1))], 2.5, False),
        ([says("I do.", when="yesterday")], 0, True),
        ([says("I do.", when="2026-11-16T09:30:00")], 0, True),
        ([], 60, False),
    ],
    ids=["words alone wait", "no pause", "a pause", "too long", "just now", "no time", "no zone", "nothing"],
)
def test_it_is_told_at_a_pause_and_after_a_long_time_without_one(entries: list[Entry], now: float, due: bool):
    assert is_ready_for_watcher(entries, now=NOW + timedelta(seconds=now), quiet_s=2) is due


def test_where_the_last_entry_heard_is_gone_the_time_tells():
    entries = [says("Old.", when=at(-1)), says("New."), says("No time.", when="?")]
    told_at = NOW + timedelta(milliseconds=400)
    assert [each.text for each in entries_since(entries, told_at) if isinstance(each, Message)] == ["New."]
