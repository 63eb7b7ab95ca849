"""What goes on by itself: also of runs that wait their turn behind others."""

import pytest
from msgspec.structs import replace

from retinue.app.tree_activity import is_any_run_active, is_tree_active, runs_ahead_of
from retinue.domain.run import Run, Status, WaitReason
from retinue.testing.ledgers import make_run
from retinue.testing.memory_ledger import MemoryLedger

FIRST = make_run("first", root_id="first", status=Status.WAITING, waiting_for=WaitReason.APPROVAL)
BEHIND = make_run("second", root_id="second")
THIRD = make_run("third", root_id="third")
CHILD = make_run("child", session_id="t", root_id="first", status=Status.RUNNING)
ELSEWHERE = make_run("elsewhere", session_id="u", root_id="elsewhere", status=Status.RUNNING)


@pytest.mark.parametrize(
    ("runs", "stands_behind", "goes_on", "anything"),
    [
        ([BEHIND], 0, True, True),
        ([FIRST, BEHIND], 1, False, False),
        ([replace(FIRST, waits_between_turns=True), BEHIND], 0, True, True),
        ([replace(FIRST, waiting_for=WaitReason.DISK), BEHIND], 1, True, True),
        ([replace(FIRST, waiting_for=WaitReason.CHILD), CHILD, BEHIND], 1, True, True),
        ([FIRST, replace(BEHIND, root_id="first")], 1, False, False),
        ([FIRST, BEHIND, THIRD], 1, False, False),
        ([FIRST, BEHIND, ELSEWHERE], 1, False, True),
    ],
)
async def test_who_waits_behind_a_person_does_not_go_on_by_itself(
    runs: list[Run], stands_behind: int, goes_on: bool, anything: bool
):
    ledger = MemoryLedger()
    for run in runs:
        await ledger.write(lambda tx, run=run: tx.add_run(run))
    second = next(run for run in runs if run.id == "second")
    assert len(await ledger.read(lambda tx: runs_ahead_of(second, tx))) == stands_behind
    assert await ledger.read(lambda tx: is_tree_active(second.root_id, tx)) is goes_on
    assert await ledger.read(is_any_run_active) is anything
