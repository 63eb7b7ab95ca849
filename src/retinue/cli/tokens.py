"""Commands for API tokens with limited permissions: add, list and remove."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from retinue.cli.command import without_app
from retinue.cli.options import Group
from retinue.cli.ui.tables import format_age
from retinue.cli.ui.terminal import Column, Terminal, one_line
from retinue.config.load import load_config
from retinue.domain.api_permission import ApiPermission
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import UsageError
from retinue.storage.token_store import TokenStore

TOKEN_COLUMNS: Sequence[Column] = (
    ("NAME", lambda row: row["name"]),
    ("PERMISSIONS", lambda row: " ".join(row["rights"])),
    ("AGE", lambda row: format_age(row["created_at"])),
    ("BROWSER", lambda row: one_line(row["browser"] or "", 60)),
)
EMPTY_LIST_NOTE = "No tokens besides <home>/token. Create one that can only read with `retinue tokens add NAME --rights read`."


@click.group(cls=Group)
def tokens() -> None:
    """Manage tokens for programs that use the HTTP API, each with its own permissions.

    Browsers that opened the page are listed as page-…; remove one to log it out.

    read: read everything. run: start, control and stop runs. approve: answer approvals. admin: create page
    links and stop the daemon. No permission includes another. The token in <home>/token has all
    permissions.
    """


@tokens.command("add")
@click.argument("name")
@click.option("--rights", required=True, metavar="R[,R…]", help=f"Some of {', '.join(ApiPermission)}.")
@without_app
async def add_token(terminal: Terminal, home: str | None, *, name: str, rights: str) -> None:
    """Create a token and print it once; only its hash is stored.

    A running daemon accepts it immediately.
    """
    parsed_rights = _parse_rights(rights)
    token = _token_store(home).add(name, parsed_rights, at=str(iso_timestamp(datetime.now(UTC))))
    terminal.print_facts({"name": name, "rights": sorted(parsed_rights), "token": token})


@tokens.command("list")
@without_app
async def list_tokens(terminal: Terminal, home: str | None) -> None:
    """List the tokens with their permissions, and the browsers that have opened the page."""
    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "rights": sorted(each.rights),
            "created_at": each.made_at,
            "expires_at": each.until,
            "browser": each.browser,
        }
        for each in _token_store(home).all()
    ]
    terminal.print_table(rows, TOKEN_COLUMNS, empty_note=EMPTY_LIST_NOTE)


@tokens.command("remove")
@click.argument("name")
@without_app
async def remove_token(terminal: Terminal, home: str | None, *, name: str) -> None:
    """Revoke a token, or log out a browser. A running daemon refuses it immediately."""
    _token_store(home).remove(name)
    terminal.print_facts({"name": name, "removed": True})


def _token_store(home: str | None) -> TokenStore:
    return TokenStore(load_config(os.environ, home=home).home)


def _parse_rights(text: str) -> frozenset[ApiPermission]:
    names = [name for each in text.split(",") if (name := each.strip())]
    if unknown := [name for name in names if name not in list(ApiPermission)]:
        raise UsageError(
            f"unknown permission {unknown[0][:40]!r}; the permissions are {', '.join(ApiPermission)}"
        )
    return frozenset(map(ApiPermission, names))
