"""Long conversations: the newest entries are held, and whatever holds for a whole file holds for them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.errors import Unreadable
from retinue.sessions.conversation import FileConversation
from retinue.sessions.markdown.chunks import LineCounter, iter_chunks
from retinue.sessions.markdown.parser import join_chunks, parse_chunk, parse_file, parse_transcript
from retinue.sessions.markdown.torn_tail import find_tear, find_tear_in_tail
from retinue.sessions.markdown.writer import render_entry, render_open_line
from retinue.sessions.store import FileStore
from retinue.sessions.window import window_start
from retinue.testing.fixed_clock import fixed_clock

HEAD = b"<!-- retinue 1 session=general-20261115184207 id=0194 branch=main -->\n\n"

words = st.one_of(
    st.sampled_from(["", "é\n", "\n\n", "<!-- user id=x -->", "<!-- mine -->\n", "\r\n", "😀 " * 40])
)
texts = st.one_of(words, st.integers(0, 300).map(lambda size: "word " * (size // 5)))


def exchange(number: int, texts: Sequence[str], calls: int) -> list[Entry]:
    """What a user says, the reply with its calls, their results, and the answer."""
    said = [*texts, *[""] * 3]
    ids = [f"c{number}-{call}" for call in range(calls)]
    return [
        Message(id=f"u{number}", role="user", text=said[0] or "So?", run=f"r{number}"),
        Message(id=f"a{number}", role="agent", text=said[1], tool_call_count=calls, run=f"r{number}"),
        *(ToolCall(id=each, tool="ls", args="{}", run=f"r{number}") for each in ids),
        *(ToolResult(call_id=each, text=said[2], run=f"r{number}") for each in reversed(ids)),
        Message(id=f"b{number}", role="agent", text=said[1] or "Done.", run=f"r{number}"),
    ]


def spelled(number: int, said: list[str], calls: int) -> bytes:
    return b"".join(map(render_entry, exchange(number, said, calls)))


exchanges = st.builds(spelled, st.integers(0, 99), st.lists(texts, min_size=3, max_size=3), st.integers(0, 4))
oddities = st.sampled_from(
    [
        b"<!-- user -->\nno id\n\n",
        b"<!-- user id=blank -->\n\n",
        b"<!-- agent -->\nby hand\n\n",
        b"<!-- result of=nothing ok -->\norphan\n\n",
        b"<!-- call id=alone tool=ls -->\n{}\n\n",
        b"<!-- user id=q -->\r\nwindows\r\n\r\n",
        render_entry(Notice(id="n", topic="nudge", text="Go on.\x00")),
        render_entry(ToolResult(call_id="c1-0", text="late")),
    ]
)
files = st.lists(st.one_of(exchanges, exchanges, oddities), min_size=1, max_size=25).map(
    lambda parts: HEAD + b"".join(parts)
)
ends = st.sampled_from(
    [b"", render_open_line("z").encode(), render_open_line("z").encode() + b"typed", b"<!-- agent id=t n=9"]
)
windows = st.integers(50, 5000)


class Opened:
    """Bytes as an open file."""

    def __init__(self, data: bytes) -> None:
        self.file = os.memfd_create("session.md")
        os.write(self.file, data)

    def __enter__(self) -> int:
        return self.file

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def orphans(entries: Sequence[Entry]) -> list[str]:
    """Results in the first two exchanges whose call does not stand before them, and calls without a reply."""
    replies, called, found = 0, set[str](), list[str]()
    for entry in entries:
        if isinstance(entry, Message) and entry.role == "agent":
            replies += 1
            if replies == 2:
                break
        elif isinstance(entry, ToolCall):
            called.add(entry.id)
            found += [] if replies else [entry.id]
        elif isinstance(entry, ToolResult) and entry.call_id not in called:
            found.append(entry.call_id)
    return found


@settings(max_examples=200, deadline=None)
@given(files, ends, windows)
def test_a_window_holds_exactly_the_end_of_what_the_whole_file_says(data: bytes, end: bytes, window: int):
    """Shows: P31."""
    data += end
    data = data[: find_tear_in_tail(data)]
    whole = parse_transcript(data, "x")
    with Opened(data) as file:
        start = window_start(file, len(data), window)
        held = join_chunks(parse_file(file, start, len(data), "x"))
    left = len(whole.entries) - len(held.entries)
    assert held.entries == whole.entries[left:]
    assert (held.open_line_id, held.draft, held.missing_newlines, held.end) == (
        whole.open_line_id,
        whole.draft,
        whole.missing_newlines,
        whole.end,
    )
    if len(data) <= window:
        assert start == left == 0
    if start:
        assert len(data) - start > window // 2
        assert data[start - 1 : start] == b"\n"
        assert data[start:].startswith((b"<!-- user", b"<!-- agent"))
        assert orphans(held.entries) == []


@settings(max_examples=150, deadline=None)
@given(files, ends, st.integers(1, 3000))
def test_a_file_read_in_portions_says_what_it_says_as_a_whole(data: bytes, end: bytes, size: int):
    data += end
    whole = parse_transcript(data, "x", lenient=True)
    with Opened(data) as file:
        parts = list(iter_chunks(file, 0, len(data), size))
        assert b"".join(part.data for part in parts) == data
        assert [part.has_next for part in parts] == [True] * (len(parts) - 1) + [False]
        lines = LineCounter(file)
        found = [
            parse_chunk(part, "x", lenient=True, count_lines_before=lines.count_before) for part in parts
        ]
    assert [entry for reading in found for entry in reading.entries] == whole.entries
    assert str(found[-1].error) == str(whole.error)
    assert (found[-1].open_line_id, found[-1].draft, found[-1].end) == (
        whole.open_line_id,
        whole.draft,
        whole.end,
    )


@settings(max_examples=150, deadline=None)
@given(files, ends, st.integers(0, 400))
@example(HEAD + b"x" * 200_000, b"", 0)
def test_a_torn_tail_is_found_from_the_end_as_from_the_whole(data: bytes, end: bytes, cut: int):
    """Shows: P03, P31."""
    filler = render_entry(Message(id="long", role="agent", text="filler " * 20_000))
    data = filler + data + end
    data = data[: len(data) - cut]
    with Opened(data) as file:
        assert find_tear(file, len(data)) == find_tear_in_tail(data)


def test_a_window_moves_rarely_while_the_conversation_grows():
    """The beginning of a request stays the same over many turns.

    Shows: P31.
    """
    window, data, seen = 4000, HEAD, list[int]()
    for number in range(300):
        data += b"".join(map(render_entry, exchange(number, ["ask " * 9, "say " * 9, "see " * 9], 1)))
        with Opened(data) as file:
            seen.append(window_start(file, len(data), window))
    assert seen == sorted(seen)
    assert len(set(seen)) <= len(data) // (window // 4) + 1
    assert max(seen) > len(data) - window


def test_a_long_task_without_another_word_of_a_user_begins_at_a_reply():
    talk: list[Entry] = [Message(id="u", role="user", text="Go.")]
    for number in range(100):
        talk += exchange(number, ["", "look", "see"], 2)[1:-1]
    data = HEAD + b"".join(map(render_entry, talk))
    with Opened(data) as file:
        start = window_start(file, len(data), 2000)
        first = join_chunks(parse_file(file, start, len(data), "x")).entries[0]
    assert isinstance(first, Message)
    assert (first.role, first.tool_call_count) == ("agent", 2)
    assert 1000 < len(data) - start <= 2000


def test_an_exchange_longer_than_the_window_is_held_whole():
    talk = [*exchange(1, [], 0), *exchange(2, ["ask", "say", "see " * 2000], 3)]
    data = HEAD + b"".join(map(render_entry, talk))
    with Opened(data) as file:
        start = window_start(file, len(data), 300)
        assert (
            join_chunks(parse_file(file, start, len(data), "x")).entries == talk[-len(exchange(2, [], 3)) :]
        )


def test_a_file_of_nothing_but_prompts_has_a_window_too():
    talk = [Message(id=f"u{number}", role="user", text="and another thing") for number in range(2000)]
    data = HEAD + b"".join(map(render_entry, talk))
    with Opened(data) as file:
        assert 1000 < len(data) - window_start(file, len(data), 2000) <= 2000


def test_what_cannot_be_read_in_the_window_is_named_by_its_line_in_the_file():
    """Shows: P15, P31."""
    data = HEAD + b"".join(render_entry(each) for number in range(50) for each in exchange(number, [], 1))
    broken = (
        data + b"<!-- agent said this -->\nhello\n\n" + render_entry(Message(id="z", role="user", text="on"))
    )
    with Opened(broken) as file:
        start = window_start(file, len(broken), 1000)
        assert start > 0
        line = data.count(b"\n") + 1
        with pytest.raises(Unreadable, match=rf"^x:{line}: "):
            join_chunks(parse_file(file, start, len(broken), "x"))


NEW = NewSession(agent="general", preset_text="---\n---\nP\n", preset_hash="", workspace=Workspace(root="/"))


@dataclass(slots=True)
class Twin:
    """A conversation that is held in a window, or whole, and what a person does to its file."""

    store: FileStore
    session: Session

    @property
    def path(self) -> Path:
        return Path(self.session.path) / "session.md"

    def save(self, data: bytes, *, renamed: bool) -> None:
        if renamed:
            other = self.path.with_name("4913~")
            other.write_bytes(data)
            other.replace(self.path)
        else:
            self.path.write_bytes(data)


async def do(twin: Twin, talk: FileConversation, kind: str, number: int) -> None:
    """One thing that happens to a conversation while it is open."""
    if kind == "exchange":
        for entry in exchange(number, ["ask " * (number % 40), "say", "see " * (number % 30)], number % 3):
            await talk.append(entry)
    elif kind == "again":
        await talk.append(talk.entries[-1 - number % min(3, len(talk.entries))])
    elif kind == "rest":
        await talk.write_idle_prompt()
    elif kind == "take":
        await talk.refresh()
        if talk.typed_text():
            await talk.save_typed_text(Message(id=f"t{number}", role="user", text=talk.typed_text()))
    else:
        twin.save(edited(twin.path.read_bytes(), kind, number), renamed=bool(number % 2))
    await talk.refresh()


def edited(data: bytes, kind: str, number: int) -> bytes:
    """What a person makes of the file."""
    if kind == "edit late":
        return data.replace(b"Done.", b"Done indeed.")
    if kind == "edit early":
        return data.replace(b"\nold ", b"\nvery old ", 1 + number % 3)
    if kind == "stale":
        return data[: data.rfind(b"\n<!-- user id=u") + 1 or None]
    return data + b"and this\n"


steps = st.tuples(
    st.sampled_from(
        [
            "exchange",
            "exchange",
            "exchange",
            "again",
            "rest",
            "edit late",
            "edit early",
            "stale",
            "type",
            "take",
        ]
    ),
    st.integers(0, 999),
)


async def lived(
    folder: Path, window: int, rounds: list[list[tuple[str, int]]]
) -> tuple[bytes, list[Entry], bool]:
    store = FileStore(folder, fixed_clock(), window=window)
    twin = Twin(store, await store.create(NEW))
    cut, entries = False, list[Entry]()
    try:
        async with store.open(twin.session) as talk:
            for number in range(8):
                await talk.append(*exchange(1000 + number, ["old " * 20, "old", "old " * 20], 1))
        count = 0
        for each in rounds:
            with twin.path.open("ab") as file:
                file.write(b"<!-- agent id=torn n=" if len(each) % 2 else b"")
            async with store.open(twin.session) as talk:
                for kind, number in each:
                    count += 1
                    await do(twin, talk, kind, count if kind == "exchange" else number)
                cut = cut or talk.is_truncated
                entries = talk.entries
        return twin.path.read_bytes(), entries, cut
    finally:
        store.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(steps, max_size=5), min_size=1, max_size=3), st.integers(200, 3000))
def test_whatever_happens_to_a_conversation_in_a_window_leaves_the_same_file(
    rounds: list[list[tuple[str, int]]], window: int
):
    """Appends, edits before and in the window, stale saves, torn tails, typed words.

    Shows: P03, P14, P31.
    """
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        held, entries, cut = asyncio.run(lived(Path(one), window, rounds))
        whole, everything, _ = asyncio.run(lived(Path(two), 1 << 30, rounds))
    assert held == whole
    assert entries == everything[len(everything) - len(entries) :]
    assert cut or len(whole) < 2 * window


@pytest.fixture
async def twin(tmp_path: Path) -> AsyncGenerator[Twin]:
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=3000)
    made = Twin(store, await store.create(NEW))
    async with store.open(made.session) as talk:
        for number in range(40):
            await talk.append(*exchange(number, ["old " * 20, "say", "see " * 20], 1))
        await talk.write_idle_prompt()
    yield made
    store.close()


async def test_an_edit_before_the_window_stays_and_changes_nothing_that_is_held(twin: Twin):
    """Shows: P14, P31."""
    async with twin.store.open(twin.session) as talk:
        assert talk.is_truncated
        before, talk.provider_cache["encoded"] = list(talk.entries), 1
        twin.save(twin.path.read_bytes().replace(b"\nold ", b"\nnew ", 1), renamed=True)
        assert await talk.refresh() is False
        assert (talk.entries, talk.provider_cache) == (before, {"encoded": 1})
        await talk.append(Message(id="last", role="agent", text="Good."))
    assert b"\nnew old" in twin.path.read_bytes()
    assert twin.path.read_bytes().endswith(b"Good.\n\n")


async def test_what_a_run_added_is_not_added_again_when_a_person_pastes_more_than_a_window_behind_it(
    twin: Twin,
):
    """Shows: P14, P31."""
    pasted = b"".join(render_entry(each) for number in range(60) for each in exchange(500 + number, [], 1))
    async with twin.store.open(twin.session) as talk:
        await talk.append(Message(id="mine", role="user", text="Mine."))
        twin.path.write_bytes(twin.path.read_bytes() + pasted)
        await talk.refresh()
        assert all(entry.id != "mine" for entry in talk.entries)
        await talk.append(Message(id="more", role="agent", text="More."))
    assert twin.path.read_bytes().count(b"id=mine ") == twin.path.read_bytes().count(b"id=more ") == 1


async def test_a_run_finds_what_it_said_before_the_window_and_does_not_say_it_again(twin: Twin):
    """Shows: P31."""
    before = twin.path.read_bytes()
    async with twin.store.open(twin.session) as talk:
        held = {entry.run for entry in talk.entries}
        assert "r3" not in held
        said = exchange(3, ["old " * 20, "say", "see " * 20], 1)
        assert await talk.read_earlier_entries("r3") == said
        assert await talk.read_earlier_entries("r39") == []
        await talk.append(said[0])
        await talk.append(*said[1:])
    assert twin.path.read_bytes() == before


async def test_the_thoughts_of_entries_in_the_window_are_found_at_the_end_of_the_sidecar(twin: Twin):
    thinking = [
        Message(id=f"t{number}", role="agent", text="hm " * 30, thoughts=(f'{{"n": {number}}}', "x" * 40_000))
        for number in range(60)
    ]
    async with twin.store.open(twin.session) as talk:
        await talk.append(*thinking)
    async with twin.store.open(twin.session) as talk:
        found = [entry for entry in talk.entries if isinstance(entry, Message) and entry.thoughts]
        assert 5 < len(found) < 40
        assert found == thinking[-len(found) :]


async def test_opening_a_long_session_reads_its_tail_only(tmp_path: Path):
    """Shows: P31."""
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=1 << 20)
    twin = Twin(store, await store.create(NEW))
    filler = b"".join(render_entry(each) for each in exchange(1, ["x" * 30_000] * 3, 1))
    twin.path.write_bytes(HEAD + filler * 300)
    assert twin.path.stat().st_size > 25 << 20
    before = bytes_read()
    async with store.open(twin.session) as talk:
        assert talk.is_truncated
        await talk.append(Message(id="new", role="user", text="And now?"))
        assert not await talk.refresh()
        assert bytes_read() - before < 2 << 20
    store.close()


def bytes_read() -> int:
    """What this process has been given by read(2) and its kin so far."""
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


async def test_what_a_long_file_holds_is_counted_told_and_exported_in_pieces(twin: Twin):
    survey = await twin.store.scan(twin.session)
    entries, _ = await twin.store.read_entries(twin.session)
    assert (survey.entries, survey.problems) == (len(entries), ())
    assert survey.run_ids == {f"r{number}" for number in range(40)}
    twin.path.write_bytes(
        twin.path.read_bytes() + b"".join(map(render_entry, entries * 20)) + b"<!-- agent id=t"
    )
    found = [each async for each in twin.store.iter_entries(twin.session)]
    assert len(found) > 3
    assert [entry for each in found for entry in each] == entries * 21
    assert "".join([piece async for piece in twin.store.iter_text(twin.session)]) == twin.path.read_text()
    assert (await twin.store.scan(twin.session)).entries == 21 * len(entries)
    assert "torn tail of 15 bytes" in (await twin.store.scan(twin.session)).problems[0]


@pytest.mark.parametrize(("at", "include"), [(None, True), ("u900", True), ("u900", False), ("u0", False)])
async def test_a_branch_of_a_long_conversation_is_copied_up_to_its_prompt(
    twin: Twin, at: str | None, include: bool
):
    """Shows: A082, P31."""
    more = [entry for number in range(860, 1000) for entry in exchange(number, ["x" * 700] * 3, 1)]
    async with twin.store.open(twin.session) as talk:
        await talk.append(*more)
        await talk.write_idle_prompt()
    entries, _ = await twin.store.read_entries(twin.session)
    branch = await twin.store.branch(twin.session, prompt_id=at, include=include, name="two")
    end = len(entries) if at is None else next(n for n, each in enumerate(entries) if each.id == at) + include
    assert await twin.store.read_entries(branch) == (entries[:end], [])
