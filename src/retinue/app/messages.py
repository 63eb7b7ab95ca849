"""Talking: a program begins a conversation, says something in it, and gets one answer in one shape."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from retinue.agents.registry import DefinitionCatalogue
from retinue.app.keyed_lock import Turns
from retinue.app.references import Naming
from retinue.app.run_control import entry_for
from retinue.app.session_events import told
from retinue.app.sessions import LIVE
from retinue.app.tree_activity import ahead, moving_in
from retinue.domain.agent import NAME
from retinue.domain.approval import Approval
from retinue.domain.question import Question
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.session import Session
from retinue.domain.transcript import Said
from retinue.domain.value import value
from retinue.errors import Conflict, NotFound, Refused, Usage
from retinue.interfaces import Ports, Tx
from retinue.runtime.spawn import begin
from retinue.sessions.pagination import Span
from retinue.sessions.window import WINDOW
from retinue.tools.delegation.agents_message import CREATE, LATEST, LATEST_OR_CREATE, behind, reported
from retinue.worker.worker import LocalEngine

HTTP = "http"
"""The door of what programs say."""
KEYED = f"{HTTP}:"
"""What the key of a wish begins with that a program gave a key of its own."""
MOST_KEY = 200
MOST_ANSWERS = 10_000
APPROVAL = (
    "{agent} waits for a person's yes to {tool}: GET /api/approvals/{id} shows to what, and POST /api/approvals/{id} with "
    '{{"answer": "allow"}} or {{"answer": "deny"}} lets it go on.'
)
WORDS = "{agent} waits for words of a person: POST /api/sessions/{session}/messages says them, and it goes on. {words}"
LATER = "GET /api/runs/{run} tells what becomes of it, and GET /api/events when."


@value
class Message:
    """What is said to a session, and how its answer is waited for."""

    content: str
    wait: bool = True
    timeout: float = 300
    """Seconds; 0 is the longest there is."""
    key: str = ""
    """Whoever says the same with the same key says it once."""


class Talking(Naming, ABC):
    """The part of the application that programs converse with."""

    agents: DefinitionCatalogue
    redact: Redactor
    turns: Turns
    _answers: dict[str, tuple[str, str]]
    """Key → run and words, of messages that went on with a run that waited for them."""
    _ports: Ports
    _engine: LocalEngine

    @abstractmethod
    async def questions(self, run: Run) -> list[Question]: ...

    @abstractmethod
    async def asked_in(self, run: Run) -> list[Approval]: ...

    @abstractmethod
    async def find_run(self, ref: str) -> Run: ...

    @abstractmethod
    async def start(
        self,
        text: str | None,
        *,
        agent: str | None = None,
        session: str | None = None,
        workspace: str | None = None,
        key: str = "",
        door: str = "cli",
    ) -> Run: ...

    @abstractmethod
    async def _ledger_opens(self) -> None: ...

    @abstractmethod
    def _not_denied(self, name: str) -> None: ...

    async def create(self, agent: str, *, name: str | None = None, workspace: str | None = None) -> Session:
        """A new session, idle until something is said in it. Without a workspace it works where this process is, or in
        the person's home when that is nowhere."""
        self.agents.ensure_general()
        if not NAME.fullmatch(agent):
            raise self.agents.missing(agent)
        self._not_denied(agent)
        root = _folder(workspace)
        self.agents.get(agent, root)
        await self._ledger_opens()
        made = await begin(agent, root, self._ports, name=None if name is None else self.redact(name))
        return await told(made, "created", self._ports.ledger, self._ports.chance)

    async def message(self, ref: str, message: Message) -> tuple[Run, dict[str, Any]]:
        """The run that answers it, and what became of that so far. Whoever stops waiting stops nothing else."""
        _sayable(message)
        return await self._told(await self._said(await self.named(ref), message), message)

    async def address(
        self, agent: str, message: Message, *, session: str, workspace: str | None = None
    ) -> tuple[Run, dict[str, Any]]:
        """The same to an agent: in its latest conversation, in a new one, or in one that is named and is its own. The
        workspace is that of a new one."""
        _sayable(message)
        self.reachable(agent, workspace)
        async with self.turns.of(f"agent {agent}"):
            chosen = await self._conversation(agent, session, message)
            if chosen is not None:
                run = await self._said(chosen, message)
            else:
                key = f"{KEYED}{message.key}" if message.key else ""
                place = _folder(workspace)
                run = await self.start(message.content, agent=agent, workspace=place, key=key, door=HTTP)
        return await self._told(run, message)

    def reachable(self, agent: str, workspace: str | None = None) -> None:
        """NotFound where there is no such agent; Refused where the configuration denies it, or no list shows it."""
        self.agents.ensure_general()
        if not NAME.fullmatch(agent):
            raise self.agents.missing(agent)
        self._not_denied(agent)
        if not self.agents.get(agent, _folder(workspace)).agent.ui_visible:
            raise Refused(f"Agent not accessible: {agent}: its definition says ui_visible: false")

    async def _conversation(self, agent: str, wanted: str, message: Message) -> Session | None:
        """Which one is meant; None: a new one. A key means the one that the first message with it went to."""
        key = f"{KEYED}{message.key}"
        if message.key and (first := await self._ports.ledger.look(lambda tx: tx.run_by_key(key))):
            if first.agent != agent:
                raise _taken(message.key, first)
            return await self.store.find(first.session_id)
        if wanted == CREATE:
            return None
        if wanted in (LATEST, LATEST_OR_CREATE):
            found = await self.store.sessions(agent=agent, children=False)
            if not found and wanted == LATEST:
                raise NotFound(f"No existing session for agent {agent}: {LATEST_OR_CREATE} begins one")
            return await self.store.find(found[0].path) if found else None
        try:
            chosen = await self.named(wanted)
        except NotFound as missing:
            raise NotFound(f"Session not found: {missing}") from missing
        if chosen.agent != agent:
            raise Conflict(f"Session does not belong to this agent: {chosen.slug} is {chosen.agent}'s")
        return chosen

    async def _told(self, run: Run, message: Message) -> tuple[Run, dict[str, Any]]:
        seconds = float(self._ports.limits.deadline(message.timeout))
        if message.wait and not await self._ports.ledger.look(lambda tx: behind(run, tx)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._at_rest(run)
        now = await self.find_run(run.id)
        facts = await reported(now, self._ports, wait=message.wait, seconds=seconds, later=LATER)
        asks = message.wait or now.status is Status.QUEUED
        return now, facts | (await self._asking(now) if asks else {})

    async def _said(self, session: Session, message: Message) -> Run:
        async with self.turns.of(session.id):
            key = f"{KEYED}{message.key}" if message.key else ""
            if key and (first := await self._before(session, key)):
                return self._same(*first, session, message)
            await self._undraft(session, message.content)
            run = await self.start(message.content, session=session.id, key=key, door=HTTP)
            if not key or run.ask.key == key:
                return self._same(run, run.ask.task or "", session, message) if key else run
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = (run.id, self.redact(message.content))
            return run

    async def _before(self, session: Session, key: str) -> tuple[Run, str] | None:
        """What came of this key before: a run, and the words. Words to a run that waited for them stand in the file;
        what answered a question of it stands there without a key, and this process remembers it."""
        if first := await self._ports.ledger.look(lambda tx: tx.run_by_key(key)):
            return first, first.ask.task or ""
        if key in self._answers:
            run, words = self._answers[key]
            return await self.find_run(run), words
        span = Span(limit=1, around=entry_for(key), within=WINDOW)
        with suppress(NotFound):
            for entry in await self.store.page(session, span):
                if isinstance(entry, Said):
                    return await self.find_run(entry.run), entry.text
        return None

    def _same(self, run: Run, words: str, session: Session, message: Message) -> Run:
        """A key that stands for something else is a mistake of whoever gives it."""
        if run.session_id == session.id and words == self.redact(message.content):
            return run
        raise _taken(message.key, run)

    async def _undraft(self, session: Session, content: str) -> None:
        """What was kept while a person typed the beginning of this is part of it: it is not said twice."""
        live = await self._ports.ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id))
        typed = "" if any(not run.aside for run in live) else await self.store.typed(session)
        if typed and content.strip().startswith(typed.strip()):
            await self.store.draft(session, "")

    async def _asking(self, run: Run) -> dict[str, Any]:
        """What a run that waits for a person says meanwhile: for words, or for what only a person can decide. So does
        one that waits its turn behind such a run."""
        if not run.status.live:
            return {}
        questions = await self.questions(run)
        if run.waiting_for is Waiting.PERSON:
            asked = [each.told() for each in questions]
            says = " ".join([*asked, "It waits for a person: say how to go on, and the same run does."])
            return {"status": "waiting", "response": run.text, "timeoutSeconds": None, "message": says}
        says = [
            APPROVAL.format(id=each.id, agent=each.agent, tool=each.tool) for each in await self.asked_in(run)
        ]
        for above in await self._ports.ledger.look(partial(ahead, run)):
            questions += await self.questions(above)
        for below in await self._ports.ledger.look(partial(_spoken_to, run)):
            words = [each.told() for each in questions if each.run == below.id]
            says.append(
                WORDS.format(agent=below.agent, session=below.session_id, words=" ".join(words)).strip()
            )
        return {"message": " ".join([*says, LATER.format(run=run.id)])} if says else {}

    async def _at_rest(self, run: Run) -> None:
        """Until it has ended, or nothing of it goes on before a person has said something. Others may work it, or answer
        what it asks."""
        while True:
            await self._engine.wait(run.id)
            now = await self.find_run(run.id)
            if now.status.final or (now.status is Status.WAITING and now.waiting_for is Waiting.PERSON):
                return
            if now.status is Status.WAITING and await self._stands(now):
                return
            await self._engine.change()

    async def _stands(self, run: Run) -> bool:
        """Whether all of its tree waits, and a person can do something about it."""
        if await self._ports.ledger.look(partial(moving_in, run.root)):
            return False
        return bool(await self.asked_in(run) or await self._ports.ledger.look(partial(_spoken_to, run)))


