"""Invariants that must hold for a home once all its runs have ended.

They are checked against what was observed from outside, with a reader that shares no code with the product.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from retinue.torture.environment import TortureEnvironment
from retinue.torture.fake_model import ModelRequest
from retinue.torture.home_reader import DeliveryRow, Entry, HomeContents, RunRow, read_home
from retinue.torture.scenario import (
    NOTE_FILE,
    ReplyToken,
    expected_calls,
    expected_reply_counts,
    note_text,
    position_in,
    reply_tokens_in,
)

COUNTED_TOOLS = ("mark", "sign")
APPROVED_TOOL = "sign"
DELEGATION_TOOLS = ("agent", "spawn_subagent", "sessions_spawn", "PersistentAgent")
"""Tools whose calls are repeated when a person resumes their run, and get the results of their sub-agents."""
UNKNOWN_OUTCOME = "Outcome unknown"
STOPPED_RESULT = "No result: the run was stopped before this call finished."
"""Text in the result of a call whose process died before the call ended."""
COMMAND_SUCCEEDED = "[exit 0,"
CONTINUATION_PREFIX = "resume:"
"""Begins the key of a run that continues an ended one."""
WAKE_SOURCE = "wake"
"""Source of a run that was started to receive an announcement."""


class Invariant(StrEnum):
    """Counts of violations; each must be 0. The values are keys of the JSON report."""

    ENTRIES_LOST = "acknowledged entries lost"
    AGENTS_LOST = "started agents lost"
    RUNS_FAILED = "runs that ended otherwise than done"
    RUNS_NOT_TERMINAL = "runs left unfinished"
    RUNS_SUSPENDED = "runs suspended without cause"
    TURNS_REPEATED = "answered model calls repeated"
    EFFECTS_REPEATED = "side effects repeated"
    EFFECTS_MISREPORTED = "side effects misreported"
    EFFECTS_LOST = "expected effects missing"
    EFFECTS_UNAPPROVED = "side effects without approval"
    EFFECTS_UNSYNCED = "side effects before a sync"
    ANNOUNCEMENTS_WRONG = "announcements lost or duplicated"
    COUNTS_WRONG = "runs with wrong counts"
    CHILDREN_DUPLICATED = "children started twice"
    LOCKS_IGNORED = "locked sessions written"
    SESSIONS_UNREADABLE = "sessions unreadable"
    LEDGER_DAMAGED = "ledgers damaged"
    FOLDERS_INCOMPLETE = "session folders incomplete"
    INTERNAL_ERRORS = "commands with internal errors"


class Statistic(StrEnum):
    """Other counts, which may have any value. The values are keys of the JSON report."""

    IN_FLIGHT_REPEATED = "unanswered model calls repeated"
    UNKNOWN_OUTCOMES = "tool calls with unknown outcome"
    RUNS_NOT_DONE = "runs that failed after an injected error"
    RUNS_SUSPENDED = "runs suspended after three kills without progress"


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


class _ObservedHome(Struct, frozen=True, kw_only=True):
    """The content of a home, by position in the tree."""

    home: HomeContents
    positions: Mapping[str, str]
    """Position in the tree by session id; empty for a session without messages."""
    session_ids: Mapping[str, Sequence[str]]
    """Session ids by position."""

    @property
    def runs(self) -> Mapping[str, RunRow]:
        return self.home.ledger.runs


async def check_invariants(
    environment: TortureEnvironment,
    requests: Sequence[ModelRequest],
    *,
    faults: int,
    errors_injected: bool = False,
) -> InvariantReport:
    """Check all invariants.

    Args:
        environment: The environment, with the trees that were started.
        requests: All model requests.
        faults: Number of kills or injected errors; each explains one repeated request per agent.
        errors_injected: System calls or allocations failed, so that runs may have failed. Otherwise every
            agent of every tree must have completed its task.
    """
    report = InvariantReport()
    observed = _observe(read_home(environment.home))
    _check_files(observed.home, report)
    _check_runs_ended(observed, report, errors_injected=errors_injected)
    _check_not_started_twice(observed, report)
    _check_nothing_lost(observed, requests, report)
    _check_turns_not_repeated(observed, requests, faults, report)
    _check_effects(observed.home, environment.effect_counts(), report)
    _check_approvals(observed.home, environment, report)
    _check_counts(observed, report)
    _check_commands(environment.command_counts(), report)
    _check_announcements(observed, report, errors_injected=errors_injected)
    for tree in environment.trees:
        if errors_injected:
            _check_agent_exists(f"{tree}/lead", observed, report)
        else:
            _check_tree_complete(tree, observed, environment, report)
    for name in environment.commands_with_internal_errors():
        report.add_violation(
            Invariant.INTERNAL_ERRORS, f"{environment.output_dir / name} reports an internal error"
        )
    return report


def _observe(home: HomeContents) -> _ObservedHome:
    positions = {session_id: _tree_position(session.entries) for session_id, session in home.sessions.items()}
    session_ids: dict[str, list[str]] = defaultdict(list)
    for session_id, position in positions.items():
        session_ids[position].append(session_id)
    return _ObservedHome(home=home, positions=positions, session_ids=session_ids)


def _tree_position(entries: Sequence[Entry]) -> str:
    tasks = (position_in(entry.text) for entry in entries if entry.kind == "user")
    return next(filter(None, tasks), "")


def _check_files(home: HomeContents, report: InvariantReport) -> None:
    for problem in home.ledger.problems:
        report.add_violation(Invariant.LEDGER_DAMAGED, f"ledger.db: {problem}")
    for session in home.sessions.values():
        if session.missing_files:
            report.add_violation(
                Invariant.FOLDERS_INCOMPLETE, f"{session.folder} has no {', '.join(session.missing_files)}"
            )
        for problem in session.problems:
            report.add_violation(Invariant.SESSIONS_UNREADABLE, f"{session.folder.name}: {problem}")


def _check_runs_ended(observed: _ObservedHome, report: InvariantReport, *, errors_injected: bool) -> None:
    for run in observed.runs.values():
        label = f"run {run.id} at {observed.positions.get(run.session_id, 'no position')} is {run.status}"
        if run.is_live:
            report.add_violation(
                Invariant.RUNS_NOT_TERMINAL, f"{label} ({run.waiting_for or '-'}, {run.reason or '-'})"
            )
        elif run.status != "done" and errors_injected:
            report.counts[Statistic.RUNS_NOT_DONE] += 1
        elif run.status != "done":
            report.add_violation(Invariant.RUNS_FAILED, f"{label} ({run.reason or 'no reason'})")


def _check_not_started_twice(observed: _ObservedHome, report: InvariantReport) -> None:
    for position, session_ids in observed.session_ids.items():
        if position and len(session_ids) > 1:
            report.add_violation(
                Invariant.CHILDREN_DUPLICATED, f"{len(session_ids)} sessions for position {position}"
            )
    run_counts = Counter(
        run.session_id
        for run in observed.runs.values()
        if run.source != WAKE_SOURCE and not run.key.startswith(CONTINUATION_PREFIX)
    )
    for session, count in run_counts.items():
        if count > 1:
            report.add_violation(
                Invariant.CHILDREN_DUPLICATED,
                f"{count} runs for position {observed.positions.get(session, session)}",
            )


def _check_agent_exists(position: str, observed: _ObservedHome, report: InvariantReport) -> bool:
    sessions = observed.session_ids.get(position, ())
    if not sessions:
        report.add_violation(Invariant.AGENTS_LOST, f"{position} has no session")
    elif not any(run.session_id in sessions for run in observed.runs.values()):
        report.add_violation(Invariant.AGENTS_LOST, f"{position} has no run in the ledger")
    else:
        return True
    return False


def _check_tree_complete(
    tree: str, observed: _ObservedHome, environment: TortureEnvironment, report: InvariantReport
) -> None:
    """Check that every agent of a tree exists, made all its calls, and that their effects are there."""
    reply_counts = expected_reply_counts(tree)
    for position, tools in expected_calls(tree).items():
        if not _check_agent_exists(position, observed, report):
            continue
        session_id = observed.session_ids[position][0]
        entries = observed.home.entries(session_id)
        reply_count = sum(entry.kind == "agent" for entry in entries)
        fewest, most = reply_counts[position]
        if not fewest <= reply_count <= most:
            report.add_violation(
                Invariant.TURNS_REPEATED if reply_count > most else Invariant.ENTRIES_LOST,
                f"{position} has {reply_count} replies instead of {fewest} to {most}",
            )
        calls = [entry for entry in entries if entry.kind == "call"]
        if [call.tool for call in calls] != tools:
            report.add_violation(
                Invariant.EFFECTS_LOST,
                f"{position} called {[call.tool for call in calls]} instead of {tools}",
            )
        results = {entry.id: entry for entry in entries if entry.kind == "result"}
        for call in calls:
            if problem := _failed_call(call, results.get(call.id), environment):
                report.add_violation(Invariant.EFFECTS_LOST, f"{position}: {problem}")
            elif call.tool == "bash" and COMMAND_SUCCEEDED in results[call.id].text:
                _check_command_ran(position, call, environment.command_counts(), report)
        if "write" in tools:
            _check_note(position, observed.home.sessions[session_id].workspace, report)


def _failed_call(call: Entry, result: Entry | None, environment: TortureEnvironment) -> str:
    """Return what is wrong with a call that should have succeeded; empty if nothing is."""
    if result is None:
        return f"call {call.id} of {call.tool} has no result"
    is_excused = (
        UNKNOWN_OUTCOME in result.text
        or call.id in environment.denied_calls
        or (call.tool == "bash" and environment.killed_commands > 0)
        or (
            STOPPED_RESULT in result.text
            and call.run in environment.resumed_runs
            and call.tool not in DELEGATION_TOOLS
        )
    )
    return "" if result.ok or is_excused else f"call {call.id} of {call.tool} failed: {result.text[:160]}"


def _check_command_ran(position: str, call: Entry, commands: Counter[str], report: InvariantReport) -> None:
    """Check that a command that succeeded left its line; one that was killed must not be reported as successful."""
    argument = json.loads(call.text)["command"].split()[-1]
    if not commands[argument]:
        report.add_violation(Invariant.EFFECTS_LOST, f"the command {argument} of {position} left no line")


def _check_note(position: str, workspace: str, report: InvariantReport) -> None:
    note = Path(workspace, NOTE_FILE)
    text = note.read_text("utf-8", "replace") if note.is_file() else None
    if text != note_text(position):
        report.add_violation(Invariant.EFFECTS_LOST, f"{note} of {position} contains {text!r}")


def _check_commands(commands: Counter[str], report: InvariantReport) -> None:
    for argument, count in commands.items():
        if count > 1:
            report.add_violation(Invariant.EFFECTS_REPEATED, f"the command {argument} ran {count} times")


def _check_nothing_lost(
    observed: _ObservedHome, requests: Sequence[ModelRequest], report: InvariantReport
) -> None:
    """Check that everything quoted by a later request or recorded in the ledger is in the file."""
    for message in (*_missing_quoted_replies(observed, requests), *_changed_histories(requests)):
        report.add_violation(Invariant.ENTRIES_LOST, message)
    for run in observed.runs.values():
        if run.status == "done":
            for message in _missing_final_entries(run, observed.home.entries(run.session_id)):
                report.add_violation(Invariant.ENTRIES_LOST, message)


def _missing_quoted_replies(observed: _ObservedHome, requests: Sequence[ModelRequest]) -> Iterable[str]:
    """Yield quoted replies that are missing from the files.

    An agent's own replies must be there as replies, those of others as results or announcements.
    """
    own_tokens: dict[str, set[ReplyToken]] = defaultdict(set)
    other_tokens: dict[str, set[ReplyToken]] = defaultdict(set)
    for session_id, session in observed.home.sessions.items():
        position = observed.positions[session_id]
        for entry in session.entries:
            tokens = own_tokens if entry.kind == "agent" else other_tokens
            tokens[position] |= set() if entry.kind == "call" else {*reply_tokens_in(entry.text)}
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


def _missing_final_entries(run: RunRow, entries: Sequence[Entry]) -> Iterable[str]:
    """Yield what a finished run's file lacks: its final text, or the result of a tool call."""
    texts = {entry.text for entry in entries if entry.kind in ("agent", "user") and entry.run == run.id}
    if run.text and run.text not in texts:
        yield f"the final text of run {run.id} is missing from its file"
    answered = {entry.id for entry in entries if entry.kind == "result"}
    open_calls = [entry.id for entry in entries if entry.kind == "call" and entry.id not in answered]
    if open_calls:
        yield f"run {run.id} ended, but its call {open_calls[0]} has no result"


