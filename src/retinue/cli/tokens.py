"""Tokens: what programs are given that may do less over HTTP than their owner."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from retinue.cli.command import plainly
from retinue.cli.options import Group
from retinue.cli.ui.tables import ago
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.config.load import load
from retinue.domain.api_permission import Right
from retinue.domain.run import iso
from retinue.errors import Usage
from retinue.storage.token_store import Tokens

COLUMNS: Sequence[Column] = (
    ("NAME", lambda row: row["name"]),
    ("RIGHTS", lambda row: " ".join(row["rights"])),
    ("AGE", lambda row: ago(row["made_at"])),
    ("BROWSER", lambda row: one_line(row["browser"] or "", 60)),
)
EMPTY = "no token but the one in <home>/token: `retinue tokens add NAME --rights read` makes one that may only look"


@click.group(cls=Group)
def tokens() -> None:
    """Tokens for programs that speak to the daemon over HTTP, each with some rights of its own.

    A browser that opened the page is listed too, as page-…: to remove it ends its visit, and no other.

    read: look at everything. run: start, steer and end work. approve: answer what agents ask. admin: links to the page,
    and the daemon's end. None includes another. The token in <home>/token has all of them.
    """


@tokens.command("add")
@click.argument("name")
@click.option("--rights", required=True, metavar="R[,R…]", help=f"Some of {', '.join(Right)}.")
@plainly
async def add_token(terminal: Terminal, home: str | None, *, name: str, rights: str) -> None:
    """Make a token, and print it: this once, because only its hash is kept.

    A daemon that is running takes it at once.
    """
    wanted = _rights(rights)
    made = _tokens(home).add(name, wanted, at=str(iso(datetime.now(UTC))))
    terminal.facts({"name": name, "rights": sorted(wanted), "token": made})


@tokens.command("list")
@plainly
async def list_tokens(terminal: Terminal, home: str | None) -> None:
    """Which tokens there are, and what each may do; and which browsers have opened the page."""
    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "rights": sorted(each.rights),
            "made_at": each.made_at,
            "until": each.until,
            "browser": each.browser,
        }
        for each in _tokens(home).all()
    ]
    terminal.rows(rows, COLUMNS, empty=EMPTY)


@tokens.command("remove")
@click.argument("name")
@plainly
async def remove_token(terminal: Terminal, home: str | None, *, name: str) -> None:
    """Take a token back, or end a browser's visit. A daemon that is running refuses it from then on."""
    _tokens(home).remove(name)
    terminal.facts({"name": name, "removed": True})


def _tokens(home: str | None) -> Tokens:
    return Tokens(load(os.environ, home=home).home)


def _rights(said: str) -> frozenset[Right]:
    words = [word for each in said.split(",") if (word := each.strip())]
    if strange := [word for word in words if word not in list(Right)]:
        raise Usage(f"there is no right {strange[0][:40]!r}: rights are {', '.join(Right)}")
    return frozenset(map(Right, words))
