"""Long conversations: only a window of the newest entries is loaded, with the same behaviour as a whole file."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from new_session import new_session

from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import Unreadable
from retinue.sessions.conversation import FileConversation
from retinue.sessions.markdown.chunks import LineCounter, iter_chunks
from retinue.sessions.markdown.parser import join_chunks, parse_chunk, parse_file, parse_transcript
from retinue.sessions.markdown.torn_tail import find_torn_tail, find_torn_tail_in
from retinue.sessions.markdown.writer import render_entry, render_open_line
from retinue.sessions.store import FileStore
from retinue.sessions.window import window_start
from retinue.testing.fixed_clock import fixed_clock

HEAD = b"<!-- retinue 1 session=general-20261115184207 id=0194 branch=main -->\n\n"

short_texts = st.one_of(
    st.sampled_from(["", "é\n", "\n\n", "<!-- user id=x -->", "<!-- mine -->\n", "\r\n", "😀 " * 40])
)
entry_texts = st.one_of(short_texts, st.integers(0, 300).map(lambda size: "word " * (size // 5)))


def make_exchange(number: int, texts: Sequence[str], calls: int) -> list[Entry]:
    """Build a user message, a reply with tool calls, their results, and the answer."""
    padded = [*texts, *[""] * 3]
    ids = [f"c{number}-{call}" for call in range(calls)]
    return [
        Message(id=f"u{number}", role="user", text=padded[0] or "So?", run=f"r{number}"),
        Message(id=f"a{number}", role="agent", text=padded[1], tool_call_count=calls, run=f"r{number}"),
        *(ToolCall(id=each, tool="ls", args="{}", run=f"r{number}") for each in ids),
        *(ToolResult(call_id=each, text=padded[2], run=f"r{number}") for each in reversed(ids)),
        Message(id=f"b{number}", role="agent", text=padded[1] or "Done.", run=f"r{number}"),
    ]


def render_exchange(number: int, texts: list[str], calls: int) -> bytes:
    return b"".join(map(render_entry, make_exchange(number, texts, calls)))


exchanges = st.builds(
    render_exchange, st.integers(0, 99), st.lists(entry_texts, min_size=3, max_size=3), st.integers(0, 4)
)
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
file_contents = st.lists(st.one_of(exchanges, exchanges, oddities), min_size=1, max_size=25).map(
    lambda parts: HEAD + b"".join(parts)
)
file_ends = st.sampled_from(
    [b"", render_open_line("z").encode(), render_open_line("z").encode() + b"typed", b"<!-- agent id=t n=9"]
)
windows = st.integers(50, 5000)


class OpenFile:
    """Data as an open file."""

    def __init__(self, data: bytes) -> None:
        self.file = os.memfd_create("session.md")
        os.write(self.file, data)

    def __enter__(self) -> int:
        return self.file

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def orphaned_calls(entries: Sequence[Entry]) -> list[str]:
    """Return results in the first two exchanges without an earlier call, and calls without a reply."""
    replies, call_ids, orphans = 0, set[str](), list[str]()
    for entry in entries:
        if isinstance(entry, Message) and entry.role == "agent":
            replies += 1
            if replies == 2:
                break
        elif isinstance(entry, ToolCall):
            call_ids.add(entry.id)
            orphans += [] if replies else [entry.id]
        elif isinstance(entry, ToolResult) and entry.call_id not in call_ids:
            orphans.append(entry.call_id)
    return orphans


@settings(max_examples=200, deadline=None)
@given(file_contents, file_ends, windows)
def test_a_window_has_exactly_the_last_entries_of_the_file(data: bytes, end: bytes, window: int):
    """Shows: P31."""
    data += end
    data = data[: find_torn_tail_in(data)]
    whole = parse_transcript(data, "x")
    with OpenFile(data) as file:
        start = window_start(file, len(data), window)
        window_reading = join_chunks(parse_file(file, start, len(data), "x"))
    omitted_count = len(whole.entries) - len(window_reading.entries)
    assert window_reading.entries == whole.entries[omitted_count:]
    assert (
        window_reading.open_line_id,
        window_reading.draft,
        window_reading.missing_newlines,
        window_reading.end,
    ) == (
        whole.open_line_id,
        whole.draft,
        whole.missing_newlines,
        whole.end,
    )
    if len(data) <= window:
        assert start == omitted_count == 0
    if start:
        assert len(data) - start > window // 2
        assert data[start - 1 : start] == b"\n"
        assert data[start:].startswith((b"<!-- user", b"<!-- agent"))
        assert orphaned_calls(window_reading.entries) == []


@settings(max_examples=150, deadline=None)
@given(file_contents, file_ends, st.integers(1, 3000))
def test_a_file_parsed_in_chunks_has_the_same_entries_as_parsed_whole(data: bytes, end: bytes, size: int):
    data += end
    whole = parse_transcript(data, "x", lenient=True)
    with OpenFile(data) as file:
        parts = list(iter_chunks(file, 0, len(data), size))
        assert b"".join(part.data for part in parts) == data
        assert [part.has_next for part in parts] == [True] * (len(parts) - 1) + [False]
        lines = LineCounter(file)
        readings = [
            parse_chunk(part, "x", lenient=True, count_lines_before=lines.count_before) for part in parts
        ]
    assert [entry for reading in readings for entry in reading.entries] == whole.entries
    assert str(readings[-1].error) == str(whole.error)
    assert (readings[-1].open_line_id, readings[-1].draft, readings[-1].end) == (
        whole.open_line_id,
        whole.draft,
        whole.end,
    )


@settings(max_examples=150, deadline=None)
@given(file_contents, file_ends, st.integers(0, 400))
@example(HEAD + b"x" * 200_000, b"", 0)
def test_a_torn_tail_is_found_by_reading_only_the_end_of_the_file(data: bytes, end: bytes, cut: int):
    """Shows: P03, P31."""
    filler = render_entry(Message(id="long", role="agent", text="filler " * 20_000))
    data = filler + data + end
    data = data[: len(data) - cut]
    with OpenFile(data) as file:
        assert find_torn_tail(file, len(data)) == find_torn_tail_in(data)


def test_a_window_moves_rarely_while_the_conversation_grows():
    """The beginning of the model request stays the same over many turns.

    Shows: P31.
    """
    window, data, starts = 4000, HEAD, list[int]()
    for number in range(300):
        data += b"".join(map(render_entry, make_exchange(number, ["ask " * 9, "say " * 9, "see " * 9], 1)))
        with OpenFile(data) as file:
            starts.append(window_start(file, len(data), window))
    assert starts == sorted(starts)
    assert len(set(starts)) <= len(data) // (window // 4) + 1
    assert max(starts) > len(data) - window


def test_a_window_without_a_user_message_begins_at_a_reply():
    entries: list[Entry] = [Message(id="u", role="user", text="Go.")]
    for number in range(100):
        entries += make_exchange(number, ["", "look", "see"], 2)[1:-1]
    data = HEAD + b"".join(map(render_entry, entries))
    with OpenFile(data) as file:
        start = window_start(file, len(data), 2000)
        first = join_chunks(parse_file(file, start, len(data), "x")).entries[0]
    assert isinstance(first, Message)
    assert (first.role, first.tool_call_count) == ("agent", 2)
    assert 1000 < len(data) - start <= 2000


def test_an_exchange_longer_than_the_window_is_loaded_completely():
    entries = [*make_exchange(1, [], 0), *make_exchange(2, ["ask", "say", "see " * 2000], 3)]
    data = HEAD + b"".join(map(render_entry, entries))
    with OpenFile(data) as file:
        start = window_start(file, len(data), 300)
        assert (
            join_chunks(parse_file(file, start, len(data), "x")).entries
            == entries[-len(make_exchange(2, [], 3)) :]
        )


def test_a_file_with_only_user_messages_has_a_window():
    entries = [Message(id=f"u{number}", role="user", text="and another thing") for number in range(2000)]
    data = HEAD + b"".join(map(render_entry, entries))
    with OpenFile(data) as file:
        assert 1000 < len(data) - window_start(file, len(data), 2000) <= 2000


def test_an_error_in_the_window_has_its_line_number_in_the_file():
    """Shows: P15, P31."""
    data = HEAD + b"".join(
        render_entry(each) for number in range(50) for each in make_exchange(number, [], 1)
    )
    broken = (
        data + b"<!-- agent said this -->\nhello\n\n" + render_entry(Message(id="z", role="user", text="on"))
    )
    with OpenFile(broken) as file:
        start = window_start(file, len(broken), 1000)
        assert start > 0
        line = data.count(b"\n") + 1
        with pytest.raises(Unreadable, match=rf"^x:{line}: "):
            join_chunks(parse_file(file, start, len(broken), "x"))


@dataclass(slots=True)
class SessionEditor:
    """A session, and the edits of its file by the user."""

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


async def apply_step(editor: SessionEditor, conversation: FileConversation, kind: str, number: int) -> None:
    """Apply one change to a conversation while it is open."""
    if kind == "exchange":
        for entry in make_exchange(
            number, ["ask " * (number % 40), "say", "see " * (number % 30)], number % 3
        ):
            await conversation.append(entry)
    elif kind == "again":
        await conversation.append(conversation.entries[-1 - number % min(3, len(conversation.entries))])
    elif kind == "rest":
        await conversation.write_idle_prompt()
    elif kind == "take":
        await conversation.reload_if_edited()
        if conversation.typed_text():
            await conversation.save_typed_text(
                Message(id=f"t{number}", role="user", text=conversation.typed_text())
            )
    else:
        editor.save(edit_file(editor.path.read_bytes(), kind, number), renamed=bool(number % 2))
    await conversation.reload_if_edited()


def edit_file(data: bytes, kind: str, number: int) -> bytes:
    """Return the file after an edit by the user."""
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


async def play_rounds(
    folder: Path, window: int, rounds: list[list[tuple[str, int]]]
) -> tuple[bytes, list[Entry], bool]:
    store = FileStore(folder, fixed_clock(), window=window)
    editor = SessionEditor(store, await store.create(new_session()))
    truncated, entries = False, list[Entry]()
    try:
        async with store.open(editor.session) as conversation:
            for number in range(8):
                await conversation.append(*make_exchange(1000 + number, ["old " * 20, "old", "old " * 20], 1))
        count = 0
        for each in rounds:
            with editor.path.open("ab") as file:
                file.write(b"<!-- agent id=torn n=" if len(each) % 2 else b"")
            async with store.open(editor.session) as conversation:
                for kind, number in each:
                    count += 1
                    await apply_step(editor, conversation, kind, count if kind == "exchange" else number)
                truncated = truncated or conversation.is_truncated
                entries = conversation.entries
        return editor.path.read_bytes(), entries, truncated
    finally:
        store.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(steps, max_size=5), min_size=1, max_size=3), st.integers(200, 3000))
def test_a_windowed_conversation_leaves_the_same_file_as_a_whole_one_after_any_changes(
    rounds: list[list[tuple[str, int]]], window: int
):
    """The steps are appends, edits before and in the window, stale saves, torn tails and typed text.

    Shows: P03, P14, P31.
    """
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        windowed, entries, truncated = asyncio.run(play_rounds(Path(one), window, rounds))
        whole, all_entries, _ = asyncio.run(play_rounds(Path(two), 1 << 30, rounds))
    assert windowed == whole
    assert entries == all_entries[len(all_entries) - len(entries) :]
    assert truncated or len(whole) < 2 * window


@pytest.fixture
async def editor(tmp_path: Path) -> AsyncGenerator[SessionEditor]:
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=3000)
    editor = SessionEditor(store, await store.create(new_session()))
    async with store.open(editor.session) as conversation:
        for number in range(40):
            await conversation.append(*make_exchange(number, ["old " * 20, "say", "see " * 20], 1))
        await conversation.write_idle_prompt()
    yield editor
    store.close()


async def test_an_edit_before_the_window_stays_and_does_not_change_the_loaded_entries(editor: SessionEditor):
    """Shows: P14, P31."""
    async with editor.store.open(editor.session) as conversation:
        assert conversation.is_truncated
        before, conversation.provider_cache["encoded"] = list(conversation.entries), 1
        editor.save(editor.path.read_bytes().replace(b"\nold ", b"\nnew ", 1), renamed=True)
        assert await conversation.reload_if_edited() is False
        assert (conversation.entries, conversation.provider_cache) == (before, {"encoded": 1})
        await conversation.append(Message(id="last", role="agent", text="Good."))
    assert b"\nnew old" in editor.path.read_bytes()
    assert editor.path.read_bytes().endswith(b"Good.\n\n")


async def test_an_entry_is_not_appended_again_after_the_user_pasted_more_than_a_window_below_it(
    editor: SessionEditor,
):
    """Shows: P14, P31."""
    pasted = b"".join(
        render_entry(each) for number in range(60) for each in make_exchange(500 + number, [], 1)
    )
    async with editor.store.open(editor.session) as conversation:
        await conversation.append(Message(id="mine", role="user", text="Mine."))
        editor.path.write_bytes(editor.path.read_bytes() + pasted)
        await conversation.reload_if_edited()
        assert all(entry.id != "mine" for entry in conversation.entries)
        await conversation.append(Message(id="more", role="agent", text="More."))
    assert editor.path.read_bytes().count(b"id=mine ") == editor.path.read_bytes().count(b"id=more ") == 1


async def test_a_run_reads_its_entries_before_the_window_and_does_not_append_them_again(
    editor: SessionEditor,
):
    """Shows: P31."""
    before = editor.path.read_bytes()
    async with editor.store.open(editor.session) as conversation:
        run_ids = {entry.run for entry in conversation.entries}
        assert "r3" not in run_ids
        earlier = make_exchange(3, ["old " * 20, "say", "see " * 20], 1)
        assert await conversation.read_earlier_entries("r3") == earlier
        assert await conversation.read_earlier_entries("r39") == []
        await conversation.append(earlier[0])
        await conversation.append(*earlier[1:])
    assert editor.path.read_bytes() == before


async def test_thinking_blocks_of_the_window_are_read_from_the_end_of_the_sidecar(editor: SessionEditor):
    thinking = [
        Message(
            id=f"t{number}", role="agent", text="hm " * 30, provider_data=(f'{{"n": {number}}}', "x" * 40_000)
        )
        for number in range(60)
    ]
    async with editor.store.open(editor.session) as conversation:
        await conversation.append(*thinking)
    async with editor.store.open(editor.session) as conversation:
        loaded = [
            entry for entry in conversation.entries if isinstance(entry, Message) and entry.provider_data
        ]
        assert 5 < len(loaded) < 40
        assert loaded == thinking[-len(loaded) :]


async def test_opening_a_long_session_reads_only_its_tail(tmp_path: Path):
    """Shows: P31."""
    store = FileStore(tmp_path / "sessions", fixed_clock(), window=1 << 20)
    editor = SessionEditor(store, await store.create(new_session()))
    filler = b"".join(render_entry(each) for each in make_exchange(1, ["x" * 30_000] * 3, 1))
    editor.path.write_bytes(HEAD + filler * 300)
    assert editor.path.stat().st_size > 25 << 20
    before = count_bytes_read()
    async with store.open(editor.session) as conversation:
        assert conversation.is_truncated
        await conversation.append(Message(id="new", role="user", text="And now?"))
        assert not await conversation.reload_if_edited()
        assert count_bytes_read() - before < 2 << 20
    store.close()


def count_bytes_read() -> int:
    """Return how many bytes this process has read so far."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


