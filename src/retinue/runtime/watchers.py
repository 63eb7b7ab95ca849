"""A watcher hears a session: who sits beside whom, and what they are told of it, each thing once."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from retinue.domain.agent import Agent, Defined, Role, WorkspacePolicy
from retinue.domain.ceiling import Ceiling
from retinue.domain.delivery import error
from retinue.domain.event import Event
from retinue.domain.glob import first_match
from retinue.domain.run import Ask, Run, Status
from retinue.domain.session import Session
from retinue.domain.tool import Effect
from retinue.domain.transcript import Entry, Said, name_of
from retinue.domain.value import value
from retinue.domain.watch import (
    BEFORE,
    MOST_ENTRIES,
    WATCH,
    WATCHES,
    Watch,
    last_name,
    newer,
    settled,
    telling,
)
from retinue.errors import Conflict, NotFound, Refused
from retinue.interfaces import Ports, Tx
from retinue.runtime import run_control
from retinue.runtime.child_workspace import Child
from retinue.runtime.run_creation import LIVE, send
from retinue.runtime.run_end import nonce
from retinue.runtime.run_plan import definition
from retinue.runtime.spawn import seated

READ_ONLY = WorkspacePolicy(writable=False)
FAILURES = 3
HEARING_SECONDS = 300.0
"""How long a watcher may think about one piece, unless its definition says so: somebody may wait to leave."""


async def watch(watched: Session, agent: str, ports: Ports, *, trigger: str) -> Watch:
    """From now on. Who watches already goes on; one that was switched off sits down where it sat before."""
    defined = _fitting(watched, agent, ports)
    before = await ports.ledger.look(lambda tx: _beside(watched, agent, tx))
    if before is not None and before.on:
        return before
    seat = await _seat(watched, defined, before, ports)
    heard = await _from(watched, before, ports)

    def step(tx: Tx) -> Watch:
        now = _beside(watched, agent, tx)
        if now is not None and now.on:
            return now
        at = ports.chance.now()
        made = Watch(
            id=ports.chance.entry_id() if now is None else now.id,
            session=watched.id,
            slug=watched.slug,
            watcher=seat.id,
            agent=agent,
            number=len(tx.watches(session=watched.id)) + 1 if now is None else now.number,
            trigger=trigger,
            heard=heard,
            told=0 if now is None else now.told,
            told_at=at,
            created_at=at,
        )
        tx.set_watch(made)
        tx.emit(_told("watch.started", made, ports))
        return made

    return await ports.ledger.do(step)


async def unwatch(watch: Watch, ports: Ports, *, why: str = "") -> Watch:
    """What it is at is stopped; nobody else is. `why`: it was not a person who wanted it."""

    def step(tx: Tx) -> tuple[Watch, list[Run]]:
        now = next((each for each in tx.watches(session=watch.session) if each.id == watch.id), watch)
        if not now.on:
            return now, []
        off = replace(now, on=False)
        tx.set_watch(off)
        tx.emit(_told("watch.ended", off, ports, why=why))
        live = tx.runs(session=off.watcher, status=LIVE)
        return off, [run for run in live if run.ask.door == WATCH]

    off, left = await ports.ledger.do(step)
    for run in left:
        await run_control.cancel(run.id, ports, alive=ports.alive)
    return off


@value
class _Stand:
    """How a watch stands: who works the watched session, and what the watcher is at."""

    working: Sequence[Run]
    """Runs of the watched session that hold it."""
    hearing: Sequence[Run]
    """Live runs of the watcher's."""
    lately: int
    """Of its runs, those born within the hour."""
    failed: str
    """Why it could not hear, so often in a row that it is not tried again; empty: it can."""