def _sayable(message: Message) -> None:
    if not message.content.strip():
        raise Usage("the content is empty: say something")
    if len(message.key) > MOST_KEY or not message.key.isprintable():
        raise Usage(f"a key is at most {MOST_KEY} characters that can be seen")


def _taken(key: str, run: Run) -> Conflict:
    return Conflict(f"the key {key!r} was given for another message: run {run.id} in {run.slug}")


def _spoken_to(run: Run, tx: Tx) -> list[Run]:
    """Those that wait for words of a person, of the ones that a run asked for, or that one before it in its
    conversation did; the oldest first."""
    roots = [each.root for each in (run, *ahead(run, tx)) if each.root == each.id]
    waiting = [each for root in roots for each in reversed(tx.runs(status=[Status.WAITING], root=root))]
    return [each for each in waiting if each.waiting_for is Waiting.PERSON and each.id != run.id]


def _folder(workspace: str | None) -> str:
    here = Path.cwd()
    chosen = (Path.home() if here == Path("/") else here) if workspace is None else Path(workspace)
    if not chosen.is_absolute():
        raise Usage(f"the workspace {workspace} is no absolute path: say where it is from / on")
    try:
        root = chosen.resolve()
        there = root.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise Usage(f"the workspace {workspace} cannot be looked at: {error}") from error
    if not there:
        raise Usage(f"the workspace {workspace} is not a folder")
    return str(root)
