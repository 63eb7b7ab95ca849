"""What a person means by a name: a session by any of its own or by a run of it, a run by its id or by its session."""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.errors import NotFound, Usage
from retinue.interfaces import Ledger, Tx
from retinue.sessions.store import FileStore

_AT_WORK = (Status.RUNNING, Status.WAITING, Status.QUEUED)
"""Live runs: which of several is the one that its session is at."""
_LIKE_A_RUN = re.compile(r"[0-9A-HJKMNP-TV-Z]{1,26}")
"""A run's id, or the beginning of one. What does not look so, no run is called."""
_FEW = 8


class Naming:
    """The part of the application that finds what is meant."""

    store: FileStore
    ledger: Ledger

    async def session(self, ref: str) -> Session:
        """By any name of its own, or by a run of it. A run's whole id comes before the beginning of anything else; the
        ledger is not asked about what no run could be called."""
        runs = await self._runs_like(ref)
        if not runs:
            return await self.store.find(ref)
        own = None if runs[0].id == ref else await self._begins(ref)
        if own is not None and ref in (own.id, own.slug, *own.aliases):
            return own
        if len(runs) > 1 or (own is not None and own.id != runs[0].session_id):
            raise _several(ref, own, runs)
        return own or await self._session_of(runs[0])

    async def named(self, ref: str) -> Session:
        """For those who are far away: never by a path, nor by a name, which another may have tomorrow, nor by a run."""
        return await self.store.named(ref)

    async def deleted(self, ref: str) -> str:
        """What a deleted session is found by where a run of it is named; any other name stays what it is."""
        runs = await self._runs_like(ref)
        if len(runs) > 1:
            raise _several(ref, None, runs)
        return runs[0].session_id if runs else ref

    async def meant_run(self, ref: str) -> Run:
        """By id or unambiguous prefix, or by any name of its session: then the run that it is at, else its newest."""
        found = await self.ledger.look(partial(_known, ref))
        if not found:
            return await self._run_in(ref)
        run = one(ref, found)
        if ref in (run.id, run.session_id) or (session := await self._begins(ref)) is None:
            return run
        other = await self.ledger.look(partial(_latest, session.id))
        if other is not None and other.id != run.id:
            raise _several(ref, session, [run])
        return run

    async def _run_in(self, ref: str) -> Run:
        try:
            session = await self.session(ref)
        except NotFound as error:
            raise NotFound(
                f"there is no run {ref}, and no session: `retinue runs history` lists runs"
            ) from error
        run = await self.ledger.look(partial(_latest, session.id))
        if run is None:
            raise NotFound(
                f"{session.slug} has had no run yet: `retinue send {session.slug} TEXT` begins one"
            )
        return run

    async def _session_of(self, run: Run) -> Session:
        """Where a run was asked for; a folder that was moved since is found by its id."""
        for ref in (run.path, run.session_id):
            with suppress(NotFound):
                return await self.store.find(ref)
        raise NotFound(
            f"{run.slug}, the session of run {run.id}, is gone: `retinue sessions restore {run.session_id}` brings back "
            "what was deleted in the last 30 days"
        )

    async def _runs_like(self, ref: str) -> list[Run]:
        return await self.ledger.look(partial(_like, ref)) if _LIKE_A_RUN.fullmatch(ref) else []

    async def _begins(self, ref: str) -> Session | None:
        """The one session that is called so, or whose id, slug or alias begins so."""
        with suppress(NotFound):
            return await self.store.named(ref)
        return None


def called(ref: str, tx: Tx) -> list[Run]:
    """The run of this id, else two of those whose ids begin so."""
    if not ref:
        raise Usage("say which run: `retinue runs history` lists them")
    exact = tx.run(ref, family=True)
    return [exact] if exact else tx.runs(prefix=ref, limit=2, family=True)


def one(ref: str, found: Sequence[Run]) -> Run:
    if not found:
        raise NotFound(f"there is no run {ref}: `retinue runs history` lists them")
    if len(found) > 1:
        raise Usage(f"{ref} could be several runs: {', '.join(run.id for run in found)} …")
    return found[0]


def _known(ref: str, tx: Tx) -> list[Run]:
    """As above; and by the id of its session, also of one that was deleted."""
    known = tx.run(ref, family=True) or _latest(ref, tx)
    return [known] if known else called(ref, tx)


def _latest(session: str, tx: Tx) -> Run | None:
    """The run that a session is at: of several the one that others wait behind; where none is live, its newest."""
    live = tx.runs(status=_AT_WORK, session=session, family=True)
    if live:
        return min(reversed(live), key=lambda run: _AT_WORK.index(run.status))
    return next(iter(tx.runs(session=session, limit=1, family=True)), None)


def _like(ref: str, tx: Tx) -> list[Run]:
    """The run of this id, else the newest of each session that has some whose ids begin so."""
    if exact := tx.run(ref):
        return [exact]
    found: dict[str, Run] = {}
    for limit in (_FEW, None):  # where a few are of several sessions, the rest is not read
        for run in tx.runs(prefix=ref, limit=limit):
            found.setdefault(run.session_id, run)
        if len(found) != 1:
            break
    return list(found.values())


def _several(ref: str, session: Session | None, runs: Sequence[Run]) -> Usage:
    names = [f"session {session.slug} ({session.id})"] if session else []
    names += [f"run {run.id} of {run.slug}" for run in runs[:_FEW]]
    more = " …" if len(runs) > _FEW else ""
    return Usage(f"{ref} could be {', '.join(names)}{more}: say more of it")
