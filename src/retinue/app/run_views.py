"""Full JSON views of runs."""

from abc import ABC, abstractmethod
from typing import Any

from retinue.app.live_config import LiveConfig
from retinue.app.runs import delivery_json, side_effects_json
from retinue.app.sessions import LIVE_STATUSES
from retinue.domain.approval import ApprovalState
from retinue.domain.pricing import CostSummary, Prices, run_cost, summarize_costs
from retinue.domain.question import Question
from retinue.domain.run import Run, iso_timestamp, run_details_as_json
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import NotFound
from retinue.interfaces import Transaction
from retinue.ledger.ledger import SqliteLedger


class RunViewService(ABC):
    """JSON views and costs of runs."""

    _ledger: SqliteLedger
    live_config: LiveConfig

    @abstractmethod
    async def lowest_sandbox_level(self, run: Run) -> SandboxLevel | None: ...

    @abstractmethod
    async def open_questions(self, run: Run) -> list[Question]: ...

    @abstractmethod
    async def find_run(self, ref: str) -> Run: ...

    async def run_json(self, run_id: str) -> dict[str, Any]:
        """Return the JSON object that `runs show --json` prints.

        It includes the tool call that requested the run.

        Raises:
            NotFound: There is no such run.
        """

        def step(tx: Transaction) -> tuple[Run, dict[str, Any]]:
            run = tx.get_run(run_id, with_children=True)
            if run is None:
                raise NotFound(f"Run {run_id} not found. List runs with `retinue runs history`.")
            tree = summarize_costs([run, *_descendants(run, tx)], prices)
            return run, _run_json(run, tx, _pending_approval_ids(tx), prices) | {"tree": tree.as_json()}

        prices = self.live_config.prices()
        run, row = await self._ledger.read(step)
        questions = [each.as_json() for each in await self.open_questions(run)]
        path = (await self.find_run(run.id)).transcript_path
        return row | {"path": path, "sandbox": await self.lowest_sandbox_level(run), "questions": questions}

    async def runs_json(
        self,
        *,
        live: bool = False,
        session: str | None = None,
        root: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return JSON rows of runs, newest first; with `live`, only of runs that have not ended.

        Unlike `run_json`, the rows leave out the sandbox level, which would have to be read from the
        transcripts.
        """

        def step(tx: Transaction) -> list[dict[str, Any]]:
            found = tx.find_runs(
                status=LIVE_STATUSES if live else None,
                session=session,
                root=root,
                limit=limit,
                with_children=True,
            )
            pending = _pending_approval_ids(tx) if found else {}
            return [_run_json(run, tx, pending, prices) for run in found]

        prices = self.live_config.prices()
        return await self._ledger.read(step)

    async def tree_cost(self, run: Run) -> CostSummary:
        """Return the usage and cost of a run and all its descendants."""
        prices = self.live_config.prices()
        return await self._ledger.read(lambda tx: summarize_costs([run, *_descendants(run, tx)], prices))

    def cost(self, run: Run) -> float | None:
        """Return the cost of this run alone in dollars, or None if its model has no price."""
        return run_cost(run, self.live_config.prices())


def _descendants(run: Run, tx: Transaction) -> list[Run]:
    """Return all descendants of a run: its children, their children, and so on."""
    found = {run.id: run}
    for each in reversed(tx.find_runs(root=run.root_id)):  # a parent is always older than its children
        if each.request.parent_run in found:
            found[each.id] = each
    return list(found.values())[1:]


def _run_json(run: Run, tx: Transaction, pending: dict[str, list[str]], prices: Prices) -> dict[str, Any]:
    return run_details_as_json(run, delivery_json(run, tx), side_effects_json(run, tx)) | {
        "approvals": pending.get(run.id, []),
        "root": run.root_id,
        "created_at": iso_timestamp(run.created_at),
        "call": run.request.call_id or None,
        "cached_tokens": run.usage.cached,
        "cost": run_cost(run, prices),
    }


def _pending_approval_ids(tx: Transaction) -> dict[str, list[str]]:
    """Return the ids of pending approvals by run id."""
    found: dict[str, list[str]] = {}
    for each in tx.find_approvals(state=[ApprovalState.PENDING]):
        found.setdefault(each.run, []).append(each.id)
    return found
