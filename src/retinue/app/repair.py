"""Mending: where folders and ledger disagree, a person is told, or both are made to agree. Nothing is ever dropped."""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from retinue.agents.registry import DefinitionCatalogue
from retinue.agents.skills import SkillFolders
from retinue.app.doctor import (
    Finding,
    the_conversations,
    the_definitions,
    the_ledger,
    the_machine,
    the_sandbox,
    the_servers,
    the_skills,
)
from retinue.app.log_file import log_line
from retinue.app.mcp_servers import Servers
from retinue.app.sandbox_loader import Commands
from retinue.config.load import Config
from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import Reason, Run, Status
from retinue.domain.session import Born, Session
from retinue.domain.value import value
from retinue.errors import Held, NotFound, RetinueError, Unreadable
from retinue.interfaces import Ports, Tx
from retinue.ledger.ledger import SqliteLedger
from retinue.ledger.repair import kept_aside, quick_damage, set_aside
from retinue.runtime.run_end import clear_all, end
from retinue.sessions.store import FileStore
from retinue.sessions.trash import leftovers, remove
from retinue.worker.process_lock import Onlooker, Owner

REPAIR = "retinue doctor --repair"
GONE = "its session is gone: {path}"
ANEW = "all sessions are there; of runs that were going on nothing is known any more: send their sessions a message"
_TMP_KEPT_SECONDS = 30 * 24 * 3600

Mend = Callable[[], Awaitable[str]]


@value
class Trouble:
    """Something that is not as it should be, and what to do about it on request; `mend` says what it did."""

    what: str
    do: str = REPAIR
    mend: Mend | None = None


class Resting:
    """An engine that begins nothing: what a repair sets going is worked by whoever works runs here next."""

    def submit(
        self, run_id: str, *, taken: Born | bool = False, ahead: bool = False, lane: str = ""
    ) -> None: ...
    async def wait(self, run_id: str) -> None: ...
    def cancel(self, run_id: str) -> bool:  # noqa: ARG002  (it works nothing)
        return False

    def cancelled(self, run_id: str) -> bool:  # noqa: ARG002  (the same)
        return False


