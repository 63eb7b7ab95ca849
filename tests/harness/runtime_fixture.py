"""The runtime on real folders, with a scripted model, a ledger in memory and the real worker."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from transcript_entries import delimited_text

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import FileAgentRegistry
from retinue.app.composition import reject_question, scheduler_callbacks
from retinue.domain.approval import Answer, Approval, ApprovalPolicy, ApprovalState
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.delivery import Delivery
from retinue.domain.event import Event
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.model_selection import select_model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, RunRequest, Status, WaitReason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import Session
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.domain.workspace import Workspace
from retinue.interfaces import (
    EventSink,
    PresetEditor,
    Provider,
    RunOwners,
    RuntimeContext,
    SandboxAccess,
    Tool,
    Transaction,
    WorktreeAccess,
)
from retinue.runtime import recovery, run_control
from retinue.runtime.run_creation import create_run
from retinue.runtime.spawn import create_session
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.storage.json_schema import find_output_error, find_schema_error
from retinue.testing.memory_ledger import MemoryLedger
from retinue.testing.scripted_provider import FakeProvider, ScriptedStep
from retinue.testing.shells import FakeShell, no_sandbox_level, refusing_shell_for
from retinue.tools.registry import built_in_tools
from retinue.worker.clock import system_clock
from retinue.worker.worker import LocalWorker


@dataclass(slots=True, kw_only=True)
class RuntimeProcess:
    """The runtime of one process: its context, its scripted model, and the events and crashes so far."""

    context: RuntimeContext
    store: FileStore
    provider: FakeProvider
    worker: LocalWorker
    root: str
    events: list[Event]
    crashes: list[BaseException]

    async def create_session(self, agent: str = "general") -> Session:
        return await create_session(agent, self.root, self.context)

    async def submit(
        self, task: str | None, *, session: Session | None = None, agent: str = "general", **options: Any
    ) -> Run:
        """Create a run and return without waiting for its end."""
        chosen = session or await self.create_session(agent)
        fields: dict[str, Any] = {"key": f"once:{self.context.clock.new_uuid()}"} | options
        return await create_run(
            RunRequest(agent=chosen.agent, task=task, session=chosen.id, **fields), chosen, self.context
        )

    async def run(self, task: str | None, **options: Any) -> Run:
        """Create a run and wait for its end."""
        return await self.wait(await self.submit(task, **options))

    async def run_until_idle(self, task: str | None, **options: Any) -> Run:
        """Create a run and wait until it has ended, or no run is queued or running."""
        return await self.wait_until_ended_or_idle(await self.submit(task, **options))

    async def run_until_suspended(self, task: str | None, **options: Any) -> Run:
        """Create a run and wait until it has replied and waits for the runs that it started."""
        run = await self.submit(task, **options)
        await self.wait_until_suspended(run)
        return run

    async def wait(self, run: Run) -> Run:
        await self.worker.wait(run.id)
        return await self.reload(run)

    async def wait_all(self, *runs: Awaitable[Run]) -> list[Run]:
        return await asyncio.gather(*runs)

    async def reload(self, run: Run) -> Run:
        found = await self.context.ledger.read(lambda tx: tx.get_run(run.id, with_children=True))
        assert found is not None
        return found

    async def cancel(self, run: Run) -> Run:
        return await run_control.cancel_run(run.id, self.context, is_alive=lambda _: True)

    async def resume(self, run: Run) -> Run:
        """Resume a run of a dead process and wait for its end."""
        return await self.wait(
            await recovery.resume_run(run.id, self.context, previous_owner=(await self.reload(run)).owner_id)
        )

    async def resume_executing_runs(self) -> None:
        """Resume the runs that a dead process was executing, one after the other."""
        for run in await self.all_runs():
            if run.status.is_live and run.status is not Status.WAITING:
                await self.resume(run)

    async def all_runs(self) -> list[Run]:
        """Return every run of the ledger, oldest first."""

        def step(tx: Transaction) -> list[Run]:
            return sorted(tx.find_runs(), key=lambda run: run.id)

        return await self.context.ledger.read(step)

    async def deliveries(self) -> list[Delivery]:
        def step(tx: Transaction) -> list[Delivery]:
            return tx.find_deliveries()

        return await self.context.ledger.read(step)

    async def approvals(self) -> list[Approval]:
        def step(tx: Transaction) -> list[Approval]:
            return tx.find_approvals()

        return await self.context.ledger.read(step)

    async def pending_approvals(self) -> list[Approval]:
        def step(tx: Transaction) -> list[Approval]:
            return tx.find_approvals(state=[ApprovalState.PENDING])

        return await self.context.ledger.read(step)

    async def wait_for_approval(self) -> Approval:
        """Wait for the first approval that a person must answer."""
        while not (pending := await self.pending_approvals()):  # noqa: ASYNC110  (the ledger has no event to wait for)
            await asyncio.sleep(0.002)
        return pending[0]

    async def answer_approval(self, approval: Approval, answer: Answer) -> Approval:
        return await run_control.answer_approval(
            approval.id, answer, self.context, by="person", is_alive=self.context.owners.is_alive
        )

    async def answer_only_approval(self, answer: Answer) -> Approval:
        """Answer the only approval that is pending."""
        (approval,) = await self.pending_approvals()
        return await self.answer_approval(approval, answer)

    async def wait_until_idle(self) -> list[Run]:
        """Wait until no run is queued or running, and return all runs, oldest first."""
        while True:
            runs = await self.all_runs()
            if not any(run.status in (Status.QUEUED, Status.RUNNING) for run in runs):
                return runs
            await self.worker.wait_for_change()

    async def wait_until_suspended(self, run: Run) -> None:
        """Wait until a run has replied and waits for the runs that it started."""

        async def is_suspended() -> bool:
            return (await self.reload(run)).waits_between_turns

        await wait_until(is_suspended)

    async def wait_for_tool_result(self, run: Run) -> None:
        """Wait until the first tool result of a run is saved."""

        async def has_result() -> bool:
            return bool(await self.tool_results(run))

        await wait_until(has_result)

    async def wait_until_ended(self, run: Run) -> Run:
        """Wait until a run has ended, whatever it waits for in between."""
        while not (current := await self.reload(run)).status.is_final:
            await self.worker.wait_for_change()
        return current

    async def wait_until_ended_or_idle(self, run: Run) -> Run:
        """Wait until a run has ended, or no run is queued or running."""
        while True:
            await self.worker.wait(run.id)
            current = await self.reload(run)
            if current.status.is_final or not any(
                each.status in (Status.QUEUED, Status.RUNNING) for each in await self.all_runs()
            ):
                return current
            await self.worker.wait_for_change()

    async def wait_until_waiting(self, run: Run, reason: WaitReason | None = None) -> None:
        """Wait until the status of a run is `waiting`, and for this reason if one is given."""

        async def waiting() -> bool:
            current = await self.reload(run)
            return current.status is Status.WAITING and reason in (None, current.waiting_for)

        await wait_until(waiting)

    async def entries(self, run: Run) -> list[Entry]:
        found, problems = await self.store.read_entries(await self.store.find(run.session_id))
        assert problems == []
        return found

    async def tool_results(self, run: Run) -> list[ToolResult]:
        """Return the tool results in the order of their calls; the file has the order of completion."""
        found = await self.entries(run)
        called = [entry.id for entry in found if isinstance(entry, ToolCall)]
        results = [entry for entry in found if isinstance(entry, ToolResult)]
        return sorted(results, key=lambda each: called.index(each.call_id))

    async def tool_outputs(self, run: Run) -> list[Any]:
        """Return the decoded JSON of the tool results in the order of their calls."""
        return [json.loads(result.text) for result in await self.tool_results(run)]

    async def tool_error(self, run: Run) -> tuple[str, str]:
        """Return the code and the message of the only tool result, which is an error in JSON."""
        (result,) = await self.tool_results(run)
        assert not result.ok
        error = json.loads(result.text)["error"]
        return error["code"], error["message"]

    async def agent_texts(self, run: Run) -> list[str]:
        """Return the texts of the agent's messages in the file."""
        found = await self.entries(run)
        return [entry.text for entry in found if isinstance(entry, Message) and entry.role == "agent"]

    async def announcements(self, run: Run) -> list[str]:
        """Return the texts of the reported runs, as quoted in the announcements of a run's conversation."""
        found = await self.entries(run)
        notices = [entry for entry in found if isinstance(entry, Notice) and entry.topic == "announcement"]
        return [delimited_text(notice.text) for notice in notices]

    def replace_parts(self, **parts: Any) -> None:
        """Give the worker a context with other parts, such as a store that fails."""
        self.context = replace(self.context, **parts)
        self.worker.start(
            scheduler_callbacks(self.context, lambda _, error: self.crashes.append(error), lambda _: True)
        )

    def request_entries(self, request: int) -> list[Entry]:
        """Return the entries that a request was built from."""
        return list(self.provider.requests[request].entries)

    def set_script(self, agent: str, steps: Sequence[ScriptedStep]) -> None:
        """Set the replies of the scripted model for this agent from now on."""
        self.provider.script = {**self.provider.script, agent: steps}

    def release_turn(self) -> None:
        """Let the turn that `hold` keeps in the middle of its reply continue."""
        assert self.provider.hold_until is not None
        self.provider.hold_until.set()

    async def wait_for_event(self, kind: str) -> Event:
        """Wait for the first event of a kind."""
        while True:
            if found := next((event for event in self.events if event.kind == kind), None):
                return found
            await asyncio.sleep(0.001)


