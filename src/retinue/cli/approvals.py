"""Approvals: what waits for a person's yes, and the answer."""

from collections.abc import Sequence
from dataclasses import replace

import click

from retinue.app import App
from retinue.cli.command import exit_code, on_app
from retinue.cli.follow import followed, reported
from retinue.cli.options import Group
from retinue.cli.ui.approval_card import card
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.domain.approval import Approval, as_json
from retinue.domain.run import Run, Status
from retinue.domain.run import as_json as run_as_json

COLUMNS: Sequence[Column] = (
    ("APPROVAL", lambda row: row["id"]),
    ("STATE", lambda row: row["state"]),
    ("WHO", lambda row: row["agent"]),
    (
        "WANTS",
        lambda row: (
            row["tool"] if row["touch"] == "tool" else f"{row['tool']} {one_line(row['resource'], 80)}"
        ),
    ),
    ("UNTIL", lambda row: row["expires_at"]),
)


@click.group(cls=Group)
def approvals() -> None:
    """What agents ask a person before they do it: to write a file, run a command, use a tool, or get more scope.

    At a terminal, `run` and `chat` ask by themselves. Elsewhere they leave with exit code 6, and the run waits here for
    its answer, as long as `limits.approval_seconds` says; after that the answer is no.

    ID is an approval's id or an unambiguous prefix of it. One answer speaks for one exact call, once.
    """


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that were answered, used up or expired.")
@on_app()
async def list_approvals(app: App, terminal: Terminal, everything: bool) -> None:
    """What waits for an answer, the oldest first."""
    found = await app.approvals(all_states=everything)
    empty = "nothing waits for an answer"
    terminal.rows([as_json(each) for each in found], COLUMNS, empty=empty)


@approvals.command("show")
@click.argument("approval", metavar="ID")
@on_app()
async def show_approval(app: App, terminal: Terminal, approval: str) -> None:
    """The exact call, who asked for it, and why it needs a yes."""
    found = await app.approval(approval)
    if terminal.json:
        terminal.value(as_json(found))
        return
    for line in card(found, whole=True):
        terminal.line(line)
    terminal.line(_state(found))


@approvals.command("answer")
@click.argument("approval", metavar="ID")
@click.argument("answer", type=click.Choice(["allow", "deny", "add"]))
@on_app(quiet=True)
async def answer_approval(app: App, terminal: Terminal, approval: str, answer: str) -> int:
    """Say allow or deny to one exact call, once.

    When an agent asks for more scope, allow lets its next such call through, and add writes it into the session's
    preset.md, from now on. The run goes on at once: in the process that works it, else here, until it ends or asks
    again (exit code 6).
    """
    asked = await app.approval(approval)
    given = await app.answer(asked.id, answer)
    what = "" if given.touch == "tool" else f" {one_line(given.resource, 120)}"
    terminal.note(f"{given.tool}{what}: {answer}")
    code = await _carried_on(app, terminal, await app.find_run(given.run))
    if terminal.json:
        run = await app.find_run(given.run)
        more = {"approvals": await app.awaited(run), "sandbox": await app.sandbox(run)}
        terminal.value(as_json(await app.approval(given.id)) | {"run": run_as_json(run) | more})
    return code


async def _carried_on(app: App, terminal: Terminal, run: Run) -> int:
    """The run goes on here unless another process works it; the answer is the exit code."""
    if not run.status.live or not await app.works(run):
        return await _those_above(app, terminal, run)
    ended = await followed(app, terminal, lambda: app.find_run(run.id))
    code = await reported(app, replace(terminal, json=False), ended)
    return await _those_above(app, terminal, ended) or await _those_behind(app, terminal, ended) or code


async def _those_behind(app: App, terminal: Terminal, run: Run) -> int:
    """What was said to its conversation meanwhile, by a process that has left, is answered here too."""
    if run.status.live:
        return 0
    code = 0
    for each in await app.interrupted():
        if each.session_id == run.session_id and each.status is Status.QUEUED:
            terminal.note(
                f"{each.agent} goes on with what was said meanwhile: {one_line(each.ask.task or '', 120)}"
            )
            behind = await followed(app, terminal, lambda each=each: _first(app, each))
            code = max(code, await reported(app, replace(terminal, json=False), behind))
    return code


async def _first(app: App, run: Run) -> Run:
    return (await app.resume(run.id))[0]


async def _those_above(app: App, terminal: Terminal, run: Run) -> int:
    """Whoever waited for the run that was answered goes on here too, if nobody else works it: a daemon's tree may wait
    for the next answer, and nobody here would see it end."""
    top = await app.find_run(run.root)
    if run.root == run.id or not top.status.live or (app.lives(top) and not await app.works(top)):
        return 0
    top = await app.wait(top.id)
    terminal.note(f"{top.agent}: {top.status}" + (f": {one_line(top.text, 120)}" if top.text else ""))
    return exit_code(top)


def _state(approval: Approval) -> str:
    if approval.answer is not None:
        return f"{approval.state}: {approval.answered_by} said {approval.answer}"
    return str(approval.state)
