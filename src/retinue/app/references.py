"""Resolve references given by users: to a session by its names or runs, to a run by its id or session."""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from retinue.app.home_access import HomeAccess
from retinue.domain.run import Run, Status
from retinue.domain.session import DELETED_SESSION_RETENTION_DAYS, Session
from retinue.errors import NotFound, UsageError
from retinue.interfaces import Transaction

_STATUS_PRIORITY = (Status.RUNNING, Status.WAITING, Status.QUEUED)
"""Live statuses, in the order in which a run counts as its session's current one."""
_RUN_ID_PREFIX = re.compile(r"[0-9A-HJKMNP-TV-Z]{1,26}")
"""Matches a run id or the beginning of one; anything else is not looked up in the ledger."""
_SAMPLE_SIZE = 8


async def find_session(ref: str, home: HomeAccess) -> Session:
    """Find a session by any of its names, or by one of its runs.

    A complete run id takes precedence over any prefix.

    Raises:
        NotFound: Nothing has this name.
        UsageError: The reference is ambiguous.
    """
    runs = await _runs_matching(ref, home)
    if not runs:
        return await home.store.find(ref)
    named_session = None if runs[0].id == ref else await _session_matching(ref, home)
    if named_session is not None and ref in (
        named_session.id,
        named_session.slug,
        *named_session.aliases,
    ):
        return named_session
    if len(runs) > 1 or (named_session is not None and named_session.id != runs[0].session_id):
        raise _ambiguous_reference(ref, named_session, runs)
    return named_session or await _session_of_run(runs[0], home)


async def deleted_session_ref(ref: str, home: HomeAccess) -> str:
    """Return the session id if `ref` names a run, also of a deleted session; else return `ref` unchanged."""
    runs = await _runs_matching(ref, home)
    if len(runs) > 1:
        raise _ambiguous_reference(ref, None, runs)
    return runs[0].session_id if runs else ref


async def resolve_run(ref: str, home: HomeAccess) -> Run:
    """Find a run by id or unambiguous prefix, or by any name of its session.

    A session reference means its current run, or its newest if none is live.
    """
    candidates = await home.ledger.read(partial(_candidate_runs, ref))
    if not candidates:
        return await _run_of_session(ref, home)
    run = require_single_run(ref, candidates)
    if ref in (run.id, run.session_id) or (session := await _session_matching(ref, home)) is None:
        return run
    session_run = await home.ledger.read(partial(_current_run, session.id))
    if session_run is not None and session_run.id != run.id:
        raise _ambiguous_reference(ref, session, [run])
    return run


async def _run_of_session(ref: str, home: HomeAccess) -> Run:
    try:
        session = await find_session(ref, home)
    except NotFound as error:
        raise NotFound(f"No run or session {ref}. List runs with `retinue runs history`.") from error
    run = await home.ledger.read(partial(_current_run, session.id))
    if run is None:
        raise NotFound(f"{session.slug} has no run yet. Start one with `retinue send {session.slug} TEXT`.")
    return run


async def _session_of_run(run: Run, home: HomeAccess) -> Session:
    """Return the session of a run; one whose folder was moved is found by its id."""
    for ref in filter(None, (run.transcript_path, run.session_id)):
        with suppress(NotFound):
            return await home.store.find(ref)
    raise NotFound(
        f"{run.slug}, the session of run {run.id}, is gone. If it was deleted in the last {DELETED_SESSION_RETENTION_DAYS} days, "
        f"restore it with `retinue sessions restore {run.session_id}`."
    )


async def _runs_matching(ref: str, home: HomeAccess) -> list[Run]:
    return (
        await home.ledger.read(partial(_newest_run_per_session, ref)) if _RUN_ID_PREFIX.fullmatch(ref) else []
    )


async def _session_matching(ref: str, home: HomeAccess) -> Session | None:
    """Return the one session with this id, slug or alias, or with a unique prefix of one."""
    with suppress(NotFound):
        return await home.store.find_by_key(ref)
    return None


def runs_with_id_prefix(ref: str, tx: Transaction) -> list[Run]:
    """Return the run with this id, else up to two runs whose ids start with it."""
    if not ref:
        raise UsageError("The run is missing. List runs with `retinue runs history`.")
    exact = tx.get_run(ref, with_children=True)
    return [exact] if exact else tx.find_runs(prefix=ref, limit=2, with_children=True)


def require_single_run(ref: str, found: Sequence[Run]) -> Run:
    if not found:
        raise NotFound(f"Run {ref} not found. List runs with `retinue runs history`.")
    if len(found) > 1:
        raise UsageError(f"{ref} matches several runs: {', '.join(run.id for run in found)} …")
    return found[0]


def _candidate_runs(ref: str, tx: Transaction) -> list[Run]:
    """Return the runs that a reference may mean; it may also be a session id, even of a deleted session."""
    exact = tx.get_run(ref, with_children=True) or _current_run(ref, tx)
    return [exact] if exact else runs_with_id_prefix(ref, tx)


def _current_run(session_id: str, tx: Transaction) -> Run | None:
    """Return the session's current run: the live one that others wait behind, else the newest."""
    live = tx.find_runs(status=_STATUS_PRIORITY, session=session_id, with_children=True)
    if live:
        return min(reversed(live), key=lambda run: _STATUS_PRIORITY.index(run.status))
    return next(iter(tx.find_runs(session=session_id, limit=1, with_children=True)), None)


def _newest_run_per_session(ref: str, tx: Transaction) -> list[Run]:
    """Return the run with this id, else the newest matching run of each session that has any."""
    if exact := tx.get_run(ref):
        return [exact]
    run_by_session: dict[str, Run] = {}
    for limit in (_SAMPLE_SIZE, None):  # stop early if a few runs already belong to several sessions
        for run in tx.find_runs(prefix=ref, limit=limit):
            run_by_session.setdefault(run.session_id, run)
        if len(run_by_session) != 1:
            break
    return list(run_by_session.values())


def _ambiguous_reference(ref: str, session: Session | None, runs: Sequence[Run]) -> UsageError:
    names = [f"session {session.slug} ({session.id})"] if session else []
    names += [f"run {run.id} of {run.slug}" for run in runs[:_SAMPLE_SIZE]]
    more = " …" if len(runs) > _SAMPLE_SIZE else ""
    return UsageError(f"{ref} is ambiguous: {', '.join(names)}{more}. Give more characters.")
