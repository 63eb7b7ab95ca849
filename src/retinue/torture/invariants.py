"""Invariants that must hold for a home once all its runs have ended."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from retinue.domain.delivery import Delivery, DeliveryState
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult, unanswered_calls
from retinue.errors import RetinueError
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.runtime.recovery import UNKNOWN_OUTCOME
from retinue.sessions.store import FileStore
from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import ModelRequest
from retinue.torture.scenario import ReplyToken, position_in, reply_tokens_in
from retinue.worker.clock import system_clock

SESSION_FILES = ("session.md", "preset.md", "scope-plan.yml", "session.json")
COUNTED_TOOLS = ("mark", "sign")


class Invariant(StrEnum):
    """Counts of violations; each must be 0. The values are keys of the JSON report."""

    ENTRIES_LOST = "acknowledged entries lost"
    TURNS_REPEATED = "answered model calls repeated"
    EFFECTS_REPEATED = "side effects repeated"
    EFFECTS_MISREPORTED = "side effects misreported"
    ANNOUNCEMENTS_WRONG = "announcements lost or duplicated"
    CHILDREN_DUPLICATED = "children started twice"
    RUNS_NOT_TERMINAL = "runs left unfinished"
    SESSIONS_UNREADABLE = "sessions unreadable"
    FOLDERS_INCOMPLETE = "session folders incomplete"
    INTERNAL_ERRORS = "commands with internal errors"


class Statistic(StrEnum):
    """Other counts, which may have any value. The values are keys of the JSON report."""

    IN_FLIGHT_REPEATED = "unanswered model calls repeated"
    UNKNOWN_OUTCOMES = "tool calls with unknown outcome"
    RUNS_NOT_DONE = "runs that failed"


@dataclass(slots=True)
class InvariantReport:
    """Counts, and a message for each violation."""

    violations: dict[Invariant, list[str]] = field(default_factory=dict[Invariant, list[str]])
    counts: Counter[Statistic] = field(default_factory=Counter[Statistic])

    def add_violation(self, invariant: Invariant, message: str) -> None:
        self.violations.setdefault(invariant, []).append(message)

    def merge_report(self, other: "InvariantReport") -> None:
        for invariant, messages in other.violations.items():
            self.violations.setdefault(invariant, []).extend(messages)
        self.counts.update(other.counts)


class HomeContents(Struct, frozen=True, kw_only=True):
    """Everything that a home contains."""

    runs: Mapping[str, Run]
    deliveries: Sequence[Delivery]
    side_effects: Mapping[str, SideEffect]
    entries_by_session: Mapping[str, Sequence[Entry]]
    """Entries by session id."""
    sessions: Mapping[str, Session]

    def tree_position(self, session: str) -> str:
        """Return the session's position in the tree, or an empty string if it has no messages."""
        tasks = (
            each.text
            for each in self.entries_by_session.get(session, ())
            if isinstance(each, Message) and each.role == "user"
        )
        return next(filter(None, map(position_in, tasks)), "")


async def check_invariants(
    environment: TortureEnvironment, requests: Sequence[ModelRequest], *, faults: int
) -> InvariantReport:
    """Check all invariants.

    Args:
        environment: The environment.
        requests: All model requests.
        faults: Number of kills or injected errors; each explains one repeated request per agent.
    """
    report = InvariantReport()
    home = await _read_home(environment, report)
    _check_runs_ended(home, report)
    _check_nothing_lost(home, requests, report)
    _check_turns_not_repeated(home, requests, faults, report)
    _check_effects(home, environment.effect_counts(), report)
    _check_announcements(home, report)
    for name in environment.commands_with_internal_errors():
        report.add_violation(
            Invariant.INTERNAL_ERRORS, f"{environment.output_dir / name} reports an internal error"
        )
    return report


async def _read_home(environment: TortureEnvironment, report: InvariantReport) -> HomeContents:
    store = FileStore(environment.home / "sessions", system_clock())
    ledger = SqliteLedger(environment.home / "ledger.db")
    entries_by_session: dict[str, Sequence[Entry]] = {}
    sessions: dict[str, Session] = {}
    try:
        for session in await store.sessions():
            sessions[session.id] = session
            entries_by_session[session.id] = await _read_session(store, session, report)
        runs, deliveries, side_effects = await ledger.read(_read_ledger_rows)
    finally:
        await ledger.close()
        store.close()
    return HomeContents(
        runs=runs,
        deliveries=deliveries,
        side_effects=side_effects,
        entries_by_session=entries_by_session,
        sessions=sessions,
    )


def _read_ledger_rows(tx: Transaction) -> tuple[dict[str, Run], list[Delivery], dict[str, SideEffect]]:
    runs = {run.id: run for run in tx.find_runs()}
    return (
        runs,
        tx.find_deliveries(),
        {side_effect.call: side_effect for run in runs for side_effect in tx.find_side_effects(run)},
    )


