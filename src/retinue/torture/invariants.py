"""The laws: what must hold of a home when everything in it has come to its end, however it got there."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from retinue.domain.delivery import Delivery
from retinue.domain.delivery import State as Delivered
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.side_effect import Deed, Progress
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said, dangling
from retinue.domain.value import value
from retinue.errors import RetinueError
from retinue.interfaces import Tx
from retinue.ledger.ledger import SqliteLedger
from retinue.runtime.recovery import UNKNOWN
from retinue.sessions.store import FileStore
from retinue.torture.environment import Ground
from retinue.torture.fake_model import Asked
from retinue.torture.scenario import Token, place_of, words
from retinue.worker.clock import system_chance

FILES = ("session.md", "preset.md", "scope-plan.yml", "session.json")
COUNTED = ("mark", "sign")


class Law(StrEnum):
    """Each is a number that must be 0."""

    LOST = "acknowledged entries lost"
    AGAIN = "answered model calls asked again"
    REPEATED = "effects repeated"
    UNTRUE = "effects told and not done, or done and not told"
    TOLD = "announcements lost or doubled"
    TWICE = "children started twice"
    LIVE = "runs not terminal"
    UNREADABLE = "sessions unreadable"
    HALF = "half folders listed"
    DEFECT = "commands that ended with a defect"


class Count(StrEnum):
    """What is counted beside the laws, and may be any number."""

    FLIGHT = "model calls in flight at a fault, asked again"
    UNKNOWN = "unknown outcomes, told as such"
    FAILED = "runs that ended otherwise than done"


@dataclass(slots=True)
class Tally:
    """What was counted, and a sentence for each breach."""

    breaches: dict[Law, list[str]] = field(default_factory=dict[Law, list[str]])
    counts: Counter[Count] = field(default_factory=Counter[Count])

    def breach(self, law: Law, sentence: str) -> None:
        self.breaches.setdefault(law, []).append(sentence)

    def add(self, other: "Tally") -> None:
        for law, sentences in other.breaches.items():
            self.breaches.setdefault(law, []).extend(sentences)
        self.counts.update(other.counts)


@value
class Left:
    """All that a home holds."""

    runs: Mapping[str, Run]
    deliveries: Sequence[Delivery]
    deeds: Mapping[str, Deed]
    talks: Mapping[str, Sequence[Entry]]
    """By session."""
    sessions: Mapping[str, Session]

    def place(self, session: str) -> str:
        """Where in its tree a conversation belongs; empty when nothing was said in it."""
        tasks = (
            each.text for each in self.talks.get(session, ()) if isinstance(each, Said) and each.by == "user"
        )
        return next(filter(None, map(place_of, tasks)), "")


async def judged(ground: Ground, asked: Sequence[Asked], *, faults: int) -> Tally:
    """`faults`: how many kills or errors there were; each explains one repeated request for each agent at work."""
    tally = Tally()
    left = await _left(ground, tally)
    _ended(left, tally)
    _kept(left, asked, tally)
    _asked(left, asked, faults, tally)
    _happened(left, ground.effects(), tally)
    _told(left, tally)
    for name in ground.defects():
        tally.breach(Law.DEFECT, f"{ground.said / name} tells of a defect")
    return tally


async def _left(ground: Ground, tally: Tally) -> Left:
    store = FileStore(ground.home / "sessions", system_chance())
    ledger = SqliteLedger(ground.home / "ledger.db")
    talks: dict[str, Sequence[Entry]] = {}
    sessions: dict[str, Session] = {}
    try:
        for session in await store.sessions():
            sessions[session.id] = session
            talks[session.id] = await _read(store, session, tally)
        runs, deliveries, deeds = await ledger.look(_rows)
    finally:
        await ledger.close()
        store.close()
    return Left(runs=runs, deliveries=deliveries, deeds=deeds, talks=talks, sessions=sessions)


def _rows(tx: Tx) -> tuple[dict[str, Run], list[Delivery], dict[str, Deed]]:
    runs = {run.id: run for run in tx.runs()}
    return runs, tx.deliveries(), {deed.call: deed for run in runs for deed in tx.deeds(run)}


async def _read(store: FileStore, session: Session, tally: Tally) -> Sequence[Entry]:
    missing = [name for name in FILES if not Path(session.path, name).exists()]
    if missing:
        tally.breach(Law.HALF, f"{session.path} has no {', '.join(missing)}")
        return ()
    try:
        entries, problems = await store.entries(session)
        problems = [*problems, *await store.problems(session)]
    except RetinueError as error:
        entries, problems = [], [str(error)]
    for problem in problems:
        tally.breach(Law.UNREADABLE, f"{session.slug}: {problem}")
    return entries


def _ended(left: Left, tally: Tally) -> None:
    """Every run has come to its end, and no place of the tree was begun twice."""
    for run in left.runs.values():
        if run.status.live:
            tally.breach(Law.LIVE, f"run {run.id} of {run.agent} is {run.status} ({run.waiting_for})")
        elif run.status is not Status.DONE:
            tally.counts[Count.FAILED] += 1
    places = Counter(place for session in left.sessions if (place := left.place(session)))
    for place, count in places.items():
        if count > 1:
            tally.breach(Law.TWICE, f"{count} sessions do the part of {place}")
    keys = Counter(run.session_id for run in left.runs.values() if run.ask.source != "wake")
    for session, count in keys.items():
        if count > 1:
            tally.breach(Law.TWICE, f"{count} runs do the part of {left.place(session)}")


def _kept(left: Left, asked: Sequence[Asked], tally: Tally) -> None:
    """What a later request quoted, and what the ledger says was said, stands in the file."""
    for sentence in (*_quoted(left, asked), *_past(asked)):
        tally.breach(Law.LOST, sentence)
    for run in left.runs.values():
        if run.status is Status.DONE:
            for sentence in _said(run, left.talks.get(run.session_id, ())):
                tally.breach(Law.LOST, sentence)


def _quoted(left: Left, asked: Sequence[Asked]) -> Iterable[str]:
    """An agent's own replies stand there as such, those of others as results and announcements."""
    own: dict[str, set[Token]] = defaultdict(set)
    others: dict[str, set[Token]] = defaultdict(set)
    for session, entries in left.talks.items():
        for entry in entries:
            there = own if isinstance(entry, Said) and entry.by == "agent" else others
            there[left.place(session)] |= set() if isinstance(entry, Called) else {*words(entry.text)}
    for each in asked:
        for token in sorted(each.seen):
            if token not in (own if token[0] == each.place else others)[each.place]:
                yield f"{each.place} quoted {token}, and its file does not hold it"


