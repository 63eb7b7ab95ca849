"""A run as it goes: its words to standard output, its doings to standard error, Ctrl-C to stop it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from retinue.app import App
from retinue.domain.approval import Approval, State
from retinue.domain.event import Event
from retinue.domain.run import Run, Status, as_json
from retinue.errors import Refused, RetinueError
from retinue.surfaces.cli.command import exit_code
from retinue.surfaces.cli.person import Person, interrupts
from retinue.surfaces.cli.terminal import Terminal, one_line

LOOK_SECONDS = 0.25
"""How often it is looked whether somebody elsewhere has answered."""


async def followed(app: App, terminal: Terminal, born: Callable[[], Awaitable[Run]]) -> Run:
    """Starts a run and stays with it until its end. Ctrl-C cancels the run; a second one leaves at once."""
    follower = Follower(terminal)
    with app.listen(follower.heard), interrupts() as pressed:
        run = await born()
        follower.follow(run)
        run = (await ended(app, [run.id], pressed, Person(terminal=terminal)))[0]
        follower.finish(run)
    return run


async def reported(app: App, terminal: Terminal, run: Run) -> int:
    """Says how a run ended and where its words are; the answer is the exit code."""
    waiting = await app.awaited(run)
    if terminal.json:
        terminal.value(as_json(run) | {"approvals": waiting, "sandbox": await app.sandbox(run)})
    for each in waiting:
        answer = f"retinue approvals answer {each} allow"
        terminal.note(
            f"approval {each} waits: retinue approvals show {each}, then {answer} (or deny)", colour="33"
        )
    if run.status is not Status.DONE:
        terminal.note(ending(run), colour="31")
    if not terminal.json:
        terminal.note(f"{run.slug}: {run.path}")
    return exit_code(run)


def ending(run: Run) -> str:
    """One sentence on a run that is not done."""
    if run.status is Status.WAITING:
        return f"run {run.id} waits for {run.waiting_for or 'something'}, and nobody here can give it"
    reason = f" ({run.reason})" if run.reason else ""
    return f"run {run.id} {str(run.status).replace('_', ' ')}{reason}{': ' if run.error else ''}{run.error}"


class Follower:
    """Listens to a process's events and shows those of one run and of the runs it asked for."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.progress = terminal.err.isatty()
        self.run = ""
        self.early: list[Event] = []
        self.turn: list[str] = []
        self.said = False
        self.mid_line = False
        self.gone = False

    def follow(self, run: Run) -> None:
        """What was heard before the run's id was known is shown now."""
        self.run = run.id
        early, self.early = self.early, []
        for event in early:
            self.heard(event)

    def heard(self, event: Event) -> None:
        """Never raises: a listener must not disturb the run, not even when its own reader has gone."""
        if not self.run:
            self.early.append(event)
            return
        if (show := _SHOWN.get(event.kind)) is not None:
            self._guarded(lambda: show(self, event))

    def finish(self, run: Run) -> None:
        """Words that never came in pieces are shown whole."""
        self._guarded(lambda: self._last(run))

    def _guarded(self, show: Callable[[], None]) -> None:
        if self.gone:
            return
        try:
            show()
        except OSError:
            self.gone = True

    def _last(self, run: Run) -> None:
        self._tell_turn()
        if not self.said and run.text:
            self._words(run.text)
        self._end_line()

    def on_text(self, event: Event) -> None:
        if event.run != self.run:
            return
        if self.terminal.streams:
            self._words(event.data["text"])
        else:
            self.turn.append(event.data["text"])

    def on_discarded(self, event: Event) -> None:
        if event.run != self.run:
            return
        self.turn.clear()
        if self.mid_line:
            self._note("(asked again)")

    def on_saved(self, event: Event) -> None:
        if event.run == self.run:
            self._tell_turn()
            self._end_line()

    def on_tool(self, event: Event) -> None:
        self._note(f"{self._who(event)}{event.data['tool']} {one_line(event.data.get('args') or '', 120)}")

    def on_tool_ended(self, event: Event) -> None:
        if not event.data.get("ok"):
            self._note(f"{self._who(event)}{event.data['tool']} did not work")

    def on_state(self, event: Event) -> None:
        if event.data.get("torn"):
            self.terminal.note(f"{self._who(event)}{event.data['note']}", colour="33")
        elif note := event.data.get("note"):
            self._note(f"{self._who(event)}{note}")

    def on_ended(self, event: Event) -> None:
        if event.run != self.run:
            self._note(f"{self._who(event)}{event.data.get('status')}")

    def _who(self, event: Event) -> str:
        return "· " if event.run == self.run else f"· {event.agent}: "

    def _note(self, text: str) -> None:
        if self.progress:
            self._end_line()
            self.terminal.note(text)

    def _tell_turn(self) -> None:
        if self.turn:
            self._words("".join(self.turn))
            self.turn.clear()

    def _words(self, text: str) -> None:
        if self.terminal.json or not text:
            return
        self.said = True
        self.mid_line = not text.endswith("\n")
        self.terminal.words(text)

    def _end_line(self) -> None:
        if self.mid_line:
            self.mid_line = False
            self.terminal.words("\n")


_SHOWN: Mapping[str, Callable[[Follower, Event], None]] = {
    "text.delta": Follower.on_text,
    "text.discarded": Follower.on_discarded,
    "entry.saved": Follower.on_saved,
    "tool.started": Follower.on_tool,
    "tool.ended": Follower.on_tool_ended,
    "run.state": Follower.on_state,
    "run.ended": Follower.on_ended,
}
"""What is shown of each kind of event; a kind that is not here is not shown."""


async def ended(
    app: App, run_ids: Sequence[str], pressed: asyncio.Event, person: Person | None = None
) -> list[Run]:
    """Every run once it has ended, or waits for what nobody here can give; when `pressed` is set they are cancelled
    first."""
    try:
        async with asyncio.TaskGroup() as group:
            stopper = group.create_task(_cancelled(app, run_ids, pressed))
            runs = [await _through(app, run_id, person) for run_id in run_ids]
            stopper.cancel()
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    return runs


async def _through(app: App, run_id: str, person: Person | None) -> Run:
    """Stays with a run past every question that the person here answers."""
    while True:
        run = await app.wait(run_id)
        waiting = await app.asked_in(run) if run.status is Status.WAITING else []
        if not waiting or person is None or person.answerer() is None:
            return run
        for approval in waiting:
            await answered(app, approval, person)


async def answered(app: App, approval: Approval, person: Person) -> None:
    """Puts the card to the person; somebody elsewhere may be faster, or the run be cancelled: then that counts."""
    elsewhere = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_settled(app, approval, elsewhere))
        said = await person.decide(approval, elsewhere)
        watcher.cancel()
    if said is None:
        now = await app.approval(approval.id)
        person.terminal.note(f"answered elsewhere: {now.answer}" if now.answer else "the question is closed")
        return
    with suppress(Refused):
        await app.answer(approval.id, said)


async def _settled(app: App, approval: Approval, elsewhere: asyncio.Event) -> None:
    """Looks until a question waits no more: it may be another process that answers it."""
    while not elsewhere.is_set():
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(RetinueError):
            if (await app.approval(approval.id)).state is not State.PENDING:
                elsewhere.set()


async def _cancelled(app: App, run_ids: Sequence[str], pressed: asyncio.Event) -> None:
    await pressed.wait()
    for run_id in run_ids:
        await app.cancel(run_id)
