"""A simulation: folders and a ledger that persist while processes start and are killed at random."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from invariants import ACTIVE, FinalState, TransactionChecks
from model import AGENTS, CALLS, RandomModel, tools_for
from plan import Plan
from process import Process, ProcessLife
from virtual import InlineWriterThread, virtual_clock

from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.limits import Limits
from retinue.domain.run import Run, RunRequest, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Entry
from retinue.errors import RetinueError
from retinue.interfaces import Ledger, Transaction
from retinue.ledger.ledger import SqliteLedger
from retinue.runtime import run_control
from retinue.runtime.run_creation import create_run
from retinue.runtime.spawn import create_session
from retinue.testing.memory_ledger import MemoryLedger

T = TypeVar("T")
FRONT_MATTER = f"tools: [{', '.join(CALLS)}]\n"
TIMEOUT_S = 600
"""Seconds after which a case is considered stuck."""


class Simulation:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.random = Random(f"world {plan.seed}")
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.living: list[Process] = []
        self._alive: set[str] = set()
        self._killed: list[datetime] = []
        self._count = 0
        self._acted: Counter[str] = Counter()
        self._clock = virtual_clock(self.random, coarse=plan.coarse)
        self._memory = MemoryLedger()
        self._steps = TransactionChecks(plan, self.report_violation)
        (folder / "work").mkdir()
        (folder / "agents").mkdir()
        for name in AGENTS:
            text = f"---\nname: {name}\ndescription: Helps.\n{FRONT_MATTER}---\nYou help.\n"
            (folder / "agents" / f"{name}.md").write_text(text)

    def report_violation(self, what: str) -> None:
        self.note(f"VIOLATION {what}")
        self.violations.append(what)

    def note(self, what: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():10.4f} {what}")

    # processes

    def open(self) -> Process:
        self._count += 1
        name = f"process-{self._count}"
        self._alive.add(name)
        life = ProcessLife(self.random, self.plan.shake)
        plan = self.plan
        process = Process(
            name,
            self.folder,
            life=life,
            ledger=self._ledger(),
            check=self._steps.check,
            clock=self._clock,
            provider=RandomModel(plan, self.random, life, self.report_violation),
            tools=tools_for(self.random, life, self._has_acted),
            limits=Limits(
                max_live=plan.max_live,
                max_live_per_requester=plan.per_requester,
                max_runs_per_tree=plan.per_tree,
                max_depth=plan.depth,
            ),
            policy=ApprovalPolicy.ASK if plan.asks else ApprovalPolicy.AUTO,
            alive=lambda owner: owner in self._alive,
        )
        self.living.append(process)
        self.note(f"{name} starts")
        return process

    def any(self) -> Process:
        return self.random.choice(self.living) if self.living else self.open()

    async def kill(self, process: Process) -> None:
        """Kill a process; it counts as alive until its tasks have stopped."""
        if process not in self.living:
            return
        self.note(f"{process.name} is killed")
        self._killed.append(self._clock.now())
        self.living.remove(process)
        await process.die()
        if isinstance(process.inner, SqliteLedger):
            await process.inner.close()
        self._alive.discard(process.name)
        self._record_crashes(process)

    async def close(self) -> None:
        for process in [*self.living]:
            await self.kill(process)

    def _record_crashes(self, process: Process) -> None:
        for error in process.crashes:
            self.report_violation(f"a run crashed: {error!r}")

    def _ledger(self) -> Ledger:
        if not self.plan.sqlite:
            return self._memory
        ledger = SqliteLedger(self.folder / "ledger.db")
        ledger._writer_thread = InlineWriterThread()  # pyright: ignore[reportPrivateUsage]  (there is no public way to replace it)
        return ledger

    def _has_acted(self, call: str) -> None:
        self._acted[call] += 1
        if self._acted[call] > 1:
            self.report_violation(f"call {call} executed {self._acted[call]} times")

    # actions of the user

    async def pause(self) -> None:
        if self.random.random() < 0.6:
            for _ in range(self.random.randint(0, 60)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.random.choice((0.01, 0.3, 1.0, 4.0)))

    async def act_as_user(self) -> None:
        """Perform one action of the user; a refusal or the death of the process is no violation."""
        actions: list[Callable[[Process], Coroutine[Any, Any, object]]] = [
            *(self._send, self._send, self._cancel, self._cancel, self._cancel),
            *(self._delete, self._detach, self._detach, self._resume),
        ]
        if self.plan.asks:
            actions += [self._answer] * 8
        await self._safely(self.random.choice(actions))

    async def start_session(self) -> None:
        async def create_and_send(process: Process) -> None:
            session = await create_session("main", process.root, process.context)
            await self._send_task(session, process)

        await self._safely(create_and_send)

    async def resume(self) -> None:
        await self._safely(self._resume)

    async def _safely(self, action: Callable[[Process], Coroutine[Any, Any, object]]) -> None:
        process = self.any()
        try:
            await process.run_user_action(action(process))
        except RetinueError as error:
            self.note(f"{type(error).__name__}: {error}")

    async def _send_task(self, session: Session, process: Process) -> None:
        task = f"Do {self.random.randrange(10**9)}."
        request = RunRequest(
            key=f"once:{self._clock.new_uuid()}", agent=session.agent, task=task, session=session.id
        )
        run = await create_run(request, session, process.context)
        self.note(f"the user starts {run.id} of {run.agent} in {session.slug}")

    async def _send(self, process: Process) -> None:
        if run := await self._choose_run():
            await self._send_task(await process.store.find(run.session_id), process)

    async def _cancel(self, process: Process) -> None:
        if run := await self._choose_run(live=True):
            self.note(f"the user cancels {run.id} ({run.status})")
            await run_control.cancel_run(run.id, process.context, is_alive=process.context.owners.is_alive)
            self.note(f"{run.id} is cancelled")

    async def _delete(self, process: Process) -> None:
        if run := await self._choose_run():
            session = await process.sessions.delete(run.session_id)
            self.note(f"the user deleted {session.slug}")

    async def _detach(self, process: Process) -> None:
        if run := await self._choose_run(awaited=True):
            self.note(f"the user detaches {run.id}")
            await run_control.detach_run(run.id, process.context)

    async def _resume(self, process: Process) -> None:
        for run in await process.resume():
            self.note(f"the user resumes {run.id} ({run.status})")

    async def _answer(self, process: Process) -> None:
        pending = [each for each in await self.approvals() if each.state is ApprovalState.PENDING]
        if pending:
            approval, answer = (
                self.random.choice(pending),
                self.random.choice((Answer.ALLOW, Answer.ALLOW, Answer.DENY)),
            )
            self.note(f"the user answers {answer} to {approval.tool} of {approval.run}")
            await run_control.answer_approval(
                approval.id, answer, process.context, by="person", is_alive=process.context.owners.is_alive
            )

    async def _choose_run(self, *, live: bool = False, awaited: bool = False) -> Run | None:
        found = [
            run
            for run in await self.runs()
            if (run.status.is_live or not live) and (not awaited or run.is_awaited)
        ]
        return self.random.choice(found) if found else None

    # the state

    async def runs(self) -> list[Run]:
        return sorted(await self._read_ledger(lambda tx: tx.find_runs()), key=lambda run: run.id)

    async def approvals(self) -> list[Approval]:
        return await self._read_ledger(lambda tx: tx.find_approvals())

    async def _read_ledger(self, step: Callable[[Transaction], T]) -> T:
        process = self.living[-1] if self.living else self.open()
        return await process.inner.read(step)

    async def settle(self) -> None:
        """Resume interrupted runs and answer approvals until nothing runs any more."""
        leaves_approvals_open = self.random.random() < 0.2
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        idle_rounds = 0
        while idle_rounds < 3:
            await self.resume()
            if not leaves_approvals_open and any(
                each.state is ApprovalState.PENDING for each in await self.approvals()
            ):
                await self._safely(self._answer)
            await asyncio.sleep(0.6)
            busy = [
                run
                for run in await self.runs()
                if run.status in ACTIVE and not await self._is_behind_waiting_run(run)
            ]
            has_open_approvals = not leaves_approvals_open and any(
                each.state is ApprovalState.PENDING for each in await self.approvals()
            )
            idle_rounds = 0 if busy or has_open_approvals else idle_rounds + 1
            if asyncio.get_running_loop().time() > deadline:
                names = ", ".join(f"{run.id} {run.status} of {run.owner_id or 'nobody'}" for run in busy)
                self.report_violation(f"runs never end: {names}")
                return

    async def _is_behind_waiting_run(self, run: Run) -> bool:
        """Return whether a run is queued behind one of its session that waits for a person."""
        return run.status is Status.QUEUED and any(
            each.status is Status.WAITING
            and not each.waits_between_turns
            and each.session_id == run.session_id
            for each in await self.runs()
        )

    async def final_state(self) -> FinalState:
        runs = await self.runs()
        reader = self.any().store
        conversations: dict[str, list[Entry]] = {}
        for run in runs:
            if run.session_id not in conversations and Path(run.transcript_path).exists():
                entries, problems = await reader.read_entries(await reader.find(run.transcript_path))
                for problem in problems:
                    self.report_violation(f"{run.transcript_path}: {problem}")
                conversations[run.session_id] = entries
        return FinalState(
            runs={run.id: run for run in runs},
            deliveries=await self._read_ledger(lambda tx: tx.find_deliveries()),
            approvals=await self.approvals(),
            conversations=conversations,
            killed=self._killed,
        )

    async def events(self) -> list[str]:
        found = await self._read_ledger(lambda tx: tx.find_events(limit=100_000))
        return [f"{each.seq:5} {each.kind:24} {each.run} {each.agent} {each.data}" for each in found]
