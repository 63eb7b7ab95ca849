"""Read a home independently of the product: its own parser of session.md, and plain SQL on the ledger.

The crash test checks the product by what this module finds, so the module imports nothing of the product. It is
stricter than the product's own reader: nobody edits the files of a crash test, so every length must be right.
"""

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

LIVE_STATUSES = frozenset({"queued", "running", "waiting"})
SESSION_FILES = ("session.md", "preset.md", "scope-plan.yml", "session.json")
_MARKER_LINE = re.compile(rb"^<!-- (retinue|user|agent|call|result|notice|summary)\b([^\n]*)\n", re.MULTILINE)
_ATTRIBUTE = re.compile(r"([a-z]+)=(\S*)")
_BUSY_TIMEOUT_S = 10.0


class Entry(Struct, frozen=True, kw_only=True):
    """An entry of session.md."""

    kind: str
    """user, agent, call, result, notice or summary."""
    id: str
    """The entry's id; for a result, the id of its call."""
    run: str
    text: str
    ok: bool = True
    """False for the result of a call that failed."""
    tool: str = ""
    call_count: int = 0
    """Number of tool calls that a reply announces."""
    input_tokens: int = 0
    output_tokens: int = 0


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session folder."""

    id: str
    folder: Path
    entries: Sequence[Entry]
    problems: Sequence[str]
    """What is wrong with its session.md."""
    missing_files: Sequence[str]
    workspace: str


class RunRow(Struct, frozen=True, kw_only=True):
    id: str
    session_id: str
    agent: str
    status: str
    waiting_for: str
    reason: str
    parent_run: str
    source: str
    key: str
    """The key of its request; begins with `resume:` for the continuation of an ended run."""
    text: str
    counts: tuple[int, int, int, int]
    """Turns, tool calls, and tokens in and out."""

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_STATUSES

    @property
    def waits_for_decision(self) -> bool:
        """Return True if the run crashed too often, and waits until a person resumes it."""
        return (self.status, self.reason) == ("waiting", "recovery_limit")


class DeliveryRow(Struct, frozen=True, kw_only=True):
    id: str
    run: str
    requester_run: str
    session: str
    state: str
    answers_call: bool
    taken_by: str


class ApprovalRow(Struct, frozen=True, kw_only=True):
    id: str
    run: str
    call: str
    tool: str


class LedgerRows(Struct, frozen=True, kw_only=True):
    """The rows of a ledger, from one snapshot."""

    runs: Mapping[str, RunRow] = {}
    deliveries: Sequence[DeliveryRow] = ()
    effect_states: Mapping[str, str] = {}
    """State of each recorded side effect, by the id of its call."""
    pending_approvals: Sequence[ApprovalRow] = ()
    problems: Sequence[str] = ()
    """Damage that SQLite reports."""

    @property
    def has_live_runs(self) -> bool:
        return any(run.is_live for run in self.runs.values())

    def progress(self) -> Mapping[str, int]:
        """Return how many steps of each kind the ledger has recorded."""
        return {
            "run created": len(self.runs),
            "run ended": sum(not run.is_live for run in self.runs.values()),
            "effect started": len(self.effect_states),
            "effect ended": sum(state == "ended" for state in self.effect_states.values()),
            "result created": len(self.deliveries),
            "result delivered": sum(each.state == "delivered" for each in self.deliveries),
            "announcement delivered": sum(
                each.state == "delivered" and not each.answers_call for each in self.deliveries
            ),
        }


class HomeContents(Struct, frozen=True, kw_only=True):
    """Everything that a home contains."""

    ledger: LedgerRows
    sessions: Mapping[str, SessionRecord]

    def entries(self, session_id: str) -> Sequence[Entry]:
        found = self.sessions.get(session_id)
        return () if found is None else found.entries


def read_home(home: Path) -> HomeContents:
    sessions = [_read_session(path.parent) for path in _session_files(home)]
    return HomeContents(
        ledger=read_ledger(home, check=True), sessions={session.id: session for session in sessions}
    )


def completed_calls_by_run(home: Path) -> Mapping[str, int]:
    """Return how many calls of each run have a successful result in its file."""
    counts: dict[str, int] = {}
    for path in _session_files(home):
        for entry in parse_session_file(path.read_bytes())[1]:
            if entry.kind == "result" and entry.ok:
                counts[entry.run] = counts.get(entry.run, 0) + 1
    return counts


def session_files_by_id(home: Path) -> Mapping[str, Path]:
    """Return the session.md of each session."""
    files = ((path, parse_session_file(path.read_bytes())[0]) for path in _session_files(home))
    return {head["id"]: path for path, head in files if "id" in head}


def read_ledger(home: Path, *, check: bool = False) -> LedgerRows:
    """Return the rows of the ledger; none if there is no ledger yet.

    The file is opened for reading only and closed at once, because other processes use it.

    Args:
        home: The home.
        check: Let SQLite check every page, and report damage instead of raising an error.
    """
    path = home / "ledger.db"
    if not path.exists():
        return LedgerRows()
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
        ) as connection:
            connection.row_factory = sqlite3.Row
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check")] if check else ["ok"]
            if problems != ["ok"]:
                return LedgerRows(problems=problems)
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'deeds'").fetchone():
                return LedgerRows()
            connection.execute("BEGIN")
            return _select_rows(connection)
    except (sqlite3.Error, ValueError, KeyError) as error:
        if not check:
            raise
        return LedgerRows(problems=[f"{type(error).__name__}: {error}"])


def _select_rows(connection: sqlite3.Connection) -> LedgerRows:
    runs = [
        RunRow(
            id=row["id"],
            session_id=row["session_id"],
            agent=row["agent"],
            status=row["status"],
            waiting_for=row["waiting_for"] or "",
            reason=row["reason"] or "",
            parent_run=row["parent_run"] or "",
            source=row["source"],
            key=row["ask_key"],
            text=row["text"],
            counts=(row["turns"], row["tool_calls"], row["input_tokens"], row["output_tokens"]),
        )
        for row in connection.execute("SELECT * FROM runs ORDER BY created_at, id")
    ]
    deliveries: list[DeliveryRow] = []
    for row in connection.execute("SELECT * FROM deliveries ORDER BY id"):
        details = json.loads(row["delivery"])
        deliveries.append(
            DeliveryRow(
                id=row["id"],
                run=row["run"],
                requester_run=row["asker"],
                session=row["session"],
                state=row["state"],
                answers_call=bool(row["answers"]),
                taken_by=details["taken_by"],
            )
        )
    effects = {row["call"]: row["progress"] for row in connection.execute("SELECT * FROM deeds")}
    approvals = [
        ApprovalRow(id=row["id"], run=row["run"], call=row["call"], tool=json.loads(row["approval"])["tool"])
        for row in connection.execute("SELECT * FROM approvals WHERE state = 'pending' ORDER BY id")
    ]
    return LedgerRows(
        runs={run.id: run for run in runs},
        deliveries=deliveries,
        effect_states=effects,
        pending_approvals=approvals,
    )


def _session_files(home: Path) -> list[Path]:
    """Return every session.md, except those in unfinished folders, whose names begin with a dot."""
    return [
        path
        for path in sorted((home / "sessions").glob("*/branches/*/**/session.md"))
        if not any(part.startswith(".") for part in path.relative_to(home).parts)
    ]


def _read_session(folder: Path) -> SessionRecord:
    head, entries, problems = parse_session_file((folder / "session.md").read_bytes())
    return SessionRecord(
        id=head.get("id", str(folder)),
        folder=folder,
        entries=entries,
        problems=problems,
        missing_files=[name for name in SESSION_FILES if not (folder / name).exists()],
        workspace=_workspace_root(folder / "session.json"),
    )


def _workspace_root(session_json: Path) -> str:
    try:
        return str(json.loads(session_json.read_bytes())["workspace"]["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def parse_session_file(data: bytes) -> tuple[Mapping[str, str], list[Entry], list[str]]:
    """Return the attributes of a file's first line, its entries, and what is wrong with it.

    Zeros at the end are left by a power failure while the open line of the file was written.
    """
    data = data.rstrip(b"\0")
    markers = list(_MARKER_LINE.finditer(data))
    problems: list[str] = []
    if not data:
        return {}, [], []  # an idle session without messages
    if not markers or markers[0].start() or markers[0][1] != b"retinue":
        return {}, [], ["the first line does not name the session"]
    head, entries = _parse_attributes(markers[0], problems), list[Entry]()
    if data[markers[0].end() : _body_end(data, markers, 0)].strip():
        problems.append("text before the first entry")
    for index, marker in enumerate(markers[1:], start=1):
        attributes = _parse_attributes(marker, problems)
        body = data[marker.end() : _body_end(data, markers, index)]
        if "n" not in attributes:
            problems += _check_open_line(marker, body, is_last=index == len(markers) - 1)
            continue
        length = int(attributes["n"])
        if body[length:] != (b"\n\n" if length else b"\n"):
            problems.append(
                f"the entry at byte {marker.start()} does not have the {length} bytes it announces"
            )
        entries.append(_make_entry(marker, attributes, body[:length]))
    return head, entries, [*problems, *_check_call_counts(entries)]


def _parse_attributes(marker: re.Match[bytes], problems: list[str]) -> Mapping[str, str]:
    line = marker[2].decode("utf-8", "replace")
    pairs = _ATTRIBUTE.findall(line)
    if not line.endswith(" -->") or len(dict(pairs)) != len(pairs):
        problems.append(f"the marker at byte {marker.start()} is malformed: {line[:80]}")
    return dict(pairs)


def _body_end(data: bytes, markers: Sequence[re.Match[bytes]], index: int) -> int:
    return markers[index + 1].start() if index + 1 < len(markers) else len(data)


def _check_open_line(marker: re.Match[bytes], body: bytes, *, is_last: bool) -> list[str]:
    """Check the open line at the end, which stays empty in a crash test."""
    if marker[1] == b"user" and is_last and not body.strip():
        return []
    return [f"the entry at byte {marker.start()} has no length, and is not the empty line at the end"]


def _make_entry(marker: re.Match[bytes], attributes: Mapping[str, str], body: bytes) -> Entry:
    return Entry(
        kind=marker[1].decode(),
        id=attributes.get("of") or attributes.get("id", ""),
        run=attributes.get("run", ""),
        text=body.decode("utf-8", "replace"),
        ok=marker[1] != b"result" or b" failed " not in marker[2],
        tool=attributes.get("tool", ""),
        call_count=int(attributes.get("calls", "0")),
        input_tokens=int(attributes.get("in", "0")),
        output_tokens=int(attributes.get("out", "0")),
    )


def _check_call_counts(entries: Sequence[Entry]) -> list[str]:
    """Check that each reply is followed by the calls it announces, and that ids are unique."""
    problems: list[str] = []
    for index, entry in enumerate(entries):
        if entry.kind == "agent":
            calls = [
                each for each in entries[index + 1 : index + 1 + entry.call_count] if each.kind == "call"
            ]
            if len(calls) != entry.call_count:
                problems.append(f"reply {entry.id} has {len(calls)} of its {entry.call_count} calls")
    keys = [(entry.kind == "result", entry.id) for entry in entries]
    problems += [f"entry {key[1]} is there twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    return problems
