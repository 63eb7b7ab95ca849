"""Activity of run trees: whether a run continues without a person, also behind other runs of its session."""

import pytest
from msgspec.structs import replace

from retinue.app.tree_activity import is_any_run_active, is_tree_active, runs_ahead_of
from retinue.domain.run import Run, Status, WaitReason
from retinue.testing.ledgers import make_run
from retinue.testing.memory_ledger import MemoryLedger

FIRST = make_run("first", root_id="first", status=Status.WAITING, waiting_for=WaitReason.APPROVAL)
SECOND = make_run("second", root_id="second")
THIRD = make_run("third", root_id="third")
CHILD = make_run("child", session_id="t", root_id="first", status=Status.RUNNING)
ELSEWHERE = make_run("elsewhere", session_id="u", root_id="elsewhere", status=Status.RUNNING)


@pytest.mark.parametrize(
    ("runs", "runs_ahead", "tree_active", "any_active"),
    [
        ([SECOND], 0, True, True),
        ([FIRST, SECOND], 1, False, False),
        ([replace(FIRST, waits_between_turns=True), SECOND], 0, True, True),
        ([replace(FIRST, waiting_for=WaitReason.DISK), SECOND], 1, True, True),
        ([replace(FIRST, waiting_for=WaitReason.CHILD), CHILD, SECOND], 1, True, True),
        ([FIRST, replace(SECOND, root_id="first")], 1, False, False),
        ([FIRST, SECOND, THIRD], 1, False, False),
        ([FIRST, SECOND, ELSEWHERE], 1, False, True),
    ],
)
async def test_a_run_queued_behind_one_that_waits_for_a_person_is_not_active(
    runs: list[Run], runs_ahead: int, tree_active: bool, any_active: bool
):
    ledger = MemoryLedger()
    for run in runs:
        await ledger.write(lambda tx, run=run: tx.add_run(run))
    second = next(run for run in runs if run.id == "second")
    assert len(await ledger.read(lambda tx: runs_ahead_of(second, tx))) == runs_ahead
    assert await ledger.read(lambda tx: is_tree_active(second.root_id, tx)) is tree_active
    assert await ledger.read(is_any_run_active) is any_active
