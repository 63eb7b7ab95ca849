"""Queries about runs that need no more than the session files and the ledger."""

from retinue.app.home_access import HomeAccess
from retinue.domain.question import Question, open_question
from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.interfaces import Transaction


async def orphaned_runs(home: HomeAccess) -> list[Run]:
    """Return unfinished runs that no process works on, oldest first.

    Runs that wait for an approval are left out. Runs that waited for disk space or for a model's server are
    included, because the process that would have woken them is gone.
    """
    runs = await home.ledger.read(lambda tx: tx.find_runs(status=LIVE_STATUSES))
    resumable_waits = (None, WaitReason.DISK, WaitReason.MODEL)
    return [
        run for run in reversed(runs) if not home.has_live_owner(run) and run.waiting_for in resumable_waits
    ]


async def open_questions(run: Run, home: HomeAccess) -> list[Question]:
    """Return the open questions of a run and its descendants to a person, oldest first."""

    def step(tx: Transaction) -> list[Run]:
        waiting = tx.find_runs(status=[Status.WAITING], root=run.root_id)
        return [each for each in reversed(waiting) if each.waiting_for is WaitReason.PERSON]

    found: list[Question] = []
    for each in await home.ledger.read(step):
        if run.id in (each.id, each.root_id) and not each.waits_between_turns:
            entries, _ = await home.store.read_entries(await home.store.find(each.transcript_path))
            question = open_question(each, entries)
            found += [question] if question else []
    return found
