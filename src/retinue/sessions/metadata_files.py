"""The small files that say who a session is: session.json, scope-plan.yml and branch-metadata.yml."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, cast

import msgspec

from retinue.domain.agent import Paths
from retinue.domain.ceiling import Ceiling, ceiling_of
from retinue.domain.run import iso_seconds
from retinue.domain.session import Session
from retinue.domain.workspace import Isolation, Workspace
from retinue.errors import BadDefinition, Usage
from retinue.storage import strict_yaml

_PLAN_LINE = re.compile(r'([a-z_]+): "([^"\\\n]*)"')
_PLAN_KEYS = ("version", "session_id", "created", "updated", "type", "parent_session_id", "preset")


class Place(msgspec.Struct, kw_only=True):
    root: str
    isolation: str = "shared"
    writable: bool = True
    label: str = ""
    source: str | None = None
    project: str | None = None


class Facts(msgspec.Struct, kw_only=True):
    """session.json as it stands. What an older or a newer Retinue wrote beside it is passed over."""

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
    """An older way to say it, without the time."""
    attributes: dict[str, Any] = {}
    workspace: Place | None = None
    ceiling: Any = None
    lifted: dict[str, tuple[str, ...] | None] = {}
    preset_hash: str = ""


class Link(msgspec.Struct, kw_only=True):
    """One ceiling of the chain, typed: a list that is no list of texts must not pass for one."""

    by: str
    tools: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    agents: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    paths: dict[str, tuple[str, ...] | None] = {}
    writable: bool = True
    network: bool | None = None


_FACTS = msgspec.json.Decoder(Facts)
_LINK = msgspec.json.Decoder(Link)
_LINK_ENCODER = msgspec.json.Encoder()


def read_facts(data: bytes) -> Facts:
    """Raises ValueError with what is wrong."""
    return _FACTS.decode(data)


def write_facts(session: Session) -> bytes:
    """session.json, for machines first and for people who look."""
    value = {
        "id": session.id,
        "slug": session.slug,
        "aliases": session.aliases,
        "agent": session.agent,
        "branch": session.branch,
        "type": session.type,
        "parent": session.parent,
        "parent_slug": session.parent_slug,
        "depth": session.depth,
        "name": session.name,
        "created_at": session.created_at,
        "pinned_at": session.pinned_at,
        "attributes": session.attributes,
        "workspace": session.workspace.as_json(),
        "ceiling": [each.facts() for each in session.ceilings],
        "lifted": {"read": session.lifted.read, "write": session.lifted.write},
        "preset_hash": session.preset_hash,
    }
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    except (TypeError, UnicodeEncodeError) as error:
        raise Usage(f"The facts of session {session.slug} cannot be stored as JSON: {error}") from error


def workspace_of(place: Place | None, folder: str) -> Workspace:
    """Where a session works. A folder that does not say works on itself, and may not write."""
    if place is None:
        return Workspace(root=folder, writable=False, label="unknown")
    known = place.isolation in set(Isolation)
    return Workspace(
        root=place.root,
        isolation=Isolation(place.isolation) if known else Isolation.SANDBOX,
        writable=place.writable,
        label=place.label,
        source=place.source or "",
        project=place.project or "",
    )


def ceilings_of(said: Any) -> tuple[Ceiling, ...]:
    """The chain of ceilings a session was born under. What cannot be read as one leaves no rights at all."""
    if not said:
        return ()
    try:
        links = [_LINK.decode(_LINK_ENCODER.encode(each)) for each in said]
    except (msgspec.ValidationError, TypeError):
        none = Ceiling(by="an unreadable session.json", tools=(), capabilities=(), agents=(), skills=())
        return (replace(none, read=(), write=()),)
    return tuple(ceiling_of(msgspec.structs.asdict(each), by=each.by, root="/") for each in links)


def lifted_of(said: Mapping[str, tuple[str, ...] | None]) -> Paths:
    return Paths(read=said.get("read"), write=said.get("write"))


def write_plan(session: Session, *, updated: datetime | None = None) -> bytes:
    """scope-plan.yml: metadata only, seven keys, six for a session without a parent."""
    created = iso(session.created_at)
    lines = {
        "version": "3.0",
        "session_id": session.slug,
        "created": created,
        "updated": iso(updated) if updated else created,
        "type": session.type,
        "parent_session_id": session.parent_slug,
        "preset": session.agent,
    }
    return "".join(
        [f"{key}: {quoted(value)}\n" for key, value in lines.items() if value is not None]
    ).encode()


def blank(plan: bytes) -> bool:
    """Whether the power failed before a new session's plan was on disk: it is not waited for, because session.json has
    all that it says."""
    return not plan.strip(b"\0")


def read_plan(data: bytes, where: str) -> Mapping[str, str]:
    """Its texts by key. What we wrote ourselves needs no YAML reader. Raises BadDefinition."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadDefinition(where, "it is not UTF-8 text") from error
    found = [_PLAN_LINE.fullmatch(line) for line in text.splitlines()]
    pairs = [(each[1], each[2]) for each in found if each]
    plain = len(pairs) == len(found) and len(dict(pairs)) == len(pairs)
    value: Any = dict(pairs) if plain else strict_yaml.load(text, where)
    if not isinstance(value, dict):
        raise BadDefinition(where, "it does not hold keys and values")
    plan = {str(key): str(each) for key, each in cast("dict[Any, Any]", value).items() if each is not None}
    if "preset" not in plan and "agent_type" in plan:
        plan["preset"] = plan["agent_type"]
    if not any(key in plan for key in _PLAN_KEYS):
        raise BadDefinition(where, "it holds none of the keys of a scope plan")
    return plan


def write_branch(parent: str, created: datetime, position: int) -> bytes:
    """branch-metadata.yml: where a branch left its parent."""
    return (
        f"parent_branch: {quoted(parent)}\ncreated: {quoted(iso(created))}\n"
        f"branch_point_position: {position}\n"
    ).encode()


def iso(at: datetime) -> str:
    return iso_seconds(at.astimezone(UTC))


def time_of(text: str) -> datetime | None:
    """A time as ISO 8601 spells it, in UTC and taken for it unless it says otherwise; None for anything else."""
    try:
        return in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def in_utc(at: datetime) -> datetime:
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
