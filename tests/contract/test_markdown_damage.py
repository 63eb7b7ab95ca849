"""Damage to session.md: for any bytes the parser returns entries or an error with its line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.errors import Unreadable
from retinue.sessions.markdown.parser import parse_transcript
from retinue.sessions.markdown.torn_tail import find_torn_tail_in
from retinue.sessions.markdown.writer import render_entry, render_open_line

ENTRIES: tuple[Entry, ...] = (
    Message(id="01A", role="user", text="Find it.", at="2026-11-15T18:42:07Z", origin="agent:main", run="r1"),
    Message(
        id="01B",
        role="agent",
        text="I look.",
        model="m",
        usage=Usage(input=3, output=4),
        tool_call_count=1,
        run="r1",
    ),
    ToolCall(id="01C", tool="grep", args='{"pattern": "x"}', run="r1", invalid_reason="cut"),
    ToolResult(call_id="01C", text="a:1: x\n", ok=False, duration_ms=12, run="r1"),
    Notice(id="01D", topic="nudge", text="Go on.\r\n", run="r1"),
    Message(id="01E", role="agent", text="Found.", stop_reason="length", run="r1"),
)
HEAD = b"<!-- retinue 1 session=a-20261115184207 id=1 branch=main -->\n\n"
FILE = HEAD + b"".join(map(render_entry, ENTRIES)) + render_open_line("01F").encode() + b"and now?\n"
FRAGMENTS = (
    b"<!-- ", b" -->", b"<!-- user", b"<!-- user -->\n", b"\n<!-- agent id=x calls=9 -->\n", b"=", b" ", b"\n", b"\r\n",
    b"id=", b"n=", b"n=-5", b"calls=x", b"in=abc", b"ms=1e9", b"%", b"%ff", b"esc=1 ", b"\\u12", b"\x00", b"\xff\xfe",
    b"<!-- result ok -->", b"<!-- retinue 2 session=x -->\n", b"<!-- call -->\n", b"<!-- notice -->\n", b"thoughts=1 ", b"word=ok ",
)  # fmt: skip
CHANGE = st.one_of(
    st.tuples(st.just("put"), st.integers(0, len(FILE)), st.sampled_from(FRAGMENTS)),
    st.tuples(st.just("cut"), st.integers(0, len(FILE)), st.integers(1, 40)),
    st.tuples(st.just("end"), st.integers(0, len(FILE)), st.just(0)),
)


@settings(max_examples=400)
@given(changes=st.lists(CHANGE, min_size=1, max_size=4))
def test_damaged_bytes_are_parsed_or_refused_with_their_line(
    changes: list[tuple[str, int, int | bytes]],
):
    """Shows: P15."""
    data = bytearray(FILE)
    for kind, at, change in changes:
        if isinstance(change, bytes):
            data[at:at] = change
        elif kind == "cut":
            del data[at : at + change]
        else:
            del data[at:]
    find_torn_tail_in(bytes(data))
    location = "session.md:"
    try:
        parse_transcript(bytes(data), "session.md")
    except Unreadable as error:
        location = error.location
    assert location.startswith("session.md:")
    parse_transcript(bytes(data), "session.md", lenient=True)


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("marker", "accepted"),
    [
        (f"agent id=01X in={NINES} n=1", False),
        (f"agent id=01X calls={NINES} n=1", False),
        (f"result of=01X ok ms={NINES} n=1", False),
        (f"agent id=01X n={NINES}", True),
        (f"user id=01X in={NINES}", False),
    ],
)
def test_an_impossibly_large_number_is_refused_with_its_line(marker: str, accepted: bool):
    """Only an invalid length is tolerated: the body then ends at the next marker."""
    for end in ("", "<!-- user id=01Z -->\n"):
        data = HEAD + f"<!-- {marker} -->\na\n\n{end}".encode()
        reading = parse_transcript(data[: find_torn_tail_in(data)], "session.md", lenient=True)
        assert (reading.error is None) is (accepted or (marker.startswith("user") and not end))
        assert reading.error is None or reading.error.location == "session.md:3"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_that_an_editor_saved_in_another_encoding_is_refused_and_not_cut(encoding: str):
    data = FILE.decode().encode(encoding)
    assert find_torn_tail_in(data) is None
    with pytest.raises(Unreadable, match=r"session\.md:1: the file begins .* in another encoding"):
        parse_transcript(data, "session.md")


def test_a_file_whose_line_ends_became_carriage_returns_is_refused_and_not_cut():
    data = FILE.replace(b"\n", b"\r")
    assert find_torn_tail_in(data) is None
    with pytest.raises(Unreadable, match=r"session\.md:1: cannot parse this marker line"):
        parse_transcript(data, "session.md")


@pytest.mark.parametrize("count", [1, 3, 512])
def test_zeros_before_the_header_are_reported_and_nothing_is_cut(count: int):
    data = b"\0" * count + FILE
    assert find_torn_tail_in(data) is None
    with pytest.raises(Unreadable, match=r"session\.md:1: the file begins with NUL bytes"):
        parse_transcript(data, "session.md")