async def _read_session(store: FileStore, session: Session, report: InvariantReport) -> Sequence[Entry]:
    missing = [name for name in SESSION_FILES if not Path(session.path, name).exists()]
    if missing:
        report.add_violation(Invariant.FOLDERS_INCOMPLETE, f"{session.path} has no {', '.join(missing)}")
        return ()
    try:
        entries, problems = await store.read_entries(session)
        problems = [*problems, *await store.problems(session)]
    except RetinueError as error:
        entries, problems = [], [str(error)]
    for problem in problems:
        report.add_violation(Invariant.SESSIONS_UNREADABLE, f"{session.slug}: {problem}")
    return entries


def _check_runs_ended(home: HomeContents, report: InvariantReport) -> None:
    """Check that every run has ended and no position of the tree was started twice."""
    for run in home.runs.values():
        if run.status.is_live:
            report.add_violation(
                Invariant.RUNS_NOT_TERMINAL,
                f"run {run.id} of {run.agent} is {run.status} ({run.waiting_for})",
            )
        elif run.status is not Status.DONE:
            report.counts[Statistic.RUNS_NOT_DONE] += 1
    session_counts = Counter(
        position for session in home.sessions if (position := home.tree_position(session))
    )
    for position, count in session_counts.items():
        if count > 1:
            report.add_violation(Invariant.CHILDREN_DUPLICATED, f"{count} sessions for position {position}")
    run_counts = Counter(run.session_id for run in home.runs.values() if run.request.source != "wake")
    for session, count in run_counts.items():
        if count > 1:
            report.add_violation(
                Invariant.CHILDREN_DUPLICATED, f"{count} runs for position {home.tree_position(session)}"
            )


def _check_nothing_lost(
    home: HomeContents, requests: Sequence[ModelRequest], report: InvariantReport
) -> None:
    """Check that everything quoted by a later request or recorded in the ledger is in the file."""
    for message in (*_missing_quoted_replies(home, requests), *_changed_histories(requests)):
        report.add_violation(Invariant.ENTRIES_LOST, message)
    for run in home.runs.values():
        if run.status is Status.DONE:
            for message in _missing_final_entries(run, home.entries_by_session.get(run.session_id, ())):
                report.add_violation(Invariant.ENTRIES_LOST, message)


def _missing_quoted_replies(home: HomeContents, requests: Sequence[ModelRequest]) -> Iterable[str]:
    """Yield quoted replies that are missing from the files.

    An agent's own replies must be there as replies, those of others as results or announcements.
    """
    own_tokens: dict[str, set[ReplyToken]] = defaultdict(set)
    other_tokens: dict[str, set[ReplyToken]] = defaultdict(set)
    for session, entries in home.entries_by_session.items():
        for entry in entries:
            tokens = own_tokens if isinstance(entry, Message) and entry.role == "agent" else other_tokens
            tokens[home.tree_position(session)] |= (
                set() if isinstance(entry, ToolCall) else {*reply_tokens_in(entry.text)}
            )
    for each in requests:
        for token in sorted(each.quoted_tokens):
            if token not in (own_tokens if token[0] == each.position else other_tokens)[each.position]:
                yield f"{each.position} quoted {token}, which is missing from its file"


def _changed_histories(requests: Sequence[ModelRequest]) -> Iterable[str]:
    """Yield requests whose history does not extend that of the request before."""
    by_position: dict[str, list[ModelRequest]] = defaultdict(list)
    for each in requests:
        by_position[each.position].append(each)
    for position, history in by_position.items():
        for previous, following in pairwise(history):
            if following.message_digests[: len(previous.message_digests)] != previous.message_digests:
                yield f"the history of {position} changed before turn {following.turn}"


def _missing_final_entries(run: Run, entries: Sequence[Entry]) -> Iterable[str]:
    """Yield what a finished run's file lacks: its final text, or the result of a tool call."""
    texts = {each.text for each in entries if isinstance(each, Message) and each.run == run.id}
    if run.text and run.text not in texts:
        yield f"the final text of run {run.id} is missing from its file"
    if calls := unanswered_calls(entries):
        yield f"run {run.id} ended, but its call {calls[0].id} has no result"


def _check_turns_not_repeated(
    home: HomeContents, requests: Sequence[ModelRequest], faults: int, report: InvariantReport
) -> None:
    """Check that each turn has one reply on disk, and that it is the reply to the last request.

    Once a reply is on disk, the turn must not be requested again. Earlier requests were in flight at a fault.
    """
    stored_attempts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for session, entries in home.entries_by_session.items():
        position = home.tree_position(session)
        for entry in entries:
            if isinstance(entry, Message) and entry.role == "agent":
                for token in reply_tokens_in(entry.text):
                    if token[0] == position:
                        stored_attempts[position, token[1]].append(token[2])
    for (position, turn), attempts in Counter((each.position, each.turn) for each in requests).items():
        attempts_on_disk = stored_attempts[position, turn]
        if len(attempts_on_disk) > 1:
            report.add_violation(
                Invariant.TURNS_REPEATED,
                f"turn {turn} of {position} is in its file {len(attempts_on_disk)} times",
            )
        elif attempts_on_disk and attempts_on_disk[0] < attempts:
            report.add_violation(
                Invariant.TURNS_REPEATED,
                f"turn {turn} of {position} was requested {attempts} times; reply {attempts_on_disk[0]} was already on disk",
            )
        if attempts - 1 > faults:
            report.add_violation(
                Invariant.TURNS_REPEATED,
                f"turn {turn} of {position} was requested {attempts} times with {faults} faults",
            )
        report.counts[Statistic.IN_FLIGHT_REPEATED] += attempts - 1


