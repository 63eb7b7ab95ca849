"""File and folder names in a session's folder; they are defined only here."""

import re
from datetime import datetime

from retinue.domain.session import UNSAFE_SLUG_CHARACTER, slug_timestamp

SESSION = "session.md"
PRESET = "preset.md"
PLAN = "scope-plan.yml"
TOOLS = "tools.org"
METADATA = "session.json"
PROVIDER_DATA = "thoughts.jsonl"
BRANCH_METADATA = "branch-metadata.yml"
BRANCHES = "branches"
AGENTS = "agents"
CURRENT = "current"
MAIN = "main"
STAGING = ".staging"
"""Folder where new files and folders are created before they are moved into place."""
LIST_CACHE = ".index"
"""Cache of the session list; derived, so it can be deleted without loss."""
SWEEP_MARKER = ".swept"
"""Records when leftovers were last swept, and how far."""
CHANGES_LOCK = ".changes"
"""Lock file held briefly while names and other metadata change.

Prevents two processes from taking the same name.
"""
PURGED_IDS = ".purged"
"""Lists the ids of a deleted session whose folder is being removed, so that it is found until it is gone."""
NEW_PREFIX = ".new-"
"""Prefix of a folder's name until the folder is complete."""

_TEMPORARY_NAME = re.compile(
    rf"\.(?:session\.md|preset\.md|scope-plan\.yml|session\.json|{CURRENT})[.-]"
    r"(?:[0-9a-f]{8}-[0-9a-f-]{27}|torn-\d{14}(?:-\d+)?)"
)
"""Name of a temporary file or link before it replaces its target."""
_SLUG_TIMESTAMP = re.compile(r"-\d{14}(?![^-/])")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{0,27}", re.IGNORECASE)
_DELETED_SUFFIX = re.compile(r"\.deleted\.(\d{14})(?:-\d+)?$")


def contains_slug(text: str) -> bool:
    """Return True if the text contains a whole slug: an agent's name and a timestamp."""
    return _SLUG_TIMESTAMP.search(text) is not None


def looks_like_session_id(text: str) -> bool:
    """Return True if the text looks like, or begins like, an id or slug of a session."""
    return contains_slug(text) or _ID.fullmatch(text) is not None


def torn_tail_name(at: datetime) -> str:
    return f"{SESSION}.torn-{slug_timestamp(at)}"


def cleared_name(name: str, at: datetime) -> str:
    return f"{name}.cleared-{slug_timestamp(at)}"


def deleted_name(name: str, at: datetime) -> str:
    return f"{name}.deleted.{slug_timestamp(at)}"


def deletion_time(name: str) -> str | None:
    """Return the deletion time encoded in a folder's name, or None for a folder that is not deleted."""
    match = _DELETED_SUFFIX.search(name) if ".deleted." in name else None
    return match[1] if match else None


def name_before_deletion(name: str) -> str:
    """Return the name or path that a deleted folder had before."""
    return _DELETED_SUFFIX.sub("", name)


def is_leftover(name: str) -> bool:
    """Return True if the name belongs to something unfinished or deleted."""
    return (
        name.startswith(NEW_PREFIX)
        or _TEMPORARY_NAME.fullmatch(name) is not None
        or deletion_time(name) is not None
    )


def branch_folder_name(name: str, at: datetime) -> str:
    """Return `<YYYYMMDDHHMMSS>-<name>`."""
    return f"{slug_timestamp(at)}-{UNSAFE_SLUG_CHARACTER.sub('-', name.strip().lower())[:80] or 'branch'}"


def numbered_name(name: str, count: int) -> str:
    """Return the count-th candidate for a unique name: x, x-2, x-3."""
    return name if count == 1 else f"{name}-{count}"


def is_listable(name: str) -> bool:
    """Return True if a folder of this name can be a session: not hidden and not deleted."""
    return not name.startswith(".") and deletion_time(name) is None
