"""Purge sessions from a home: every place that may contain their text has a purge function here."""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec import Struct

from retinue.app.log_file import scrub_logs
from retinue.domain.purge import PurgeTarget
from retinue.ledger.purge import purge_ledger
from retinue.ledger.repair import damaged_files
from retinue.storage.file_io import write_error

LEDGER_NAME = "ledger.db"
SESSIONS_FOLDER = "sessions"


class _Purge(Struct, frozen=True, kw_only=True):
    """One purge: its target, the ids of its runs, and how to remove the sessions' files."""

    home: Path
    target: PurgeTarget
    run_ids: frozenset[str]
    remove_files: Callable[[], None]


PurgeFunction = Callable[[_Purge], None]


def _remove_session_folders(place: str, purge: _Purge) -> None:
    """Remove the folders that are named after the sessions' ids."""
    for session_id in purge.target.session_ids:
        path = purge.home / place / session_id
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise write_error(os.fspath(path), error) from error


def _scrub_logs(purge: _Purge) -> None:
    ids = purge.run_ids | purge.target.session_ids
    try:
        scrub_logs(purge.home, ids, [_slug_in(each) for each in purge.target.folders])
    except OSError as error:
        raise write_error(os.fspath(purge.home / "logs"), error) from error


def _slug_in(folder: str) -> str:
    """Return the slug in the path of a session's folder; a branch's own name, such as `main`, is in every log line."""
    above, _, name = folder.rpartition("/branches/")
    return (folder if "/" in name or not above else above).rpartition("/")[2]


def _remove_session_files(purge: _Purge) -> None:
    purge.remove_files()


def _skip_purged_ledger(_: _Purge) -> None:
    """Do nothing: the ledger was purged before, because it decides whether the sessions are live."""


PURGE_FUNCTIONS: Mapping[str, PurgeFunction] = {
    LEDGER_NAME: _skip_purged_ledger,
    "logs": _scrub_logs,
    "tmp": partial(_remove_session_folders, "tmp"),
    "programs": partial(_remove_session_folders, "programs"),
    SESSIONS_FOLDER: _remove_session_files,
}
"""Place in the home → how a purge empties it, in this order: the sessions' own files are removed last."""
KEPT_PLACES: Mapping[str, str] = {
    "worktrees": "the agents' work, which belongs to a person's repository; clean ones are removed with the session",
    "unclaimed": "paths of repositories, until a new worktree is in use",
    "cells": "records of running commands: paths, removed when the command ends",
    "owners": "locks of processes",
    "mcp": "home folders of MCP servers, whose contents are their own",
    "models": "weights of local models",
    "demo": "files of `retinue demo`",
    "trust.json": "hashes of trusted projects",
    "offered.json": "names of the models that servers offer",
    "learned.json": "what model servers said about fields of requests",
    "token": "the daemon's key",
    "tokens.json": "hashes of keys",
    "daemon.sock": "a socket",
    "daemon.lock": "a lock",
    "forget.lock": "a lock",
}
"""Place in the home → why a purge does not touch it."""


def purge_home(
    home: Path, target: PurgeTarget, *, now: datetime, remove_files: Callable[[], None]
) -> list[str]:
    """Purge sessions from every place of a home. Call it in a thread.

    Args:
        home: The home.
        target: The sessions.
        now: The current time.
        remove_files: Removes the sessions' files.

    Returns:
        Copies of damaged ledgers that still mention the sessions, which only a person removes.

    Raises:
        Conflict: A run of the sessions is live; nothing was changed.
    """
    run_ids = purge_ledger(home / LEDGER_NAME, target, now)
    purge = _Purge(home=home, target=target, run_ids=run_ids, remove_files=remove_files)
    for purge_place in PURGE_FUNCTIONS.values():
        purge_place(purge)
    return [str(path) for path in damaged_files(home / LEDGER_NAME) if _mentions(path, target.session_ids)]


def _mentions(path: Path, session_ids: frozenset[str]) -> bool:
    pattern = re.compile("|".join(map(re.escape, session_ids)).encode())
    return pattern.search(path.read_bytes()) is not None
