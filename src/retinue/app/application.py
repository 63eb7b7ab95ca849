"""What every surface speaks to: run, send, wait, cancel, list, show."""

import os
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from retinue.agents.frontmatter import with_paths, with_prompt
from retinue.agents.registry import DefinitionCatalogue
from retinue.agents.skills import SkillFolders
from retinue.agents.trust import Trust
from retinue.app.agents import Cast
from retinue.app.composition import Question, drivers_of, models, orders, tool_table
from retinue.app.daemon_link import MOVES, Beside, Terms, beside
from retinue.app.event_log import Log, LoggedStore
from retinue.app.event_replay import Ear
from retinue.app.inbox import Inbox
from retinue.app.live_config import Operator
from retinue.app.log_file import log_line
from retinue.app.mcp_servers import Servers
from retinue.app.messages import Talking
from retinue.app.permissions import Rights
from retinue.app.repair import Mending
from retinue.app.run_control import Steering
from retinue.app.run_views import Accounts
from retinue.app.runs import Looking
from retinue.app.sandbox_loader import Commands, loosest
from retinue.app.sessions import Sessions
from retinue.app.submit import Giving
from retinue.app.watchers import Watchers
from retinue.app.worktree_cleanup import vacate, workplaces
from retinue.config.load import Config
from retinue.domain.approval import Policy
from retinue.domain.cli_agent import PROGRAMS
from retinue.domain.event import Event
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status, Waiting, iso
from retinue.domain.sandbox_level import Level
from retinue.domain.session import Session
from retinue.domain.side_effect import Deed
from retinue.domain.transcript import Said
from retinue.errors import Conflict, NoRoom, NotFound, RetinueError
from retinue.interfaces import Ports, Tool
from retinue.ledger.ledger import SqliteLedger
from retinue.providers.retry import Gateway
from retinue.runtime import run_control
from retinue.runtime.crash_quarantine import take_up
from retinue.runtime.recovery import descendants, put_back, release, resume
from retinue.runtime.run_end import clear_all
from retinue.runtime.watchers import catch_up
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.git.worktrees import Worktrees
from retinue.worker.clock import system_chance
from retinue.worker.process_lock import Onlooker, Owner, sweep
from retinue.worker.worker import LocalEngine


