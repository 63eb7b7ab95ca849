"""What every surface speaks to: run, send, wait, cancel, list, show."""

import os
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from retinue.app.commands import Commands, loosest
from retinue.app.doctor import (
    Finding,
    the_conversations,
    the_definitions,
    the_ledger,
    the_machine,
    the_sandbox,
)
from retinue.app.inbox import Inbox
from retinue.app.log import log_line
from retinue.app.operator import Operator
from retinue.app.rights import DEFAULT_AGENT, Rights
from retinue.app.sessions import LIVE, Sessions
from retinue.app.steering import Steering
from retinue.app.vacancy import vacate, workplaces
from retinue.app.wiring import Question, check_model, drivers_of, models, orders, tool_table
from retinue.config import Config
from retinue.domain.agent import Agent
from retinue.domain.approval import Policy
from retinue.domain.deed import Deed, Progress
from retinue.domain.deed import as_json as deed_as_json
from retinue.domain.event import Event
from retinue.domain.level import Level
from retinue.domain.redact import Redactor
from retinue.domain.run import ENDS, Ask, Run, Status, iso
from retinue.domain.session import Session
from retinue.domain.transcript import Said
from retinue.drivers.gateway import Gateway
from retinue.engine.chance import system_chance
from retinue.engine.local import LocalEngine
from retinue.engine.owner import Owner, sweep
from retinue.errors import BadDefinition, NobodyHere, NotFound, Refused, RetinueError, Usage
from retinue.ledger.sqlite import SqliteLedger
from retinue.ports import Ports, Tool, Tx
from retinue.runtime import control
from retinue.runtime.announce import clear_all
from retinue.runtime.place import Child
from retinue.runtime.prepare import definition
from retinue.runtime.recover import resume, resume_all
from retinue.runtime.send import send
from retinue.runtime.spawn import begin, spawn
from retinue.sandbox.fileguard import GuardedFiles
from retinue.sandbox.worktree import Worktrees
from retinue.store.catalogue import DefinitionCatalogue
from retinue.store.files import FileStore
from retinue.store.frontmatter import with_paths, with_prompt
from retinue.store.trust import Trust


