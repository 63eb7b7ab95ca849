"""What a person sees of the results that agents leave each other, and does with them."""

from operator import itemgetter
from typing import Any

from retinue.app.references import Naming
from retinue.domain.delivery import Delivery, as_json, block, error, harmless, report
from retinue.domain.delivery import State as Delivered
from retinue.domain.event import Event
from retinue.domain.run import Run, Status, iso_seconds
from retinue.domain.session import Session
from retinue.domain.transcript import Said
from retinue.domain.watch import Interjection, inbox_row, words_of
from retinue.errors import Conflict, NotFound, Usage
from retinue.interfaces import Ports, Tx
from retinue.runtime.inbox import Row, rows, waiting
from retinue.runtime.interjections import dismiss, named
from retinue.runtime.run_creation import LIVE
from retinue.runtime.run_end import heard, nonce

PERSON = "person"
RECENT = 50
"""Results that were taken already and are shown beside those that were not."""
PASSED = "-passed"
"""What the id of a result that was announced before gets when a person passes it on as well."""
PASSED_ON = "A person passes on to you what {agent} found:"
SAID_OF_YOU = "A person passes on to you what {agent}, who watches, says about your work:"
RESULT = {"kind": "result", "severity": None, "reason": None, "suggestion": None, "interrupts": None}
"""What only interjections say."""

Shown = dict[str, Any]


class Inbox(Naming):
    """The part of the application that tells what came of work that was handed on."""

    _ports: Ports

    async def inbox(self, session: str | None = None, *, recent: int = RECENT) -> list[Shown]:
        """Who is at work for another agent, results that nobody has taken, and some that were taken: the newest first.
        Of one session, or of all."""
        of = await self._of(session)

        def step(tx: Tx) -> list[Shown]:
            told = [each for each in tx.deliveries(session=of) if each.state is not Delivered.PENDING]
            found = [*_waiting(of, tx), *rows(told[max(0, len(told) - recent) :], tx)]
            shown = [(row[0].id, _shown(row, tx)) for row in found]
            words = {each.id: each for each in tx.interjections(session=of, limit=recent)}
            words |= {each.id: each for each in tx.interjections(session=of, open_=True)}
            shown += [(name, inbox_row(each, tx.run(each.run))) for name, each in words.items()]
            return [row for _, row in sorted(shown, key=itemgetter(0), reverse=True)]

        return await self._ports.ledger.look(step)

    async def unheard(self) -> int:
        """How many results wait to be heard of, and words of watchers to be read."""

        def step(tx: Tx) -> int:
            results = tx.deliveries(state=[Delivered.PENDING], answers=False)
            return len(results) + len(tx.interjections(open_=True))

        return await self._ports.ledger.look(step)

    async def dismiss(self, ref: str, *, by: str = PERSON) -> Shown:
        """What a watcher said is set aside."""
        said = await dismiss(ref, self._ports, by=by)
        return await self._ports.ledger.look(lambda tx: inbox_row(said, tx.run(said.run)))

    async def drain_inbox(self, session: str | None = None) -> list[Shown]:
        """A person has read them: they are not announced to a model any more. What an open call waits for stays."""
        of = await self._of(session)
        pending = await self._ports.ledger.look(
            lambda tx: tx.deliveries(session=of, state=[Delivered.PENDING], answers=False)
        )
        await heard(pending, self._ports, by=PERSON)

        def step(tx: Tx) -> list[Shown]:
            now = [tx.delivery(each.id) or each for each in pending]
            return [_shown(row, tx) for row in rows([each for each in now if each.taken_by == PERSON], tx)]

        words = await self._ports.ledger.look(lambda tx: tx.interjections(session=of, open_=True))
        return [*await self._ports.ledger.look(step), *[await self.dismiss(each.id) for each in words]]

    async def promote(self, ref: str) -> Shown:
        """Puts a result into the conversation that asked for it, as words that a person passes on and that say whose
        they are; what stands there already is not written again. `ref` is the id of a row, of its run, or an unambiguous
        beginning of that. What a watcher said is passed on in the same way."""
        ports = self._ports
        if word := await ports.ledger.look(lambda tx: named(ref, tx)):
            return await self._passed_on(word)
        delivery, run = await ports.ledger.look(lambda tx: _named(ref, tx))
        session = await ports.store.find(delivery.session)
        pending = delivery.state is Delivered.PENDING and not delivery.answers
        said = Said(
            id=delivery.id if pending else f"{delivery.id}{PASSED}",
            by="user",
            text=f"{PASSED_ON.format(agent=run.agent)}\n{report(run, run.text, nonce(ports))}",
            at=iso_seconds(ports.chance.now()),
            origin=f"agent:{run.agent}",
        )
        before = await self._put(said, session, of=delivery.id)
        if pending:
            await heard([delivery], ports, by=said.id)
        self._changed_on_disk(session)
        entry = {"entry": before or said.id, "already": before is not None}
        return await ports.ledger.look(lambda tx: _shown((run, tx.delivery(delivery.id)), tx) | entry)

    async def _put(self, said: Said, session: Session, *, of: str) -> str | None:
        """Words at the end of a conversation, once; says under which id they stood there before."""
        async with self._ports.store.open(session) as talk:
            if talk.typed().strip():
                raise Conflict(f"something is typed at the end of {session.path}/session.md: send that first")
            before = await self._passed(of, session)
            if before is None:
                await talk.append(said)
                await talk.rest()
        return before

    async def _passed_on(self, word: Interjection) -> Shown:
        ports = self._ports
        session = await ports.store.find(word.session)
        said = Said(
            id=word.id,
            by="user",
            text=f"{SAID_OF_YOU.format(agent=word.agent)}\n{block(harmless(words_of(word)), nonce(ports))}",
            at=iso_seconds(ports.chance.now()),
            origin=f"agent:{word.agent}",
        )
        before = await self._put(said, session, of=word.id)
        shown = await self.dismiss(word.id)
        self._changed_on_disk(session)
        return shown | {"entry": said.id, "already": before is not None}

    def _changed_on_disk(self, session: Session) -> None:
        """Whoever looks at a conversation sees what was passed on into it."""
        at, what = self._ports.chance.now(), {"what": "file"}
        self._ports.emit(
            Event(kind="session.changed", at=at, session=session.id, agent=session.agent, data=what)
        )

    async def _passed(self, name: str, session: Session) -> str | None:
        """The entry in which a person passed this on before. The file says so, of any length: what was taken out of it
        may be passed on again."""
        ids = (name, f"{name}{PASSED}")
        async for portion in self.store.portions(session):
            for entry in portion:
                if isinstance(entry, Said) and entry.id in ids:
                    return entry.id
        return None

    async def _of(self, session: str | None) -> str | None:
        return None if session is None else (await self.session(session)).id