def _past(asked: Sequence[Asked]) -> Iterable[str]:
    """Each request tells what the one before it told, and more."""
    by_place: dict[str, list[Asked]] = defaultdict(list)
    for each in asked:
        by_place[each.place].append(each)
    for place, requests in by_place.items():
        for before, after in pairwise(requests):
            if after.messages[: len(before.messages)] != before.messages:
                yield f"{place} was asked turn {after.turn} with another past than before"


def _said(run: Run, entries: Sequence[Entry]) -> Iterable[str]:
    """A run that is done has its last words in the file, and no call without a result."""
    texts = {each.text for each in entries if isinstance(each, Said) and each.run == run.id}
    if run.text and run.text not in texts:
        yield f"run {run.id} ended with words that its file does not hold"
    if calls := dangling(entries):
        yield f"run {run.id} ended, and its call {calls[0].id} has no result"


def _asked(left: Left, asked: Sequence[Asked], faults: int, tally: Tally) -> None:
    """Of each turn one reply stands in the file, and it is the last that was asked for: after a reply was on disk
    nobody asked for it again. Those before it were in flight when something struck."""
    stored: dict[tuple[str, int], list[int]] = defaultdict(list)
    for session, entries in left.talks.items():
        place = left.place(session)
        for entry in entries:
            if isinstance(entry, Said) and entry.by == "agent":
                for token in words(entry.text):
                    if token[0] == place:
                        stored[place, token[1]].append(token[2])
    for (place, turn), times in Counter((each.place, each.turn) for each in asked).items():
        kept = stored[place, turn]
        if len(kept) > 1:
            tally.breach(Law.AGAIN, f"turn {turn} of {place} stands in its file {len(kept)} times")
        elif kept and kept[0] < times:
            tally.breach(
                Law.AGAIN, f"turn {turn} of {place} was on disk at the {kept[0]}. of {times} requests"
            )
        if times - 1 > faults:
            tally.breach(Law.AGAIN, f"turn {turn} of {place} was asked {times} times after {faults} faults")
        tally.counts[Count.FLIGHT] += times - 1


