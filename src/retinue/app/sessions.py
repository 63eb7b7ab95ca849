"""What a surface asks about conversations, and does to them without a run."""

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from retinue.app.announcement_views import announced
from retinue.app.keyed_lock import Turns
from retinue.app.references import Naming
from retinue.app.session_events import told
from retinue.app.session_status import IDLE, Standing, standing
from retinue.config.load import load
from retinue.domain.agent import Paths
from retinue.domain.approval import Approval, State
from retinue.domain.approval import as_json as approval_as_json
from retinue.domain.clock import Chance
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.question import Question, asked
from retinue.domain.redaction import Redactor, Veil
from retinue.domain.run import Run, Status, Waiting
from retinue.domain.session import RESERVED, Session, found_by, in_order
from retinue.domain.session import as_json as session_as_json
from retinue.domain.transcript import Called, Entry
from retinue.errors import Conflict, NotFound, Refused, RetinueError, Usage
from retinue.interfaces import Ledger, Tx
from retinue.ledger.ledger import SqliteLedger
from retinue.sessions.lookup import LATELY, top_folder
from retinue.sessions.pagination import Span
from retinue.sessions.store import FileStore
from retinue.worker.clock import system_chance
from retinue.worker.process_lock import Owner

LIVE = (Status.QUEUED, Status.RUNNING, Status.WAITING)
_SAID = {"name": "renamed", "pinned_at": "pinned"}
MOST_ATTRIBUTES = 64 * 1024
"""Characters of a session's attributes as JSON."""


