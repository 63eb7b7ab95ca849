"""A run as it goes: its words to standard output, its doings to standard error, Ctrl-C to stop it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from retinue.app import App
from retinue.cli.command import exit_code
from retinue.cli.run_waiter import ended, family
from retinue.cli.ui.run_progress import Progress
from retinue.cli.ui.run_tree import counted, spoken
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.cli.user_prompts import Person, interrupts
from retinue.cli.watch import heard_out
from retinue.cli.watch import spoken as watchers_words
from retinue.domain.event import Event
from retinue.domain.model_selection import labelled
from retinue.domain.run import Run, Status, Waiting, as_json
from retinue.domain.transcript import Called, Entry, Notice, Said

BAR = frozenset("█░")
"""What a note with a bar is known by: it grows below, in place, and is no line of its own."""


async def followed(app: App, terminal: Terminal, born: Callable[[], Awaitable[Run]]) -> Run:
    """Starts a run and stays with it until its end. Ctrl-C cancels the run; a second one leaves at once."""

    async def one() -> list[Run]:
        return [await born()]

    return (await all_followed(app, terminal, one))[0]


async def all_followed(
    app: App, terminal: Terminal, born: Callable[[], Awaitable[Sequence[Run]]], *, cancels: bool = True
) -> list[Run]:
    """The same with several runs at once. Of one its words are shown as they come; of several, in this order, when
    all have ended. Without `cancels` Ctrl-C only leaves, and Left is raised."""
    person = Person(terminal=terminal)
    follower = Follower(terminal, asking=person.turn.locked)
    with app.listen(follower.heard), interrupts() as pressed, outlived():
        runs = await born()
        follower.several = len(runs) > 1
        follower.follow(runs, await family(app, runs))
        await app.follow(runs)
        ids = [run.id for run in runs]
        async with follower.progress.shown(app):
            done = await ended(app, ids, pressed, person, leaving=follower.progress.stop, cancels=cancels)
        follower.finish(done)
        await heard_out(app, terminal, done, pressed)
    return done


@contextmanager
def outlived() -> Generator[None]:
    """A terminal that is closed takes the view away, not the runs: inside they go on without it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    lost = [number for number in (1, 2) if os.isatty(number)]

    def closed() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in lost:
            os.dup2(nowhere, number)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, closed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


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
    tree = await family(app, [run])
    for each in tree:
        if each.waiting_for is Waiting.PERSON:
            terminal.note(spoken_to(each), colour="33")
    for asked in await app.questions(run):
        terminal.note(f"{asked.agent} asks: {asked.told()}", colour="33")
    if run.status is not Status.DONE:
        terminal.note(ending(run, tree), colour="31")
    demonstrates = run.model.startswith("local:")
    if demonstrates or not terminal.json:
        by = f" ({labelled(run.model)})" if demonstrates else ""
        terminal.note(f"{run.slug}: {run.path}{by}")
    return exit_code(run)


def ending(run: Run, tree: Sequence[Run] = ()) -> str:
    """One sentence on a run that is not done; `tree` are the runs around it, for one that waits for another."""
    if run.status is Status.WAITING:
        return f"run {run.id} {waits(run, tree)}"
    if run.status is Status.QUEUED:
        return (
            f"run {run.id} is queued: {run.slug} waits for a person, and goes on with it after that; "
            f"retinue wait {run.id} stays with it"
        )
    reason = f" ({run.reason})" if run.reason else ""
    return f"run {run.id} {str(run.status).replace('_', ' ')}{reason}{': ' if run.error else ''}{run.error}"


def waits(run: Run, tree: Sequence[Run]) -> str:
    """What a run waits for, and what a person does about it. Whoever waits for a child waits for what the child does."""
    if run.waiting_for is Waiting.APPROVAL:
        return "waits for a person's yes: retinue approvals list shows to what"
    if run.waiting_for is Waiting.PERSON:
        return f"waits for a person to say how to go on: retinue send {run.slug} TEXT"
    if run.waiting_for is not Waiting.CHILD:
        return f"waits for {run.waiting_for or 'something'}: retinue runs show {run.id} says more"
    below = [each for each in tree if each.ask.parent_run == run.id and each.status.live]
    told = [
        f"{each.agent} ({each.slug}), which "
        + (waits(each, tree) if each.status is Status.WAITING else f"is {each.status}")
        for each in sorted(below, key=lambda each: each.id)
    ]
    return (
        f"waits for {'; and for '.join(told)}" if told else "waits for an agent it asked: retinue runs list"
    )


def spoken_to(run: Run) -> str:
    """What a person does about a run that waits for their words."""
    return f"{run.agent} waits for a person: retinue send {run.slug} TEXT goes on with it"


