"""Full JSON views of runs."""

from typing import Any

from retinue.domain.approval import ApprovalState
from retinue.domain.pricing import FindPrice, run_cost, summarize_costs
from retinue.domain.run import Run, run_details_as_json
from retinue.domain.side_effect import SideEffect, SideEffectState, side_effect_as_json
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import NotFound
from retinue.interfaces import Transaction


def load_run_json(run_id: str, find_price: FindPrice, tx: Transaction) -> tuple[Run, dict[str, Any]]:
    """Return a run and its JSON object, with the cost of its tree.

    Raises:
        NotFound: There is no such run.
    """
    run = tx.get_run(run_id, with_children=True)
    if run is None:
        raise NotFound(f"Run {run_id} not found. List runs with `retinue runs history`.")
    tree = summarize_costs(run_tree(run, tx), find_price)
    return run, run_json(run, tx, pending_approval_ids(tx), find_price) | {"tree": tree.as_json()}


def run_tree(run: Run, tx: Transaction) -> list[Run]:
    """Return a run and all its descendants: its children, their children, and so on."""
    found = {run.id: run}
    for each in reversed(tx.find_runs(root=run.root_id)):  # a parent is always older than its children
        if each.request.parent_run in found:
            found[each.id] = each
    return list(found.values())


def run_json(
    run: Run, tx: Transaction, pending: dict[str, list[str]], find_price: FindPrice
) -> dict[str, Any]:
    return run_details_as_json(run, delivery_json(run, tx), side_effects_json(run, tx)) | {
        "approvals": pending.get(run.id, []),
        "root": run.root_id,
        "created_at": iso_timestamp(run.created_at),
        "call": run.request.call_id or None,
        "cached_tokens": run.usage.cached,
        "cache_write_tokens": run.usage.cache_write,
        "cost": run_cost(run, find_price),
    }


def pending_approval_ids(tx: Transaction) -> dict[str, list[str]]:
    """Return the ids of pending approvals by run id."""
    found: dict[str, list[str]] = {}
    for each in tx.find_approvals(state=[ApprovalState.PENDING]):
        found.setdefault(each.run, []).append(each.id)
    return found


def delivery_json(run: Run, tx: Transaction) -> dict[str, Any] | None:
    found = tx.find_deliveries(run=run.id) if run.request.parent_run is not None else []
    return {"state": str(found[0].state), "attempts": found[0].attempts} if found else None


def side_effects_json(run: Run, tx: Transaction) -> list[dict[str, Any]]:
    return [
        side_effect_as_json(each.mark_unknown() if _is_interrupted(each, run) else each)
        for each in tx.find_side_effects(run.id)
    ]


def _is_interrupted(side_effect: SideEffect, run: Run) -> bool:
    return side_effect.progress is SideEffectState.STARTED and run.status.is_final
