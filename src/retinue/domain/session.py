"""A session: one conversation of one agent, stored as a folder."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct, field

from retinue.domain.agent import PathPatterns
from retinue.domain.ceiling import Ceiling
from retinue.domain.run import Run
from retinue.domain.timestamps import iso_timestamp, iso_timestamp_seconds
from retinue.domain.workspace import Workspace

RESERVED_ATTRIBUTES = frozenset({"ask", "leaf", "role", "trigger", "watches"})
"""Attributes that only the runtime may set."""
SESSION_KEYWORDS = frozenset({"latest", "create", "latest-or-create"})
"""Words that choose a session where one is named, so no session has such a name."""
UNSAFE_SLUG_CHARACTER = re.compile(r"[^a-z0-9-]")
MAX_SLUG_CHARS = 80
DELETED_SESSION_RETENTION_DAYS = 30
"""Days in which a deleted session can be restored."""
_TIMESTAMP_SEPARATORS = {ord(each): None for each in "-T:Z"}


class Session(Struct, frozen=True, kw_only=True):
    """The identity and settings of a conversation; its messages are in the transcript."""

    id: str
    """UUIDv7, primary and immutable."""
    slug: str
    """Name of the folder, called session_id in scope-plan.yml. Immutable."""
    agent: str
    type: Literal["branch", "agent"] = "branch"
    """`agent` for a child session."""
    branch: str = "main"
    path: str
    """The folder of session.md: branches/<branch> for a top-level session, else the agent's folder."""
    parent_id: str | None = None
    """Id of the parent session."""
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
    """Ceilings inherited from the parents, outermost first, fixed when the session was created."""
    user_grants: PathPatterns = field(default_factory=PathPatterns)
    """Paths a person allowed beyond the ceilings."""
    preset_hash: str = ""
    """Hash of preset.md as written; while it matches, a top-level session follows the live definition."""
    last_snippet: str = ""
    is_deleted: bool = False

    @property
    def key(self) -> str:
        """Return the session's key for tools and registries: the first alias, else slug and branch."""
        return self.aliases[0] if self.aliases else f"{self.slug}/{self.branch}"

    @property
    def is_top_level(self) -> bool:
        return self.type == "branch"


CreatedRun = tuple[Run, Session]
"""A run that was just created and its session, so that neither is looked up again."""


class NewSession(Struct, frozen=True, kw_only=True):
    """Everything needed to create a session's folder."""

    agent: str
    preset_text: str
    """Text of preset.md."""
    preset_hash: str
    workspace: Workspace
    parent: Session | None = None
    description: str = ""
    """For a child: becomes the end of its slug."""
    name: str | None = None
    aliases: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    user_grants: PathPatterns = field(default_factory=PathPatterns)
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def top_level_slug(agent: str, at: datetime) -> str:
    """Return `<slug>-<YYYYMMDDHHMMSS>`."""
    return f"{agent}-{slug_timestamp(at)}"


def child_slug(agent: str, description: str, at: datetime) -> str:
    """Return `<agent>-<YYYYMMDDHHMMSS>-<slug>`.

    Every character outside [a-z0-9-] becomes one hyphen; hyphens are not collapsed.
    """
    return (
        f"{agent}-{slug_timestamp(at)}-{UNSAFE_SLUG_CHARACTER.sub('-', description.lower())[:MAX_SLUG_CHARS]}"
    )


def slug_timestamp(at: datetime) -> str:
    return iso_timestamp_seconds(at).translate(_TIMESTAMP_SEPARATORS)


def pinned_first(sessions: Iterable[Session]) -> list[Session]:
    """Sort pinned sessions first, most recently pinned on top; keep the order of the others."""
    pinned, rest = list[tuple[datetime, Session]](), list[Session]()
    for each in sessions:
        if each.pinned_at is None:
            rest.append(each)
        else:
            pinned.append((each.pinned_at, each))
    return [*(each for _, each in sorted(pinned, key=itemgetter(0), reverse=True)), *rest]


def matches_search(session: Session, query: str) -> bool:
    """Return True if every word of the query occurs in the session's names or snippet."""
    texts = (session.name, session.slug, session.agent, session.last_snippet, *session.aliases)
    text = "\n".join(each for each in texts if each).casefold()
    return all(word in text for word in query.casefold().split())


def session_as_json(session: Session) -> dict[str, Any]:
    """Return the JSON row of `sessions list`; `sessions show` adds what only the file holds."""
    return {
        "session_id": session.id,
        "slug": session.slug,
        "key": session.key,
        "agent": session.agent,
        "name": session.name,
        "branch": session.branch,
        "parent_session_id": session.parent_slug,
        "parent": session.parent_id,
        "type": session.type,
        "depth": session.depth,
        "path": f"{session.path}/session.md",
        "created_at": iso_timestamp(session.created_at),
        "updated_at": iso_timestamp(session.updated_at),
        "pinned_at": iso_timestamp(session.pinned_at),
        "last_snippet": session.last_snippet,
        "attributes": dict(session.attributes),
        "workspace": session.workspace.as_json(),
    }
