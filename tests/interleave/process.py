"""One simulated process: the real runtime on real folders, which pauses before each step and can be killed there."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from virtual import InlineThreadPool

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import FileAgentRegistry
from retinue.app.composition import reject_question, scheduler_callbacks
from retinue.app.home_access import HomeAccess
from retinue.app.run_queries import orphaned_runs
from retinue.app.stored_sessions import StoredSessions
from retinue.domain.approval import ApprovalPolicy
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.clock import Clock
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.model_selection import select_model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Entry, ToolCall, ToolResult
from retinue.interfaces import (
    Conversation,
    EventSink,
    Ledger,
    PresetEditor,
    Provider,
    RunOwners,
    RuntimeContext,
    SandboxAccess,
    Tool,
    Transaction,
    WorktreeAccess,
)
from retinue.runtime import run_control, run_end
from retinue.runtime.crash_suspects import resume_orphaned_runs
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.storage.json_schema import find_output_error, find_schema_error
from retinue.testing.shells import no_sandbox_level, refusing_shell_for
from retinue.tools.registry import built_in_tools
from retinue.worker.worker import LocalWorker

T = TypeVar("T")


class ProcessLife:
    """Whether a process is alive; gives way to other tasks at random, and stops every step after its death."""

    def __init__(self, random: Random, max_pauses: int) -> None:
        self.dead = False
        self._random = random
        self._max_pauses = max_pauses

    async def pause(self) -> None:
        self.check()
        for _ in range(self._random.randint(0, self._max_pauses)):
            await asyncio.sleep(0)
        self.check()

    def check(self) -> None:
        if self.dead:
            raise asyncio.CancelledError("killed")


class InterleavedLedger:
    """Implements `interfaces.Ledger`; `check` is called at the end of each step, within its transaction."""

    def __init__(self, ledger: Ledger, life: ProcessLife, check: Callable[[Transaction], None]) -> None:
        self.inner = ledger
        self._life = life
        self._check = check

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        await self._life.pause()

        def checked_step(tx: Transaction) -> T:
            value = step(tx)
            self._check(tx)
            return value

        def notify_if_alive(value: T) -> None:
            if on_commit is not None and not self._life.dead:
                on_commit(value)

        value = await self.inner.write(checked_step, notify_if_alive)
        await self._life.pause()
        return value

    async def read(self, step: Callable[[Transaction], T]) -> T:
        await self._life.pause()
        return await self.inner.read(step)


class InterleavedStore(FileStore):
    """A store without threads that pauses before each operation, like the conversations that it opens."""

    def __init__(self, root: Path, clock: Clock, life: ProcessLife) -> None:
        super().__init__(root, clock, threads=InlineThreadPool())
        self._life = life

    async def create(self, new: NewSession) -> Session:
        await self._life.pause()
        return await super().create(new)

    async def find(self, ref: str) -> Session:
        await self._life.pause()
        return await super().find(ref)

    async def delete(self, session: Session, *, at: datetime | None = None) -> str:
        await self._life.pause()
        return await super().delete(session, at=at)

    def open(self, session: Session) -> AbstractAsyncContextManager[Any]:
        return self._open_interleaved(session)

    @asynccontextmanager
    async def _open_interleaved(self, session: Session) -> AsyncGenerator[Any]:
        await self._life.pause()
        async with super().open(session) as conversation:
            yield InterleavedConversation(conversation, self._life)


class InterleavedConversation:
    """A conversation that pauses before and after each change."""

    def __init__(self, conversation: Conversation, life: ProcessLife) -> None:
        self._conversation = conversation
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conversation, name)

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        await self._life.pause()
        await self._conversation.append(*entries, sync=sync)
        await self._life.pause()

    async def reload_if_edited(self) -> bool:
        await self._life.pause()
        return await self._conversation.reload_if_edited()

    async def write_idle_prompt(self) -> None:
        await self._life.pause()
        await self._conversation.write_idle_prompt()

    async def log_tool_call(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        self._life.check()
        await self._conversation.log_tool_call(tool_call, tool_result)


class Process:
    """One process of Retinue."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        life: ProcessLife,
        ledger: Ledger,
        check: Callable[[Transaction], None],
        clock: Clock,
        provider: Provider,
        tools: dict[str, Tool],
        limits: Limits,
        policy: ApprovalPolicy,
        alive: Callable[[str], bool],
    ) -> None:
        self.name = name
        self.life = life
        self.inner = ledger
        self._user_actions: set[asyncio.Future[object]] = set()
        self.crashes: list[BaseException] = []
        self.store = InterleavedStore(folder / "sessions", clock, life)
        self.worker = LocalWorker()
        self.root = str(folder / "work")
        redact = Redactor(())
        self.context = RuntimeContext(
            store=self.store,
            agents=FileAgentRegistry(user_dir=folder / "agents"),
            ledger=InterleavedLedger(ledger, life, check),
            worker=self.worker,
            provider=provider,
            clock=clock,
            tools=built_in_tools() | tools,
            sandbox=SandboxAccess(
                files_for=GuardedFiles,
                shell_for=refusing_shell_for,
                detect_level=no_sandbox_level,
                tmp_folder_for=lambda _: "",
            ),
            worktrees=WorktreeAccess(
                create=_no_worktree,
                remove=_no_worktree,
            ),
            events=EventSink(
                emit=lambda _: None,
            ),
            presets=PresetEditor(
                replace_paths=with_paths,
                replace_prompt=with_prompt,
            ),
            owners=RunOwners(
                own_id=name,
                id_for_new_run=lambda: name,
                is_alive=alive,
                last_alive_at=lambda _: None,
            ),
            minimum_sandbox_level=SandboxLevel.NONE,
            approval_policy=lambda: policy,
            ask_user=reject_question,
            select_model=lambda agent, override: select_model(agent, override, "scripted:random"),
            limits=limits,
            operator_policy=OperatorPolicy,
            find_schema_error=find_schema_error,
            find_output_error=find_output_error,
            subagent_settings=SubagentSettings(),
            redact=redact,
        )
        self.worker.start(
            scheduler_callbacks(self.context, lambda _, error: self.crashes.append(error), alive)
        )
        self.home = HomeAccess(
            store=self.store,
            ledger=self.context.ledger,
            clock=clock,
            agents=FileAgentRegistry(user_dir=folder / "agents"),
            redact=redact,
            is_owner_alive=alive,
        )
        self.sessions = StoredSessions(self.home)

    async def resume(self) -> list[Run]:
        """Resume interrupted runs, like `retinue runs resume`."""
        await run_control.expire_approvals(
            self.context, is_alive=self.context.owners.is_alive, take_over=False
        )
        await run_end.delete_temporary_sessions(self.context)
        resumed = await resume_orphaned_runs(await orphaned_runs(self.home), self.context)
        waiting = await self.inner.read(lambda tx: tx.find_runs(status=[Status.WAITING]))
        suspended = [run for run in waiting if run.is_suspended_for_person]
        return [*resumed, *[await run_control.resume_waiting_run(run.id, self.context) for run in suspended]]

    async def run_user_action(self, work: Coroutine[Any, Any, object]) -> None:
        """Run an action of the user, which is cancelled when the process dies."""
        task = asyncio.ensure_future(work)
        self._user_actions.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if not self.life.dead:
                raise
        finally:
            self._user_actions.discard(task)

    async def die(self) -> None:
        """Kill the process: nothing in it continues."""
        self.life.dead = True
        for task in self._user_actions:
            task.cancel()
        await self.worker.close()
        self.store.close()


async def _no_worktree(*_: object) -> Any:
    """Stand in for worktree functions, which no case uses."""