def _check_effects(home: HomeContents, effects: Counter[str], report: InvariantReport) -> None:
    """Check that each side effect happened at most once, and that its outcome is reported truthfully."""
    for call_id, count in effects.items():
        if count > 1:
            report.add_violation(Invariant.EFFECTS_REPEATED, f"call {call_id} ran {count} times")
    known_calls: set[str] = set()
    for entries in home.entries_by_session.values():
        result_by_call = {entry.call_id: entry for entry in entries if isinstance(entry, ToolResult)}
        for tool_call in entries:
            if isinstance(tool_call, ToolCall) and tool_call.tool in COUNTED_TOOLS:
                known_calls.add(tool_call.id)
                _check_reported_outcome(
                    tool_call,
                    result_by_call.get(tool_call.id),
                    effects[tool_call.id],
                    home.side_effects,
                    report,
                )
    for call_id in sorted(set(effects) - known_calls):
        report.add_violation(Invariant.EFFECTS_MISREPORTED, f"call {call_id} ran, but is in no file")


def _check_reported_outcome(
    tool_call: ToolCall,
    result: ToolResult | None,
    count: int,
    side_effects: Mapping[str, SideEffect],
    report: InvariantReport,
) -> None:
    if result is None:
        return
    side_effect = side_effects.get(tool_call.id)
    is_unknown = result.text.endswith(UNKNOWN_OUTCOME)
    if is_unknown:
        report.counts[Statistic.UNKNOWN_OUTCOMES] += 1
    if is_unknown and (side_effect is None or side_effect.progress is SideEffectState.ENDED):
        report.add_violation(
            Invariant.EFFECTS_MISREPORTED,
            f"call {tool_call.id} is reported as unknown, but the ledger has {side_effect}",
        )
    if result.ok and not count:
        report.add_violation(
            Invariant.EFFECTS_MISREPORTED, f"call {tool_call.id} is reported as done, but did not run"
        )
    if count and not result.ok and not is_unknown:
        report.add_violation(
            Invariant.EFFECTS_MISREPORTED,
            f"call {tool_call.id} ran, but is reported as: {result.text[:120]}",
        )


def _check_announcements(home: HomeContents, report: InvariantReport) -> None:
    """Check that each result was delivered to its requester exactly once, by the ledger and by the files."""
    by_run: dict[str, list[Delivery]] = defaultdict(list)
    for each in home.deliveries:
        by_run[each.run].append(each)
    for run in home.runs.values():
        if run.request.parent_run is None or run.status.is_live or run.request.source == "wake":
            continue
        if len(by_run[run.id]) != 1:
            report.add_violation(
                Invariant.ANNOUNCEMENTS_WRONG,
                f"the result of run {run.id} has {len(by_run[run.id])} deliveries",
            )
            continue
        for message in _delivery_violations(by_run[run.id][0], run, home):
            report.add_violation(Invariant.ANNOUNCEMENTS_WRONG, message)


def _delivery_violations(delivery: Delivery, run: Run, home: HomeContents) -> Iterable[str]:
    requester = home.runs.get(delivery.requester_run)
    requester_is_done = requester is not None and requester.status is Status.DONE
    if delivery.state is not DeliveryState.DELIVERED:
        if requester_is_done:
            yield f"the result of run {run.id} is {delivery.state}, but its requester is done"
        return
    entries = home.entries_by_session.get(delivery.session, ())
    matching = [entry for entry in entries if _is_delivery_entry(entry, delivery)]
    if len(matching) != 1:
        yield f"the result of run {run.id} is {len(matching)} times in the session it was delivered to"
    last_token = reply_tokens_in(run.text)[-1:]
    quoting = [
        entry
        for entry in entries
        if isinstance(entry, ToolResult | Notice)
        and last_token
        and last_token[0] in reply_tokens_in(entry.text)
    ]
    if run.status is Status.DONE and requester_is_done and len(quoting) != 1:
        yield f"the final text of run {run.id} reached its requester {len(quoting)} times"


def _is_delivery_entry(entry: Entry, delivery: Delivery) -> bool:
    if delivery.answers_call:
        return isinstance(entry, ToolResult) and entry.call_id == delivery.taken_by
    return isinstance(entry, Notice) and entry.id == delivery.id
