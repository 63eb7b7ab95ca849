"""Runs: what is going on, what has been, and what to do about it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from retinue.app import App
from retinue.cli.command import exit_code, on_app
from retinue.cli.follow import spoken_to
from retinue.cli.options import Group
from retinue.cli.run_control import detach_run, interrupt_run
from retinue.cli.run_waiter import ended, family
from retinue.cli.ui.run_progress import Progress
from retinue.cli.ui.run_tree import about, counted, in_order, names, span
from retinue.cli.ui.tables import RUN_COLUMNS
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.cli.user_prompts import Person, interrupts
from retinue.domain.model_selection import labelled
from retinue.domain.pricing import Bill, dollars
from retinue.domain.run import Run, Waiting, as_json

WIDEST = 64

LIVE_COLUMNS: Sequence[Column] = (
    ("WHO", lambda row: row["who"]),
    ("TIME", lambda row: row["time"]),
    ("TURNS", lambda row: str(row["turns"])),
    ("TOOLS", lambda row: str(row["tool_calls"])),
    ("TOKENS", lambda row: f"{row['usage']['input'] + row['usage']['output']:,}"),
    ("RUN", lambda row: row["run_id"]),
    ("SESSION", lambda row: row["slug"]),
    ("DOES", lambda row: row["about"]),
)


@click.group(cls=Group)
def runs() -> None:
    """Runs: one task given to one session, from the asking to the end.

    RUN is a run's id or an unambiguous prefix of it, or a session: the run that it is at, else its newest.
    """


@runs.command("list")
@on_app()
async def list_runs(app: App, terminal: Terminal) -> None:
    """Runs that are going on, each below the one that asked for it."""
    live = await app.runs(live=True)
    empty = "nothing is going on: retinue runs history lists what has been"
    if terminal.json:
        terminal.value([as_json(run) for run in live])
        return
    relatives = await family(app, live)
    called = names(relatives)
    rows = [
        as_json(run)
        | {
            "who": f"{'  ' * depth}{called[run.id]} {run.status}{_for(run)}",
            "time": _lasted(run),
            "about": run.error if run.waiting_for is Waiting.DISK else about(run),
        }
        for depth, run in in_order(live, relatives)
    ]
    terminal.rows(rows, LIVE_COLUMNS, empty=empty)


@runs.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@on_app()
async def history(app: App, terminal: Terminal, limit: int) -> None:
    """All runs, live ones included, the newest first."""
    found = await app.runs(live=False, limit=limit)
    empty = "there are no runs yet: retinue run TEXT begins one"
    terminal.rows([as_json(run) for run in found], RUN_COLUMNS, empty=empty)


@runs.command("show")
@click.argument("run")
@on_app()
async def show_run(app: App, terminal: Terminal, run: str) -> None:
    """Everything that is known of one run, in words; with --json, every field."""
    found = await app.find_run(run)
    if terminal.json:
        terminal.value(await app.run_json(found.id))
        return
    held, effects = await app.sandbox(found), await app.effects(found)
    relatives = await family(app, [found])
    for line in in_words(
        found, relatives, await app.awaited(found), costs(app.cost(found), await app.bill(found))
    ):
        terminal.line(line)
    for asked in await app.questions(found):
        terminal.line(f"{asked.agent} asks: {asked.told()}")
    if held is not None:
        terminal.line(f"Its commands were held at {held} or tighter.")
    if effects:
        terminal.line(f"What it did that must not happen twice: {counted(len(effects), 'call')}.")
    for each in effects:
        if each["state"] == "unknown":
            terminal.line(
                f"Nobody knows whether {one_line(each['tool'], WIDEST)} happened: look before it is done again."
            )


@runs.command("cancel")
@click.argument("run")
@on_app(acts=True)
async def cancel_run(app: App, terminal: Terminal, run: str) -> None:
    """Stop a run, whichever process works it; what it said so far is kept."""
    stopped = await app.cancel(run)
    if stopped.status.live:
        stopped = await app.wait(stopped.id)
    terminal.facts(as_json(stopped))


runs.add_command(interrupt_run)
runs.add_command(detach_run)


@runs.command("resume")
@click.argument("run", required=False)
@on_app(quiet=True)
async def resume(app: App, terminal: Terminal, run: str | None) -> int:
    """Go on with RUN, or with every run whose process has died, until they end.

    The exit code is that of RUN, or else of the worst of those that nobody else answers for.
    """
    person = Person(terminal=terminal)
    since = app.chance.now()
    progress = Progress(terminal.footer, asking=person.turn.locked)
    with app.listen(progress.hear), interrupts() as pressed:
        taken = await app.resume(run)
        for one in taken:
            terminal.note(f"{one.agent} goes on in {one.slug}")
        tops = [one.root for one in taken]  # whoever waited for a run that goes on goes on after it
        everyone = list(dict.fromkeys([*(one.id for one in taken), *tops]))
        progress.watch(taken, await family(app, taken))
        await app.follow(taken)
        async with progress.shown(app):
            done = await ended(app, everyone, pressed, person, leaving=progress.stop)
    terminal.rows([as_json(one) for one in done], RUN_COLUMNS, empty="no run was interrupted")
    told = answerable(done, since) if run is None else [one for one in done if one.id == taken[0].id]
    return max((exit_code(one) for one in told), default=0)


def answerable(done: Sequence[Run], since: datetime) -> list[Run]:
    """Those whose end is nobody else's to tell. A run below one that came to its end since then, or has not, was part of
    its work: that one knows what it made of it."""
    tops = {one.id: one for one in done if one.id == one.root}
    over = {each.id for each in tops.values() if each.ended_at is not None and each.ended_at < since}
    return [one for one in done if one.id in tops or one.root in over or one.root not in tops]


def costs(own: float | None, bill: Bill) -> list[str]:
    """What a run cost, and what it and all below it did; nothing where nobody said what tokens cost."""
    spent = f"Cost: {dollars(own)}" if own is not None else ""
    if bill.runs == 1:
        return [spent]
    tokens = f"{bill.usage.input:,} tokens in, {bill.usage.output:,} out"
    sums = "" if bill.cost is None else f", {dollars(bill.cost)}"
    rest = f", and {counted(bill.unpriced, 'run')} without a price" if sums and bill.unpriced else ""
    return [spent, f"With those below it: {tokens}{sums}{rest}"]


def in_words(
    run: Run, relatives: Sequence[Run], approvals: Sequence[str], spent: Sequence[str] = ()
) -> list[str]:
    """What a person wants to know of a run, in the order in which they ask for it."""
    called = names(relatives)
    asker = run.ask.parent_run
    by = run.ask.requester if asker is None else f"{called.get(asker, 'run')} ({asker})"
    kept = f" ({run.usage.cached:,} from the cache)" if run.usage.cached else ""
    tokens = f"{run.usage.input:,} tokens in{kept}, {run.usage.output:,} out"
    model = f", with {labelled(run.model)}" if run.model else ""
    told = [
        f"{called[run.id]} {_state(run)}",
        f"Asked for by {by}: {one_line(run.ask.task or '', 400)}",
        f"Label: {run.ask.label}" if run.ask.label else "",
        f"{counted(run.turns, 'turn')}, {counted(run.tool_calls, 'tool call')}, {tokens}{model}",
        *spent,
        f"Ended by {run.exit}" if run.exit else "",
        f"Last words: {one_line(run.text, 400)}" if run.text else "",
        f"Error: {one_line(run.error, 400)}" if run.error else "",
        *(f"Waits for approval {each}: retinue approvals show {each}" for each in approvals),
        spoken_to(run) if run.waiting_for is Waiting.PERSON else "",
        *(
            f"{'  ' * depth}{called[each.id]} {_state(each)}: {about(each)} ({each.id})"
            for depth, each in _below(run, relatives)
        ),
        f"Session {run.slug}: {run.path}",
        f"retinue runs cancel {run.id} stops it" if run.status.live else "",
    ]
    return [line for line in told if line]


def _below(run: Run, relatives: Sequence[Run]) -> list[tuple[int, Run]]:
    """Those it asked for, and those they asked for."""
    listed = in_order(relatives, relatives)
    start = next(at for at, (_, each) in enumerate(listed) if each.id == run.id)
    depth = listed[start][0]
    found = listed[start + 1 :]
    end = next((at for at, (deep, _) in enumerate(found) if deep <= depth), len(found))
    return [(deep - depth, each) for deep, each in found[:end]]


def _state(run: Run) -> str:
    """How a run stands, and for how long it has been going on or did."""
    why = f" ({run.reason})" if run.reason else ""
    return f"{str(run.status).replace('_', ' ')}{_for(run)}{why}, {_lasted(run)}"


def _for(run: Run) -> str:
    return f" for {run.waiting_for}" if run.waiting_for else ""


def _lasted(run: Run) -> str:
    return span((run.ended_at or datetime.now(UTC)) - (run.started_at or run.created_at))