class App(Sessions, Rights, Inbox, Looking, Accounts, Cast, Steering, Giving, Talking, Watchers, Mending):
    """What every surface speaks to: run, send, wait, cancel, list, show."""

    def __init__(
        self, config: Config, tools: Sequence[Tool], ask: Question, *, only_looks: bool = False
    ) -> None:
        self.config = config
        self._listeners: list[Callable[[Event], None]] = []
        self._engine = LocalEngine()
        table = tool_table(config, tools)
        with suppress(OSError):  # what is left behind by others must not keep us from starting
            sweep(config.home)
        self._owner = _owner(config, only_looks=only_looks)
        self._ledger_seen = False
        self._answers = dict[str, tuple[str, str]]()
        self._commands = Commands(config)
        with suppress(OSError):  # the same
            for note in self._commands.sweep():
                log_line(config.home, {"at": "start", "left by a command that was killed": note})
        self._seq = 0
        self._beside: Beside | None = None
        self._counted: dict[str, int] = {}
        """How many live events of each run somebody has listened to."""
        self._ledger = SqliteLedger(config.home / "ledger.db", listen=self._heard)
        chance, redact = system_chance(), Redactor(config.secrets())
        self._log = Log(config.home, redact, chance)
        self.mcp = Servers(config, table, chance)
        self.operator = Operator(config, now=chance.now)
        store = LoggedStore(config.home / "sessions", chance, self._log)
        Sessions.__init__(self, store, self._ledger, chance, self._lives, redact)
        self.store.sweep()
        self.trust = Trust(config.home / "trust.json")
        self.agents = DefinitionCatalogue(
            user_dir=config.agents_dir, inline=config.agents, trust=self.trust, ceiling=config.ceiling
        )
        self.skills = SkillFolders(user_dir=config.skills_dir, trust=self.trust)
        self._worktrees = Worktrees(
            config.home / "worktrees",
            held=lambda scope: self._ports.shell(scope),  # noqa: PLW0108  (the ports are not there yet)
            level=lambda: self._ports.level(),  # noqa: PLW0108  (the same)
            trusted=self.trust.trusts,
        )
        tmp = os.fspath(config.home / "tmp")
        ports = Ports(
            store=self.store,
            agents=self.agents,
            ledger=self._ledger,
            engine=self._engine,
            driver=Gateway(drivers_of(config, self._commands, redact), chance),
            chance=chance,
            tools=self.mcp.tools(),
            files=GuardedFiles,
            skills=lambda agent, at: self.skills.all(at, foreign=not self.agents.knows(agent)),
            shell=self._commands.shell,
            level=self._commands.level,
            minimum=Level(config.sandbox_minimum),
            policy=Policy(config.approvals),
            worktree=self._worktrees.make,
            drop_worktree=lambda place: self._worktrees.remove(place.root, place.source),
            tmp=lambda session: f"{tmp}/{session.id}",
            emit=self._heard,
            listened=lambda: bool(self._listeners),
            ask=ask,
            model=models(config, redact),
            limits=config.limits,
            bounds=self.operator,
            with_paths=with_paths,
            with_prompt=with_prompt,
            subagents=config.subagents,
            keeps=config.keeps,
            cost=self.cost,
            owner=self._owner.id,
            worker=self._worker,
            alive=self._owner_is_alive,
            redact=redact,
        )
        Rights.__init__(self, ports, self._owner_is_alive)
        Steering.__init__(self, ports, self._owner_is_alive)
        self._engine.start(orders(self._ports, self._crashed, self._owner_is_alive, self._ledger.changed))

    async def sweep(self) -> None:
        """Worktrees that a crash left before their session was there. Nothing of it keeps anybody from starting."""

        async def inhabited() -> set[str]:
            return workplaces(await self.sessions(), await self.runs(live=True))

        with suppress(OSError, RetinueError):
            for place in await self._worktrees.sweep(inhabited):
                log_line(self.config.home, {"at": "start", "a worktree without a session was removed": place})

    async def close(self) -> None:
        await self._engine.close()
        with suppress(RetinueError, OSError):  # what cannot be written down now is found by the next start
            await put_back(self._ports)
        await self._ports.driver.close()
        await self.mcp.close()
        await self._ledger.close()
        self.store.close()
        self._log.close()
        self._owner.close()

    @contextmanager
    def listen(self, heard: Callable[[Event], None]) -> Generator[None]:
        self._listeners.append(heard)
        try:
            yield
        finally:
            self._listeners.remove(heard)

    # runs

    async def run(self, text: str | None, **wishes: Any) -> Run:
        """One run, to its end."""
        return await self.waited(await self.start(text, **wishes))

    async def delete(self, ref: str) -> Session:
        """Put aside under another name, not destroyed; worktrees of it and its children go only when clean."""
        before = await self.sessions()
        session = await super().delete(ref)
        live, after = await self.runs(live=True), await self.sessions()
        await vacate(self._worktrees, before=before, after=after, live=live)
        await self.sent_away({each.id for each in before} - {each.id for each in after})
        return session

    async def cancel(self, ref: str) -> Run:
        run = await self.find_run(ref)
        async with self.turns.of(run.session_id):
            return await super().cancel(run.id)

    @property
    def owner(self) -> str:
        """What other processes hand runs to this one by."""
        return self._owner.id

    async def take_up(self) -> None:
        """What others handed to this process, or roused for it: the oldest first."""
        await run_control.due(self._ports)
        for run in reversed(await self._ledger.look(lambda tx: tx.runs(status=[Status.QUEUED]))):
            if run.owner == self._owner.id:
                self._engine.submit(run.id, ahead=run.started_at is not None)

    async def drain(self, seconds: float) -> None:
        """Begins nothing more, and gives what runs a moment to end."""
        await self._engine.drain(seconds)

    async def resume(self, ref: str | None = None) -> list[Run]:
        """Interrupted runs go on from their files, and so do those whose question nobody answered in time."""
        await run_control.expire(self._ports, alive=self._owner_is_alive, adopt=False)
        await clear_all(self._ports)
        await release(self._ports, self._owner_is_alive)
        if self._beside is not None:
            await self._beside.outlived(self._owner_is_alive)
        if ref is None:
            taken = await take_up(await self.interrupted(), self._ports)
            return [*taken, *await catch_up(self._ports)]
        run = await self.find_run(ref)
        async with self.turns.of(run.session_id):
            return await self._resumed(await self.find_run(run.id))

    async def _resumed(self, run: Run) -> list[Run]:
        if run.status.live and self._lives(run):
            if run.owner == self._worker() != self._owner.id:
                return [run]  # the daemon beside this process goes on with it already
            raise Conflict(f"run {run.id} is being worked by another process")
        if run.waiting_for is Waiting.PERSON and not run.aside:
            return [run]  # it asks a question, and goes on with the answer
        if run.status.live:
            await self.store.find(run.session_id)  # nothing is begun again in a conversation that is gone
        below = await self._ledger.look(lambda tx: descendants(run, tx))
        left = [each for each in below if not self._lives(each) and each.status is not Status.WAITING]
        taken = await take_up(left, self._ports)
        if run.status is Status.WAITING and taken:
            return [run, *taken]  # it goes on when those it waits for have ended
        again = await resume(run.id, self._ports, left_by=run.owner)
        if again.status.final:
            await run_control.given_up(again, self._ports)
        return [again, *taken]

    # the machine

    async def level(self) -> Level:
        """How tightly commands are held here."""
        return await self._commands.level()

    async def sandbox(self, run: Run) -> Level | None:
        """How tightly the run's commands were held at the least; None: it ran none, or what it said is gone. Of one that
        is a program, the program itself: what that says of its own calls is not believed."""
        if held := [
            Level(each.note) for each in await self._deeds(run) if each.tool in PROGRAMS and each.note
        ]:
            return next(each for each in reversed(Level) if each in held)
        if not run.tool_calls:
            return None
        try:
            return await loosest(run.id, self.store.portions(await self.store.find(run.session_id)))
        except NotFound:
            return None

    async def _deeds(self, run: Run) -> list[Deed]:
        return await self._ledger.look(lambda tx: tx.deeds(run.id))

    @asynccontextmanager
    async def beside_daemon(self) -> AsyncGenerator[Terms]:
        """While this lasts, a daemon of this home that was started with the same settings works what is begun here, and
        what it tells is heard here as well. When it dies this process works on by itself."""
        async with beside(self.config, Ear(self._told_elsewhere, self._replies)) as (terms, link):
            self._beside = link
            try:
                yield terms
            finally:
                self._beside = None

    def _worker(self) -> str:
        link = self._beside
        return self._owner.id if link is None or not self._owner_is_alive(link.owner) else link.owner

    def _heard(self, event: Event) -> None:
        """A live event carries the number of the last durable one, so that a listener can place it, and a count."""
        self._log.heard(event)
        if event.seq:
            self._seq = event.seq
            if event.kind == "run.ended":
                self._counted.pop(event.run, None)
            if self._beside is not None and not self._beside.done(event):
                return
        elif self._listeners:
            count = self._counted[event.run] = self._counted.get(event.run, 0) + 1
            event = replace(event, seq=self._seq, n=count)
        self._tell(event)

    async def follow(self, runs: Sequence[Run]) -> None:
        """The daemon looks at those of these runs that are its own, and whatever becomes of the line to it, no word of
        them is missed from now on."""
        if (link := self._beside) is not None:
            link.poke()
            await link.ear.follow(run for run in runs if run.status.live and run.owner == link.owner)

    async def _replies(self, run: Run) -> list[Said]:
        with suppress(RetinueError):
            entries = await self.entries(run.path)
            return [
                each
                for each in entries
                if isinstance(each, Said) and each.by == "agent" and each.run == run.id
            ]
        return []

    def _told_elsewhere(self, event: Event) -> None:
        self._tell(event)
        if event.kind in MOVES:
            self._engine.stir()

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  (whoever listens is not the run, and must not end it)
                self._crashed(event.run, error)

    def _lives(self, run: Run) -> bool:
        return bool(run.owner) and self._owner_is_alive(run.owner)

    def _owner_is_alive(self, owner: str) -> bool:
        return owner == self._owner.id or Owner.alive(self.config.home, owner)

    def _crashed(self, run_id: str, error: BaseException) -> None:
        self.defect(error, run=run_id)

    def defect(self, error: BaseException, **where: str) -> None:
        """A defect of ours: the person gets a sentence, the log gets the rest, without secrets."""
        details = self._ports.redact("".join(traceback.format_exception(error)))
        at = iso(self._ports.chance.now())
        log_line(self.config.home, {"at": at, "level": "error", **where, "error": details})


def _owner(config: Config, *, only_looks: bool) -> Owner | Onlooker:
    """Whoever works runs must be known to live; whoever looks at them can do so where nothing can be written."""
    try:
        return Owner(config.home)
    except NoRoom:
        if not only_looks:
            raise
        return Onlooker()