class Sessions(Naming):
    """The half of the application that needs no model."""

    def __init__(
        self,
        store: FileStore,
        ledger: Ledger,
        chance: Chance,
        lives: Callable[[Run], bool],
        redact: Redactor,
    ) -> None:
        self.store = store
        self.ledger = ledger
        self.chance = chance
        self.lives = lives
        self.redact = redact
        self.turns = Turns()

    async def sessions(
        self, *, agent: str | None = None, children: bool = True, age: float = 0.0
    ) -> list[Session]:
        """With an `age`, what other processes changed so lately need not show yet."""
        return await self.store.sessions(agent=agent, children=children, age=age)

    async def interrupted(self) -> list[Run]:
        """Runs that nobody works any more and that have not ended, the oldest first; who waits for a yes is not one of
        them, and who waited for room on the disk is: nobody waits for it any more."""
        runs = await self.ledger.look(lambda tx: tx.runs(status=LIVE))
        stands = (None, Waiting.DISK)
        return [run for run in reversed(runs) if not self.lives(run) and run.waiting_for in stands]

    async def session_rows(
        self, *, agent: str | None = None, children: bool = True, words: str = "", limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows for programs: a session, and what is going on in it."""
        found = await self.session_list(agent=agent, children=children, words=words, limit=limit)
        return [session_as_json(session) | stands.as_json() for session, stands in found]

    async def session_list(
        self, *, agent: str | None = None, children: bool = True, words: str = "", limit: int | None = None
    ) -> list[tuple[Session, Standing]]:
        """Sessions with what is going on in each: pinned first, then the newest."""
        found = await self.store.sessions(agent=agent, children=children, age=LATELY)
        if words.strip():
            found = [each for each in found if found_by(each, words)]
        live = await self.standings()
        return [(each, live.get(each.id, IDLE)) for each in in_order(found)[:limit]]

    async def standings(self) -> dict[str, Standing]:
        """What is going on, by session: one look at the ledger for all of them."""
        runs = await self.ledger.look(lambda tx: tx.runs(status=LIVE))
        return {session: standing(some) for session, some in _by_session(runs).items()}

    async def session_json(self, ref: str) -> dict[str, Any]:
        """The shape that `sessions show --json` prints."""
        session = await self.session(ref)
        survey = await self.store.survey(session)
        live = await self.ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id))
        return session_as_json(session) | {
            **standing(live).as_json(),
            "entries": survey.entries,
            "draft": self.redact(await self.store.typed(session)),
            "announcements": await announced(session, await self.store.sessions(age=LATELY), self.ledger),
            "approvals": await self._asked_below(session),
            "questions": [each.as_json() for run in live for each in await self.questions(run)],
            "preset": await self._preset_rules(session),
            "permissions": await self._permissions(session),
            "problems": [*survey.problems, *await self.store.problems(session)],
        }

    async def _asked_below(self, session: Session) -> list[dict[str, Any]]:
        """What the session and those below it wait for a person with, the oldest first, and who of them asks."""
        asked: list[dict[str, Any]] = []
        for approval in await self.ledger.look(lambda tx: tx.approvals(state=[State.PENDING])):
            if (asker := await self._asker(approval)) is None:
                continue
            if session.id in (asker.id, asker.parent) or asker.path.startswith(f"{session.path}/"):
                asked.append(approval_as_json(approval) | {"slug": asker.slug})
        return asked

    async def _asker(self, approval: Approval) -> Session | None:
        """None: it waited too long and counts as denied, or its session is gone."""
        if self.chance.now() >= approval.expires_at:
            return None
        with suppress(NotFound):
            return await self.store.find(approval.session)
        return None

    async def _preset_rules(self, session: Session) -> str:
        """Which definition a session obeys: `live`, its own since a person `edited` it, or its `own` as a child."""
        if not session.top:
            return "own"
        try:
            _, now = await self.store.preset(session)
        except RetinueError:
            return "unreadable"
        return "live" if now == session.preset_hash else "edited"

    async def _permissions(self, session: Session) -> dict[str, Any] | None:
        """What its own preset.md asks for; what applies is the scope's to say."""
        try:
            own, _ = await self.store.preset(session)
        except RetinueError:
            return None
        paths = own.paths or Paths()
        return {
            "tools": {"allow": own.tool_allow, "deny": own.tool_deny},
            "paths": {"read": paths.read, "write": paths.write, "deny": paths.deny},
            "writable": session.workspace.writable,
        }

    async def entries(self, ref: str) -> list[Entry]:
        entries, _ = await self.store.entries(await self.session(ref))
        return entries

    async def questions(self, run: Run) -> list[Question]:
        """What a run and those it asked for want to know of a person, the oldest first."""

        def step(tx: Tx) -> list[Run]:
            waiting = tx.runs(status=[Status.WAITING], root=run.root)
            return [each for each in reversed(waiting) if each.waiting_for is Waiting.PERSON]

        found: list[Question] = []
        for each in await self.ledger.look(step):
            if run.id in (each.id, each.root) and not each.aside:
                question = asked(each, await self.entries(each.path))
                found += [question] if question else []
        return found

    async def portions(self, ref: str) -> AsyncGenerator[list[Entry]]:
        """The same, some entries at a time: for a conversation of any length."""
        async for entries in self.store.portions(await self.session(ref)):
            yield entries

    async def exported(self, ref: str) -> AsyncGenerator[list[Entry]]:
        """The same for others to see: a person may have written a key into the file."""
        async for entries in self.portions(ref):
            yield [_redacted(entry, self.redact) for entry in entries]

    async def text(self, ref: str) -> AsyncGenerator[str]:
        """A conversation as it stands in its file, piece by piece, without secrets."""
        veil = Veil(self.redact)
        async for piece in self.store.text(await self.session(ref)):
            yield veil.shown(piece)
        yield veil.rest()

    async def page(self, ref: str, span: Span) -> list[Entry]:
        """Some entries of a conversation of any length, for others to see."""
        found = await self.store.page(await self.session(ref), span)
        return [_redacted(entry, self.redact) for entry in found]

    async def between(self, ref: str, *, after: str = "", before: str = "") -> AsyncGenerator[list[Entry]]:
        """All entries after one and before another, some at a time, for others to see."""
        async for entries in self.store.between(await self.session(ref), after=after, before=before):
            yield [_redacted(entry, self.redact) for entry in entries]

    async def rename(self, ref: str, name: str) -> Session:
        return await self.change(ref, name=name)

    async def pin(self, ref: str) -> Session:
        return await self.change(ref, pinned=True)

    async def unpin(self, ref: str) -> Session:
        return await self.change(ref, pinned=False)

    async def change(
        self,
        ref: str,
        *,
        name: str | None = None,
        pinned: bool | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Session:
        """What is not said stays. An empty name is none; attributes are added to those that are there, and one that is
        None goes."""
        session = await self.session(ref)
        async with self.turns.of(session.id):
            facts: dict[str, Any] = {}
            if name is not None:
                facts["name"] = self.redact(name) or None
            if pinned is not None:
                facts["pinned_at"] = self.chance.now() if pinned else None
            if attributes is not None:
                facts["attributes"] = _merged((await self.store.find(session.id)).attributes, attributes)
            if not facts:
                return session
            return await self.changed(await self.store.change(session, **facts), *facts)

    async def draft(self, ref: str, text: str) -> None:
        """What a person is typing, kept below the open line of the file; nobody at work there is disturbed."""
        session = await self.session(ref)
        async with self.turns.of(session.id):
            live = await self.ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id))
            if any(not run.aside for run in live):
                raise Conflict(f"{session.slug} is at work: what is typed there is kept when it has ended")
            await self.store.draft(session, self.redact(text))

    async def clear(self, ref: str) -> Session:
        session = await self.session(ref)
        async with self.turns.of(session.id):
            await self._no_live_run(session)
            return await self.changed(await self.store.clear(session), "cleared")

    async def delete(self, ref: str) -> Session:
        """Put aside under another name, not destroyed; its path is where its folder is now."""
        session = await self.session(ref)
        async with self.turns.of(session.id):
            await self._no_live_run(session)
            await self._nothing_left_below(session)
            gone = replace(session, path=await self.store.delete(session), deleted=True)
            return await self.changed(gone, "deleted")

    async def restore(self, ref: str) -> Session:
        """A deleted session is where it was again, as long as it was not swept away."""
        return await self.changed(await self.store.restore(ref), "restored")

    async def branch(
        self, ref: str, *, at: str | None = None, include: bool = True, name: str = ""
    ) -> Session:
        made = await self.store.branch(
            await self.session(ref), at=at, include=include, name=self.redact(name)
        )
        return await self.changed(made, "branched")

    async def changed(self, session: Session, *what: str) -> Session:
        """Tells whoever listens, in any process, what was done to a session."""
        return await told(
            session, ", ".join(_SAID.get(each, each) for each in what), self.ledger, self.chance
        )

    async def _no_live_run(self, session: Session) -> None:
        """Who was interrupted goes on from its file: without it, all that was done would be done again."""
        for run in await self.ledger.look(lambda tx: tx.runs(status=LIVE, session=session.id)):
            if self.lives(run):
                raise Conflict(f"{session.slug} is at work: `retinue runs cancel {run.id}` first")
            raise Conflict(
                f"{session.slug} has a run that was interrupted: `retinue runs resume {run.id}` or "
                f"`retinue runs cancel {run.id}` first"
            )

    async def _nothing_left_below(self, session: Session) -> None:
        """Nobody below it or in its other branches is at work, and no result of it or for it waits to be heard."""
        folder = f"{top_folder(session)}/"
        inner = [each for each in await self.store.sessions() if each.path.startswith(folder)]
        ids = {session.id, *(each.id for each in inner)}

        def step(tx: Tx) -> tuple[list[Run], list[Delivery]]:
            live = [run for run in tx.runs(status=LIVE) if run.session_id in ids - {session.id}]
            pending = tx.deliveries(state=[Delivered.PENDING], answers=False)
            told = [each for each in pending if (run := tx.run(each.run)) and run.session_id in ids]
            return live, [each for each in pending if each.session in ids or each in told]

        live, left = await self.ledger.look(step)
        if live:
            raise Conflict(
                f"{live[0].slug} below {session.slug} is {live[0].status}: `retinue runs cancel {live[0].id}` first"
            )
        if left:
            raise Conflict(
                f"{len(left)} results of or for {session.slug} were not heard: `retinue inbox` shows them, and with "
                "--drain they count as read"
            )