async def wait_until(condition: Callable[[], Awaitable[object]]) -> None:
    """Poll a condition that reads the ledger, which does not notify."""
    while not await condition():  # noqa: ASYNC110  (the ledger has no event to wait for)
        await asyncio.sleep(0.002)


@dataclass(slots=True)
class RuntimeFixture:
    """The folders and the ledger, which outlive the processes that a test opens on them."""

    folder: Path
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    processes: int = 0
    alive: set[str] = field(default_factory=set[str])
    died_at: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When each process died; a test may set it, as if it had been long ago."""

    @property
    def workspace(self) -> Path:
        return self.folder / "work"

    def write_agent(self, name: str, front: str = "", body: str = "You help.") -> Path:
        path = self.folder / "agents" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"---\nname: {name}\ndescription: Helps.\n{front}---\n{body}\n")
        return path

    def write_missing_agent(self, name: str, front: str = "", body: str = "You help.") -> None:
        """Write an agent, except if the test has written an agent of this name."""
        if not (self.folder / "agents" / f"{name}.md").exists():
            self.write_agent(name, front, body)

    @asynccontextmanager
    async def open(
        self,
        *steps: ScriptedStep,
        by_agent: Mapping[str, Sequence[ScriptedStep]] | None = None,
        tools: Sequence[Tool] = (),
        secrets: Sequence[str] = (),
        provider: Provider | None = None,
        hold: bool = False,
        shell: FakeShell | None = None,
        **overrides: Any,
    ) -> AsyncGenerator[RuntimeProcess]:
        """Start a process that dies with the block, even while one of its runs is executing.

        If `shell` is given, it runs the commands, at its sandbox level.
        """
        if shell is not None:
            overrides |= {"shell_for": shell, "detect_level": shell.level_detector()}
        self.processes += 1
        owner = f"process-{self.processes}"
        self.alive.add(owner)
        played = FakeProvider(by_agent or {"*": steps}, hold_until=asyncio.Event() if hold else None)
        events: list[Event] = []
        crashes: list[BaseException] = []
        chance = system_clock()
        store = FileStore(self.folder / "sessions", chance)
        engine = LocalWorker()
        made = RuntimeContext(
            store=store,
            agents=FileAgentRegistry(user_dir=self.folder / "agents"),
            ledger=self.ledger,
            worker=engine,
            provider=provider or played,
            clock=chance,
            tools=built_in_tools() | {tool.spec.name: tool for tool in tools},
            sandbox=SandboxAccess(
                files_for=GuardedFiles,
                shell_for=refusing_shell_for,
                detect_level=no_sandbox_level,
                tmp_folder_for=lambda _: "",
            ),
            worktrees=WorktreeAccess(
                create=no_worktree,
                remove=remove_no_worktree,
            ),
            events=EventSink(
                emit=events.append,
            ),
            presets=PresetEditor(
                replace_paths=with_paths,
                replace_prompt=with_prompt,
            ),
            owners=RunOwners(
                own_id=owner,
                id_for_new_run=lambda: owner,
                is_alive=lambda owner: owner in self.alive,
                last_alive_at=self.died_at.get,
            ),
            minimum_sandbox_level=SandboxLevel.NONE,
            approval_policy=lambda: ApprovalPolicy.AUTO,
            ask_user=reject_question,
            select_model=lambda agent, override: select_model(agent, override, "scripted:played"),
            limits=Limits(),
            operator_policy=OperatorPolicy,
            find_schema_error=find_schema_error,
            find_output_error=find_output_error,
            subagent_settings=SubagentSettings(),
            redact=Redactor(secrets),
        )
        if (policy := overrides.pop("approval_policy", None)) is not None:
            overrides["approval_policy"] = lambda: policy
        made = override_context(made, **overrides)
        engine.start(
            scheduler_callbacks(
                made, lambda _, error: crashes.append(error), lambda owner: owner in self.alive
            )
        )
        root = os.path.realpath(self.workspace)
        try:
            yield RuntimeProcess(
                context=made,
                store=store,
                provider=played,
                worker=engine,
                root=root,
                events=events,
                crashes=crashes,
            )
        finally:
            self.alive.discard(owner)
            self.died_at[owner] = chance.now()
            await engine.close()
            store.close()


def override_context(context: RuntimeContext, **overrides: Any) -> RuntimeContext:
    """Return the context with other parts; a name of a group's field, such as `shell_for`, replaces it there."""
    for group in ("sandbox", "worktrees", "events", "presets", "owners"):
        part = getattr(context, group)
        changed = {name: overrides.pop(name) for name in part.__struct_fields__ if name in overrides}
        if changed:
            context = replace(context, **{group: replace(part, **changed)})
    return replace(context, **overrides)


async def no_worktree(_folder: str, _name: str) -> None:
    """The workspace is in no repository."""


async def remove_no_worktree(_: Workspace) -> bool:
    return False
