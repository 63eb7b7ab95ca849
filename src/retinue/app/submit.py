"""Giving work: a text becomes a run of a session, a new one or one that is there."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from retinue.agents.registry import DefinitionCatalogue
from retinue.app.composition import check_model
from retinue.app.permissions import DEFAULT_AGENT
from retinue.app.references import Naming
from retinue.app.run_control import said
from retinue.app.sessions import LIVE
from retinue.config.load import Config
from retinue.domain.agent import Agent, Role, WorkspacePolicy
from retinue.domain.rules import below
from retinue.domain.run import Ask, Run, Status
from retinue.domain.session import Session
from retinue.domain.transcript import Said
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition, NotFound, Refused, Usage
from retinue.interfaces import Ports
from retinue.ledger.ledger import SqliteLedger
from retinue.runtime.child_workspace import Child, overridden
from retinue.runtime.exit_tools import known
from retinue.runtime.run_creation import send
from retinue.runtime.run_plan import definition
from retinue.runtime.spawn import begin, spawn

COMMAND = "command"


class Giving(Naming, ABC):
    """The part of the application in which work is given."""

    config: Config
    agents: DefinitionCatalogue
    _ports: Ports
    _ledger: SqliteLedger
    _ledger_seen: bool

    @abstractmethod
    async def answered(
        self,
        session: Session,
        text: str | None,
        *,
        model: str | None = None,
        owner: str | None = None,
        key: str = "",
    ) -> Run | None:
        """The run of a conversation that waited for a person's words, with these; None: none does."""

    @abstractmethod
    def _not_denied(self, name: str) -> None: ...

    async def start(  # noqa: PLR0913  (the wishes of `retinue run`, one each)
        self,
        text: str | None,
        *,
        agent: str | None = None,
        session: str | None = None,
        model: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        isolation: str | None = None,
        writable: bool | None = None,
        label: str = "",
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        thinking: str | None = None,
        owner: str | None = None,
        key: str = "",
        door: str = "cli",
        trigger: str = COMMAND,
    ) -> Run:
        """Everything that can be wrong is found before anything is written. With `owner`, another process works it.
        `isolation` and `writable` are said of a new session's workspace, instead of what the definition says. With a
        `key`, the same wish given twice is one run."""
        self.agents.ensure_general()
        chosen = await self._chosen(session, agent)
        if chosen is not None:
            _unsaid(chosen, isolation, writable)
        about = await self._about(chosen, agent, workspace)
        check_model(self._ports.model(about, model), self.config)
        known(about, self._ports)
        at_work = [] if chosen is None else await self._at_work(chosen, text)
        if (
            chosen is not None
            and at_work
            and (going_on := await self.answered(chosen, text, model=model, owner=owner, key=key))
        ):
            return going_on
        typed, known_before = text is None, chosen is not None
        if chosen is None:
            if text is None or not text.strip():
                raise Usage(
                    "there is nothing to do: give the task as TEXT, or `-` to read it from standard input"
                )
            policy = _placed(about, workspace, isolation, writable)
            await self._ledger_opens()
            chosen = await begin(about.name, _folder(workspace), self._ports, policy=policy)
        else:
            text = await self._words(chosen, text, at_work)
        ask = Ask(
            key=key or f"once:{self._ports.chance.uuid()}",
            agent=chosen.agent,
            task=text,
            typed=typed,
            session=chosen.id if known_before else None,
            door=door,
            label=label,
            model=model,
            thinking=thinking,
            deadline_seconds=timeout,
            role=Role.PRIMARY,
            trigger=trigger,
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
        workspace: str | os.PathLike[str] | None = None,
        isolation: str | None = None,
        writable: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (the run's deadline, not this call's)
        label: str = "",
        trigger: str = COMMAND,
        key: str = "",
    ) -> Run:
        """A child of a session, with its own copy of the definition. A `workspace` that a person names is theirs to
        give: the child reads it, whatever its parent could hand on. `trigger` says what set it off; what is set off from
        within a conversation, by a slash command or a key, leaves its result in the inbox. With a `key`, the same wish
        given twice is one run."""
        if not text.strip():
            raise Usage("there is nothing to do: give the child's task as TEXT")
        above = await self.session(parent)
        about = self._template(agent, above)
        check_model(self._ports.model(about, model), self.config)
        if workspace is not None:
            isolation = isolation or Isolation.CUSTOM
            if isolation != Isolation.CUSTOM:
                raise Usage(
                    f"--isolation {isolation} begins from the parent's own folder: leave --workspace out, or say custom"
                )
            allowed_paths = (below(_folder(workspace)),) if allowed_paths is None else allowed_paths
        placed = _placed(about, workspace, isolation, writable)
        await self._ledger_opens()
        ask = Ask(
            key=key or f"once:{self._ports.chance.uuid()}",
            agent=agent,
            task=text,
            requester=above.key,
            door="PersistentAgent",
            source="subagent",
            trigger=trigger,
            inbox="" if trigger == COMMAND else above.id,
            label=label or description,
            model=model,
            deadline_seconds=timeout,
        )
        child = Child(
            parent=above,
            description=description or label or " ".join(text.split()[:6]),
            allowed_paths=allowed_paths,
            denied_paths=denied_paths,
            workspace=placed,
            by_person=True,
        )
        return await spawn(ask, child, self._ports)

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
        chosen = await self.session(session)
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

    async def _at_work(self, session: Session, text: str | None) -> list[Run]:
        """What lives of a session's runs: where nothing does, nobody waits for words either."""
        said(text)
        return await self._ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id))

    async def _words(self, session: Session, text: str | None, at_work: Sequence[Run]) -> str:
        """The task: what was given, else what a person typed at the end of the file. Held is found here."""
        if any(run.owner in (self._ports.owner, self._ports.worker()) for run in at_work):
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


def _placed(
    agent: Agent, workspace: str | os.PathLike[str] | None, isolation: str | None, writable: bool | None
) -> WorkspacePolicy:
    """The definition's policy with what a person says of it for this one session."""
    kind = None if isolation is None else Isolation(isolation)
    if kind is Isolation.CUSTOM and workspace is None:
        raise Usage("--isolation custom is for a folder that you name: add --workspace DIR")
    folder = _folder(workspace) if kind is Isolation.CUSTOM else None
    placed = overridden(agent.workspace, isolation=kind, folder=folder, writable=writable)
    if writable and not placed.writable:
        kept = "writable: false" if agent.workspace.writable is False else "isolation: sandbox"
        raise Refused(
            f"{agent.name} may not write there: its definition says workspace {kept}, and no option lifts that; "
            "leave --writable out, or change the definition"
        )
    return placed


def _unsaid(session: Session, isolation: str | None, writable: bool | None) -> None:
    if isolation is not None or writable is not None:
        raise Usage(
            f"{session.slug} has its workspace already: --isolation, --writable and --read-only are for a new session"
        )


def _folder(workspace: str | os.PathLike[str] | None) -> str:
    root = os.path.realpath(Path.cwd() if workspace is None else workspace)
    if not Path(root).is_dir():
        raise Usage(f"the workspace {workspace} is not a folder")
    return root
