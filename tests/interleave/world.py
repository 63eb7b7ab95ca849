"""A world: folders and a ledger that outlive the processes, which come and go at random."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from invariants import MOVING, Quiet, Steps
from model import AGENTS, CALLS, RandomModel, tools_for
from plan import Plan
from process import Life, Process
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
FRONT = f"tools: [{', '.join(CALLS)}]\n"
LONGEST = 600
"""Seconds after which a case that is not quiet never will be."""


class World:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.random = Random(f"world {plan.seed}")
        self.breaches: list[str] = []
        self.trace: list[str] = []
        self.living: list[Process] = []
        self._alive: set[str] = set()
        self._killed: list[datetime] = []
        self._count = 0
        self._acted: Counter[str] = Counter()
        self._clock = virtual_clock(self.random, coarse=plan.coarse)
        self._memory = MemoryLedger()
        self._steps = Steps(plan, self.breach)
        (folder / "work").mkdir()
        (folder / "agents").mkdir()
        for name in AGENTS:
            text = f"---\nname: {name}\ndescription: Helps.\n{FRONT}---\nYou help.\n"
            (folder / "agents" / f"{name}.md").write_text(text)

    def breach(self, what: str) -> None:
        self.note(f"BREACH {what}")
        self.breaches.append(what)

    def note(self, what: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():10.4f} {what}")

    # processes

    def open(self) -> Process:
        self._count += 1
        name = f"process-{self._count}"
        self._alive.add(name)
        life = Life(self.random, self.plan.shake)
        plan = self.plan
        process = Process(
            name,
            self.folder,
            life=life,
            ledger=self._ledger(),
            check=self._steps.check,
            clock=self._clock,
            provider=RandomModel(plan, self.random, life, self.breach),
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
        self.note(f"{name} start_session")
        return process

    def any(self) -> Process:
        return self.random.choice(self.living) if self.living else self.open()

    async def kill(self, process: Process) -> None:
        """Dead before anybody sees that it is: what it was doing stops first."""
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
            self.breach(f"a run crashed: {error!r}")

    def _ledger(self) -> Ledger:
        if not self.plan.sqlite:
            return self._memory
        ledger = SqliteLedger(self.folder / "ledger.db")
        ledger._writer_thread = InlineWriterThread()  # pyright: ignore[reportPrivateUsage]  (there is no other way in)
        return ledger

    def _has_acted(self, call: str) -> None:
        self._acted[call] += 1
        if self._acted[call] > 1:
            self.breach(f"call {call} acted {self._acted[call]} times")

    # what a person does

    async def pause(self) -> None:
        if self.random.random() < 0.6:
            for _ in range(self.random.randint(0, 60)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.random.choice((0.01, 0.3, 1.0, 4.0)))

    async def move(self) -> None:
        """One thing a person does; that it cannot be done, or that the process dies meanwhile, is no harm."""
        moves: list[Callable[[Process], Coroutine[Any, Any, object]]] = [
            *(self._send, self._send, self._cancel, self._cancel, self._cancel),
            *(self._delete, self._detach, self._detach, self._resume),
        ]
        if self.plan.asks:
            moves += [self._answer] * 8
        await self._safely(self.random.choice(moves))

    async def start_session(self) -> None:
        async def create_and_send(process: Process) -> None:
            session = await create_session("main", process.root, process.ports)
            await self._send_task(session, process)

        await self._safely(create_and_send)

    async def resume(self) -> None:
        await self._safely(self._resume)

    async def _safely(self, move: Callable[[Process], Coroutine[Any, Any, object]]) -> None:
        process = self.any()
        try:
            await process.run_user_action(move(process))
        except RetinueError as error:
            self.note(f"{type(error).__name__}: {error}")

    async def _send_task(self, session: Session, process: Process) -> None:
        words = f"Do {self.random.randrange(10**9)}."
        ask = RunRequest(
            key=f"once:{self._clock.new_uuid()}", agent=session.agent, task=words, session=session.id
        )
        run = await create_run(ask, session, process.ports)
        self.note(f"a person asks {run.agent} for {run.id} in {session.slug}")

    async def _send(self, process: Process) -> None:
        if run := await self._choose_run():
            await self._send_task(await process.store.find(run.session_id), process)

    async def _cancel(self, process: Process) -> None:
        if run := await self._choose_run(live=True):
            self.note(f"a person cancels {run.id} ({run.status})")
            await run_control.cancel_run(run.id, process.ports, is_alive=process.ports.owners.is_alive)
            self.note(f"{run.id} is cancelled")

    async def _delete(self, process: Process) -> None:
        if run := await self._choose_run():
            session = await process.sessions.delete(run.session_id)
            self.note(f"a person deleted {session.slug}")

    async def _detach(self, process: Process) -> None:
        if run := await self._choose_run(awaited=True):
            self.note(f"a person detaches {run.id}")
            await run_control.detach_run(run.id, process.ports)

    async def _resume(self, process: Process) -> None:
        for run in await process.resume():
            self.note(f"a person resume {run.id} ({run.status})")

    async def _answer(self, process: Process) -> None:
        asked = [each for each in await self.approvals() if each.state is ApprovalState.PENDING]
        if asked:
            chosen, said = (
                self.random.choice(asked),
                self.random.choice((Answer.ALLOW, Answer.ALLOW, Answer.DENY)),
            )
            self.note(f"a person says {said} to {chosen.tool} of {chosen.run}")
            await run_control.answer_approval(
                chosen.id, said, process.ports, by="person", is_alive=process.ports.owners.is_alive
            )

    async def _choose_run(self, *, live: bool = False, awaited: bool = False) -> Run | None:
        found = [
            run
            for run in await self.runs()
            if (run.status.is_live or not live) and (not awaited or run.is_awaited)
        ]
        return self.random.choice(found) if found else None

    # what there is

    async def runs(self) -> list[Run]:
        return sorted(await self._read_ledger(lambda tx: tx.find_runs()), key=lambda run: run.id)

    async def approvals(self) -> list[Approval]:
        return await self._read_ledger(lambda tx: tx.find_approvals())

    async def _read_ledger(self, step: Callable[[Transaction], T]) -> T:
        process = self.living[-1] if self.living else self.open()
        return await process.inner.read(step)

    async def settle(self) -> None:
        """Whoever is left takes up what others left behind, and answers what is asked, until nothing goes on."""
        leaves = self.random.random() < 0.2
        until = asyncio.get_running_loop().time() + LONGEST
        calm = 0
        while calm < 3:
            await self.resume()
            if not leaves and any(each.state is ApprovalState.PENDING for each in await self.approvals()):
                await self._safely(self._answer)
            await asyncio.sleep(0.6)
            busy = [
                run
                for run in await self.runs()
                if run.status in MOVING and not await self._is_behind_waiting_run(run)
            ]
            asked = not leaves and any(each.state is ApprovalState.PENDING for each in await self.approvals())
            calm = 0 if busy or asked else calm + 1
            if asyncio.get_running_loop().time() > until:
                names = ", ".join(f"{run.id} {run.status} of {run.owner_id or 'nobody'}" for run in busy)
                self.breach(f"it never gets quiet: {names}")
                return

    async def _is_behind_waiting_run(self, run: Run) -> bool:
        """Whether it stands in the queue behind one of its conversation that waits for a person."""
        return run.status is Status.QUEUED and any(
            each.status is Status.WAITING
            and not each.waits_between_turns
            and each.session_id == run.session_id
            for each in await self.runs()
        )

    async def quiet(self) -> Quiet:
        runs = await self.runs()
        reader = self.any().store
        talks: dict[str, list[Entry]] = {}
        for run in runs:
            if run.session_id not in talks and Path(run.transcript_path).exists():
                entries, problems = await reader.read_entries(await reader.find(run.transcript_path))
                for problem in problems:
                    self.breach(f"{run.transcript_path}: {problem}")
                talks[run.session_id] = entries
        return Quiet(
            runs={run.id: run for run in runs},
            deliveries=await self._read_ledger(lambda tx: tx.find_deliveries()),
            approvals=await self.approvals(),
            talks=talks,
            killed=self._killed,
        )

    async def events(self) -> list[str]:
        found = await self._read_ledger(lambda tx: tx.find_events(limit=100_000))
        return [f"{each.seq:5} {each.kind:24} {each.run} {each.agent} {each.data}" for each in found]
