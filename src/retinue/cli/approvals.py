"""Commands for approvals: list, show and answer pending requests."""

from collections.abc import Sequence
from dataclasses import replace

import click

from retinue.app import App
from retinue.cli.command import exit_code, run_output, with_app
from retinue.cli.follow import follow_run, print_result
from retinue.cli.options import Group
from retinue.cli.ui.approval_card import approval_card_lines
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.approval import Approval, approval_as_json
from retinue.domain.run import Run, Status

APPROVAL_COLUMNS: Sequence[Column] = (
    ("APPROVAL", lambda row: row["id"]),
    ("STATE", lambda row: row["state"]),
    ("AGENT", lambda row: row["agent"]),
    (
        "REQUEST",
        lambda row: (
            row["tool"] if row["access"] == "tool" else f"{row['tool']} {one_line(row['resource'], 80)}"
        ),
    ),
    ("EXPIRES", lambda row: row["expires_at"]),
)


@click.group(cls=Group)
def approvals() -> None:
    """List, show and answer approval requests.

    Agents need approval to write a file, run a command, use certain tools, or get more permissions. On a
    terminal, `run` and `chat` ask you directly. Otherwise they exit with code 6, and the run waits for an
    answer. After `limits.approval_seconds` the request is denied.

    ID is an approval's id or an unambiguous prefix. An answer applies to one exact call, once.
    """


@approvals.command("list")
@click.option("--all", "all_states", is_flag=True, help="Include answered, used and expired approvals.")
@with_app()
async def list_approvals(app: App, terminal: Terminal, all_states: bool) -> None:
    """List pending approvals, oldest first."""
    rows = await app.approvals.list(all_states=all_states)
    empty_note = "No approvals are pending."
    terminal.print_table([approval_as_json(each) for each in rows], APPROVAL_COLUMNS, empty_note=empty_note)


@approvals.command("show")
@click.argument("approval", metavar="ID")
@with_app()
async def show_approval(app: App, terminal: Terminal, approval: str) -> None:
    """Show the exact call, who requested it, and why it requires approval."""
    found = await app.approvals.find(approval)
    if terminal.json:
        terminal.print_json(approval_as_json(found))
        return
    for line in approval_card_lines(found, full=True, title=terminal.agent_titles.title):
        terminal.print_line(line)
    terminal.print_line(_state_text(found))


@approvals.command("answer")
@click.argument("approval", metavar="ID")
@click.argument("answer", type=click.Choice(["allow", "deny", "add"]))
@with_app(executes_runs=True)
async def answer_approval(app: App, terminal: Terminal, approval: str, answer: str) -> int:
    """Allow or deny one exact call, once.

    If an agent requests more permissions, allow permits the next such call, and add grants the permission
    permanently, in the session's preset.md. The run continues immediately, in its own process or else here, until
    it ends or needs another approval (exit code 6).
    """
    pending = await app.approvals.find(approval)
    answered = await app.approvals.answer(pending.id, answer)
    resource = "" if answered.access == "tool" else f" {one_line(answered.resource, 120)}"
    terminal.print_note(f"{answered.tool}{resource}: {answer}")
    code = await _follow_resumed_run(app, terminal, await app.runs.find(answered.run))
    if terminal.json:
        run = await app.runs.find(answered.run)
        extra_fields = {
            "approvals": await app.approvals.pending_ids(run),
            "sandbox": await app.runs.lowest_sandbox_level(run),
        }
        terminal.print_json(
            approval_as_json(await app.approvals.find(answered.id))
            | {"run": run_output(app, run) | extra_fields}
        )
    return code


async def _follow_resumed_run(app: App, terminal: Terminal, run: Run) -> int:
    """Run the answered run here, unless another process does, and return the exit code."""
    if not run.status.is_live or not await app.runs.is_owned_here(run):
        return await _wait_for_root_run(app, terminal, run)
    finished = await follow_run(app, terminal, lambda: app.runs.find(run.id))
    code = await print_result(app, replace(terminal, json=False), finished)
    return (
        await _wait_for_root_run(app, terminal, finished)
        or await _follow_queued_runs(app, terminal, finished)
        or code
    )


async def _follow_queued_runs(app: App, terminal: Terminal, run: Run) -> int:
    """Run the queued runs of the same session too.

    They are messages that other processes sent meanwhile; those processes have exited.
    """
    if run.status.is_live:
        return 0
    code = 0
    for queued in await app.runs.interrupted():
        if queued.session_id == run.session_id and queued.status is Status.QUEUED:
            terminal.print_note(
                f"{queued.agent} continues with the next queued message: {one_line(queued.request.task or '', 120)}"
            )
            finished = await follow_run(app, terminal, lambda queued=queued: _resume_run(app, queued))
            code = max(code, await print_result(app, replace(terminal, json=False), finished))
    return code


async def _resume_run(app: App, run: Run) -> Run:
    return (await app.runs.resume(run.id))[0]


async def _wait_for_root_run(app: App, terminal: Terminal, run: Run) -> int:
    """Wait for the root run, unless another process executes it, and return the exit code.

    The tree may belong to the connected daemon, so the end of this run is not the end of the tree.
    """
    root_run = await app.runs.find(run.root_id)
    if (
        run.root_id == run.id
        or not root_run.status.is_live
        or (app.runs.has_live_owner(root_run) and not await app.runs.is_owned_here(root_run))
    ):
        return 0
    root_run = await app.runs.wait(root_run.id)
    terminal.print_note(
        f"{root_run.agent}: {root_run.status}"
        + (f": {one_line(root_run.text, 120)}" if root_run.text else "")
    )
    return exit_code(root_run)


def _state_text(approval: Approval) -> str:
    if approval.answer is not None:
        return f"{approval.state}: {approval.answered_by} answered {approval.answer}"
    return str(approval.state)
