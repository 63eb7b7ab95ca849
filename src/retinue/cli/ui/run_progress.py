"""Progress on a terminal: who of a tree is at work, below the words, while it is. A child of the run that one looks at
is shown as a card; the others, and children for whom there is no room, as a line each."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from retinue.app import App
from retinue.app.sessions import LIVE
from retinue.cli.ui.live_footer import Footer, Line, Room, columns, fitted
from retinue.cli.ui.run_tree import Seen, Tree
from retinue.domain.event import Event
from retinue.domain.run import Run, Status
from retinue.domain.value import value
from retinue.errors import RetinueError
from retinue.interfaces import Tx

FRAME_SECONDS = 0.1
"""At most so often something is drawn."""
PULSE_SECONDS = 0.25
"""At least so often it is looked whether a second has passed or a model has been silent for long."""
LEDGER_SECONDS = 1.0
"""How often the ledger is asked what other processes did with these runs."""
GRACE = timedelta(seconds=0.5)
"""A run that ends sooner gets no line: it would only flash."""
PATIENCE = timedelta(seconds=1.5)
"""How long a card says nothing of a silent model."""
MOST = 14
"""Lines of the footer."""
CALLS = 3
"""Calls that a card shows line by line."""

_COLOURS: Mapping[Status, str] = {Status.RUNNING: "36", Status.WAITING: "33", Status.QUEUED: "2"}


@value
class View:
    """How a tree is looked at: from which run, when, and through how large a window."""

    tree: Tree
    watched: str
    """The run one looks at; empty when one looks at several."""
    now: datetime
    width: int
    most: int
    patience: timedelta = PATIENCE

    def lines(self) -> list[Line]:
        """As much detail as there is room for."""
        below = self.tree.below()
        own = self._own(below)
        room = self.most - len(own)
        children = below.get(self.watched, []) if self.watched else below.get("", [])
        if self.watched in self.tree.live:
            for calls in (CALLS, 0):
                cards = self._cards(children, below, calls=calls)
                if len(cards) <= room:
                    return cards + own
        return self._capped(children, below, room) + own

    def _own(self, below: Mapping[str, list[Seen]]) -> list[Line]:
        own = self.tree.live.get(self.watched)
        if own is None or (not below.get(own.id) and self.now - own.since < GRACE):
            return []
        return [self._line(own, 0)]

    def _cards(self, children: Sequence[Seen], below: Mapping[str, list[Seen]], *, calls: int) -> list[Line]:
        """Cards that stand below each other share the rule between them."""
        rule: Line = (("─" * (self.width - 1), "2"),)
        lines: list[Line] = []
        for child in children:
            lines += [rule, self._title(child), *self._status(child, calls=calls)]
            lines += [self._line(each, depth) for each, depth in _under(child, below)]
        return [*lines, rule] if lines else []

    def _title(self, seen: Seen) -> Line:
        """Whose task it is, and at the right edge, if there is room, which run and since when."""
        title = fitted(f"{seen.agent.capitalize()} Task: {seen.about}", self.width - 1)
        mark = f"{seen.name} {seen.status} {seen.lasted(self.now)}"
        gap = self.width - 1 - columns(title) - columns(mark)
        return ((title, "1"), (" " * gap + mark, "2")) if gap >= 2 else ((title, "1"),)  # noqa: PLR2004  (blanks)

    def _status(self, seen: Seen, *, calls: int) -> list[Line]:
        if seen.waited(self.now, self.patience):
            return [(("Waiting...", "2"),)]
        if seen.status is Status.WAITING and seen.doing:
            return [((f"Waiting {seen.doing}", "33"),)]
        if not seen.total:
            return [(("", ""),)]
        head = f"Calling Tools... (+{seen.total})"
        said = [words for _, words in seen.calls]
        if not calls:
            return [((fitted(f"{head} {', '.join(said)}", self.width - 1), "36"),)]
        lines: list[Line] = [((head, "36"),)]
        lines += [((fitted(f"  {words}", self.width - 1), "2"),) for words in said[:calls]]
        if len(said) > calls:
            lines.append(((f"  … and {len(said) - calls} more", "2"),))
        return lines

    def _line(self, seen: Seen, depth: int) -> Line:
        state, rest = f"{seen.status}", f" {seen.lasted(self.now)}"
        if seen.doing:
            rest += f" · {seen.doing}"
        name = fitted("  " * depth + seen.name + " ", self.width - 1)
        left = self.width - 1 - columns(name)
        state = fitted(state, left)
        rest = fitted(rest, left - columns(state))
        return (name, ""), (state, _COLOURS[seen.status]), (rest, "2")

    def _capped(self, children: Sequence[Seen], below: Mapping[str, list[Seen]], room: int) -> list[Line]:
        """The first of them, whoever is at work before whoever waits in the queue, and how many there are besides."""
        found = [pair for child in children for pair in ((child, 0), *_under(child, below))]
        if len(found) <= room:
            return [self._line(seen, depth) for seen, depth in found]
        first = sorted(found, key=lambda pair: pair[0].status is Status.QUEUED)[: max(0, room - 1)]
        shown = {seen.id for seen, _ in first}
        lines = [self._line(seen, depth) for seen, depth in found if seen.id in shown]
        return [*lines, ((f"… and {len(found) - len(shown)} more", "2"),)]


def _under(seen: Seen, below: Mapping[str, list[Seen]], depth: int = 1) -> list[tuple[Seen, int]]:
    found: list[tuple[Seen, int]] = []
    for each in below.get(seen.id, ()):
        found += [(each, depth), *_under(each, below, depth + 1)]
    return found


class Progress:
    """Keeps the footer true while runs go on. It hears their events and reads their rows; it never raises."""

    def __init__(
        self,
        footer: Footer | None,
        *,
        asking: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.footer = footer
        if footer is not None:
            footer.paused = asking
        self.now = now or (lambda: datetime.now(UTC))
        self.tree = Tree()
        self.watched = ""
        self.roots: set[str] = set()
        self.changed = asyncio.Event()
        self.stopped = False

    def watch(self, runs: Sequence[Run], family: Sequence[Run] = ()) -> None:
        """The runs one looks at; the family is what is known of their trees already."""
        self.tree.put(family)
        self.tree.put(runs)
        self.roots |= {run.root for run in runs}
        self.watched = runs[0].id if len(runs) == 1 else ""
        self.changed.set()

    def hear(self, event: Event) -> None:
        if self.tree.hear(event):
            self.changed.set()

    def stop(self) -> None:
        """Nothing is drawn any more: a person wants to leave."""
        self.stopped = True
        self.clear()

    def clear(self) -> None:
        if self.footer is not None:
            with suppress(OSError):
                self.footer.show(())

    def draw(self) -> None:
        if self.footer is None or self.stopped:
            return
        room: Room = self.footer.room()
        view = View(
            tree=self.tree,
            watched=self.watched,
            now=self.now(),
            width=room.width,
            most=min(MOST, room.height - 2),
        )
        with suppress(OSError):
            self.footer.show(view.lines())

    @asynccontextmanager
    async def shown(self, app: App) -> AsyncGenerator[None]:
        """The footer is up inside, and gone outside, however one leaves."""
        if self.footer is None:
            yield
            return
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(self._kept(app))
                yield
                drawing.cancel()
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            self.clear()

    async def _kept(self, app: App) -> None:
        asked = self.now()
        while True:
            if (self.now() - asked).total_seconds() >= LEDGER_SECONDS:
                asked = self.now()
                await self._compared(app)
            await self._read(app)
            self.draw()
            await asyncio.sleep(FRAME_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(PULSE_SECONDS - FRAME_SECONDS):
                    await self.changed.wait()
            self.changed.clear()

    async def _read(self, app: App) -> None:
        """What is known of a run only by its row: what it is to do."""
        if not (ids := self.tree.unread()):
            return

        def step(tx: Tx) -> list[Run]:
            return [run for each in ids if (run := tx.run(each)) is not None]

        with suppress(RetinueError):
            self.tree.put(await app.ledger.look(step))

    async def _compared(self, app: App) -> None:
        """Other processes may work some of these runs, and their events are not heard here."""

        def step(tx: Tx) -> list[Run]:
            return [run for root in sorted(self.roots) for run in tx.runs(root=root, status=LIVE)]

        known = set(self.tree.live)  # whoever is born while the ledger is asked stays
        with suppress(RetinueError):
            living = await app.ledger.look(step)
            self.tree.put(living)
            self.tree.drop(known - {run.id for run in living})
