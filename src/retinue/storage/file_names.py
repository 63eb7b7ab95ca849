"""Every file and folder name in a session's folder, so that no other module spells one."""

import re
from datetime import datetime

from retinue.domain.session import SLUG_UNSAFE, stamp

SESSION = "session.md"
PRESET = "preset.md"
PLAN = "scope-plan.yml"
TOOLS = "tools.org"
FACTS = "session.json"
THOUGHTS = "thoughts.jsonl"
BRANCH_FACTS = "branch-metadata.yml"
BRANCHES = "branches"
AGENTS = "agents"
CURRENT = "current"
MAIN = "main"
STAGING = ".staging"
"""Where new files and folders are made before they are moved to their place."""
INDEX = ".index"
"""What the last list found: derived, and gone without loss."""
SWEPT = ".swept"
"""When leftovers were last looked for, and how far."""
CHANGES = ".changes"
"""Locked for a moment while names and facts change, so that two processes do not both take one name."""
NEW = ".new-"
"""How a folder is called until it is complete."""

_UNFINISHED = re.compile(
    rf"\.(?:session\.md|preset\.md|scope-plan\.yml|session\.json|{CURRENT})[.-]"
    r"(?:[0-9a-f]{8}-[0-9a-f-]{27}|torn-\d{14}(?:-\d+)?)"
)
"""How a file or a link is called until it takes the place of another."""
_STAMPED = re.compile(r"-\d{14}(?![^-/])")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{0,27}", re.IGNORECASE)
_DELETED = re.compile(r"\.deleted\.(\d{14})(?:-\d+)?$")


def stamped(text: str) -> bool:
    """Whether it holds a whole slug: an agent, and when its session was begun."""
    return _STAMPED.search(text) is not None


def ours(text: str) -> bool:
    """Whether an id or a slug, of whatever session, looks like this, or begins so."""
    return stamped(text) or _ID.fullmatch(text) is not None


def torn(at: datetime) -> str:
    return f"{SESSION}.torn-{stamp(at)}"


def cleared(name: str, at: datetime) -> str:
    return f"{name}.cleared-{stamp(at)}"


def deleted(name: str, at: datetime) -> str:
    return f"{name}.deleted.{stamp(at)}"


def deleted_at(name: str) -> str | None:
    """When a folder of this name was deleted, as its name says; None for a living one."""
    found = _DELETED.search(name) if ".deleted." in name else None
    return found[1] if found else None


def undeleted(name: str) -> str:
    """What something of this name, or path, was called before it was deleted."""
    return _DELETED.sub("", name)


def left_over(name: str) -> bool:
    """Whether something of this name was never finished, or was deleted."""
    return name.startswith(NEW) or _UNFINISHED.fullmatch(name) is not None or deleted_at(name) is not None


def branch(name: str, at: datetime) -> str:
    """`<YYYYMMDDHHMMSS>-<name>`."""
    return f"{stamp(at)}-{SLUG_UNSAFE.sub('-', name.strip().lower())[:80] or 'branch'}"


def numbered(name: str, count: int) -> str:
    """The count-th try at a name that must be new: x, x-2, x-3."""
    return name if count == 1 else f"{name}-{count}"


def listed(name: str) -> bool:
    """Whether a folder of this name can be a session: hidden and deleted ones cannot."""
    return not name.startswith(".") and deleted_at(name) is None
