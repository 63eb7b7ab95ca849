"""Commands for runs: list, history, show, cancel, interrupt, detach and resume."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from retinue.app import App
from retinue.cli.command import exit_code, run_output, with_app
from retinue.cli.follow import reply_hint
from retinue.cli.options import Group
from retinue.cli.run_control import detach_run, interrupt_run
from retinue.cli.run_waiter import load_run_trees, wait_for_runs
from retinue.cli.ui.agent_titles import AgentTitles
from retinue.cli.ui.run_progress import RunProgress
from retinue.cli.ui.run_tree import depth_first_order, format_duration, run_labels, task_summary
from retinue.cli.ui.tables import RUN_COLUMNS
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.cli.user_prompts import UserPrompter, catch_interrupts
from retinue.domain.model_selection import model_label
from retinue.domain.number_format import format_count
from retinue.domain.pricing import CostSummary, format_dollars
from retinue.domain.run import Run, Status, WaitReason
from retinue.errors import UsageError

MAX_TOOL_NAME_CHARS = 64

LIVE_RUN_COLUMNS: Sequence[Column] = (
    ("AGENT", lambda row: row["label"]),
    ("TIME", lambda row: row["time"]),
    ("TURNS", lambda row: str(row["turns"])),
    ("TOOLS", lambda row: str(row["tool_calls"])),
    ("TOKENS", lambda row: f"{row['usage']['input'] + row['usage']['output']:,}"),
    ("RUN", lambda row: row["run_id"]),
    ("SESSION", lambda row: row["slug"]),
    ("TASK", lambda row: row["summary"]),
)


@click.group(cls=Group)
def runs() -> None:
    """List, show and control runs. A run is one task in one session, from request to end.

    RUN is a run's id or an unambiguous prefix of it, or a session: then its current run, or else its newest.
    """


@runs.command("list")
@with_app()
async def list_runs(app: App, terminal: Terminal) -> None:
    """List the runs that have not ended, each below its parent."""
    live = await app.runs.list(live=True)
    empty_note = 'No live runs. List earlier ones with "retinue runs history".'
    if terminal.json:
        terminal.print_json([run_output(app, run) for run in live])
        return
    relatives = await load_run_trees(app, live)
    labels = run_labels(relatives, terminal.agent_titles)
    rows = [
        run_output(app, run)
        | {
            "label": f"{'  ' * depth}{labels[run.id]} {run.status}{_waiting_for_text(run)}",
            "time": _duration_text(run),
            "summary": run.error if run.status is Status.WAITING and run.error else task_summary(run),
        }
        for depth, run in depth_first_order(live, relatives)
    ]
    terminal.print_table(rows, LIVE_RUN_COLUMNS, empty_note=empty_note)


@runs.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@with_app()
async def list_run_history(app: App, terminal: Terminal, limit: int) -> None:
    """List all runs, live ones included, newest first."""
    history = await app.runs.list(live=False, limit=limit)
    empty_note = 'No runs yet. Start one with "retinue run TEXT".'
    if not history and (pruned := await app.runs.pruned_count()):
        empty_note = (
            f"No runs to list: {format_count(pruned, 'ended run')} {'was' if pruned == 1 else 'were'} pruned or purged. "
            'What was said is in the sessions: "retinue sessions list".'
        )
    terminal.print_table([run_output(app, run) for run in history], RUN_COLUMNS, empty_note=empty_note)


@runs.command("show")
@click.argument("run")
@with_app()
async def show_run(app: App, terminal: Terminal, run: str) -> None:
    """Describe one run; with --json, print every field."""
    found = await app.runs.find(run)
    if terminal.json:
        terminal.print_json(await app.runs.to_json(found.id))
        return
    if found.is_pruned:
        for line in pruned_run_lines(found, str((await app.runs.to_json(found.id))["path"] or "")):
            terminal.print_line(line)
        return
    sandbox_level, effects = await app.runs.lowest_sandbox_level(found), await app.runs.side_effects(found)
    relatives = await load_run_trees(app, [found])
    for line in run_description_lines(
        found,
        relatives,
        await app.approvals.pending_ids(found),
        cost_lines(app.runs.cost(found), await app.runs.tree_cost(found)),
        terminal.agent_titles,
    ):
        terminal.print_line(line)
    for question in await app.runs.open_questions(found):
        terminal.print_line(f"{question.agent} asks: {question.text_with_options()}")
    if sandbox_level is not None:
        terminal.print_line(f"Sandbox: {sandbox_level} or stricter.")
    if effects:
        terminal.print_line(f"Side effects: {format_count(len(effects), 'call')}.")
    for effect in effects:
        if effect["state"] == "unknown":
            terminal.print_line(
                f"Unknown whether {one_line(effect['tool'], MAX_TOOL_NAME_CHARS)} took effect. Check before you repeat it."
            )


@runs.command("cancel")
@click.argument("run")
@with_app(controls_runs=True)
async def cancel_run(app: App, terminal: Terminal, run: str) -> None:
    """Cancel a run, even if another process executes it. Its saved messages are kept."""
    stopped = await app.runs.cancel(run)
    terminal.print_facts(run_output(app, await app.runs.wait_for_end(stopped)))


runs.add_command(interrupt_run)
runs.add_command(detach_run)


@runs.command("resume")
@click.argument("run", required=False)
@click.option("--model", "-m", metavar="M", help="Continue RUN with this model, as provider:name.")
@with_app(executes_runs=True)
async def resume_runs(app: App, terminal: Terminal, run: str | None, model: str | None) -> int:
    """Resume RUN, or every run whose process has died, and wait until they end.

    RUN may also wait for a model's server, or for you after repeated crashes. If it failed, was lost or timed
    out, a new run continues its conversation.

    The exit code is that of RUN. Without RUN, the exit code is the highest one among the resumed runs, except
    sub-agents whose root run was resumed too.
    """
    prompter = UserPrompter(terminal=terminal)
    started_at = app.context.clock.now()
    progress = RunProgress(terminal.footer, is_prompting=prompter.lock.locked, titles=terminal.agent_titles)
    with app.listen(progress.on_event), catch_interrupts() as interrupted:
        if run is None and model is not None:
            raise UsageError("--model requires a RUN. Name the run that is to continue with this model.")
        resumed = await app.runs.resume(run, by_person=run is not None, model=model)
        for each in resumed:
            ended = each.request.continued_run_id
            terminal.print_note(
                f"{each.agent} resumed in {each.slug}"
                + (f": run {each.id} continues {ended}, which had ended" if ended else "")
            )
        run_ids = list(
            dict.fromkeys([*(each.id for each in resumed), *await _root_ids_to_wait_for(app, resumed)])
        )
        progress.add_runs(resumed, await load_run_trees(app, resumed))
        await app.daemon.follow(resumed)
        async with progress.show(app):
            finished = await wait_for_runs(
                app, run_ids, interrupted, prompter, before_interrupt=progress.stop
            )
    terminal.print_table(
        [run_output(app, each) for each in finished], RUN_COLUMNS, empty_note="No interrupted runs."
    )
    reported = (
        reportable_runs(finished, started_at)
        if run is None
        else [each for each in finished if each.id == resumed[0].id]
    )
    return max((exit_code(each) for each in reported), default=0)


async def _root_ids_to_wait_for(app: App, resumed: Sequence[Run]) -> list[str]:
    """Return the root runs that continue after a resumed run, except those that another live process executes.

    Ctrl-C cancels the runs that the command waits for, so it must not wait for another command's runs.
    """
    roots = [await app.runs.find(each.root_id) for each in resumed]
    return [root.id for root in roots if root.owner_id == app.owner_id or not app.runs.has_live_owner(root)]


def reportable_runs(finished: Sequence[Run], since: datetime) -> list[Run]:
    """Return the runs whose outcome counts for the exit code.

    Leaves out descendants of a root run that has not ended, or ended since then: the parent
    has received the outcome of such a run.
    """
    roots = {each.id: each for each in finished if each.id == each.root_id}
    ended_roots = {each.id for each in roots.values() if each.ended_at is not None and each.ended_at < since}
    return [
        each
        for each in finished
        if each.id in roots or each.root_id in ended_roots or each.root_id not in roots
    ]


def cost_lines(own_dollars: float | None, total: CostSummary) -> list[str]:
    """Return what a run cost, and the total with its descendants; empty without known prices."""
    own_cost = f"Cost: {format_dollars(own_dollars)}" if own_dollars is not None else ""
    if total.run_count == 1:
        return [own_cost]
    tokens = f"{total.usage.input:,} tokens in, {total.usage.output:,} out"
    total_cost = "" if total.cost is None else f", {format_dollars(total.cost)}"
    unpriced_note = (
        f", and {format_count(total.unpriced_run_count, 'run')} without a price"
        if total_cost and total.unpriced_run_count
        else ""
    )
    return [own_cost, f"Total with sub-agents: {tokens}{total_cost}{unpriced_note}"]


def run_description_lines(
    run: Run,
    relatives: Sequence[Run],
    approvals: Sequence[str],
    cost_texts: Sequence[str],
    titles: AgentTitles,
) -> list[str]:
    """Return the lines that describe a run, most important first."""
    labels = run_labels(relatives, titles)
    parent_id = run.request.parent_run
    requester = (
        run.request.requester if parent_id is None else f"{labels.get(parent_id, 'run')} ({parent_id})"
    )
    cached_note = f" ({run.usage.cached:,} from the cache)" if run.usage.cached else ""
    tokens = f"{run.usage.input:,} tokens in{cached_note}, {run.usage.output:,} out"
    model = f", with {model_label(run.model)}" if run.model else ""
    lines = [
        f"{labels[run.id]} {_state_text(run)}",
        f"Requested by {requester}: {one_line(run.request.task or '', 400)}",
        f"Label: {run.request.label}" if run.request.label else "",
        f"{format_count(run.turns, 'turn')}, {format_count(run.tool_calls, 'tool call')}, {tokens}{model}",
        f"Answered by fallbacks: {', '.join(run.report.fallback_models)}"
        if run.report.fallback_models
        else "",
        *cost_texts,
        f"Ended by {run.exit_tool}" if run.exit_tool else "",
        f"{'Result' if run.status is Status.DONE else 'Last message'}: {one_line(run.text, 400)}"
        if run.text
        else "",
        f"Error: {one_line(run.error, 400)}" if run.error else "",
        *(
            f'Waiting for approval {each}. View it with "retinue approvals show {each}".'
            for each in approvals
        ),
        reply_hint(run, titles.title)
        if run.waiting_for is WaitReason.PERSON and not run.is_suspended_for_person
        else "",
        *(
            f"{'  ' * depth}{labels[each.id]} {_state_text(each)}: {task_summary(each)} ({each.id})"
            for depth, each in _descendants(run, relatives)
        ),
        f"Session {run.slug}: {run.transcript_path}",
        f'Stop it with "retinue runs cancel {run.id}".' if run.status.is_live else "",
    ]
    return [line for line in lines if line]


def pruned_run_lines(run: Run, transcript_path: str) -> list[str]:
    """Return the lines that describe a run of which only a tombstone is left."""
    return [
        f"{run.agent} {_state_text(run)}",
        "Its task and result were pruned from the ledger (setting retention). Its session is kept.",
        f"Session {run.session_id}: {transcript_path}",
    ]


def _descendants(run: Run, relatives: Sequence[Run]) -> list[tuple[int, Run]]:
    """Return the descendants of a run with their depth below it."""
    ordered = depth_first_order(relatives, relatives)
    start = next(at for at, (_, each) in enumerate(ordered) if each.id == run.id)
    depth = ordered[start][0]
    following = ordered[start + 1 :]
    end = next((at for at, (child_depth, _) in enumerate(following) if child_depth <= depth), len(following))
    return [(child_depth - depth, each) for child_depth, each in following[:end]]


def _state_text(run: Run) -> str:
    """Return a run's status, reason and duration so far."""
    reason = f" ({run.reason})" if run.reason else ""
    return f"{str(run.status).replace('_', ' ')}{_waiting_for_text(run)}{reason}, {_duration_text(run)}"


def _waiting_for_text(run: Run) -> str:
    return f" for {run.waiting_for}" if run.waiting_for else ""


def _duration_text(run: Run) -> str:
    return format_duration((run.ended_at or datetime.now(UTC)) - (run.started_at or run.created_at))