def _waiting(session: str | None, tx: Tx) -> list[Row]:
    if session is not None:
        return waiting(session, tx)
    live = [run for run in tx.runs(status=LIVE) if run.ask.parent_run is not None]
    return [*((run, None) for run in live), *rows(tx.deliveries(state=[Delivered.PENDING]), tx)]


def _shown(row: Row, tx: Tx) -> Shown:
    """With the conversation that hears of it."""
    asker = tx.run(row[0].ask.parent_run or "")
    slug = asker.slug if asker is not None else _hears(row[1], tx)
    return as_json(*row) | {"for": slug} | RESULT


def _hears(delivery: Delivery | None, tx: Tx) -> str | None:
    """Who hears of what a person asked for, beside a conversation."""
    runs = tx.runs(session=delivery.session, limit=1) if delivery is not None else []
    return runs[0].slug if runs else None


def _named(ref: str, tx: Tx) -> tuple[Delivery, Run]:
    """A result that can be passed on now."""
    if not ref:
        raise Usage("say which result: `retinue inbox` lists them")
    named = tx.delivery(ref)
    found = tx.runs(prefix=named.run if named else ref, limit=2)
    if len(found) > 1:
        raise Usage(f"{ref} could be several runs: {', '.join(run.id for run in found)} …")
    ends = tx.deliveries(run=found[0].id) if found else []
    if not ends:
        raise NotFound(f"there is no result {ref}: `retinue inbox` lists them")
    run, delivery = found[0], ends[0]
    if run.status is not Status.DONE:
        raise Conflict(f"{run.slug} has no result to pass on: {error(run)}")
    if any(not each.aside for each in tx.runs(session=delivery.session, status=LIVE)):
        raise Conflict(
            f"the conversation that asked for {run.slug} is at work: `retinue runs list`, and try again"
        )
    return delivery, run