def _check_turns_not_repeated(
    observed: _ObservedHome, requests: Sequence[ModelRequest], faults: int, report: InvariantReport
) -> None:
    """Check that each turn has one reply on disk, and that it is the reply to the last request.

    Once a reply is on disk, the turn must not be requested again. Earlier requests were in flight at a fault.
    """
    stored_attempts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for session_id, session in observed.home.sessions.items():
        position = observed.positions[session_id]
        for entry in session.entries:
            if entry.kind == "agent":
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
    for session in home.sessions.values():
        results = {entry.id: entry for entry in session.entries if entry.kind == "result"}
        for call in session.entries:
            if call.kind == "call" and call.tool in COUNTED_TOOLS:
                known_calls.add(call.id)
                if (result := results.get(call.id)) is not None:
                    recorded_state = home.ledger.effect_states.get(call.id, "nothing")
                    _check_reported_outcome(result, effects[call.id], recorded_state, report)
    for call_id in sorted(set(effects) - known_calls):
        report.add_violation(Invariant.EFFECTS_MISREPORTED, f"call {call_id} ran, but is in no file")


def _check_reported_outcome(result: Entry, count: int, recorded_state: str, report: InvariantReport) -> None:
    """Check a result against the mark that the call left, and against what the ledger recorded."""
    is_unknown = UNKNOWN_OUTCOME in result.text
    problem = ""
    if is_unknown:
        report.counts[Statistic.UNKNOWN_OUTCOMES] += 1
    if is_unknown and recorded_state in ("nothing", "ended"):
        problem = f"is reported as unknown, but the ledger has {recorded_state}"
    elif result.ok and not count:
        problem = "is reported as done, but did not run"
    elif result.ok and recorded_state != "ended":
        problem = f"is reported as done, but the ledger has {recorded_state}"
    elif count and not result.ok and not is_unknown:
        problem = f"ran, but is reported as: {result.text[:120]}"
    if problem:
        report.add_violation(Invariant.EFFECTS_MISREPORTED, f"call {result.id} {problem}")