def _happened(left: Left, effects: Counter[str], tally: Tally) -> None:
    """An effect happens once, or nobody knows, and then it is told so."""
    for call, times in effects.items():
        if times > 1:
            tally.breach(Law.REPEATED, f"call {call} happened {times} times")
    known: set[str] = set()
    for entries in left.talks.values():
        results = {entry.of: entry for entry in entries if isinstance(entry, Returned)}
        for called in entries:
            if isinstance(called, Called) and called.tool in COUNTED:
                known.add(called.id)
                _honest(called, results.get(called.id), effects[called.id], left.deeds, tally)
    for call in sorted(set(effects) - known):
        tally.breach(Law.UNTRUE, f"call {call} happened, and no file knows it")


def _honest(
    called: Called, result: Returned | None, times: int, deeds: Mapping[str, Deed], tally: Tally
) -> None:
    if result is None:
        return
    deed = deeds.get(called.id)
    unknown = result.text.endswith(UNKNOWN)
    if unknown:
        tally.counts[Count.UNKNOWN] += 1
    if unknown and (deed is None or deed.progress is Progress.ENDED):
        tally.breach(Law.UNTRUE, f"call {called.id} is told as unknown, and the ledger says {deed}")
    if result.ok and not times:
        tally.breach(Law.UNTRUE, f"call {called.id} is told as done and did not happen")
    if times and not result.ok and not unknown:
        tally.breach(Law.UNTRUE, f"call {called.id} happened, and is told as: {result.text[:120]}")


def _told(left: Left, tally: Tally) -> None:
    """Each end is told to the one who asked, exactly once: by the rows, and by what stands in the files."""
    by_run: dict[str, list[Delivery]] = defaultdict(list)
    for each in left.deliveries:
        by_run[each.run].append(each)
    for run in left.runs.values():
        if run.ask.parent_run is None or run.status.live or run.ask.source == "wake":
            continue
        if len(by_run[run.id]) != 1:
            tally.breach(Law.TOLD, f"the end of run {run.id} has {len(by_run[run.id])} deliveries")
            continue
        for sentence in _arrived(by_run[run.id][0], run, left):
            tally.breach(Law.TOLD, sentence)


def _arrived(delivery: Delivery, run: Run, left: Left) -> Iterable[str]:
    asker = left.runs.get(delivery.by)
    heard = asker is not None and asker.status is Status.DONE
    if delivery.state is not Delivered.DELIVERED:
        if heard:
            yield f"the end of run {run.id} is {delivery.state}, and the one who asked is done"
        return
    entries = left.talks.get(delivery.session, ())
    found = [entry for entry in entries if _carries(entry, delivery)]
    if len(found) != 1:
        yield f"the end of run {run.id} stands {len(found)} times where it was delivered"
    last = words(run.text)[-1:]
    quoted = [
        entry
        for entry in entries
        if isinstance(entry, Returned | Notice) and last and last[0] in words(entry.text)
    ]
    if run.status is Status.DONE and heard and len(quoted) != 1:
        yield f"the last word of run {run.id} reached the one who asked {len(quoted)} times"


def _carries(entry: Entry, delivery: Delivery) -> bool:
    if delivery.answers:
        return isinstance(entry, Returned) and entry.of == delivery.taken_by
    return isinstance(entry, Notice) and entry.id == delivery.id
