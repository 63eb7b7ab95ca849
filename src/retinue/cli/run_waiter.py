"""Wait for runs to end: answer their questions, and resume those whose process has died."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from retinue.app import App
from retinue.cli.user_prompts import UserPrompter
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.question import Question
from retinue.domain.run import LIVE_STATUSES, Run, Status, WaitReason
from retinue.errors import Refused, RetinueError, SessionLocked

ANSWER_POLL_SECONDS = 0.25
"""Interval at which to check whether a question was answered by another process."""

SUSPENDED_STATUSES = (Status.WAITING, Status.QUEUED)
"""Statuses of a run that cannot continue until a person acts, on it or on a run ahead of it."""

RECOVERY_POLL_SECONDS = 1.0
"""Interval at which to check whether another process has died."""


class UserDetached(Exception):
    """Raised when the user detaches while the followed runs continue."""


async def load_run_trees(app: App, runs: Sequence[Run]) -> list[Run]:
    """Load all runs of the trees that these runs belong to, including ended ones."""
    roots = sorted({run.root_id for run in runs})
    return await app.context.ledger.read(
        lambda tx: [run for root in roots for run in tx.find_runs(root=root)]
    )


async def resume_orphaned_runs(app: App, runs: Sequence[Run]) -> list[Run]:
    """Resume these runs and their descendants here if their process has died.

    Also resumes the runs ahead of them in their sessions.
    """
    sessions = sorted({run.session_id for run in runs})
    earlier = await app.context.ledger.read(
        lambda tx: [
            run for session in sessions for run in tx.find_runs(status=LIVE_STATUSES, session=session)
        ]
    )
    runs_by_id = {run.id: run for run in (*runs, *earlier)}
    tree_ids = _with_descendants(await load_run_trees(app, list(runs_by_id.values())), set(runs_by_id))
    resumed: list[Run] = []
    for run in await app.runs.interrupted():
        if run.id in tree_ids:
            with suppress(Refused):  # another process was faster
                resumed += await app.runs.resume(run.id)
    return resumed


async def wait_for_runs(
    app: App,
    run_ids: Sequence[str],
    interrupted: asyncio.Event,
    prompter: UserPrompter | None = None,
    *,
    before_interrupt: Callable[[], None] = lambda: None,
    cancel_on_interrupt: bool = True,
) -> list[Run]:
    """Wait until nothing in the tree of each run can continue, and return the runs.

    A run has then ended, or waits for something that cannot be provided here. When `interrupted` is set, the
    runs are cancelled first; without `cancel_on_interrupt` they are left to their processes and
    UserDetached is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            on_interrupt = (
                _cancel_on_interrupt(app, run_ids, interrupted, before_interrupt)
                if cancel_on_interrupt
                else _detach_on_interrupt(interrupted, before_interrupt)
            )
            interrupt_task = group.create_task(on_interrupt)
            recovery_task = group.create_task(resume_orphans_forever(app, run_ids))
            waiting_tasks = [group.create_task(_wait_and_answer(app, run_id, prompter)) for run_id in run_ids]
            runs = [await task for task in waiting_tasks]
            interrupt_task.cancel()
            recovery_task.cancel()
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from group_error
    return runs


async def resume_orphans_forever(app: App, run_ids: Sequence[str]) -> None:
    """Resume the runs here whenever the process that runs them dies."""
    while True:
        await asyncio.sleep(RECOVERY_POLL_SECONDS)
        with suppress(RetinueError):
            if await app.context.ledger.read(lambda tx: tx.find_owner_ids(LIVE_STATUSES)) - {app.owner_id}:
                await resume_orphaned_runs(app, [await app.runs.find(run_id) for run_id in run_ids])


async def _wait_and_answer(app: App, run_id: str, prompter: UserPrompter | None) -> Run:
    """Wait for a run, and ask the user its approvals and questions here."""
    while True:
        run = await app.runs.wait(run_id)
        if run.status not in SUSPENDED_STATUSES or prompter is None or prompter.ask_function() is None:
            return run
        approvals = await app.approvals.pending(run)
        for approval in approvals:
            await prompt_for_approval(app, approval, prompter)
        questions = [] if approvals else await app.runs.open_questions(run)
        if not approvals and not (questions and await prompt_for_reply(app, questions[0], prompter)):
            return run
        await app.daemon.follow([run])


def _with_descendants(runs: Sequence[Run], ids: set[str]) -> set[str]:
    tree_ids = set(ids)
    for run in sorted(runs, key=lambda run: run.id):  # parents have smaller ids
        if run.request.parent_run in tree_ids:
            tree_ids.add(run.id)
    return tree_ids


async def prompt_for_approval(app: App, approval: Approval, prompter: UserPrompter) -> None:
    """Ask the user to answer an approval, unless it is answered elsewhere or the run is cancelled first."""
    answered_elsewhere = asyncio.Event()
    async with asyncio.TaskGroup() as group:

        async def is_open() -> bool:
            return (await app.approvals.find(approval.id)).state is ApprovalState.PENDING

        watcher = group.create_task(_watch_for_answer(is_open, answered_elsewhere))
        answer = await prompter.read_decision(approval, answered_elsewhere)
        watcher.cancel()
    if answer is None:
        current = await app.approvals.find(approval.id)
        prompter.terminal.print_note(
            f"answered elsewhere: {current.answer}" if current.answer else "the approval is closed"
        )
        return
    with suppress(Refused):
        await app.approvals.answer(approval.id, answer)


async def prompt_for_reply(app: App, question: Question, prompter: UserPrompter) -> bool:
    """Ask the user a question, unless it is answered elsewhere first, and deliver the reply.

    Returns:
        False if the user leaves the question open.
    """
    answered_elsewhere = asyncio.Event()

    async def is_open() -> bool:
        """Return whether the question is open.

        Checks the run too: the answer is in the file a moment before the run continues.
        """
        run = await app.runs.find(question.run_id)
        open_questions = await app.runs.open_questions(run)
        return run.waiting_for is WaitReason.PERSON and (
            not open_questions or question.tool_call in [each.tool_call for each in open_questions]
        )

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_watch_for_answer(is_open, answered_elsewhere))
        answer = await prompter.read_reply(question, answered_elsewhere)
        watcher.cancel()
    if answer is None:
        prompter.terminal.print_note("answered elsewhere, or the run was stopped")
    elif answer:
        with suppress(Refused, SessionLocked):
            await app.runs.resume_with_message(await app.sessions.find(question.session_path), answer)
    return answer != ""


async def _watch_for_answer(
    is_open: Callable[[], Awaitable[bool]], answered_elsewhere: asyncio.Event
) -> None:
    """Set the event as soon as the question is no longer open; another process may answer it."""
    while not answered_elsewhere.is_set():
        await asyncio.sleep(ANSWER_POLL_SECONDS)
        with suppress(RetinueError):
            if not await is_open():
                answered_elsewhere.set()


async def _cancel_on_interrupt(
    app: App, run_ids: Sequence[str], interrupted: asyncio.Event, before_interrupt: Callable[[], None]
) -> None:
    await interrupted.wait()
    before_interrupt()
    for run_id in run_ids:
        await app.runs.cancel(run_id)


async def _detach_on_interrupt(interrupted: asyncio.Event, before_interrupt: Callable[[], None]) -> None:
    await interrupted.wait()
    before_interrupt()
    raise UserDetached