class App(Sessions, Rights, Inbox, Steering):
    """What every surface speaks to: run, send, wait, cancel, list, show."""

    def __init__(self, config: Config, tools: Sequence[Tool], ask: Question) -> None:
        self.config = config
        self._listeners: list[Callable[[Event], None]] = []
        self._engine = LocalEngine()
        table = tool_table(config, tools)
        with suppress(OSError):  # what is left behind by others must not keep us from starting
            sweep(config.home)
        self._owner = Owner(config.home)
        self._ledger_seen = False
        self._commands = Commands(config)
        with suppress(OSError):  # the same
            for note in self._commands.sweep():
                log_line(config.home, {"at": "start", "left by a command that was killed": note})
        self._seq = 0
        self._ledger = SqliteLedger(config.home / "ledger.db", listen=self._heard)
        chance, redact = system_chance(), Redactor(config.secrets())
        self.operator = Operator(config, now=chance.now)
        Sessions.__init__(
            self, FileStore(config.home / "sessions", chance), self._ledger, chance, self._lives, redact
        )
        self.store.sweep()
        self.trust = Trust(config.home / "trust.json")
        self.agents = DefinitionCatalogue(
            user_dir=config.agents_dir, inline=config.agents, trust=self.trust, ceiling=config.ceiling
        )
        self._worktrees = Worktrees(
            config.home / "worktrees",
            held=lambda scope: self._ports.shell(scope),  # noqa: PLW0108  (the ports are not there yet)
            level=lambda: self._ports.level(),  # noqa: PLW0108  (the same)
            trusted=self.trust.trusts,
        )
        ports = Ports(
            store=self.store,
            agents=self.agents,
            ledger=self._ledger,
            engine=self._engine,
            driver=Gateway(drivers_of(config), chance),
            chance=chance,
            tools=table,
            files=GuardedFiles,
            shell=self._commands.shell,
            level=self._commands.level,
            minimum=Level(config.sandbox_minimum),
            policy=Policy(config.approvals),
            worktree=self._worktrees.make,
            drop_worktree=lambda place: self._worktrees.remove(place.root, place.source),
            tmp=lambda session: str(config.home / "tmp" / session.id),
            emit=self._heard,
            ask=ask,
            model=models(config, redact),
            limits=config.limits,
            bounds=self.operator,
            with_paths=with_paths,
            with_prompt=with_prompt,
            subagents=config.subagents,
            keeps=config.keeps,
            owner=self._owner.id,
            alive=self._owner_is_alive,
            redact=redact,
        )
        Rights.__init__(self, ports, self.store, self._owner_is_alive)
        Steering.__init__(self, ports, self._owner_is_alive)
        self._engine.start(orders(self._ports, self._crashed, self._owner_is_alive))

    async def sweep(self) -> None:
        """Worktrees that a crash left before their session was there. Nothing of it keeps anybody from starting."""

        async def inhabited() -> set[str]:
            return workplaces(await self.sessions(), await self.runs(live=True))

        with suppress(OSError, RetinueError):
            for place in await self._worktrees.sweep(inhabited):
                log_line(self.config.home, {"at": "start", "a worktree without a session was removed": place})

    async def close(self) -> None:
        await self._engine.close()
        await self._ports.driver.close()
        await self._ledger.close()
        self.store.close()
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
        return await self.wait((await self.start(text, **wishes)).id)

    async def start(  # noqa: PLR0913  (the wishes of `retinue run`, one each)
        self,
        text: str | None,
        *,
        agent: str | None = None,
        session: str | None = None,
        model: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        label: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        thinking: str | None = None,
        owner: str | None = None,
    ) -> Run:
        """Everything that can be wrong is found before anything is written. With `owner`, another process works it."""
        self.agents.ensure_general()
        chosen = await self._chosen(session, agent)
        about = await self._about(chosen, agent, workspace)
        check_model(self._ports.model(about, model), self.config)
        if chosen is not None and (going_on := await self.answered(chosen, text, model=model, owner=owner)):
            return going_on
        typed = text is None
        if chosen is None:
            if text is None or not text.strip():
                raise Usage(
                    "there is nothing to do: give the task as TEXT, or `-` to read it from standard input"
                )
            await self._ledger_opens()
            chosen = await begin(about.name, _folder(workspace), self._ports)
        else:
            text = await self._words(chosen, text)
        ask = Ask(
            key=f"once:{self._ports.chance.uuid()}",
            agent=chosen.agent,
            task=text,
            typed=typed,
            session=chosen.id,
            label=label,
            model=model,
            thinking=thinking,
            deadline_seconds=timeout,
        )
        return await send(ask, chosen, self._ports, owner=owner)

    async def spawn(  # noqa: PLR0913  (the wishes of `retinue spawn`, one each)
        self,
        text: str,
        *,
        parent: str,
        agent: str,
        description: str = "",
        allowed_paths: Sequence[str] | None = None,
        denied_paths: Sequence[str] | None = None,
        model: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        label: str = "",
    ) -> Run:
        """A child of a session, with its own copy of the definition."""
        if not text.strip():
            raise Usage("there is nothing to do: give the child's task as TEXT")
        above = await self.store.find(parent)
        check_model(self._ports.model(self._template(agent, above), model), self.config)
        await self._ledger_opens()
        ask = Ask(
            key=f"once:{self._ports.chance.uuid()}",
            agent=agent,
            task=text,
            requester=above.key,
            door="PersistentAgent",
            source="subagent",
            trigger="command",
            label=label or description,
            model=model,
            deadline_seconds=timeout,
        )
        child = Child(
            parent=above,
            description=description or label or " ".join(text.split()[:6]),
            allowed_paths=allowed_paths,
            denied_paths=denied_paths,
            by_person=True,
        )
        return await spawn(ask, child, self._ports)

    async def wait(self, run_id: str) -> Run:
        """Until nothing of its tree goes on: it has ended, or needs a person."""
        while True:
            await self._engine.wait(run_id)
            run = await self.find_run(run_id)
            stands = run.status in (Status.WAITING, *ENDS)
            if stands and not await self._ledger.look(partial(_moving, run.root)):
                return await self.find_run(run_id)
            await self._engine.change()

    async def delete(self, ref: str) -> Session:
        """Put aside under another name, not destroyed; worktrees of it and its children go only when clean."""
        before = await self.sessions()
        session = await super().delete(ref)
        live = await self.runs(live=True)
        await vacate(self._worktrees, before=before, after=await self.sessions(), live=live)
        return session

    @property
    def owner(self) -> str:
        """What other processes hand runs to this one by."""
        return self._owner.id

    async def take_up(self) -> None:
        """What others handed to this process, or roused for it."""
        await control.due(self._ports)
        for run in await self._ledger.look(lambda tx: tx.runs(status=[Status.QUEUED])):
            if run.owner == self._owner.id:
                self._engine.submit(run.id, ahead=run.started_at is not None)

    async def moving(self) -> bool:
        """Whether anything goes on, here or elsewhere."""
        return bool(
            await self._ledger.look(lambda tx: tx.runs(status=[Status.QUEUED, Status.RUNNING], limit=1))
        )

    async def drain(self, seconds: float) -> None:
        """Begins nothing more, and gives what runs a moment to end."""
        await self._engine.drain(seconds)

    async def resume(self, ref: str | None = None) -> list[Run]:
        """Interrupted runs go on from their files, and so do those whose question nobody answered in time."""
        await control.expire(self._ports, alive=self._owner_is_alive, adopt=False)
        await clear_all(self._ports)
        if ref is None:
            return await resume_all(await self.interrupted(), self._ports)
        run = await self.find_run(ref)
        if run.status.live and self._lives(run):
            raise Refused(f"run {run.id} is being worked by another process")
        return [await resume(run.id, self._ports, left_by=run.owner)]

    async def runs(self, *, live: bool, limit: int | None = None) -> list[Run]:
        return await self._ledger.look(
            lambda tx: tx.runs(status=LIVE if live else None, limit=limit, family=True)
        )

    async def find_run(self, ref: str) -> Run:
        """By id or unambiguous prefix."""
        if not ref:
            raise Usage("say which run: `retinue runs history` lists them")

        def step(tx: Tx) -> list[Run]:
            exact = tx.run(ref, family=True)
            return [exact] if exact else tx.runs(prefix=ref, limit=2, family=True)

        found = await self._ledger.look(step)
        if not found:
            raise NotFound(f"there is no run {ref}: `retinue runs history` lists them")
        if len(found) > 1:
            raise Usage(f"{ref} could be several runs: {', '.join(run.id for run in found)} …")
        return found[0]

    async def delivery(self, run: Run) -> dict[str, Any] | None:
        """What became of telling a run's end to the agent that asked for it; None: no agent did."""
        found = await self._ledger.look(lambda tx: tx.deliveries(run=run.id))
        return {"state": str(found[0].state), "attempts": found[0].attempts} if found else None

    async def effects(self, run: Run) -> list[dict[str, Any]]:
        """What a run did that must not happen twice; one that was begun and never ended has an unknown outcome."""
        found = await self._ledger.look(lambda tx: tx.deeds(run.id))
        return [deed_as_json(each.lost() if _cut_off(each, run) else each) for each in found]

    # the machine

    async def sandbox(self, run: Run) -> Level | None:
        """How tightly the run's commands were held at the least; None: it ran none."""
        if not run.tool_calls:
            return None
        return await loosest(run.id, self.store.portions(await self.store.find(run.session_id)))

    async def doctor(self) -> list[Finding]:
        """What is well, what is not, and what to do about it."""
        findings = the_machine(self.config)
        findings += the_sandbox(
            await self._commands.level(), await self._commands.lacks(), self._ports.minimum
        )
        findings += the_definitions(self.agents.broken(), [each.agent for each in self.agents.all()])
        state = the_ledger(self._ledger.path)
        findings += state
        if all(one.level == "ok" for one in state):
            runs = await self.runs(live=False)
            findings += await the_conversations(self.store, await self.sessions(), runs)
            if lost := await self.interrupted():
                findings.append(
                    Finding(level="warn", what=f"{len(lost)} runs interrupted", do="retinue runs resume")
                )
        return findings

    # inside

    async def _chosen(self, session: str | None, agent: str | None) -> Session | None:
        """The session a run goes into; None is a new one."""
        if session is None or session == "create":
            return None
        if session in ("latest", "latest-or-create"):
            name = DEFAULT_AGENT if agent is None else agent
            found = await self.store.sessions(agent=name, children=False)
            if not found and session == "latest":
                raise NotFound(f"No existing session for agent {name}: leave --session out to begin one")
            return await self.store.find(found[0].path) if found else None
        chosen = await self.store.find(session)
        if agent is not None and chosen.agent != agent:
            raise Refused(
                f"Session does not belong to this agent: {chosen.slug} is {chosen.agent}'s, not {agent}'s"
            )
        return chosen

    async def _about(
        self, chosen: Session | None, agent: str | None, workspace: str | os.PathLike[str] | None
    ) -> Agent:
        name = agent or DEFAULT_AGENT if chosen is None else chosen.agent
        self._not_denied(name)
        if chosen is not None:
            return await definition(chosen, self._ports)
        return self.agents.get(DEFAULT_AGENT if agent is None else agent, _folder(workspace)).agent

    async def _ledger_opens(self) -> None:
        """Seen once, before the first folder is made: a ledger that cannot be used leaves no session behind."""
        if not self._ledger_seen:
            await self._ledger.look(lambda tx: tx.count(Status.RUNNING))
            self._ledger_seen = True

    def _template(self, name: str, above: Session) -> Agent:
        """What a child is made from; a definition that is there and broken is told with its own words."""
        self._not_denied(name)
        try:
            return self.agents.get(name, above.workspace.meant).agent
        except NotFound as error:
            if isinstance(error.__cause__, BadDefinition):
                raise
            raise NotFound(f"Preset template not found: {name} (checked .md and .org)") from error

    async def _words(self, session: Session, text: str | None) -> str:
        """The task: what was given, else what a person typed at the end of the file. Held is found here."""
        await self._not_asking(session)
        if await self._worked_here(session):
            if text is None:
                raise Usage(f"{session.slug} is at work: give the text to queue behind it")
            return text
        if text is not None:
            await self.store.free(session)
            return text
        async with self.store.open(session) as talk:
            if (words := talk.typed()).strip():
                return words
            if talk.entries and isinstance(last := talk.entries[-1], Said) and last.by == "user":
                return last.text
        where = f"{session.path}/session.md"
        raise Usage(f"nothing is typed at the end of {where}: write below its last line, or give the text")

    async def _not_asking(self, session: Session) -> None:
        """A conversation that waits for a person's yes goes on with that first; more words would only wait behind it."""
        runs = await self._ledger.look(lambda tx: tx.runs(status=[Status.WAITING], session=session.id))
        for run in runs:
            if waiting := await self.awaited(run):
                raise NobodyHere(
                    f"{session.slug} waits for an approval: `retinue approvals show {waiting[0]}`, then "
                    f"`retinue approvals answer {waiting[0]} allow` or deny"
                )

    async def _worked_here(self, session: Session) -> bool:
        runs = await self._ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id))
        return any(run.owner == self._owner.id for run in runs)

    def _heard(self, event: Event) -> None:
        """A live event carries the number of the last durable one, so that a listener can place it."""
        if event.seq:
            self._seq = event.seq
        elif self._listeners:
            event = replace(event, seq=self._seq)
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
        """A defect of ours: the person gets a sentence, the log gets the rest, without secrets."""
        details = "".join(traceback.format_exception(error))
        line = {
            "at": iso(self._ports.chance.now()),
            "level": "error",
            "run": run_id,
            "error": self._ports.redact(details),
        }
        log_line(self.config.home, line)


def _cut_off(deed: Deed, run: Run) -> bool:
    return deed.progress is Progress.STARTED and run.status.final


def _moving(root: str, tx: Tx) -> int:
    """How many runs of a tree go on by themselves."""
    return sum(tx.count(status, root=root) for status in (Status.QUEUED, Status.RUNNING))


def _folder(workspace: str | os.PathLike[str] | None) -> str:
    root = os.path.realpath(Path.cwd() if workspace is None else workspace)
    if not Path(root).is_dir():
        raise Usage(f"the workspace {workspace} is not a folder")
    return root
