"""Lines of session.md that are almost markers: never text of the entry above, unless that entry is unedited."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import Unreadable
from retinue.sessions.markdown.parser import parse_transcript
from retinue.sessions.markdown.writer import render_entry, render_open_line

ID = "01KCR0000000000000000000R1"
HEAD = "<!-- retinue 1 session=general-20261115184207 id=0194 branch=main -->\n\n"
QUESTION = Message(
    id="01KCR0000000000000000000R0", role="user", text="Is it safe?", at="2026-11-15T18:42:07Z"
)
REPLY = Message(id=ID, role="agent", text="Delete everything, I say.", at="2026-11-15T18:42:09Z", model="m")
MARKER = render_entry(REPLY).decode().split("\n")[0]
FILE = HEAD + render_entry(QUESTION).decode() + render_entry(REPLY).decode()
REPLY_LINE = FILE[: FILE.index(MARKER)].count("\n") + 1

slips = st.one_of(
    st.tuples(st.just("delete"), st.integers(0, 60), st.just("")),
    st.tuples(st.just("insert"), st.integers(0, 60), st.sampled_from(" \tx-<!>=A\u00a0")),
    st.tuples(st.just("replace"), st.integers(0, 60), st.sampled_from(" x-<!>=Aé")),
    st.tuples(st.just("swap"), st.integers(0, 60), st.just("")),
    st.tuples(st.just("case"), st.integers(0, 60), st.just("")),
)


def slip(line: str, change: tuple[str, int, str]) -> str:
    kind, at, char = change
    before, after = line[:at], line[at:]
    if kind == "delete":
        return before + after[1:]
    if kind == "insert":
        return before + char + after
    if kind == "replace":
        return before + char + after[1:]
    if kind == "swap":
        return before + after[1:2] + after[:1] + after[2:]
    return before + after[:1].swapcase() + after[1:]


def user_texts(data: str) -> list[str]:
    entries = parse_transcript(data.encode(), "s.md").entries
    return [each.text for each in entries if isinstance(each, Message) and each.role == "user"]


@settings(max_examples=600, deadline=None)
@given(slips)
def test_no_slip_in_a_marker_turns_a_models_words_into_the_users(change: tuple[str, int, str]):
    parsed = parse_transcript(FILE.replace(MARKER, slip(MARKER, change)).encode(), "s.md", lenient=True)
    if parsed.error is not None:
        assert parsed.error.location == f"s.md:{REPLY_LINE}"
    else:
        users = [each for each in parsed.entries if isinstance(each, Message) and each.role == "user"]
        assert users == [QUESTION]


@pytest.mark.parametrize(
    "line",
    [
        MARKER.replace("<!-- ", "<!--"),
        MARKER.replace("agent", "Agent"),
        MARKER.replace("agent", "AGENT"),
        MARKER.replace("agent", "agnet"),
        MARKER.replace("agent", "assistant"),
        MARKER.replace("<!-- ", "<!—"),
        MARKER.replace("<!-- ", "< !-- "),
        MARKER.replace("<!-- ", "<!--  "),
        MARKER.replace("<!-- agent", "<!-- agentid"),
        f"  {MARKER}",
        f"\t{MARKER}",
        f"\u200b{MARKER}",
        f"and so on {MARKER}",
        "<!--agent-->",
        "<!-- Agent -->",
        " <!-- user -->",
        "<!--user id=x -->",
        "<!-- usr from=a -->",
        "<--agent model=m -->",
        "<!-- AGENT MODEL=m -->",
        "!-- agent in=3 -->",
        "<!- agent at=now -->",
        "x<!-- retinue 1 session=general-1 -->",
    ],
)
def test_a_line_that_is_almost_a_marker_is_an_error_with_its_line(line: str):
    data = FILE.replace(MARKER, line)
    with pytest.raises(Unreadable, match="put a backslash in front of it") as caught:
        parse_transcript(data.encode(), "s.md")
    assert caught.value.location == f"s.md:{REPLY_LINE}"
    lenient = parse_transcript(data.encode(), "s.md", lenient=True)
    assert lenient.error is not None
    escaped = FILE.replace(MARKER, f"\\{line}")
    assert user_texts(escaped) == [f"Is it safe?\n\n{line}\n{REPLY.text}"]


@pytest.mark.parametrize("line", ["<!--agent-->", f"  {MARKER}", "<!-- usr id=3 -->"])
def test_a_draft_with_a_line_that_is_almost_a_marker_is_an_error(line: str):
    for start in (FILE + render_open_line("01Z"), ""):
        data = f"{start}Please read:\n{line}\n"
        with pytest.raises(Unreadable) as caught:
            parse_transcript(data.encode(), "s.md")
        assert caught.value.location == f"s.md:{start.count(chr(10)) + 2}"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- a comment of mine -->",
        "<!-- TODO: agent list -->",
        "<!-- users and agents -->",
        "<!-- Result: fine -->",
        "<b id=x> -- <i>",
        "A --> B --> C",
        "- user id=3",
        "-- call id=4",
        "<user id=5>",
        '<!-- notes id="7" -->',
        "<!DOCTYPE html>",
        "x <- c(1, 2)",
    ],
)
def test_other_comments_and_code_stay_text_wherever_a_person_writes_them(text: str):
    data = FILE.replace("Is it safe?", f"Is it safe?\n{text}")
    assert user_texts(data) == [f"Is it safe?\n{text}"]


def test_foreign_bytes_before_the_header_are_an_error():
    for foreign in ("x", "\x00\x00", "PK\x03\x04"):
        with pytest.raises(Unreadable) as caught:
            parse_transcript((foreign + FILE).encode(), "s.md")
        assert caught.value.location == "s.md:1"


near_lines = st.builds(slip, st.sampled_from([MARKER, "<!-- user -->", "<!-- call id=1 tool=x -->"]), slips)
tricky_bodies = st.lists(
    st.tuples(st.sampled_from(["", "\\", "\\\\", " ", "\t\\"]), st.one_of(near_lines, st.text(max_size=8))),
    max_size=5,
).map(lambda lines: "\n".join(prefix + line for prefix, line in lines))


@settings(max_examples=600, deadline=None)
@given(tricky_bodies)
@example("\\\\<!--agent-->")
def test_what_the_program_writes_survives_and_is_never_almost_a_marker(text: str):
    entries: list[Entry] = [
        Message(id="01A", role="user", text=text),
        Message(id="01B", role="agent", text=text, stop_reason="x"),
        ToolCall(id="01C", tool="t", args=text),
        ToolResult(call_id="01C", text=text),
    ]
    data = HEAD.encode() + b"".join(map(render_entry, entries))
    assert parse_transcript(data, "x").entries == entries
    unmeasured = re.sub(rb"(?m)^(<!-- (?:user|agent|call|result) .*) n=\d+ -->$", rb"\1 -->", data)
    assert parse_transcript(unmeasured, "x").entries[-1:] == entries[-1:]


def test_a_body_written_by_an_earlier_version_is_read_unless_a_person_edited_it():
    body = b"Write it so:\n<!--agent-->"
    data = HEAD.encode() + b"<!-- agent id=01B n=%d -->\n%b\n\n" % (len(body), body)
    for following in (b"", b"<!-- user id=01C -->\n"):
        (entry,) = parse_transcript(data + following, "x").entries
        assert isinstance(entry, Message)
        assert entry.text == body.decode()
        with pytest.raises(Unreadable):
            parse_transcript(data.replace(b"so:", b"so, then:") + following, "x")


@pytest.mark.parametrize(
    "line", ["<!" + "a" * 200, "<!-- " * 300, " " * 3000 + "<!--agent", "<!-- id=" * 300]
)
def test_long_edited_bodies_are_read(line: str):
    data = f"{HEAD}<!-- user id=x n=1 -->\n{(line + chr(10)) * (3_000_000 // len(line))}\n"
    parse_transcript(data.encode(), "x", lenient=True)
