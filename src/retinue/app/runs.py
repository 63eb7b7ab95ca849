"""Looking at runs: which there are, what became of each, and waiting for one."""

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from retinue.app.daemon_link import Beside
from retinue.app.references import Naming, called, one
from retinue.app.sessions import LIVE
from retinue.app.tree_activity import moving, moving_in
from retinue.domain.event import Event
from retinue.domain.run import Run, Status
from retinue.domain.side_effect import Deed, Progress
from retinue.domain.side_effect import as_json as deed_as_json
from retinue.interfaces import Tx
from retinue.ledger.ledger import SqliteLedger
from retinue.worker.worker import LocalEngine

MOMENT_SECONDS = 0.25


class Looking(Naming):
    """The part of the application that says what is going on."""

    _ledger: SqliteLedger
    _engine: LocalEngine
    _beside: Beside | None

    async def wait(self, run_id: str) -> Run:
        """Until nothing of its tree goes on: it has ended, or needs a person."""
        return await self.waited(await self.find_run(run_id))

    async def waited(self, run: Run) -> Run:
        """The same for a run that is known as it was a moment ago."""
        while True:
            await self._stirs(run)
            run, moves = await self._ledger.look(partial(_stands, run))
            if run.status is not Status.RUNNING and not moves:
                await self._all_heard()
                return (
                    (await self._where_they_are([run]))[0]
                    if self._beside is None
                    else await self.find_run(run.id)
                )
            await self._engine.change()

    async def _stirs(self, run: Run) -> None:
        """Until it has ended or been put aside. One that waits its turn is looked at again after a moment: whoever it
        stands behind may have begun to wait for a person."""
        if run.status is not Status.QUEUED:
            await self._engine.wait(run.id)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._engine.wait(run.id)

    async def _all_heard(self) -> None:
        """What a daemon said up to now has been heard here."""
        if self._beside is not None:
            await self._beside.heard_up_to(await self._ledger.look(lambda tx: tx.last_seq()))

    async def runs(self, *, live: bool, limit: int | None = None) -> list[Run]:
        return await self._where_they_are(
            await self._ledger.look(
                lambda tx: tx.runs(status=LIVE if live else None, limit=limit, family=True)
            )
        )

    async def find_run(self, ref: str) -> Run:
        """By id or unambiguous prefix, or by any name of its session: then the run that it is at, else its newest."""
        return await self._where_it_is(await self.meant_run(ref))

    async def named_run(self, ref: str) -> Run:
        """For those who are far away: by id or unambiguous prefix, and never by its session."""
        return await self._where_it_is(one(ref, await self._ledger.look(partial(called, ref))))

    async def _where_they_are(self, runs: list[Run]) -> list[Run]:
        """A home or a folder may have been moved since a run was asked for: its conversation is found by its id. What
        still stands where it was is not looked for."""
        gone = {run.session_id for run in runs if not os.path.exists(run.path)}  # noqa: PTH110  (one look each)
        if not gone:
            return runs
        there = {
            each.id: f"{each.path}/session.md" for each in await self.store.sessions() if each.id in gone
        }
        return [replace(run, path=there.get(run.session_id, run.path)) for run in runs]

    async def _where_it_is(self, run: Run) -> Run:
        """The same of one; a conversation that was deleted has another name until it is swept away."""
        (found,) = await self._where_they_are([run])
        if found is run:
            return run
        return replace(found, path=await self.store.put_aside(found.path) or found.path)

    async def delivery(self, run: Run) -> dict[str, Any] | None:
        """What became of telling a run's end to the agent that asked for it; None: no agent did."""
        return await self._ledger.look(lambda tx: delivery_of(run, tx))

    async def effects(self, run: Run) -> list[dict[str, Any]]:
        """What a run did that must not happen twice; one that was begun and never ended has an unknown outcome."""
        return await self._ledger.look(lambda tx: effects_of(run, tx))

    async def events(self, *, after: int, limit: int) -> list[Event]:
        """Durable events past a number, oldest first, whichever process wrote them."""
        return await self._ledger.look(lambda tx: tx.events(after=after, limit=limit))

    async def last_seq(self) -> int:
        """The number of the newest durable event; 0: there is none."""
        return await self._ledger.look(lambda tx: tx.last_seq())

    async def conversations(self, run_id: str) -> list[str]:
        """The sessions of a run and of those that asked for it, its own first; none where the run is not known."""

        def step(tx: Tx) -> list[str]:
            found: list[str] = []
            run = tx.run(run_id)
            while run is not None:
                found.append(run.session_id)
                run = tx.run(run.ask.parent_run) if run.ask.parent_run else None
            return found

        return await self._ledger.look(step)

    async def moving(self) -> bool:
        """Whether anything goes on, here or elsewhere, or will once there is room on the disk."""
        return await self._ledger.look(moving)


def _stands(run: Run, tx: Tx) -> tuple[Run, bool]:
    """The run as it is now, and whether anything of its tree goes on: whoever is born there has somebody above, up to
    the root, so that a root without children is all of its tree."""
    now = tx.run(run.id, family=True) or run
    whole = now.status.final and now.root == now.id and not now.children
    return now, not whole and moving_in(now.root, tx)


def delivery_of(run: Run, tx: Tx) -> dict[str, Any] | None:
    found = tx.deliveries(run=run.id) if run.ask.parent_run is not None else []
    return {"state": str(found[0].state), "attempts": found[0].attempts} if found else None


def effects_of(run: Run, tx: Tx) -> list[dict[str, Any]]:
    return [deed_as_json(each.lost() if _cut_off(each, run) else each) for each in tx.deeds(run.id)]


def _cut_off(deed: Deed, run: Run) -> bool:
    return deed.progress is Progress.STARTED and run.status.final