def _check_approvals(home: HomeContents, environment: TortureEnvironment, report: InvariantReport) -> None:
    """Check that each side effect that requires approval was approved itself; an approval counts for one call."""
    effects = environment.effect_counts()
    for session in home.sessions.values():
        for call in session.entries:
            if call.tool == APPROVED_TOOL and effects[call.id] and call.id not in environment.allowed_calls:
                report.add_violation(Invariant.EFFECTS_UNAPPROVED, f"call {call.id} ran without approval")


def _check_counts(observed: _ObservedHome, report: InvariantReport) -> None:
    """Check that the ledger counts the turns, calls and tokens of each finished run as its file has them."""
    for run in observed.runs.values():
        entries = observed.home.entries(run.session_id)
        replies = [entry for entry in entries if entry.kind == "agent" and entry.run == run.id]
        expected = (
            len(replies),
            sum(reply.call_count for reply in replies),
            sum(reply.input_tokens for reply in replies),
            sum(reply.output_tokens for reply in replies),
        )
        if run.status == "done" and run.counts != expected:
            report.add_violation(
                Invariant.COUNTS_WRONG,
                f"run {run.id} counts {run.counts} turns, calls and tokens; its file has {expected}",
            )


def _check_announcements(observed: _ObservedHome, report: InvariantReport, *, errors_injected: bool) -> None:
    """Check that each result was delivered to its requester exactly once, by the ledger and by the files."""
    by_run: dict[str, list[DeliveryRow]] = defaultdict(list)
    for each in observed.home.ledger.deliveries:
        by_run[each.run].append(each)
    for run in observed.runs.values():
        if not run.parent_run or run.is_live or run.source == WAKE_SOURCE:
            continue
        if len(by_run[run.id]) != 1:
            report.add_violation(
                Invariant.ANNOUNCEMENTS_WRONG,
                f"the result of run {run.id} has {len(by_run[run.id])} deliveries",
            )
            continue
        for message in _delivery_violations(
            by_run[run.id][0], run, observed, errors_injected=errors_injected
        ):
            report.add_violation(Invariant.ANNOUNCEMENTS_WRONG, message)


