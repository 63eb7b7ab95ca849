"""Torture, as a command: kill agents in every way there is on this machine, and see what is left."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from retinue.cli.command import plainly
from retinue.cli.options import Command
from retinue.cli.ui.terminal import Column, Row, Terminal
from retinue.torture.runner import Part, Wishes, figure, table, tortured

ALL = "all"


def how_many(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    if value == ALL:
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"say a number, or {ALL}")
    return int(value)


@click.command(cls=Command)
@click.option("--kills", type=click.IntRange(min=0), default=30, show_default=True, metavar="N",
              help="Kills at random moments.")  # fmt: skip
@click.option("--points", default="12", show_default=True, callback=how_many, metavar="N",
              help="System calls to fail at, for each fault; all for every one of them, which takes hours.")  # fmt: skip
@click.option("--running", type=click.IntRange(min=0), default=100, show_default=True, metavar="N",
              help="Runs that are at work when everything is killed at once.")  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=1), metavar="S", help="Begin nothing more after so long."
)
@click.option("--seed", type=int, metavar="N", help="Make the same choices as before.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
              help="Work there, and remove nothing.")  # fmt: skip
@plainly
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
    """Kill agents in every way there is, and hold what is left against what was promised.

    A tree of agents works in homes of its own, with a model of its own on this machine: nothing of yours is touched, no
    key is needed. System calls are made to fail (SIGKILL, ENOSPC, EIO), processes are killed at random moments, a daemon
    dies with many runs at work. Each time everything is started again and comes to its end.

    The exit code is 1 when a law was broken; then the folders are kept, and the same --seed makes the same choices.
    """
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    wishes = Wishes(kills=kills, points=points, running=running, seconds=seconds, seed=chosen, keep=keep)
    terminal.note(f"seed {chosen}")
    parts = await tortured(wishes, terminal.note)
    broken = [each for part in parts for each in part.broken]
    if terminal.json:
        terminal.value({"seed": chosen, "broken": len(broken), "parts": [part.as_json() for part in parts]})
    else:
        _shown(terminal, parts)
        terminal.line(f"\n{figure(parts, datetime.now(UTC).date())}")
    for sentence, folder in broken[:20]:
        terminal.note(f"{sentence} ({folder})", colour="31")
    if broken:
        terminal.note(f"{len(broken)} breaches: --seed {chosen} makes the same choices again", colour="31")
    return 1 if broken else 0


def _shown(terminal: Terminal, parts: Sequence[Part]) -> None:
    rows = [{"what": what, "values": values} for what, values in table(parts)]
    columns: list[Column] = [("", lambda row: row["what"])]
    columns += [(part.name.upper(), partial(_value, at=at)) for at, part in enumerate(parts)]
    terminal.rows(rows, columns, empty="nothing was asked for")


def _value(row: Row, at: int) -> str:
    return row["values"][at]
