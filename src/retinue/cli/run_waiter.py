"""Staying with runs until they end: past every question that the person here answers, and past the death of whoever
worked them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from retinue.app import App
from retinue.app.sessions import LIVE
from retinue.cli.user_prompts import Person
from retinue.domain.approval import Approval, State
from retinue.domain.question import Question
from retinue.domain.run import Run, Status, Waiting
from retinue.errors import Held, Refused, RetinueError

LOOK_SECONDS = 0.25
"""How often it is looked whether somebody elsewhere has answered."""

STANDING = (Status.WAITING, Status.QUEUED)
"""Of a run that does not go on: a person is needed, for itself or for one that it stands behind."""

TAKE_UP_SECONDS = 1.0
"""How often it is looked whether somebody elsewhere has died."""


class Left(Exception):
    """The person leaves, and what they looked at goes on."""


async def family(app: App, runs: Sequence[Run]) -> list[Run]:
    """All runs of these runs' trees, those that have ended included."""
    roots = sorted({run.root for run in runs})
    return await app.ledger.look(lambda tx: [run for root in roots for run in tx.runs(root=root)])


async def taken_up(app: App, runs: Sequence[Run]) -> list[Run]:
    """Those of these runs, and of the runs they asked for, whose process has died go on in this one; and so does whatever
    stands before them in their conversations."""
    sessions = sorted({run.session_id for run in runs})
    before = await app.ledger.look(
        lambda tx: [run for each in sessions for run in tx.runs(status=LIVE, session=each)]
    )
    named = {run.id: run for run in (*runs, *before)}
    trees = _with_descendants(await family(app, list(named.values())), set(named))
    taken: list[Run] = []
    for run in await app.interrupted():
        if run.id in trees:
            with suppress(Refused):  # another process was faster
                taken += await app.resume(run.id)
    return taken


async def ended(
    app: App,
    run_ids: Sequence[str],
    pressed: asyncio.Event,
    person: Person | None = None,
    *,
    leaving: Callable[[], None] = lambda: None,
    cancels: bool = True,
) -> list[Run]:
    """Every run once nothing of its tree goes on: it has ended, or waits for what nobody here can give; when `pressed` is set
    they are cancelled first, or without `cancels` left to whoever works them: then Left is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            stopped = _cancelled(app, run_ids, pressed, leaving) if cancels else _let_be(pressed, leaving)
            stopper = group.create_task(stopped)
            keeper = group.create_task(_kept_going(app, run_ids))
            staying = [group.create_task(_through(app, run_id, person)) for run_id in run_ids]
            runs = [await each for each in staying]
            stopper.cancel()
            keeper.cancel()
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    return runs


async def _kept_going(app: App, run_ids: Sequence[str]) -> None:
    """Whoever works them may die meanwhile."""
    while True:
        await asyncio.sleep(TAKE_UP_SECONDS)
        with suppress(RetinueError):
            if await app.ledger.look(lambda tx: tx.owners(LIVE)) - {app.owner}:
                await taken_up(app, [await app.find_run(each) for each in run_ids])


async def _through(app: App, run_id: str, person: Person | None) -> Run:
    """Stays with a run past every question that the person here answers."""
    while True:
        run = await app.wait(run_id)
        if run.status not in STANDING or person is None or person.answerer() is None:
            return run
        approvals = await app.asked_in(run)
        for approval in approvals:
            await answered(app, approval, person)
        questions = [] if approvals else await app.questions(run)
        if not approvals and not (questions and await replied(app, questions[0], person)):
            return run
        await app.follow([run])


def _with_descendants(runs: Sequence[Run], ids: set[str]) -> set[str]:
    found = set(ids)
    for run in sorted(runs, key=lambda run: run.id):  # whoever asks is older
        if run.ask.parent_run in found:
            found.add(run.id)
    return found


async def answered(app: App, approval: Approval, person: Person) -> None:
    """Puts the card to the person; somebody elsewhere may be faster, or the run be cancelled: then that counts."""
    elsewhere = asyncio.Event()
    async with asyncio.TaskGroup() as group:

        async def waits() -> bool:
            return (await app.approval(approval.id)).state is State.PENDING

        watcher = group.create_task(_settled(waits, elsewhere))
        said = await person.decide(approval, elsewhere)
        watcher.cancel()
    if said is None:
        now = await app.approval(approval.id)
        person.terminal.note(f"answered elsewhere: {now.answer}" if now.answer else "the question is closed")
        return
    with suppress(Refused):
        await app.answer(approval.id, said)


async def replied(app: App, question: Question, person: Person) -> bool:
    """Puts a question to the person, and their words to the run that asks; somebody elsewhere may be faster. False:
    they leave it open."""
    elsewhere = asyncio.Event()

    async def waits() -> bool:
        """Until the run goes on: an answer stands in the file a moment before that."""
        run = await app.find_run(question.run)
        now = await app.questions(run)
        return run.waiting_for is Waiting.PERSON and (not now or question.call in [each.call for each in now])

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_settled(waits, elsewhere))
        said = await person.reply(question, elsewhere)
        watcher.cancel()
    if said is None:
        person.terminal.note("answered elsewhere, or the run was stopped")
    elif said:
        with suppress(Refused, Held):
            await app.answered(await app.session(question.session), said)
    return said != ""


async def _settled(waits: Callable[[], Awaitable[bool]], elsewhere: asyncio.Event) -> None:
    """Looks until a question waits no more: it may be another process that answers it."""
    while not elsewhere.is_set():
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(RetinueError):
            if not await waits():
                elsewhere.set()


async def _cancelled(
    app: App, run_ids: Sequence[str], pressed: asyncio.Event, leaving: Callable[[], None]
) -> None:
    await pressed.wait()
    leaving()
    for run_id in run_ids:
        await app.cancel(run_id)


async def _let_be(pressed: asyncio.Event, leaving: Callable[[], None]) -> None:
    await pressed.wait()
    leaving()
    raise Left
