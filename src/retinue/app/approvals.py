"""Approvals: calls that wait for a person's decision."""

from collections.abc import Sequence

from retinue.app.context import AppContext
from retinue.app.tree_activity import runs_ahead_of
from retinue.domain.approval import Answer, Approval, ApprovalState
from retinue.domain.run import Run
from retinue.errors import NotFound, UsageError
from retinue.interfaces import Transaction
from retinue.runtime import run_control


class ApprovalService:
    """List, find and answer approvals."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def find(self, ref: str) -> Approval:
        """Find an approval by id or unambiguous prefix.

        Raises:
            NotFound: There is no such approval.
            UsageError: The prefix is ambiguous or empty.
        """
        if not ref:
            raise UsageError("The approval is missing. List pending approvals with `retinue approvals list`.")

        def step(tx: Transaction) -> list[Approval]:
            exact = tx.get_approval(ref)
            return [exact] if exact else tx.find_approvals(prefix=ref)

        found = await self._context.ledger.read(step)
        if not found:
            raise NotFound(f"Approval {ref} not found. List pending approvals with `retinue approvals list`.")
        if len(found) > 1:
            raise UsageError(f"{ref} matches several approvals: {', '.join(each.id for each in found[:8])} …")
        return found[0]

    async def answer(self, ref: str, answer: Answer | str, *, by: str = "person") -> Approval:
        """Answer an approval; the run continues in the process that works on it, else in this one.

        Args:
            ref: The approval's id or prefix.
            answer: `allow`, `deny` or `add`.
            by: Who answers.

        Returns:
            The approval with its answer.
        """
        approval = await self.find(ref)
        await self._expire_overdue()
        return await run_control.answer_approval(
            approval.id, Answer(answer), self._context.runtime, by=by, is_alive=self._context.is_owner_alive
        )

    async def pending_ids(self, run: Run) -> list[str]:
        """Return the ids of pending approvals in this run's tree and in runs ahead of it."""
        return [each.id for each in await self._context.ledger.read(lambda tx: _pending_approvals(run, tx))]

    async def pending(self, run: Run) -> list[Approval]:
        """Return pending approvals in this run's tree and in runs ahead of it, oldest first."""
        await self._expire_overdue()
        return await self._context.ledger.read(lambda tx: _pending_approvals(run, tx))

    async def _expire_overdue(self) -> None:
        await run_control.expire_approvals(
            self._context.runtime, is_alive=self._context.is_owner_alive, take_over=False
        )

    # Last, because further down in this class `list` would no longer be the type.
    async def list(self, *, run: str | None = None, all_states: bool = False) -> list[Approval]:
        """Return approvals, oldest first: the pending ones, or with `all_states` all.

        Expired approvals are closed first, so that no run waits for one of them.
        """
        await self._expire_overdue()
        states: Sequence[ApprovalState] | None = None if all_states else [ApprovalState.PENDING]
        return await self._context.ledger.read(lambda tx: tx.find_approvals(run=run, state=states))


def _pending_approvals(run: Run, tx: Transaction) -> list[Approval]:
    """Return pending approvals of the run's tree; for a queued run also those of the runs ahead of it."""
    run_ids: set[str] = set()
    for each in (run, *runs_ahead_of(run, tx)):
        run_ids |= (
            {tree_run.id for tree_run in tx.find_runs(root=each.root_id)}
            if each.root_id == each.id
            else {each.id}
        )
    return [each for each in tx.find_approvals(state=[ApprovalState.PENDING]) if each.run in run_ids]