class Watching:
    """One process's part in it: watchers hear of sessions that are worked here, from here."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._here: set[str] = set()
        """Sessions that were worked here: what they left is told from here."""

    async def look(self, ended: Collection[str]) -> bool:
        """Tells what is to be told now; `ended` are runs that have ended here since. True: there is more to come, and it
        is to be looked again soon."""
        watches = await self._ports.ledger.look(lambda tx: self._known(ended, tx))
        soon = [await self._looked(each) for each in watches]
        return any(soon)

    def _known(self, ended: Collection[str], tx: Tx) -> list[Watch]:
        if watches := tx.watches(on=True):
            worked = {run.session_id for each in ended if (run := tx.run(each)) is not None}
            self._here |= worked & {each.session for each in watches}
        return watches

    async def _looked(self, watch: Watch) -> bool:
        stand = await self._ports.ledger.look(lambda tx: _stand(watch, tx, self._ports))
        owners = {run.owner for run in stand.working}
        if self._ports.owner in owners:
            self._here.add(watch.session)
        if watch.session not in self._here or owners - {self._ports.owner}:
            return False
        if stand.hearing:
            return any(run.owner == self._ports.owner for run in stand.hearing)
        return await _tell(watch, stand, self._ports) is _LATER


async def catch_up(ports: Ports, session: str | None = None) -> list[Run]:
    """What nobody has told: the process that would have is gone, or is about to go. Of sessions that nobody works now,
    all of them or one."""
    told: list[Run] = []
    for each in await ports.ledger.look(lambda tx: tx.watches(session=session, on=True)):
        stand = await ports.ledger.look(lambda tx, each=each: _stand(each, tx, ports))
        others = [run for run in stand.working if run.owner != ports.owner and ports.alive(run.owner)]
        if stand.hearing or others:
            continue
        if isinstance(run := await _tell(each, stand, ports), Run):
            told.append(run)
    return told


_LATER = object()
"""There is something to be told, and it is not yet time."""


async def _tell(watch: Watch, stand: _Stand, ports: Ports) -> object:
    """The run that hears it, None where there is nothing to be heard, or _LATER. A run and how far was heard are one step
    of the ledger: whoever else told it meanwhile, it is told once."""
    try:
        watched, seat = await ports.store.find(watch.session), await ports.store.find(watch.watcher)
    except NotFound:
        await unwatch(watch, ports, why="its session, or the one it watched, is gone")
        return None
    if stand.failed:
        await unwatch(watch, ports, why=f"{FAILURES} times in a row it could not hear: {stand.failed}")
        return None
    agent = await definition(seat, ports)
    entries = await _unheard(watch, watched, ports)
    if not entries or stand.lately >= _most(agent, ports):
        return None
    if not settled(entries, now=ports.chance.now(), quiet=_quiet(agent, ports) if stand.working else 0.0):
        return _LATER if stand.working else None
    first = last_name(entries[:1])
    before = await ports.store.recent(watched, before=first, limit=BEFORE) if watch.fresh else []
    words = telling(
        watch,
        watched.agent,
        entries,
        nonce(ports),
        before=before,
        status="running" if stand.working else "idle",
    )
    ask = Ask(
        key=f"{WATCH}:{watch.id}/{last_name(entries)}@{watch.told}",
        agent=seat.agent,
        task=words,
        session=seat.id,
        requester=watched.key,
        door=WATCH,
        source=WATCH,
        label=f"{watch.name} watches {watched.slug}",
        deadline_seconds=None if "deadline_seconds" in agent.limits else HEARING_SECONDS,
        role=Role.WATCHER,
        trigger=watch.trigger,
    )
    try:
        return await send(ask, seat, ports, with_it=lambda tx: _moved(watch, last_name(entries), tx, ports))
    except Conflict:
        return None


def _moved(watch: Watch, last: str, tx: Tx, ports: Ports) -> None:
    now = next((each for each in tx.watches(session=watch.session) if each.id == watch.id), None)
    if now is None or not now.on or (now.heard, now.told) != (watch.heard, watch.told):
        raise Conflict(f"{watch.name} was told that already, or watches no more")
    tx.set_watch(now.hears(last, at=ports.chance.now()))


def _stand(watch: Watch, tx: Tx, ports: Ports) -> _Stand:
    since = ports.chance.now() - timedelta(hours=1)
    seat = tx.runs(session=watch.watcher, limit=ports.limits.watch_runs_per_hour)
    return _Stand(
        working=[run for run in tx.runs(session=watch.session, status=LIVE) if not run.aside],
        hearing=tx.runs(session=watch.watcher, status=LIVE),
        lately=sum(run.created_at > since for run in seat),
        failed=_failed([run for run in seat if run.created_at > watch.created_at][:FAILURES]),
    )


def _failed(latest: Sequence[Run]) -> str:
    """What is broken stays so until a person looks at it: a watcher that cannot hear is not asked for ever."""
    broken = [run for run in latest if run.status in (Status.FAILED, Status.LOST, Status.TIMED_OUT)]
    return error(latest[0]) if len(broken) == FAILURES else ""


async def _unheard(watch: Watch, watched: Session, ports: Ports) -> list[Entry]:
    """A person may have taken the last one that was heard out of the file: then the time tells."""
    try:
        return await ports.store.recent(watched, after=watch.heard, limit=MOST_ENTRIES)
    except NotFound:
        return newer(await ports.store.recent(watched, limit=MOST_ENTRIES), watch.told_at)


async def _from(watched: Session, before: Watch | None, ports: Ports) -> str:
    """The entry after which a watcher hears: the newest, or while somebody is at work the one before their task. What
    it has heard before it is not told again."""
    entries = await ports.store.recent(watched, limit=MOST_ENTRIES)
    live = await ports.ledger.look(lambda tx: tx.runs(session=watched.id, status=LIVE))
    if any(not run.aside for run in live):
        tasks = [at for at, entry in enumerate(entries) if isinstance(entry, Said) and entry.by == "user"]
        heard = [at for at, entry in enumerate(entries) if before and name_of(entry) == before.heard]
        entries = entries[: max(tasks[-1], heard[-1] + 1 if heard else 0)] if tasks else entries
    return last_name(entries)


def _fitting(watched: Session, agent: str, ports: Ports) -> Defined:
    if watched.attributes.get(WATCHES):
        raise Refused(f"{watched.slug} is a watcher's own session: watchers are not watched")
    if hit := first_match(ports.bounds().deny_agents, agent):
        raise Refused(f"the configuration denies the agent {agent} (deny.agents: {hit})")
    defined = ports.agents.get(agent, watched.workspace.meant)
    if Role.WATCHER not in defined.agent.roles:
        raise Refused(
            f'Agent "{agent}" does not support capability "{Role.WATCHER}": its definition must name that role'
        )
    ports.model(defined.agent, None)  # what nobody here can work is told before anything is made
    return defined


async def _seat(watched: Session, defined: Defined, before: Watch | None, ports: Ports) -> Session:
    if before is not None:
        try:
            return await ports.store.find(before.watcher)
        except NotFound:
            pass  # a person has deleted it
    child = Child(parent=watched, description="watching", by_person=True, workspace=READ_ONLY, leaf=True)
    facts = {"role": str(Role.WATCHER), WATCHES: watched.id}
    return await seated(defined, child, ports, attributes=facts, under=(_reading(watched, ports),))


def _reading(watched: Session, ports: Ports) -> Ceiling:
    """The most that a watcher may use: tools that change nothing."""
    names = (name for name, tool in ports.tools.items() if tool.effect is Effect.READ)
    return Ceiling(by=watched.slug, tools=tuple(sorted(names)), write=(), writable=False)


def _beside(watched: Session, agent: str, tx: Tx) -> Watch | None:
    return next((each for each in tx.watches(session=watched.id) if each.agent == agent), None)


def _quiet(agent: Agent, ports: Ports) -> float:
    return agent.limits.get("watch_quiet_seconds", ports.limits.watch_quiet_seconds)


def _most(agent: Agent, ports: Ports) -> float:
    """The definition can only ask for fewer."""
    own = agent.limits.get("watch_runs_per_hour", ports.limits.watch_runs_per_hour)
    return min(own, ports.limits.watch_runs_per_hour)


def _told(kind: str, watch: Watch, ports: Ports, *, why: str = "") -> Event:
    return Event(
        kind=kind,  # pyright: ignore[reportArgumentType]  (callers pass literals of the table)
        at=ports.chance.now(),
        session=watch.session,
        agent=watch.agent,
        data={
            "watch": watch.id,
            "watcher": watch.watcher,
            "name": watch.name,
            "trigger": watch.trigger,
        }
        | ({"why": why} if why else {}),
    )
