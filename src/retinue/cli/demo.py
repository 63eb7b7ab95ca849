"""The demonstration, as it is seen: agents at work, a kill in the middle, what it cost, and what to try next."""

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import click

from retinue.cli.command import exit_code, plainly
from retinue.cli.follow import ending
from retinue.cli.models import pulled
from retinue.cli.options import Command
from retinue.cli.ui.live_footer import Line, fitted
from retinue.cli.ui.progress_bar import megabytes
from retinue.cli.ui.run_tree import spoken
from retinue.cli.ui.tables import took
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.config.load import Config, load
from retinue.demo.local_model import TASK, Count, Ending, Seen, Stage, play
from retinue.demo.scripted import Shown, shown
from retinue.domain.run import Run, Status, as_json
from retinue.domain.transcript import Called, Entry, Said
from retinue.errors import RetinueError
from retinue.providers.local import weights as local

WIDTH = 80
LINES = 8
"""So much of the conversation is shown."""
SMALL = (
    "The model runs on this machine: SmolLM2, 135 million parameters, a\n"
    "demonstration. What it calls is its own doing, and so is its prose, which is\n"
    "fluent and often wrong. Everything else is real."
)
QUESTION = "What is the capital of France?"


@click.command(cls=Command)
@click.option(
    "--scripted", is_flag=True, help="With a model that plays a script, as where there are no weights."
)
@plainly
async def demo(terminal: Terminal, home: str | None, *, scripted: bool) -> int:
    """Watch agents at work on this machine, see them killed, and see them go on.

    Needs no key and no configuration. A small model runs here; its weights (98 MB) are fetched once. Where they cannot
    be, a scripted model plays instead. Everything is kept in $RETINUE_HOME, else in .demo/ here.
    """
    at = Path(home or os.environ.get("RETINUE_HOME") or Path.cwd() / ".demo" / "home").absolute()
    if not scripted:
        why = await _missing(terminal, at)
        if not why:
            return await _embedded(terminal, Stage(at))
        terminal.note(f"{why}; so a scripted model plays instead of a real one.", colour="33")
    return await _scripted(terminal, str(at))


async def _missing(terminal: Terminal, home: Path) -> str:
    """Why the model cannot be had; empty when it is there. It is kept in the user's own home, for later."""
    if not local.installed():
        return local.EXTRA
    weights = local.SMOLLM2
    config = load(os.environ)
    try:
        if not local.there(home, weights):
            if not any(local.there(each, weights) for each in (local.shared(), config.home)):
                terminal.note(f"Fetching the weights of a small model, once: {megabytes(weights.packed)}.")
            await pulled(terminal, config, weights)
        await pulled(terminal, Config(home=home, folder=config.folder, env=config.env), weights, config.home)
    except RetinueError as error:
        return str(error)
    return ""


async def _embedded(terminal: Terminal, stage: Stage) -> int:
    terminal.line(SMALL)
    terminal.line(f"\n> {textwrap.fill(TASK, WIDTH - 4, subsequent_indent='  ')}\n")
    view = View(terminal)
    ended = await play(stage, view.show, view.killed)
    view.close()
    if terminal.json:
        terminal.value(_facts(ended))
    run = ended.seen.parent
    if run is None or not run.status.final:
        why = one_line(ended.said) or "nothing was said"
        terminal.note(f"The demonstration did not come to its end: {why}.", colour="31")
        if run is not None:
            terminal.note(
                f"Nothing is lost: {_command()} --home {_short(stage.home)} runs resume goes on with it."
            )
        return 1
    told(terminal, ended)
    _next(terminal, stage, run)
    return 0 if run.status is Status.DONE and (ended.count is None or ended.count.kept) else 1