class Follower:
    """Listens to a process's events and shows those of the runs one looks at, and of the runs they asked for."""

    def __init__(self, terminal: Terminal, *, asking: Callable[[], bool] = lambda: False) -> None:
        self.terminal = terminal
        self.progress = Progress(terminal.footer, asking=asking)
        self.notes = terminal.err.isatty()
        self.runs: frozenset[str] = frozenset()
        self.sessions: frozenset[str] = frozenset()
        self.several = False
        """Whether they go on at the same time: then their words are not shown as they come."""
        self.early: list[Event] = []
        self.turn: list[str] = []
        self.here: set[str] = set()
        """Runs whose words are heard because this process works them, or the daemon beside it."""
        self.calls: set[str] = set()
        """Calls that were told of: a run that waited makes its open calls again."""
        self.said = False
        self.mid_line = False
        self.gone = False

    def follow(self, runs: Sequence[Run], family: Sequence[Run] = ()) -> None:
        """What was heard before the runs' ids were known is shown now."""
        self.runs |= {run.id for run in runs}
        self.sessions |= {run.session_id for run in runs}
        self.progress.watch(runs, family)
        early, self.early = self.early, []
        for event in early:
            self.heard(event)

    def heard(self, event: Event) -> None:
        """Never raises: a listener must not disturb the run, not even when its own reader has gone."""
        if not self.runs:
            self.early.append(event)
            return
        if event.kind == "interjection.posted" and event.session in self.sessions:
            self._guarded(lambda: self.on_interjection(event))
        if (show := _SHOWN.get(event.kind)) is not None and self.progress.tree.knows(event):
            self._guarded(lambda: show(self, event))
        self.progress.hear(event)

    def finish(self, runs: Sequence[Run]) -> None:
        """Words that never came in pieces are shown whole: those of an exit never do."""
        self._guarded(lambda: self._last(runs))

    def added(self, entry: Entry) -> None:
        """What another process has added to a conversation's file."""
        self._guarded(lambda: self._add(entry))

    def close(self) -> None:
        """The last line is left whole."""
        self._guarded(lambda: self._last(()))

    def _guarded(self, show: Callable[[], None]) -> None:
        if self.gone:
            return
        try:
            show()
        except OSError:
            self.gone = True

    def _last(self, runs: Sequence[Run]) -> None:
        self._tell_turn()
        for run in runs:
            if run.text and (self.several or run.exit or not self.said):
                self._words(run.text)
                self._end_line()
        self._end_line()

    def on_text(self, event: Event) -> None:
        if event.run not in self.runs or self.several:
            return
        if self.terminal.streams:
            self._words(event.data["text"])
        else:
            self.turn.append(event.data["text"])

    def on_discarded(self, event: Event) -> None:
        if event.run not in self.runs:
            return
        self.turn.clear()
        if self.mid_line:
            self._note("(asked again)")

    def on_saved(self, event: Event) -> None:
        if event.run in self.runs:
            self.here.add(event.run)
            self._tell_turn()
            self._end_line()

    def _add(self, entry: Entry) -> None:
        if isinstance(entry, Said) and entry.by == "agent":
            self._words(entry.text)
            self._end_line()
        elif isinstance(entry, Said):
            self._note(f"> {one_line(entry.text)}")
        elif isinstance(entry, Called):
            self._note(f"· {spoken(entry.tool, entry.args)}")
        elif isinstance(entry, Notice):
            self._note(f"· {one_line(entry.text)}")

    def on_tool(self, event: Event) -> None:
        """A child's calls stand in its card, where there is one."""
        called = event.data.get("call", "")
        if called in self.calls or (event.run not in self.runs and self.progress.footer is not None):
            return
        self.calls.add(called)
        self._note(f"{self._who(event)}{spoken(event.data['tool'], event.data.get('args') or '')}")

    def on_tool_ended(self, event: Event) -> None:
        if not event.data.get("ok") and (event.run in self.runs or self.progress.footer is None):
            self._note(f"{self._who(event)}{event.data['tool']} did not work")

    def on_state(self, event: Event) -> None:
        if event.data.get("note") and (event.data.get("torn") or event.data.get("phase") == Waiting.DISK):
            self.terminal.note(f"{self._who(event)}{event.data['note']}", colour="33")
        elif (note := event.data.get("note")) and BAR.isdisjoint(note):
            self._note(f"{self._who(event)}{note}")

    def on_interjection(self, event: Event) -> None:
        """Told whoever reads: it is about what goes on now."""
        self._end_line()
        words, colour = watchers_words(event)
        self.terminal.note(words, colour=colour)

    def on_ended(self, event: Event) -> None:
        if event.run in self.runs:
            return
        seen = self.progress.tree.live.get(event.run)
        name = self.progress.tree.name(event.run, event.agent)
        took = "" if seen is None else f" in {seen.lasted(event.at)}"
        calls = "" if seen is None or not seen.total else f", {counted(seen.total, 'call')}"
        self._note(f"· {name} {event.data.get('status')}{took}{calls}")

    def _who(self, event: Event) -> str:
        plain = event.run in self.runs and not self.several
        return "· " if plain else f"· {self.progress.tree.name(event.run, event.agent)}: "

    def _note(self, text: str) -> None:
        if self.notes:
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