async def test_a_long_file_is_scanned_iterated_and_exported_in_pieces(editor: SessionEditor):
    scan = await editor.store.scan(editor.session)
    entries, _ = await editor.store.read_entries(editor.session)
    assert (scan.entries, scan.problems) == (len(entries), ())
    assert scan.run_ids == {f"r{number}" for number in range(40)}
    editor.path.write_bytes(
        editor.path.read_bytes() + b"".join(map(render_entry, entries * 20)) + b"<!-- agent id=t"
    )
    parts = [each async for each in editor.store.iter_entries(editor.session)]
    assert len(parts) > 3
    assert [entry for each in parts for entry in each] == entries * 21
    assert (
        "".join([piece async for piece in editor.store.iter_text(editor.session)]) == editor.path.read_text()
    )
    assert (await editor.store.scan(editor.session)).entries == 21 * len(entries)
    assert "torn tail of 15 bytes" in (await editor.store.scan(editor.session)).problems[0]


@pytest.mark.parametrize(("at", "include"), [(None, True), ("u900", True), ("u900", False), ("u0", False)])
async def test_a_branch_of_a_long_conversation_is_copied_up_to_its_prompt(
    editor: SessionEditor, at: str | None, include: bool
):
    """Shows: A082, P31."""
    later_entries = [
        entry for number in range(860, 1000) for entry in make_exchange(number, ["x" * 700] * 3, 1)
    ]
    async with editor.store.open(editor.session) as conversation:
        await conversation.append(*later_entries)
        await conversation.write_idle_prompt()
    entries, _ = await editor.store.read_entries(editor.session)
    branch = await editor.store.branch(editor.session, prompt_id=at, include=include, name="two")
    end = len(entries) if at is None else next(n for n, each in enumerate(entries) if each.id == at) + include
    assert await editor.store.read_entries(branch) == (entries[:end], [])
