"""List, find and wait for runs."""

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from retinue.app.daemon_link import DaemonLink
from retinue.app.references import ReferenceResolver, require_single_run, runs_with_id_prefix
from retinue.app.sessions import LIVE_STATUSES
from retinue.app.tree_activity import is_any_run_active, is_tree_active
from retinue.domain.event import Event
from retinue.domain.run import Run, Status
from retinue.domain.side_effect import SideEffect, SideEffectState
from retinue.domain.side_effect import side_effect_as_json as deed_as_json
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.worker.worker import LocalWorker

QUEUE_POLL_SECONDS = 0.25


class RunService(ReferenceResolver):
    """Queries about runs."""

    _ledger: SqliteLedger
    _local_worker: LocalWorker
    _daemon_link: DaemonLink | None

    async def wait(self, run_id: str) -> Run:
        """Wait until no run in the tree of this one is active: it has ended, or needs a person.

        Returns:
            The run as it is then.

        Raises:
            NotFound: There is no such run.
        """
        return await self.wait_until_idle(await self.find_run(run_id))

    async def wait_until_idle(self, run: Run) -> Run:
        """Do the same as `wait` for a run that was just loaded."""
        while True:
            await self._wait_for_progress(run)
            run, is_active = await self._ledger.read(partial(_with_tree_activity, run))
            if run.status is not Status.RUNNING and not is_active:
                await self._wait_for_daemon_events()
                return (
                    (await self._with_current_paths([run]))[0]
                    if self._daemon_link is None
                    else await self.find_run(run.id)
                )
            await self._local_worker.wait_for_change()

    async def _wait_for_progress(self, run: Run) -> None:
        """Wait until the run has ended or been suspended.

        A queued run is checked again after a moment, because the run ahead of it may have begun to wait for a
        person.
        """
        if run.status is not Status.QUEUED:
            await self._local_worker.wait(run.id)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(QUEUE_POLL_SECONDS):
                await self._local_worker.wait(run.id)

    async def _wait_for_daemon_events(self) -> None:
        """Wait until all events that the daemon has written so far were received here."""
        if self._daemon_link is not None:
            await self._daemon_link.wait_until_received(await self._ledger.read(lambda tx: tx.last_seq()))

    async def list_runs(self, *, live: bool, limit: int | None = None) -> list[Run]:
        """Return runs, newest first; with `live`, only those that have not ended."""
        return await self._with_current_paths(
            await self._ledger.read(
                lambda tx: tx.find_runs(
                    status=LIVE_STATUSES if live else None, limit=limit, with_children=True
                )
            )
        )

    async def find_run(self, ref: str) -> Run:
        """Find a run by id or unambiguous prefix, or by any name of its session.

        A session stands for its current run, or its newest if none is live.

        Raises:
            NotFound: Nothing has this name.
            Usage: The reference is ambiguous.
        """
        return await self._with_current_path(await self.resolve_run(ref))

    async def find_run_by_id(self, ref: str) -> Run:
        """Find a run by id or unambiguous prefix only, for remote clients."""
        return await self._with_current_path(
            require_single_run(ref, await self._ledger.read(partial(runs_with_id_prefix, ref)))
        )

    async def _with_current_paths(self, runs: list[Run]) -> list[Run]:
        """Return the runs with the current paths of their sessions.

        The home or a folder may have been moved since a run started, so missing sessions are looked up by id;
        only those.
        """
        missing = {run.session_id for run in runs if not os.path.exists(run.transcript_path)}  # noqa: PTH110  (a single stat call each)
        if not missing:
            return runs
        path_by_session = {
            each.id: f"{each.path}/session.md" for each in await self.store.sessions() if each.id in missing
        }
        return [
            replace(run, transcript_path=path_by_session.get(run.session_id, run.transcript_path))
            for run in runs
        ]

    async def _with_current_path(self, run: Run) -> Run:
        """Return the run with its session's current path, also if that is in the trash."""
        (found,) = await self._with_current_paths([run])
        if found is run:
            return run
        return replace(
            found,
            transcript_path=await self.store.find_deleted_file(found.transcript_path)
            or found.transcript_path,
        )

    async def delivery(self, run: Run) -> dict[str, Any] | None:
        """Return the delivery state of a run's result, or None if no agent requested the run."""
        return await self._ledger.read(lambda tx: delivery_json(run, tx))

    async def side_effects(self, run: Run) -> list[dict[str, Any]]:
        """Return the run's side effects that must not be repeated.

        A side effect that started and never ended has an unknown outcome.
        """
        return await self._ledger.read(lambda tx: side_effects_json(run, tx))

    async def durable_events(self, *, after: int, limit: int) -> list[Event]:
        """Return durable events after a sequence number, oldest first, from all processes."""
        return await self._ledger.read(lambda tx: tx.find_events(after=after, limit=limit))

    async def last_event_seq(self) -> int:
        """Return the sequence number of the newest durable event, or 0."""
        return await self._ledger.read(lambda tx: tx.last_seq())

    async def session_ancestry(self, run_id: str) -> list[str]:
        """Return the session ids of a run and its ancestors, its own first; empty if the run is unknown."""

        def step(tx: Transaction) -> list[str]:
            found: list[str] = []
            run = tx.get_run(run_id)
            while run is not None:
                found.append(run.session_id)
                run = tx.get_run(run.request.parent_run) if run.request.parent_run else None
            return found

        return await self._ledger.read(step)

    async def has_active_runs(self) -> bool:
        """Return whether any run is active in any process, or will continue once there is disk space."""
        return await self._ledger.read(is_any_run_active)


def _with_tree_activity(run: Run, tx: Transaction) -> tuple[Run, bool]:
    """Return the current run and whether anything in its tree is active.

    Every descendant has an ancestor up to the root, so a finished root without children is the whole tree.
    """
    current = tx.get_run(run.id, with_children=True) or run
    is_single_finished = current.status.is_final and current.root_id == current.id and not current.child_ids
    return current, not is_single_finished and is_tree_active(current.root_id, tx)


def delivery_json(run: Run, tx: Transaction) -> dict[str, Any] | None:
    found = tx.find_deliveries(run=run.id) if run.request.parent_run is not None else []
    return {"state": str(found[0].state), "attempts": found[0].attempts} if found else None


def side_effects_json(run: Run, tx: Transaction) -> list[dict[str, Any]]:
    return [
        deed_as_json(each.mark_unknown() if _is_interrupted(each, run) else each)
        for each in tx.find_side_effects(run.id)
    ]


def _is_interrupted(side_effect: SideEffect, run: Run) -> bool:
    return side_effect.progress is SideEffectState.STARTED and run.status.is_final