class Mending(ABC):
    """The part of the application that looks after its own house."""

    config: Config
    store: FileStore
    agents: DefinitionCatalogue
    skills: SkillFolders
    mcp: Servers
    _ports: Ports
    _ledger: SqliteLedger
    _commands: Commands
    _owner: Owner | Onlooker

    async def doctor(self, *, repair: bool = False) -> list[Finding]:
        """What is well, what is not, and what to do about it; with `repair`, what can be done safely is done."""
        findings = the_machine(self.config)
        findings += the_sandbox(
            await self._commands.level(), await self._commands.lacks(), self._ports.minimum
        )
        findings += the_definitions(self.agents.broken(), [each.agent for each in self.agents.all()])
        findings += the_skills(self.skills.broken(), self.skills.all())
        findings += the_servers(self.mcp.rows())
        state = the_ledger(self._ledger.path)
        if repair and any(one.level == "bad" for one in state):
            state = await self._ledger_mended(state)
        findings += state
        if all(one.level != "bad" for one in state):
            findings += await self._agreement(repair=repair)
        return findings

    async def sound(self) -> str | None:
        """For a start that nobody watches: a damaged ledger is set aside at once if nobody else has it open, and a new
        one begun. Says so; Unreadable where that cannot be."""
        found = await asyncio.to_thread(quick_damage, self._ledger.path)
        if found is None:
            return None
        where = str(self._ledger.path)
        try:
            place = await self._set_aside()
        except RetinueError as error:
            raise Unreadable(where, f"the ledger is damaged ({found}): {error}") from error
        told = f"the ledger was damaged ({found}) and is kept as {place}; {ANEW}"
        log_line(self.config.home, {"at": "start", "level": "error", "ledger": told})
        return told

    async def _ledger_mended(self, state: list[Finding]) -> list[Finding]:
        try:
            place = await self._set_aside()
        except RetinueError as error:
            return [*state, Finding(level="bad", what=str(error), do=f"then: {REPAIR}")]
        return [
            Finding(
                level="mended", what=f"the damaged ledger is kept as {place}, a new one is begun", do=ANEW
            )
        ]

    async def _set_aside(self) -> Path:
        if others := self._others():
            raise Held(f"{self._ledger.path}: others are at work with it: end {', '.join(others)}")
        await self._ledger.let_go()
        return set_aside(self._ledger.path, at=self._ports.chance.now())

    def _others(self) -> list[str]:
        """Who else works runs in this home, by the locks that the kernel holds for them."""
        home = self.config.home
        names = sorted(path.name for path in (home / "owners").iterdir())
        alive = (name for name in names if name != self._owner.id and Owner.alive(home, name))
        return [Owner.described(home, name) or name for name in alive]

    async def _agreement(self, *, repair: bool) -> list[Finding]:
        sessions = await self.store.sessions()
        runs = await self._ledger.look(lambda tx: tx.runs())
        findings = await the_conversations(self.store, sessions, runs)
        for trouble in await self._troubles(sessions, runs):
            if repair and trouble.mend is not None:
                findings.append(Finding(level="mended", what=await trouble.mend()))
            else:
                findings.append(Finding(level="warn", what=trouble.what, do=trouble.do))
        if lost := await self.interrupted():
            findings.append(
                Finding(level="warn", what=f"{len(lost)} runs interrupted", do="retinue runs resume")
            )
        return findings

    async def _troubles(self, sessions: Sequence[Session], runs: Sequence[Run]) -> list[Trouble]:
        return [
            *await self._homeless(runs),
            *await self._unheard(sessions, runs),
            *await self._uncleared(),
            *self._left_behind({each.id for each in sessions}),
            *self._kept(),
        ]

    async def _homeless(self, runs: Sequence[Run]) -> list[Trouble]:
        """Runs that have not ended, that nobody works, and whose conversation is not there any more."""
        found: list[Trouble] = []
        for run in runs:
            if run.status.live and not self._lives(run) and await self._gone(run):
                what = f"run {run.id} is {run.status}, and {GONE.format(path=run.path)}"
                found.append(Trouble(what=what, mend=lambda run=run: self._given_up(run)))
        return found

    async def _given_up(self, run: Run) -> str:
        error = GONE.format(path=run.path)
        ports = replace(self._ports, engine=Resting())
        ended = await end(run, Status.LOST, ports, reason=Reason.STALE, error=error)
        return f"run {run.id} is {ended.status} now, and whoever asked for it is told: {error}"

    async def _unheard(self, sessions: Sequence[Session], runs: Sequence[Run]) -> list[Trouble]:
        """Results that are still to be told, and nobody will hear."""
        there, known = {each.id for each in sessions}, {run.id: run for run in runs}
        busy = {run.session_id for run in runs if run.status.live}
        found: list[Trouble] = []
        for each in await self._ledger.look(lambda tx: tx.deliveries(state=[Delivered.PENDING])):
            asker = known.get(each.by)
            over = asker is None or asker.status.final
            if each.session not in there or (each.answers and over):
                what = f"what run {each.run} came to waits for run {each.by}, which cannot hear it any more"
                found.append(Trouble(what=what, mend=lambda each=each: self._told_a_person(each)))
            elif over and each.session not in busy:
                what = (
                    f"what run {each.run} came to waits for session {each.session}, where nobody is at work"
                )
                do = "it is told with the next message to that session: retinue inbox list shows it"
                found.append(Trouble(what=what, do=do))
        return found

    async def _told_a_person(self, delivery: Delivery) -> str:
        def step(tx: Tx) -> None:
            now = tx.delivery(delivery.id) or delivery
            if now.state is Delivered.PENDING:
                tx.set_delivery(replace(now, state=Delivered.FAILED, attempts=now.attempts + 1))

        await self._ledger.do(step)
        return f"what run {delivery.run} came to waits for nobody any more: retinue runs show {delivery.run} has it"

    async def _uncleared(self) -> list[Trouble]:
        """Sessions that were not to be kept, whose results are delivered, and that a crash left standing."""

        async def cleared() -> str:
            await clear_all(replace(self._ports, engine=Resting()))
            left = len(await self._ledger.look(lambda tx: tx.deliveries(uncleared=True)))
            rest = f"; {left} cannot be yet" if left else ""
            return f"{count - left} sessions that were not to be kept are put aside{rest}"

        count = len(await self._ledger.look(lambda tx: tx.deliveries(uncleared=True)))
        what = f"{count} sessions were not to be kept and are still there"
        return [Trouble(what=what, mend=cleared)] if count else []

    def _left_behind(self, sessions: set[str]) -> list[Trouble]:
        """Folders that somebody began and never finished, and what was a session's own that went long ago: its /tmp, and
        its program's home."""

        async def removed() -> str:
            gone = [path for path in (*unfinished, *tmps) if remove(path)]
            return f"{len(gone)} folders that crashes or deleted sessions left behind are removed"

        unfinished = leftovers(str(self.config.home / "sessions"), self._ports.chance.now())
        places = (self.config.home / "tmp", self.config.home / "programs")
        tmps = [str(path) for place in places for path in _old_tmps(place, sessions)]
        what = f"{len(unfinished) + len(tmps)} folders were left behind by crashes or deleted sessions"
        return [Trouble(what=what, mend=removed)] if unfinished or tmps else []

    def _kept(self) -> list[Trouble]:
        kept = kept_aside(self._ledger.path)
        do = "it is yours to keep or remove: Retinue does not look into it"
        return [Trouble(what=f"a damaged ledger is kept as {path}", do=do) for path in kept]

    async def _gone(self, run: Run) -> bool:
        for ref in (run.path, run.session_id):
            with suppress(NotFound):
                await self.store.find(ref)
                return False
        return True

    @abstractmethod
    async def interrupted(self) -> list[Run]:
        """Runs that nobody works any more and that have not ended."""

    @abstractmethod
    def _lives(self, run: Run) -> bool:
        """Whether the process that works it does."""


def _old_tmps(folder: Path, sessions: set[str]) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.name not in sessions]
    except OSError:
        return []
    now = time.time()
    return [path for path in found if now - os.lstat(path).st_mtime > _TMP_KEPT_SECONDS]