class View:
    """What is new since the last look, a line each; below them, on a terminal, who is at work."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._began = clock()
        self._known: set[tuple[str, str]] = set()

    def show(self, seen: Seen) -> None:
        for run in seen.runs:
            for entry in seen.entries[run.id]:
                self._once(run, entry)
        if self._terminal.footer is not None and not self._terminal.json:
            self._terminal.footer.show([] if seen.over else self._footer(seen))

    def killed(self, pid: int, seen: Seen) -> None:
        """The promise is put to the test."""
        self.close()
        open_ = sum(1 for run in seen.runs if not run.status.final)
        self._line(f"kill -9 {pid}: the worker and its {open_} runs are dead. Another goes on.", "31")

    def close(self) -> None:
        if self._terminal.footer is not None:
            self._terminal.footer.show(())

    def _once(self, run: Run, entry: Entry) -> None:
        key = (type(entry).__name__, entry.id)
        if key in self._known:
            return
        self._known.add(key)
        if isinstance(entry, Called):
            self._line(f"{_who(run)} → {spoken(entry.tool, entry.args)}", "36")
        elif isinstance(entry, Said) and entry.by == "agent" and entry.text.strip():
            self._line(f"{_who(run)} “{one_line(entry.text)}”", "")

    def _line(self, text: str, colour: str) -> None:
        if self._terminal.json:
            return
        line = fitted(f"{self._clock() - self._began:5.1f} s  {text}", WIDTH)
        self._terminal.painted(line, colour)

    def _footer(self, seen: Seen) -> list[Line]:
        lines: list[Line] = [(("", ""),)]
        for run in seen.runs:
            state = "reads and thinks" if run.status is Status.RUNNING else f"{run.status}"
            waits = " for the explorers" if run.status is Status.WAITING else ""
            lines.append(((f"  {_who(run)} ", "1"), (f"{state}{waits}", "2")))
        if not seen.runs:
            lines.append((("  the model is loaded …", "2"),))
        return lines


def _who(run: Run) -> str:
    """A child by its document."""
    about = (run.ask.task or "").rpartition(" ")[2] if run.ask.parent_run else ""
    return f"{f'{run.agent} {about}'.strip():<18}"


def told(terminal: Terminal, ended: Ending) -> None:
    count = ended.count
    terminal.line()
    for part in (ended.seen.parent.text if ended.seen.parent else "").split("\n\n"):
        terminal.line(textwrap.fill(part, WIDTH - 2, initial_indent="  ", subsequent_indent="  "))
    terminal.line()
    if count is None and not ended.seen.children:
        terminal.line(
            "The model did not hand anything on: so small a one does not always. Nothing was killed."
        )
    elif count is None:
        terminal.line("It was done before there was a middle to kill it in.")
    else:
        terminal.painted(_verdict(count), "32" if count.kept else "31")
        terminal.line(
            f"Counted from the files, the ledger and the model's log: {count.answered} replies were on\n"
            f"disk at the kill; {count.in_flight} more were under way, and were asked for anew."
        )


def _verdict(count: Count) -> str:
    return (
        f"{count.resumed} of {count.cut_off} resumed, {count.asked_again} answered calls asked again, "
        f"{count.repeated} effects repeated"
    )


def _next(terminal: Terminal, stage: Stage, run: Run) -> None:
    us, file = _command(), Path(run.path)
    folder = f"{_short(file.parent)}/"
    terminal.line("\nEvery conversation is a file, and children lie below whoever asked:\n")
    for line in (folder, *_folder(file.parent)):
        terminal.line(f"  {fitted(line, WIDTH - 2)}")
    terminal.line("\nIt begins so:\n")
    for line in _beginning(file):
        terminal.painted(f"  {fitted(line, WIDTH - 2)}", "2")
    terminal.line("\nRead it, change it, go on from it. Type below its last line, and let it go on:\n")
    terminal.line(f"  echo {shlex.quote(QUESTION)} >> \\\n    {folder}{file.name}")
    terminal.line(f"  {us} --home {_short(stage.home)} run \\\n    --session {run.slug}")
    terminal.line("\nWith a key for a large model, the same agents do real work:\n")
    terminal.line("  export OPENAI_API_KEY=…    # or ANTHROPIC_API_KEY")
    terminal.line(f"  {us} run 'Ask an explorer about each folder here'")
    terminal.line(f"  {us} serve                 # the same in a browser")


def _folder(at: Path) -> list[str]:
    below = sorted(each.parent.name for each in at.glob("agents/*/session.md"))
    lines = ["├── session.md", *(["└── agents/"] if below else [])]
    for number, each in enumerate(below, 1):
        lines.append(f"    {'└' if number == len(below) else '├'}── {each}/session.md")
    return lines


def _beginning(file: Path) -> list[str]:
    """Its first words, without the blank lines."""
    with file.open(encoding="utf-8", errors="replace") as text:
        found = [line.rstrip() for line in text if line.strip()]
    return found[:LINES]


def _facts(ended: Ending) -> dict[str, object]:
    count = ended.count
    return {
        "model": "local:smollm2",
        "demonstration": True,
        "runs": [as_json(run) for run in ended.seen.runs],
        "kill": None
        if count is None
        else {
            "cut_off": count.cut_off,
            "resumed": count.resumed,
            "answered": count.answered,
            "asked_again": count.asked_again,
            "in_flight": count.in_flight,
            "effects_repeated": count.repeated,
        },
    }


def _command() -> str:
    """How this very program is called from here."""
    if shutil.which("retinue") == str(Path(sys.argv[0]).absolute()):
        return "retinue"
    return _short(Path(sys.argv[0])) if Path(sys.argv[0]).name == "retinue" else "retinue"


def _short(path: Path) -> str:
    """As one would type it from here."""
    try:
        return shlex.quote(str(path.absolute().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


async def _scripted(terminal: Terminal, home: str) -> int:
    show = await shown(home)
    if terminal.json:
        terminal.value(as_json(show.run))
        return exit_code(show.run)
    terminal.note("The model is scripted: its words are prepared, everything else is real.", colour="33")
    terminal.line(f"> {show.run.ask.task}\n")
    terminal.line(show.run.text)
    terminal.line()
    for line in tree(show):
        terminal.line(line)
    terminal.line(f"\nThe conversation is a file: {show.run.path}")
    if show.run.status is not Status.DONE:
        terminal.note(ending(show.run), colour="31")
    return exit_code(show.run)


def tree(show: Shown) -> list[str]:
    """What ran: the session, its run, and each call with its outcome."""
    run = show.run
    lines = [
        f"session {run.slug}",
        f"└── run {run.id}  {run.status}  {took(run.duration_ms)}  {run.turns} turns",
    ]
    for number, step in enumerate(show.steps, 1):
        corner = "└──" if number == len(show.steps) else "├──"
        lines.append(f"    {corner} {step.tool} {step.about}  {step.outcome}  {took(step.ms)}")
    return lines
