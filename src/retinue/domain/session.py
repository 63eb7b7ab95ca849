"""A session: one conversation of one agent, kept as a folder."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal

from retinue.domain.agent import Paths
from retinue.domain.ceiling import Ceiling
from retinue.domain.run import Run, iso, iso_seconds
from retinue.domain.value import value
from retinue.domain.workspace import Workspace

RESERVED = frozenset({"ask", "leaf", "role", "trigger", "watches"})
"""Attributes that the runtime goes by: nobody else sets them."""
SLUG_UNSAFE = re.compile(r"[^a-z0-9-]")
MAX_SLUG = 80
_DIGITS = {ord(each): None for each in "-T:Z"}


@value
class Session:
    """Who a conversation is. What was said in it is the transcript's business."""

    id: str
    """UUIDv7: primary, immutable."""
    slug: str
    """The folder's name; scope-plan.yml calls it session_id. Immutable."""
    agent: str
    type: Literal["branch", "agent"] = "branch"
    """`agent` for a child session, as seed 000's files say."""
    branch: str = "main"
    path: str
    """The folder that holds session.md: branches/<branch> of a top-level session, else the agent's folder."""
    parent: str | None = None
    """The parent session's id."""
    parent_slug: str | None = None
    depth: int = 0
    aliases: tuple[str, ...] = ()
    name: str | None = None
    created_at: datetime
    updated_at: datetime
    pinned_at: datetime | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    workspace: Workspace
    ceilings: tuple[Ceiling, ...] = ()
    """What the sessions above could hand on, outermost first, as it was at this one's birth: it has no more."""
    lifted: Paths = field(default_factory=Paths)
    """What a person allowed beyond that."""
    preset_hash: str = ""
    """Of preset.md as we wrote it: while it still matches, a top-level session follows the live definition."""
    last_snippet: str = ""
    deleted: bool = False

    @property
    def key(self) -> str:
        """What doors and registries call it: the first stored key, else slug and branch."""
        return self.aliases[0] if self.aliases else f"{self.slug}/{self.branch}"

    @property
    def top(self) -> bool:
        return self.type == "branch"


Born = tuple[Run, Session]
"""A run as it was written down a moment ago, and where it was asked for: nobody need look for either."""


@value
class NewSession:
    """Everything a folder is made of."""

    agent: str
    preset: str
    """preset.md's text."""
    preset_hash: str
    workspace: Workspace
    parent: Session | None = None
    description: str = ""
    """Of a child: becomes the end of its slug."""
    name: str | None = None
    aliases: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    lifted: Paths = field(default_factory=Paths)
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def top_slug(agent: str, at: datetime) -> str:
    """`<slug>-<YYYYMMDDHHMMSS>`."""
    return f"{agent}-{stamp(at)}"


def child_slug(agent: str, description: str, at: datetime) -> str:
    """`<agent>-<YYYYMMDDHHMMSS>-<slug>`: every character outside [a-z0-9-] becomes one hyphen, not collapsed."""
    return f"{agent}-{stamp(at)}-{SLUG_UNSAFE.sub('-', description.lower())[:MAX_SLUG]}"


def stamp(at: datetime) -> str:
    return iso_seconds(at).translate(_DIGITS)


def in_order(sessions: Iterable[Session]) -> list[Session]:
    """Pinned ones first, the most recently pinned before the others; the rest as they come."""
    pinned, rest = list[tuple[datetime, Session]](), list[Session]()
    for each in sessions:
        if each.pinned_at is None:
            rest.append(each)
        else:
            pinned.append((each.pinned_at, each))
    return [*(each for _, each in sorted(pinned, key=itemgetter(0), reverse=True)), *rest]


def found_by(session: Session, words: str) -> bool:
    """Whether a person who looks for these words would look for this one."""
    texts = (session.name, session.slug, session.agent, session.last_snippet, *session.aliases)
    text = "\n".join(each for each in texts if each).casefold()
    return all(word in text for word in words.casefold().split())


def as_json(session: Session) -> dict[str, Any]:
    """The shape of a row of `sessions list`; `sessions show` adds what only the file tells."""
    return {
        "session_id": session.id,
        "slug": session.slug,
        "key": session.key,
        "agent": session.agent,
        "name": session.name,
        "branch": session.branch,
        "parent_session_id": session.parent_slug,
        "parent": session.parent,
        "type": session.type,
        "depth": session.depth,
        "path": f"{session.path}/session.md",
        "created_at": iso(session.created_at),
        "updated_at": iso(session.updated_at),
        "pinned_at": iso(session.pinned_at),
        "last_snippet": session.last_snippet,
        "attributes": dict(session.attributes),
        "workspace": session.workspace.as_json(),
    }
