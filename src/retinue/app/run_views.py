"""Accounts of runs: everything that is known of each, as programs are told it."""

from abc import ABC, abstractmethod
from typing import Any

from retinue.app.live_config import Operator
from retinue.app.runs import delivery_of, effects_of
from retinue.app.sessions import LIVE
from retinue.domain.approval import State
from retinue.domain.pricing import Bill, Prices, bill, cost
from retinue.domain.question import Question
from retinue.domain.run import Run, as_json_in_full, iso
from retinue.domain.sandbox_level import Level
from retinue.errors import NotFound
from retinue.interfaces import Tx
from retinue.ledger.ledger import SqliteLedger


class Accounts(ABC):
    """The part of the application that gives them."""

    _ledger: SqliteLedger
    operator: Operator

    @abstractmethod
    async def sandbox(self, run: Run) -> Level | None: ...

    @abstractmethod
    async def questions(self, run: Run) -> list[Question]: ...

    @abstractmethod
    async def find_run(self, ref: str) -> Run: ...

    async def run_json(self, run_id: str) -> dict[str, Any]:
        """What `runs show --json` prints of one, with the call that asked for it."""

        def step(tx: Tx) -> tuple[Run, dict[str, Any]]:
            run = tx.run(run_id, family=True)
            if run is None:
                raise NotFound(f"there is no run {run_id}: `retinue runs history` lists them")
            tree = bill([run, *_below(run, tx)], prices)
            return run, _account(run, tx, _pending(tx), prices) | {"tree": tree.as_json()}

        prices = self.operator.prices()
        run, facts = await self._ledger.look(step)
        questions = [each.as_json() for each in await self.questions(run)]
        where = (await self.find_run(run.id)).path
        return facts | {"path": where, "sandbox": await self.sandbox(run), "questions": questions}

    async def runs_json(
        self,
        *,
        live: bool = False,
        session: str | None = None,
        root: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Of all, or of those that are going on, the newest first; how tightly commands were held is not looked up in
        their files."""

        def step(tx: Tx) -> list[dict[str, Any]]:
            found = tx.runs(
                status=LIVE if live else None, session=session, root=root, limit=limit, family=True
            )
            pending = _pending(tx) if found else {}
            return [_account(run, tx, pending, prices) for run in found]

        prices = self.operator.prices()
        return await self._ledger.look(step)

    async def bill(self, run: Run) -> Bill:
        """What a run and all below it came to."""
        prices = self.operator.prices()
        return await self._ledger.look(lambda tx: bill([run, *_below(run, tx)], prices))

    def cost(self, run: Run) -> float | None:
        """Of the run alone, in dollars; None: its model has no price."""
        return cost(run, self.operator.prices())


def _below(run: Run, tx: Tx) -> list[Run]:
    """Those it asked for, those they asked for, and so on."""
    found = {run.id: run}
    for each in reversed(tx.runs(root=run.root)):  # whoever asks is older
        if each.ask.parent_run in found:
            found[each.id] = each
    return list(found.values())[1:]


def _account(run: Run, tx: Tx, pending: dict[str, list[str]], prices: Prices) -> dict[str, Any]:
    return as_json_in_full(run, delivery_of(run, tx), effects_of(run, tx)) | {
        "approvals": pending.get(run.id, []),
        "root": run.root,
        "created_at": iso(run.created_at),
        "call": run.ask.call or None,
        "cached_tokens": run.usage.cached,
        "cost": cost(run, prices),
    }


def _pending(tx: Tx) -> dict[str, list[str]]:
    """What waits for a person, by run."""
    found: dict[str, list[str]] = {}
    for each in tx.approvals(state=[State.PENDING]):
        found.setdefault(each.run, []).append(each.id)
    return found
