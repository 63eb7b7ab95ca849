"""One process of a world: the real runtime on real folders, shaken before every step, and mortal at any of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from virtual import NoThreads

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import DefinitionCatalogue
from retinue.app.composition import nobody, orders
from retinue.app.sessions import Sessions
from retinue.domain.approval import Policy
from retinue.domain.ceiling import Bounds
from retinue.domain.clock import Chance
from retinue.domain.limits import Limits, Subagents
from retinue.domain.model_selection import model_for
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run
from retinue.domain.sandbox_level import Level
from retinue.domain.session import NewSession, Session
from retinue.domain.transcript import Called, Entry, Returned
from retinue.interfaces import Conversation, Driver, Ledger, Ports, Tool, Tx
from retinue.runtime import run_control, run_end
from retinue.runtime.crash_quarantine import take_up
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sessions.store import FileStore
from retinue.testing.shells import no_level, no_shell
from retinue.tools.registry import built_in
from retinue.worker.worker import LocalEngine

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
    """Implements `ports.Ledger`; `seen` looks at what each step leaves behind, within the step."""

    def __init__(self, ledger: Ledger, life: Life, seen: Callable[[Tx], None]) -> None:
        self.inner = ledger
        self._life = life
        self._seen = seen

    async def do(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        await self._life.moment()

        def watched(tx: Tx) -> T:
            value = step(tx)
            self._seen(tx)
            return value

        def told(value: T) -> None:
            if then is not None and not self._life.dead:
                then(value)

        value = await self.inner.do(watched, told)
        await self._life.moment()
        return value

    async def look(self, step: Callable[[Tx], T]) -> T:
        await self._life.moment()
        return await self.inner.look(step)


class ShakenStore(FileStore):
    """Everything at once, after a shake; the conversations it opens are shaken too."""

    def __init__(self, root: Path, chance: Chance, life: Life) -> None:
        super().__init__(root, chance, threads=NoThreads())
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
            yield ShakenTalk(talk, self._life)


class ShakenTalk:
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

    async def rest(self) -> None:
        await self._life.moment()
        await self._talk.rest()

    async def log_tool(self, called: Called, returned: Returned) -> None:
        self._life.check()
        await self._talk.log_tool(called, returned)


class Process:
    """What `retinue` is while it runs."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        life: Life,
        ledger: Ledger,
        seen: Callable[[Tx], None],
        chance: Chance,
        driver: Driver,
        tools: dict[str, Tool],
        limits: Limits,
        policy: Policy,
        alive: Callable[[str], bool],
    ) -> None:
        self.name = name
        self.life = life
        self.inner = ledger
        self._people: set[asyncio.Future[object]] = set()
        self.crashes: list[BaseException] = []
        self.store = ShakenStore(folder / "sessions", chance, life)
        self.engine = LocalEngine()
        self.root = str(folder / "work")
        redact = Redactor(())
        self.ports = Ports(
            store=self.store,
            agents=DefinitionCatalogue(user_dir=folder / "agents"),
            ledger=ShakenLedger(ledger, life, seen),
            engine=self.engine,
            driver=driver,
            chance=chance,
            tools=built_in() | tools,
            files=GuardedFiles,
            shell=no_shell,
            level=no_level,
            minimum=Level.NONE,
            policy=policy,
            worktree=_no_worktree,
            drop_worktree=_no_worktree,
            tmp=lambda _: "",
            emit=lambda _: None,
            ask=nobody,
            model=lambda agent, override: model_for(agent, override, "scripted:played"),
            limits=limits,
            bounds=Bounds,
            with_paths=with_paths,
            with_prompt=with_prompt,
            subagents=Subagents(),
            owner=name,
            worker=lambda: name,
            alive=alive,
            redact=redact,
        )
        self.engine.start(orders(self.ports, lambda _, error: self.crashes.append(error), alive))
        self.sessions = Sessions(
            self.store, self.ports.ledger, chance, lambda run: bool(run.owner) and alive(run.owner), redact
        )

    async def resume(self) -> list[Run]:
        """What `retinue runs resume` does."""
        await run_control.expire(self.ports, alive=self.ports.alive, adopt=False)
        await run_end.clear_all(self.ports)
        return await take_up(await self.sessions.interrupted(), self.ports)

    async def does(self, work: Coroutine[Any, Any, object]) -> None:
        """What a person does in this process, which ends with it."""
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
        """From here on it does nothing more, whatever it was about to do."""
        self.life.dead = True
        for task in self._people:
            task.cancel()
        await self.engine.close()
        self.store.close()


async def _no_worktree(*_: object) -> Any:
    """This world has no repository."""
