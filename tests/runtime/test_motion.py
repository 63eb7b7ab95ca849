"""What goes on by itself: also of runs that wait their turn behind others."""

from dataclasses import replace

import pytest

from retinue.app.tree_activity import ahead, moving, moving_in
from retinue.domain.run import Run, Status, Waiting
from retinue.testing.ledgers import a_run
from retinue.testing.memory_ledger import MemoryLedger

FIRST = a_run("first", root="first", status=Status.WAITING, waiting_for=Waiting.APPROVAL)
BEHIND = a_run("second", root="second")
THIRD = a_run("third", root="third")
CHILD = a_run("child", session_id="t", root="first", status=Status.RUNNING)
ELSEWHERE = a_run("elsewhere", session_id="u", root="elsewhere", status=Status.RUNNING)


@pytest.mark.parametrize(
    ("runs", "stands_behind", "goes_on", "anything"),
    [
        ([BEHIND], 0, True, True),
        ([FIRST, BEHIND], 1, False, False),
        ([replace(FIRST, aside=True), BEHIND], 0, True, True),
        ([replace(FIRST, waiting_for=Waiting.DISK), BEHIND], 1, True, True),
        ([replace(FIRST, waiting_for=Waiting.CHILD), CHILD, BEHIND], 1, True, True),
        ([FIRST, replace(BEHIND, root="first")], 1, False, False),
        ([FIRST, BEHIND, THIRD], 1, False, False),
        ([FIRST, BEHIND, ELSEWHERE], 1, False, True),
    ],
)
async def test_who_waits_behind_a_person_does_not_go_on_by_itself(
    runs: list[Run], stands_behind: int, goes_on: bool, anything: bool
):
    ledger = MemoryLedger()
    for run in runs:
        await ledger.do(lambda tx, run=run: tx.add_run(run))
    second = next(run for run in runs if run.id == "second")
    assert len(await ledger.look(lambda tx: ahead(second, tx))) == stands_behind
    assert await ledger.look(lambda tx: moving_in(second.root, tx)) is goes_on
    assert await ledger.look(moving) is anything
