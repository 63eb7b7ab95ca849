"""One process of a world: the real runtime on real folders, shaken before every step, and mortal at any of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from virtual import NoThreads

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import FileAgentRegistry
from retinue.app.composition import reject_question, scheduler_callbacks
from retinue.app.home_access import HomeAccess
from retinue.app.run_queries import interrupted_runs
from retinue.app.stored_sessions import StoredSessions
from retinue.domain.approval import ApprovalPolicy
from retinue.domain.ceiling import OperatorPolicy
from retinue.domain.clock import Clock
from retinue.domain.limits import Limits, SubagentSettings
from retinue.domain.model_selection import select_model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run
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
from retinue.runtime.crash_suspects import resume_interrupted_runs
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.testing.shells import no_sandbox_level, refusing_shell_for
from retinue.tools.registry import built_in_tools
from retinue.worker.worker import LocalWorker

T = TypeVar("T")


class Life:
    """Whether a process lives, and how it is shaken: whatever it does next after its death, it does not do."""

    def __init__(self, random: Random, shake: int) -> None:
        self.dead = False
        self._random = random
        self._shake = shake

    async def moment(self) -> None:
        self.check()
        for _ in range(self._random.randint(0, self._shake)):
            await asyncio.sleep(0)
        self.check()

    def check(self) -> None:
        if self.dead:
            raise asyncio.CancelledError("killed")


class ShakenLedger:
    """Implements `interfaces.Ledger`; `check` looks at what each step leaves behind, within the step."""

    def __init__(self, ledger: Ledger, life: Life, check: Callable[[Transaction], None]) -> None:
        self.inner = ledger
        self._life = life
        self._check = check

    async def write(
        self, step: Callable[[Transaction], T], on_commit: Callable[[T], None] | None = None
    ) -> T:
        await self._life.moment()

        def checked_step(tx: Transaction) -> T:
            value = step(tx)
            self._check(tx)
            return value

        def notify_if_alive(value: T) -> None:
            if on_commit is not None and not self._life.dead:
                on_commit(value)

        value = await self.inner.write(checked_step, notify_if_alive)
        await self._life.moment()
        return value

    async def read(self, step: Callable[[Transaction], T]) -> T:
        await self._life.moment()
        return await self.inner.read(step)


class ShakenStore(FileStore):
    """Everything at once, after a shake; the conversations it opens are shaken too."""

    def __init__(self, root: Path, clock: Clock, life: Life) -> None:
        super().__init__(root, clock, threads=NoThreads())
        self._life = life

    async def create(self, new: NewSession) -> Session:
        await self._life.moment()
        return await super().create(new)

    async def find(self, ref: str) -> Session:
        await self._life.moment()
        return await super().find(ref)

    async def delete(self, session: Session) -> str:
        await self._life.moment()
        return await super().delete(session)

    def open(self, session: Session) -> AbstractAsyncContextManager[Any]:
        return self._shaken(session)

    @asynccontextmanager
    async def _shaken(self, session: Session) -> AsyncGenerator[Any]:
        await self._life.moment()
        async with super().open(session) as talk:
            yield ShakenConversation(talk, self._life)


class ShakenConversation:
    """A conversation whose every change is shaken, before and after."""

    def __init__(self, talk: Conversation, life: Life) -> None:
        self._talk = talk
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._talk, name)

    async def append(self, *entries: Entry, sync: bool = True) -> None:
        await self._life.moment()
        await self._talk.append(*entries, sync=sync)
        await self._life.moment()

    async def refresh(self) -> bool:
        await self._life.moment()
        return await self._talk.refresh()

    async def write_idle_prompt(self) -> None:
        await self._life.moment()
        await self._talk.write_idle_prompt()

    async def log_tool_call(self, tool_call: ToolCall, tool_result: ToolResult) -> None:
        self._life.check()
        await self._talk.log_tool_call(tool_call, tool_result)


class Process:
    """One process of Retinue."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        life: Life,
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
        self._people: set[asyncio.Future[object]] = set()
        self.crashes: list[BaseException] = []
        self.store = ShakenStore(folder / "sessions", clock, life)
        self.engine = LocalWorker()
        self.root = str(folder / "work")
        redact = Redactor(())
        self.ports = RuntimeContext(
            store=self.store,
            agents=FileAgentRegistry(user_dir=folder / "agents"),
            ledger=ShakenLedger(ledger, life, check),
            worker=self.engine,
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
            ),
            minimum_sandbox_level=SandboxLevel.NONE,
            approval_policy=policy,
            ask_user=reject_question,
            select_model=lambda agent, override: select_model(agent, override, "scripted:played"),
            limits=limits,
            operator_policy=OperatorPolicy,
            subagent_settings=SubagentSettings(),
            redact=redact,
        )
        self.engine.start(scheduler_callbacks(self.ports, lambda _, error: self.crashes.append(error), alive))
        self.home = HomeAccess(
            store=self.store,
            ledger=self.ports.ledger,
            clock=clock,
            redact=redact,
            is_owner_alive=alive,
        )
        self.sessions = StoredSessions(self.home)

    async def resume(self) -> list[Run]:
        """What `retinue runs resume` does."""
        await run_control.expire_approvals(self.ports, is_alive=self.ports.owners.is_alive, adopt=False)
        await run_end.delete_temporary_sessions(self.ports)
        return await resume_interrupted_runs(await interrupted_runs(self.home), self.ports)

    async def run_user_action(self, work: Coroutine[Any, Any, object]) -> None:
        """Run an action of the user, which is cancelled when the process dies."""
        task = asyncio.ensure_future(work)
        self._people.add(task)
        try:
            await task
        except asyncio.CancelledError:
            if not self.life.dead:
                raise
        finally:
            self._people.discard(task)

    async def die(self) -> None:
        """Kill the process: nothing in it continues."""
        self.life.dead = True
        for task in self._people:
            task.cancel()
        await self.engine.close()
        self.store.close()


async def _no_worktree(*_: object) -> Any:
    """Stand in for worktree functions, which no case uses."""
