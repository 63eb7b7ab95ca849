"""A session's metadata files: session.json, scope-plan.yml and branch-metadata.yml."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from retinue.domain.agent import PathPatterns
from retinue.domain.ceiling import Ceiling, parse_ceiling
from retinue.domain.session import Session
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import BadDefinition, UsageError
from retinue.storage import strict_yaml

_PLAN_LINE = re.compile(r'([a-z_]+): "([^"\\\n]*)"')
_PLAN_KEYS = ("version", "session_id", "created", "updated", "type", "parent_session_id", "preset")


class StoredWorkspace(msgspec.Struct, kw_only=True):
    root: str
    isolation: str = "shared"
    writable: bool = True
    label: str = ""
    source: str | None = None
    git_dir: str | None = None
    project: str | None = None


class SessionMetadata(msgspec.Struct, kw_only=True):
    """The fields of session.json. Unknown fields of older or newer versions are ignored."""

    id: str
    slug: str = ""
    agent: str = ""
    branch: str = ""
    type: str = ""
    parent: str | None = None
    parent_slug: str | None = None
    depth: int = 0
    aliases: tuple[str, ...] = ()
    name: str | None = None
    created_at: datetime | None = None
    pinned_at: datetime | None = None
    pinned: bool = False
    """Older form of `pinned_at`, without the time."""
    attributes: dict[str, Any] = {}
    workspace: StoredWorkspace | None = None
    ceiling: Any = None
    lifted: dict[str, tuple[str, ...] | None] = {}
    preset_hash: str = ""


class StoredCeiling(msgspec.Struct, kw_only=True):
    """A stored ceiling, decoded with strict types, so that a malformed list is never read as a valid one."""

    by: str
    tools: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    agents: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    paths: dict[str, tuple[str, ...] | None] = {}
    writable: bool = True
    network: bool | None = None


_METADATA_DECODER = msgspec.json.Decoder(SessionMetadata)
_CEILING_DECODER = msgspec.json.Decoder(StoredCeiling)
_JSON_ENCODER = msgspec.json.Encoder()


def parse_metadata(data: bytes) -> SessionMetadata:
    """Parse session.json. Raises ValueError that names the problem."""
    return _METADATA_DECODER.decode(data)


def render_metadata(session: Session) -> bytes:
    """Render session.json, indented for readers."""
    value = {
        "id": session.id,
        "slug": session.slug,
        "aliases": session.aliases,
        "agent": session.agent,
        "branch": session.branch,
        "type": session.type,
        "parent": session.parent_id,
        "parent_slug": session.parent_slug,
        "depth": session.depth,
        "name": session.name,
        "created_at": session.created_at,
        "pinned_at": session.pinned_at,
        "attributes": session.attributes,
        "workspace": session.workspace.as_json(),
        "ceiling": [each.as_json() for each in session.ceilings],
        "lifted": {"read": session.user_grants.read, "write": session.user_grants.write},
        "preset_hash": session.preset_hash,
    }
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(
            f"The metadata of session {session.slug} cannot be stored as JSON: {error}"
        ) from error


def parse_workspace(stored: StoredWorkspace | None, folder: str) -> Workspace:
    """Return a session's workspace. Without one the session may only read its own folder."""
    if stored is None:
        return Workspace(root=folder, writable=False, label="unknown")
    is_known = stored.isolation in set(Isolation)
    return Workspace(
        root=stored.root,
        isolation=Isolation(stored.isolation) if is_known else Isolation.SANDBOX,
        writable=stored.writable,
        label=stored.label,
        source_repository=stored.source or "",
        git_dir=stored.git_dir or "",
        project_folder=stored.project or "",
    )


def parse_ceilings(stored: Any) -> tuple[Ceiling, ...]:
    """Return the chain of ceilings a session was created under.

    A chain that cannot be parsed grants no permissions at all.
    """
    if not stored:
        return ()
    try:
        ceilings = [_CEILING_DECODER.decode(_JSON_ENCODER.encode(each)) for each in stored]
    except (msgspec.ValidationError, TypeError):
        none = Ceiling(set_by="an unreadable session.json", tools=(), capabilities=(), agents=(), skills=())
        return (replace(none, read=(), write=()),)
    return tuple(parse_ceiling(msgspec.structs.asdict(each), set_by=each.by, root="/") for each in ceilings)


def parse_user_grants(stored: Mapping[str, tuple[str, ...] | None]) -> PathPatterns:
    return PathPatterns(read=stored.get("read"), write=stored.get("write"))


def render_scope_plan(session: Session, *, updated: datetime | None = None) -> bytes:
    """Render scope-plan.yml: seven metadata keys, six for a session without a parent."""
    created = utc_iso(session.created_at)
    lines = {
        "version": "3.0",
        "session_id": session.slug,
        "created": created,
        "updated": utc_iso(updated) if updated else created,
        "type": session.type,
        "parent_session_id": session.parent_slug,
        "preset": session.agent,
    }
    return "".join(
        [f"{key}: {encode_basestring_ascii(value)}\n" for key, value in lines.items() if value is not None]
    ).encode()


def is_blank_plan(plan: bytes) -> bool:
    """Return True for a plan whose bytes were lost in a power failure.

    The plan is not synced when a session is created, because session.json repeats everything in it.
    """
    return not plan.strip(b"\0")


def parse_scope_plan(data: bytes, location: str) -> Mapping[str, str]:
    """Parse scope-plan.yml into text values, without the YAML parser for files written by Retinue.

    Raises BadDefinition.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadDefinition(location, "is not UTF-8 text") from error
    matches = [_PLAN_LINE.fullmatch(line) for line in text.splitlines()]
    pairs = [(each[1], each[2]) for each in matches if each]
    is_plain = len(pairs) == len(matches) and len(dict(pairs)) == len(pairs)
    value: Any = dict(pairs) if is_plain else strict_yaml.load_yaml(text, location)
    if not isinstance(value, dict):
        raise BadDefinition(location, "must contain keys and values")
    plan = {str(key): str(each) for key, each in cast("dict[Any, Any]", value).items() if each is not None}
    if "preset" not in plan and "agent_type" in plan:
        plan["preset"] = plan["agent_type"]
    if not any(key in plan for key in _PLAN_KEYS):
        raise BadDefinition(location, "has none of the keys of a scope plan")
    return plan


def render_branch_metadata(parent: str, created: datetime, position: int) -> bytes:
    """Render branch-metadata.yml: the branch point in the parent branch."""
    return (
        f"parent_branch: {encode_basestring_ascii(parent)}\ncreated: {encode_basestring_ascii(utc_iso(created))}\n"
        f"branch_point_position: {position}\n"
    ).encode()


def utc_iso(time: datetime) -> str:
    return iso_timestamp_seconds(time.astimezone(UTC))


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time, taken as UTC unless it has an offset; None for anything else."""
    try:
        return as_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def as_utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
