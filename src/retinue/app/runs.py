"""Start, find, wait for and control runs."""

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from retinue.app import recovery, submit
from retinue.app.agent_display_names import display_names_by_run
from retinue.app.context import AppContext
from retinue.app.pruned_runs import find_transcript_texts
from retinue.app.references import require_single_run, resolve_run, runs_with_id_prefix
from retinue.app.run_options import RunOptions, SpawnOptions
from retinue.app.run_queries import open_questions, orphaned_runs
from retinue.app.run_views import (
    load_run_json,
    pending_approval_ids,
    run_json,
    run_tree,
    side_effects_json,
)
from retinue.app.sandbox_loader import lowest_command_level
from retinue.app.tree_activity import has_dependent_runs, is_any_run_active, is_tree_active
from retinue.domain.pricing import CostSummary, run_cost, summarize_costs
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.question import Question
from retinue.domain.run import LIVE_STATUSES, Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.side_effect import SideEffect
from retinue.errors import DiskError, NotFound, Unreadable
from retinue.interfaces import Transaction
from retinue.runtime import run_control
from retinue.runtime.idle_announcements import write_idle_announcements
from retinue.runtime.interrupts import interrupt_run
from retinue.runtime.recovery import live_descendants

QUEUE_POLL_SECONDS = 0.25
DEFAULT_OPTIONS = RunOptions()


