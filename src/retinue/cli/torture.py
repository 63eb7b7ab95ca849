"""The torture command: crash-test the runtime on this machine."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from retinue.cli.command import without_app
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Column, Row, Terminal
from retinue.torture.runner import PartResult, TortureOptions, result_table, run_torture, summary_sentence

ALL = "all"


def parse_count(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    if value == ALL:
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"it must be a number or {ALL}")
    return int(value)


@click.command(cls=Command)
@click.option("--kills", type=click.IntRange(min=0), default=30, show_default=True, metavar="N",
              help="Number of kills at random moments.")  # fmt: skip
@click.option("--points", default="12", show_default=True, callback=parse_count, metavar="N",
              help="Number of system calls to fail, for each kind of fault. all: every system call, which takes hours.")  # fmt: skip
@click.option("--running", type=click.IntRange(min=0), default=100, show_default=True, metavar="N",
              help="Number of active runs when all processes are killed at once.")  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=1), metavar="S", help="Start no new test after S seconds."
)
@click.option("--seed", type=int, metavar="N", help="Repeat the random choices of an earlier test.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
              help="Use DIR for the test folders, and keep them.")  # fmt: skip
@without_app
async def torture(
    terminal: Terminal,
    _home: str | None,
    *,
    kills: int,
    points: int | None,
    running: int,
    seconds: float | None,
    seed: int | None,
    keep: Path | None,
) -> int:
    """Crash-test the runtime, and check every guarantee afterwards.

    The tests run a tree of agents in temporary homes with a fake model; they need no key and do not use your
    data. System calls fail (SIGKILL, ENOSPC, EIO), processes are killed at random moments, and a daemon is
    killed with many active runs. After each fault, everything is restarted and runs to its end.

    The exit code is 1 if a guarantee was violated, or if something could not be tested; the folders of a
    violation are kept. Use the same --seed to repeat a test.
    """
    chosen_seed = secrets.randbelow(1 << 31) if seed is None else seed
    options = TortureOptions(
        kills=kills,
        points_per_fault=points,
        concurrent_runs=running,
        time_limit_s=seconds,
        seed=chosen_seed,
        keep_dir=keep,
    )
    terminal.print_note(f"seed {chosen_seed}")
    parts = await run_torture(options, terminal.print_note)
    violations = [each for part in parts for each in part.violations]
    if terminal.json:
        terminal.print_json(
            {"seed": chosen_seed, "violations": len(violations), "parts": [part.as_json() for part in parts]}
        )
    else:
        _print_report(terminal, parts)
        terminal.print_line(f"\n{summary_sentence(parts, datetime.now(UTC).date())}")
    for sentence, folder in violations[:20]:
        terminal.print_note(f"{sentence} ({folder})", colour="31")
    if violations:
        terminal.print_note(
            f"{len(violations)} violations. Repeat the test with --seed {chosen_seed}.", colour="31"
        )
    not_measured = [reason for part in parts for reason in part.not_measured]
    for reason in not_measured:
        terminal.print_note(f"Not tested: {reason}.", colour="31")
    return 1 if violations or not_measured else 0


def _print_report(terminal: Terminal, parts: Sequence[PartResult]) -> None:
    rows = [{"what": what, "values": values} for what, values in result_table(parts)]
    columns: list[Column] = [("", lambda row: row["what"])]
    columns += [(part.name.upper(), partial(_cell_value, index=index)) for index, part in enumerate(parts)]
    terminal.print_table(rows, columns, empty_note="Nothing to test.")


def _cell_value(row: Row, index: int) -> str:
    return row["values"][index]