def _delivery_violations(
    delivery: DeliveryRow, run: RunRow, observed: _ObservedHome, *, errors_injected: bool
) -> Iterable[str]:
    """Yield what is wrong with a delivery.

    A requester that failed because of a disk error may have been unable to save the result it took.
    """
    requester = observed.runs.get(delivery.requester_run)
    requester_is_done = requester is not None and requester.status == "done"
    if delivery.state != "delivered":
        if requester_is_done:
            yield f"the result of run {run.id} is {delivery.state}, but its requester is done"
        return
    entries = observed.home.entries(delivery.session)
    matching = [entry for entry in entries if _is_delivery_entry(entry, delivery)]
    if len(matching) > 1 or (not matching and (requester_is_done or not errors_injected)):
        yield f"the result of run {run.id} is {len(matching)} times in the session it was delivered to"
    last_token = reply_tokens_in(run.text)[-1:]
    quoting = [
        entry
        for entry in entries
        if entry.kind in ("result", "notice") and last_token and last_token[0] in reply_tokens_in(entry.text)
    ]
    if run.status == "done" and requester_is_done and len(quoting) != 1:
        yield f"the final text of run {run.id} reached its requester {len(quoting)} times"


def _is_delivery_entry(entry: Entry, delivery: DeliveryRow) -> bool:
    if delivery.answers_call:
        return entry.kind == "result" and entry.id == delivery.taken_by
    return entry.kind == "notice" and entry.id == delivery.id