class RunService:
    """Start, find, wait for and control runs."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    # start

    async def start(self, text: str | None, options: RunOptions = DEFAULT_OPTIONS) -> Run:
        """Start a run and return it without waiting for its end.

        Everything that can be wrong is checked before anything is written.

        Args:
            text: The task. None uses the text typed at the end of the session's file.
            options: Agent, session, model and the like.

        Returns:
            The new run, or the waiting run of the session that continues with `text`.

        Raises:
            UsageError: Options contradict each other or there is no task.
            NotFound: There is no such session or agent.
            Refused: The configuration or the definition forbids it.
        """
        return await submit.start_run(text, options, self._context)

    async def spawn(self, text: str, options: SpawnOptions) -> Run:
        """Create a child session of `parent`, with its own copy of the definition, and start its first run.

        Args:
            text: The child's task.
            options: Parent session, agent, paths and the like.

        Returns:
            The new run.

        Raises:
            UsageError: Options contradict each other or there is no task.
            NotFound: There is no such session or agent.
            Refused: The configuration or the definition forbids it.
        """
        return await submit.spawn_run(text, options, self._context)

    async def resume_with_message(
        self,
        session: Session,
        text: str | None,
        *,
        model: str | None = None,
        owner: str | None = None,
        key: str = "",
    ) -> Run | None:
        """Resume the run of a session that waits for a person's reply.

        Args:
            session: The session.
            text: The reply; None uses the text typed in the file.
            model: Overrides the run's model.
            owner: Let another process continue the run.
            key: Idempotency key.

        Returns:
            The resumed run, or None if no run of the session waits.
        """
        return await submit.resume_with_message(
            session, text, self._context, model=model, owner=owner, key=key
        )

    async def submit_queued(self) -> None:
        """Submit the queued runs that other processes assigned to or woke for this process, oldest first."""
        context = self._context
        await run_control.wake_overdue_runs(context.runtime)
        for run in reversed(await context.ledger.read(lambda tx: tx.find_runs(status=[Status.QUEUED]))):
            if run.owner_id == context.owner.id:
                context.worker.submit(run.id, at_front=run.started_at is not None)

    # wait

    async def wait(self, run_id: str) -> Run:
        """Wait until no run in the tree of this one is active: it has ended, or needs a person.

        If another live process executes the tree's root, only this run and its descendants count. The result of a
        child that a person started is then in its parent's transcript, unless the parent is working.

        Returns:
            The run as it is then.

        Raises:
            NotFound: There is no such run.
        """
        return await self.wait_until_idle(await self.find(run_id))

    async def wait_until_idle(self, run: Run) -> Run:
        """Do the same as `wait` for a run that was just loaded."""
        while True:
            await self._wait_for_progress(run)
            run, is_active = await self._context.ledger.read(
                partial(_with_tree_activity, run, is_run_by_daemon=self._context.daemon.link is not None)
            )
            if run.status is not Status.RUNNING and (not is_active or await self._is_finished_branch(run)):
                if run.status.is_final and run.request.announce_to:
                    await write_idle_announcements(self._context.runtime, session=run.request.announce_to)
                await self._wait_for_daemon_events()
                return (
                    (await self._with_current_paths([run]))[0]
                    if self._context.daemon.link is None and not run.is_pruned
                    else await self.find(run.id)
                )
            await self._context.worker.wait_for_change()

    async def wait_until_replied(self, run_id: str) -> Run:
        """Wait until this run has given its reply, whatever its background children do, or needs a person.

        A run that waits for background children has replied: it continues when they have ended.

        Raises:
            NotFound: There is no such run.
        """
        run = await self.find(run_id)
        while True:
            await self._wait_for_progress(run)
            run, is_active = await self._context.ledger.read(partial(_with_tree_activity, run))
            if (
                run.status.is_final
                or run.waits_for_background
                or (run.status is not Status.RUNNING and not is_active)
            ):
                await self._wait_for_daemon_events()
                return await self.find(run.id)
            await self._context.worker.wait_for_change()

    async def wait_for_end(self, run: Run) -> Run:
        """Wait until a run that was asked to stop has ended, regardless of its requester.

        If it was cancelled, its children have then ended too. If this process has taken over its tree from a dead
        one, it waits for the whole tree.
        """
        await self._context.worker.wait(run.id)
        live = await self._context.ledger.read(
            lambda tx: tx.find_runs(root=run.root_id, status=LIVE_STATUSES)
        )
        if any(each.owner_id == self._context.owner.id for each in live):
            return await self.wait(run.id)
        ended = await self.find(run.id)
        while ended.status is Status.CANCELLED and await self._context.ledger.read(
            lambda tx: live_descendants(ended, tx, with_independent=False)
        ):
            await self.cancel(run.id)  # again: its process may have started another child in the meantime
            await self._context.worker.wait_for_change()
        return ended

    async def _is_finished_branch(self, run: Run) -> bool:
        """Return whether a child and its descendants have ended, in a tree that another live process executes."""
        if not run.status.is_final or run.id == run.root_id:
            return False
        root, descendants = await self._context.ledger.read(
            lambda tx: (tx.get_run(run.root_id), live_descendants(run, tx))
        )
        return (
            root is not None
            and root.owner_id != self._context.owner.id
            and self._context.has_live_owner(root)
            and not descendants
        )

    async def _wait_for_progress(self, run: Run) -> None:
        """Wait until the run has ended or been suspended.

        A queued run is checked again after a moment, because the run ahead of it may have begun to wait for a
        person.
        """
        if run.status is not Status.QUEUED:
            await self._context.worker.wait(run.id)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(QUEUE_POLL_SECONDS):
                await self._context.worker.wait(run.id)

    async def _wait_for_daemon_events(self) -> None:
        """Wait until all events that the daemon has written so far were received here."""
        if (link := self._context.daemon.link) is not None:
            await link.wait_until_received(await self._context.ledger.read(lambda tx: tx.last_seq()))

    # control

    async def cancel(self, ref: str, *, keep_background: bool = False) -> Run:
        """Cancel a run and its children, and return it as it is then.

        Args:
            ref: The run.
            keep_background: Cancel only the children that a call waits for.

        Raises:
            NotFound: There is no such run.
        """
        run = await self.find(ref)
        async with self._context.session_locks.hold(run.session_id):
            cancelled = await run_control.cancel_run(
                run.id,
                self._context.runtime,
                is_alive=self._context.is_owner_alive,
                keep_background=keep_background,
            )
        await write_idle_announcements(self._context.runtime)
        return cancelled

    async def interrupt(self, ref: str) -> Run:
        """Ask a run and its children to end with a summary of what they have so far.

        Returns:
            The run as it is now: `wait` for it to get the summary.
        """
        run = await self.find(ref)
        return await interrupt_run(run.id, self._context.runtime)

    async def detach(self, ref: str) -> Run:
        """Let a run that a tool call waits for continue in the background.

        Its requester continues too.

        Raises:
            NotFound: There is no such run.
        """
        run = await self.find(ref)
        return await run_control.detach_run(run.id, self._context.runtime)

    async def resume(
        self, ref: str | None = None, *, by_person: bool = False, model: str | None = None
    ) -> list[Run]:
        """Resume interrupted runs from their files, and runs whose approval expired unanswered.

        Args:
            ref: A run or session reference; None resumes every interrupted run.
            by_person: Resume also what waits for a person after repeated crashes or for a model's server, and
                continue a run that failed, was lost or timed out by a new run.
            model: The model for the resumed run, with `by_person`.

        Returns:
            The runs that were resumed.

        Raises:
            Conflict: Another process is working on the run, or it cannot be continued.
            NotFound: There is no such run, or its session is gone.
        """
        await recovery.clean_up_before_resuming(self._context)
        if ref is None:
            return await recovery.resume_all_runs(self._context)
        run = await self.find(ref)
        async with self._context.session_locks.hold(run.session_id):
            run = await self.find(run.id)
            if by_person:
                return await recovery.resume_for_person(run, self._context, model)
            return await recovery.resume_run(run, self._context)

    async def drain(self, timeout_s: float) -> None:
        """Start no more runs, and wait up to `timeout_s` seconds for the active ones to end."""
        await self._context.worker.drain(timeout_s)

    # find

    async def find(self, ref: str) -> Run:
        """Find a run by id or unambiguous prefix, or by any name of its session.

        A session reference means its current run, or its newest if none is live.

        Raises:
            NotFound: Nothing has this name.
            UsageError: The reference is ambiguous.
        """
        return await self._with_current_files(await resolve_run(ref, self._context))

    async def find_by_id(self, ref: str) -> Run:
        """Find a run by id or unambiguous prefix only, for remote clients."""
        return await self._with_current_files(
            require_single_run(ref, await self._context.ledger.read(partial(runs_with_id_prefix, ref)))
        )

    async def interrupted(self) -> list[Run]:
        """Return unfinished runs that no process works on, oldest first.

        Runs that wait for an approval are left out.
        """
        return await orphaned_runs(self._context)

    async def session_ancestry(self, run_id: str) -> list[str]:
        """Return the session ids of a run and its ancestors, its own first; empty if the run is unknown."""

        def step(tx: Transaction) -> list[str]:
            found: list[str] = []
            run = tx.get_run(run_id)
            while run is not None:
                found.append(run.session_id)
                run = tx.get_run(run.request.parent_run) if run.request.parent_run else None
            return found

        return await self._context.ledger.read(step)

    async def has_active(self) -> bool:
        """Return whether any run is active in any process, or will continue once there is disk space."""
        return await self._context.ledger.read(is_any_run_active)

    def has_live_owner(self, run: Run) -> bool:
        """Return whether the process that works on the run is alive."""
        return self._context.has_live_owner(run)

    async def is_owned_here(self, run: Run) -> bool:
        """Return whether this process or the connected daemon works on the run."""
        runtime = self._context.runtime
        current = await self._context.ledger.read(lambda tx: tx.get_run(run.id))
        return current is not None and current.owner_id in (
            runtime.owners.own_id,
            runtime.owners.id_for_new_run(),
        )

    async def _with_current_paths(self, runs: list[Run]) -> list[Run]:
        """Return the runs with the current paths of their sessions.

        The home or a folder may have been moved since a run started, so missing sessions are looked up by id;
        only those.
        """
        missing = {run.session_id for run in runs if not os.path.exists(run.transcript_path)}  # noqa: PTH110  (a single stat call each)
        if not missing:
            return runs
        path_by_session = {
            each.id: f"{each.path}/session.md"
            for each in await self._context.store.sessions()
            if each.id in missing
        }
        return [
            replace(run, transcript_path=path_by_session.get(run.session_id, run.transcript_path))
            for run in runs
        ]

    async def _with_current_files(self, run: Run) -> Run:
        """Return the run with its session's current path, and a pruned run with the text in its transcript."""
        found = await self._with_current_path(run)
        if not found.is_pruned:
            return found
        with suppress(Unreadable, DiskError):
            texts = await find_transcript_texts(found, self._context.store)
            return replace(found, text=texts.response or "")
        return found

    async def _with_current_path(self, run: Run) -> Run:
        """Return the run with its session's current path, also if that is in the trash."""
        (found,) = await self._with_current_paths([run])
        if found is run:
            return run
        return replace(
            found,
            transcript_path=await self._context.store.find_deleted_file(found.transcript_path)
            or found.transcript_path,
        )

    # describe

    async def to_json(self, run_id: str) -> dict[str, Any]:
        """Return the JSON object that `runs show --json` prints.

        It includes the tool call that requested the run.

        Raises:
            NotFound: There is no such run.
        """
        find_price = self._context.live_config.find_price
        run, row = await self._context.ledger.read(partial(load_run_json, run_id, find_price))
        questions = [each.as_json() for each in await self.open_questions(run)]
        found = await self.find(run.id)
        display_names = await display_names_by_run({run.id: run.agent}, self._context)
        return row | {
            "path": found.transcript_path,
            "text": found.text if run.is_pruned else row["text"],
            "agent_display_name": display_names[run.id],
            "sandbox": await self.lowest_sandbox_level(run),
            "questions": questions,
        }

    async def list_json(
        self,
        *,
        live: bool = False,
        session: str | None = None,
        root: str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return JSON rows of runs, newest first; with `live`, only of runs that have not ended.

        Unlike `to_json`, the rows leave out the sandbox level, which would have to be read from the
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
            pending = pending_approval_ids(tx) if found else {}
            return [run_json(run, tx, pending, find_price) for run in found]

        find_price = self._context.live_config.find_price
        rows = await self._context.ledger.read(step)
        display_names = await display_names_by_run(
            {row["run_id"]: row["agent"] for row in rows}, self._context
        )
        return [row | {"agent_display_name": display_names[row["run_id"]]} for row in rows]

    async def pruned_count(self) -> int:
        """Return the number of runs of which only tombstones are left."""
        return len(await self._context.ledger.read(lambda tx: tx.find_pruned_run_ids()))

    def cost(self, run: Run) -> float | None:
        """Return the cost of this run alone in dollars, or None if its model has no price."""
        return run_cost(run, self._context.live_config.find_price)

    async def tree_cost(self, run: Run) -> CostSummary:
        """Return the usage and cost of a run and all its descendants."""
        find_price = self._context.live_config.find_price
        return await self._context.ledger.read(lambda tx: summarize_costs(run_tree(run, tx), find_price))

    async def open_questions(self, run: Run) -> list[Question]:
        """Return the open questions of a run and its descendants to a person, oldest first."""
        return await open_questions(run, self._context)

    async def side_effects(self, run: Run) -> list[dict[str, Any]]:
        """Return the run's side effects that must not be repeated.

        A side effect that started and never ended has an unknown outcome.
        """
        return await self._context.ledger.read(lambda tx: side_effects_json(run, tx))

    async def lowest_sandbox_level(self, run: Run) -> SandboxLevel | None:
        """Return the lowest sandbox level that any command of the run had.

        None if there was no command or the transcript is gone. For a CLI agent, the level of the program
        itself counts, because its own report about its calls is not trusted.
        """
        if program_levels := [
            SandboxLevel(each.note)
            for each in await self._side_effects(run)
            if each.tool in CLI_AGENTS and each.note
        ]:
            return next(each for each in reversed(SandboxLevel) if each in program_levels)
        if not run.tool_calls:
            return None
        store = self._context.store
        try:
            return await lowest_command_level(run.id, store.iter_entries(await store.find(run.session_id)))
        except NotFound:
            return None

    async def _side_effects(self, run: Run) -> list[SideEffect]:
        return await self._context.ledger.read(lambda tx: tx.find_side_effects(run.id))

    # Last, because further down in this class `list` would no longer be the type.
    async def list(self, *, live: bool, limit: int | None = None) -> list[Run]:
        """Return runs, newest first; with `live`, only those that have not ended."""
        return await self._with_current_paths(
            await self._context.ledger.read(
                lambda tx: tx.find_runs(
                    status=LIVE_STATUSES if live else None, limit=limit, with_children=True
                )
            )
        )


def _with_tree_activity(run: Run, tx: Transaction, *, is_run_by_daemon: bool = False) -> tuple[Run, bool]:
    """Return the current run and whether anything in its tree is active.

    Every descendant has an ancestor up to the root, so a finished root without children is the whole tree. Runs
    that nobody waits for count only if they would end with this process.
    """
    current = tx.get_run(run.id, with_children=True) or run
    is_single_finished = current.status.is_final and current.root_id == current.id and not current.child_ids
    if is_single_finished:
        return current, False
    if is_run_by_daemon and current.status.is_final and not has_dependent_runs(current.root_id, tx):
        return current, False
    return current, is_tree_active(current.root_id, tx)
