"""The grammar of session.md: the writer, the fast parser and the tolerant parser use every row of one table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from entry_strategies import build_entries
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from retinue.domain.run import Usage
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message
from retinue.domain.workspace import Workspace
from retinue.errors import Unreadable
from retinue.sessions.markdown.fast_parser import FAST_PARSERS, compile_fast_parser
from retinue.sessions.markdown.grammar import (
    ENTRY_KINDS,
    HEAD,
    PROVIDER_DATA,
    USER,
    Attribute,
    MarkerKind,
    SessionHead,
)
from retinue.sessions.markdown.marker import compile_reader, parse_head, parse_marker
from retinue.sessions.markdown.parser import parse_transcript
from retinue.sessions.markdown.torn_tail import find_torn_tail_in
from retinue.sessions.markdown.writer import compile_writer, render_entry, render_head, render_open_line

FIRST_LINE = b"<!-- retinue 1 session=a-20261115184207 id=1 branch=main -->\n\n"
LAST = Message(id="last", role="agent", text="the last entry is always left to the tolerant parser")

ids = st.sampled_from(["01A", "01B", "c=1", "é", "a b", "a%b"])
short_texts = st.sampled_from(["", "x", "2026-11-15T18:42:07Z", "agent:main", "é", "a b", '">'])
bodies = st.sampled_from(
    ["", "hello", "a\n\n", "<!-- user id=x n=1 -->", "\\<!-- call -->\n", "a\r\nb\x00", "\\"]
)
counts = st.sampled_from([0, 1, 12, 10**18 - 1])
usages = st.builds(Usage, input=counts, output=counts, cached=counts)
provider_data = st.sampled_from([(), ("{}",)])
random_entries = build_entries(
    st.builds(
        Message,
        id=ids,
        role=st.sampled_from(["user", "agent"]),
        text=bodies,
        at=short_texts,
        origin=short_texts,
        run=short_texts,
        model=short_texts,
        usage=usages,
        stop_reason=short_texts,
        tool_call_count=counts,
        provider_data=provider_data,
    ),
    ids=ids,
    bodies=bodies,
    short_texts=short_texts,
    parse_errors=short_texts,
    counts=counts,
)


def render_file(transcript: Sequence[Entry]) -> bytes:
    return FIRST_LINE + b"".join(map(render_entry, transcript))


def without_fast_lines(data: bytes) -> bytes:
    """Write two spaces after each kind, which means the same but is not accepted by the fast parser."""
    return re.sub(rb"^(<!-- (?:user|agent|call|result|notice)) ", rb"\1  ", data, flags=re.MULTILINE)


def without_provider_data(entry: Entry) -> Entry:
    """Return the entry as the file has it; thinking blocks are in a separate file."""
    return replace(entry, provider_data=()) if isinstance(entry, Message) else entry


@dataclass(frozen=True)
class Reading:
    entries: Sequence[Entry]
    ids_with_provider_data: set[str]
    open_line_id: str
    draft: str
    error_location: str


def read_file(data: bytes) -> Reading:
    reading = parse_transcript(data, "session.md", lenient=True)
    location = reading.error.location if reading.error else ""
    return Reading(
        reading.entries, reading.ids_with_provider_data, reading.open_line_id, reading.draft, location
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(random_entries, max_size=6))
def test_both_parsers_agree_on_every_kind_and_attribute(transcript: list[Entry]):
    data = render_file([*transcript, LAST])
    assert read_file(data) == read_file(without_fast_lines(data))
    assert read_file(data).entries == [*map(without_provider_data, transcript), LAST]
    assert read_file(data).ids_with_provider_data == {
        each.id for each in transcript if isinstance(each, Message) and each.provider_data
    }


# Windows line ends are left out: the fast parser keeps them in the body.
FRAGMENTS = (
    b"<!-- ", b" -->", b"<!-- user -->\n", b"\n<!-- user id=q -->\nhey\n", b"\n<!-- agent id=x calls=9 -->\n", b"=", b" ",
    b"\n", b"id=", b"n=", b"n=-5", b" calls=x", b" in=abc", b" ms=1e9", b" out=007", b"9" * 19, b"%", b"%ff", b"%C3%A9",
    b" esc=1", b"\\u12", b"\x00", b"\xff\xfe", b" thoughts=1", b" word=failed", b" stop=length", b" from=me", b" broken=x",
    b" at=", b" future=1", b"<!-- result ok -->", b"<!-- call -->\n", b"<!-- retinue 2 session=x -->\n", b"\xc2\xa0", b'"',
    b"\n<!-- result ms=3 failed of=c n=2 -->\nab\n\n", b"\n<!-- notice id=3 n=0 -->\n",
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(
    st.lists(random_entries, min_size=1, max_size=5),
    st.booleans(),
    st.lists(
        st.tuples(
            st.integers(0, 6), st.integers(0, 70), st.one_of(st.sampled_from(FRAGMENTS), st.integers(1, 40))
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_both_parsers_agree_on_a_damaged_file(
    transcript: list[Entry], has_idle_prompt: bool, changes: list[tuple[int, int, bytes | int]]
):
    data = render_file(transcript) + (
        render_open_line("q").encode() + b"and now?\n" if has_idle_prompt else b""
    )
    for marker, distance, change in changes:
        starts = [match.start() for match in re.finditer(b"<!-- ", data)] or [0]
        at = starts[marker % len(starts)] + distance
        data = data[:at] + (change + data[at:] if isinstance(change, bytes) else data[at + change :])
    assert read_file(data) == read_file(without_fast_lines(data))
    intact = data[: find_torn_tail_in(data)]
    assert read_file(intact) == read_file(without_fast_lines(intact))


ROWS = [(kind, attribute) for kind in ENTRY_KINDS for attribute in kind.attributes]
ROW_NAMES = [f"{kind.name}-{attribute.name or attribute.field}" for kind, attribute in ROWS]


def make_entry(kind: MarkerKind, *, chosen: Attribute | None = None) -> Entry:
    """Return an entry with only the required fields of its kind and the chosen attribute."""
    values: dict[str, Any] = {each.name: "required" for each in fields(kind.type) if each.required}
    if kind.role:
        values["role"] = kind.role
    entry: Any = kind.type(**values)
    return entry if chosen is None else set_field(entry, *chosen.field.split("."))


def set_field(value: Any, name: str, *inner: str) -> Any:
    old = getattr(value, name)
    samples = {str: "chosen", int: 7, bool: not old, tuple: ("{}",)}
    return replace(value, **{name: set_field(old, *inner) if inner else samples[type(old)]})


@pytest.mark.parametrize(("kind", "attribute"), ROWS, ids=ROW_NAMES)
def test_every_attribute_is_written_and_read_by_both_parsers(kind: MarkerKind, attribute: Attribute):
    entry = make_entry(kind, chosen=attribute)
    line, body = render_entry(entry).decode().removeprefix("<!-- ").split("\n", 1)
    assert line != render_entry(make_entry(kind)).decode().removeprefix("<!-- ").split("\n", 1)[0]
    assert attribute.name == "" or f" {attribute.name}=" in line

    tolerant = read_file(without_fast_lines(render_file([entry, LAST])))
    assert tolerant.entries == [without_provider_data(entry), LAST]
    assert tolerant.ids_with_provider_data == (
        {entry.id} if attribute is PROVIDER_DATA else tolerant.ids_with_provider_data
    )
    assert read_file(render_file([entry, LAST])) == tolerant

    is_fast = attribute.is_fast and not kind.is_rare
    pattern, build = FAST_PARSERS.get(line[:2], (re.compile("(?!)"), None))
    match = pattern.match(f"{line}\n{body}")
    assert (match is not None) is is_fast
    assert match is None or (build is not None and build(match, body.removesuffix("\n\n")) == entry)


@pytest.mark.parametrize("kind", [HEAD, *ENTRY_KINDS], ids=lambda kind: kind.name)
def test_every_field_of_an_entry_is_an_attribute_or_the_body(kind: MarkerKind):
    in_table = {attribute.field.split(".")[0] for attribute in kind.attributes} - {""}
    elsewhere = {kind.body, "role" if kind.role else ""} - {""}
    assert in_table | elsewhere == {each.name for each in fields(kind.type)}
    assert not in_table & elsewhere
    if "usage" in in_table:
        parts = {attribute.field.partition(".")[2] for attribute in kind.attributes} - {""}
        assert parts == {each.name for each in fields(Usage)}


def test_the_names_in_the_table_are_unambiguous():
    for kind in (HEAD, *ENTRY_KINDS):
        names = [attribute.name for attribute in kind.attributes if attribute.name]
        assert len(set(names)) == len(names)
        assert not {"esc", "n", "word", ""} & set(names), "the parser reserves these names"
    assert len(FAST_PARSERS) == sum(not kind.is_rare for kind in ENTRY_KINDS)


def changed_kind(kind: MarkerKind) -> MarkerKind:
    """Return the kind with its attributes renamed, reversed, and none of them rare."""
    common = [
        Attribute(name=f"{each.name}-2" if each.name else "", field=each.field, encoding=each.encoding)
        for each in reversed(kind.attributes)
        if each.encoding.from_attrs
    ]
    return MarkerKind(
        name=kind.name, type=kind.type, role=kind.role, body=kind.body, attributes=tuple(common)
    )


@settings(max_examples=200, deadline=None)
@given(random_entries)
def test_a_changed_table_changes_the_writer_and_both_parsers(entry: Entry):
    [kind] = [
        changed_kind(each)
        for each in ENTRY_KINDS
        if isinstance(entry, each.type) and each.role == getattr(entry, "role", "")
    ]
    line = compile_writer(kind)(entry, False, 4).removeprefix("<!-- ")
    pattern, build = compile_fast_parser(kind)
    attrs = parse_marker(line.removesuffix("\n"))
    assert attrs is not None
    tolerant = compile_reader(kind)(attrs, "body", lambda: "line-1")
    assert tolerant == replace(without_provider_data(entry), **{kind.body: "body"})
    match = pattern.match(line)
    assert (match is None) is ("%" in line)
    assert match is None or build(match, "body") == tolerant


@given(short_texts.filter(bool), short_texts, short_texts, st.one_of(st.none(), short_texts))
def test_the_head_of_a_file_names_its_session(slug: str, session_id: str, branch: str, parent: str | None):
    now = datetime(2026, 11, 15, tzinfo=UTC)
    session = Session(
        id=session_id, slug=slug, agent="general", branch=branch, path="/s", parent_slug=parent,
        created_at=now, updated_at=now, workspace=Workspace(root="/w"),
    )  # fmt: skip
    head = parse_head(render_head(session))
    assert head == SessionHead(slug=slug, id=session_id, branch=branch, parent=parent or "")


def test_both_parsers_ignore_an_unknown_attribute():
    data = render_file([make_entry(USER), LAST]).replace(b" n=", b" future=1 n=", 1)
    assert read_file(data).entries == [make_entry(USER), LAST]
    with pytest.raises(Unreadable, match=r"^session\.md:3: "):
        parse_transcript(data.replace(b" future=1", b" future"), "session.md")