def _by_session(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.session_id, []).append(run)
    return found


def _merged(before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    if ours := sorted(RESERVED & said.keys()):
        raise Refused(f"the attribute {ours[0]!r} is the runtime's own: choose another name")
    merged = {key: value for key, value in (dict(before) | dict(said)).items() if value is not None}
    try:
        size = len(json.dumps(merged))
    except (TypeError, ValueError, RecursionError) as error:
        raise Usage(f"the attributes are no JSON: {error}") from error
    if size > MOST_ATTRIBUTES:
        raise Usage(f"the attributes would be over {MOST_ATTRIBUTES:,} characters long: keep less there")
    return merged


def _redacted(entry: Entry, redact: Redactor) -> Entry:
    if isinstance(entry, Called):
        return replace(entry, tool=redact(entry.tool), args=redact(entry.args))
    return replace(entry, text=redact(entry.text))


@asynccontextmanager
async def open_sessions(*, home: str | None) -> AsyncGenerator[Sessions]:
    """That half alone, on this machine's files. Nothing is written that is not asked for, so that conversations can
    be listed and read where nothing can be written."""
    config = load(os.environ, home=home)
    folder = config.home
    chance = system_chance()
    store = FileStore(folder / "sessions", chance)
    ledger = SqliteLedger(folder / "ledger.db")
    store.sweep()
    try:
        alive = partial(Owner.alive, folder)
        redact = Redactor(config.secrets())
        yield Sessions(store, ledger, chance, lambda run: bool(run.owner) and alive(run.owner), redact)
    finally:
        await ledger.close()
        store.close()
