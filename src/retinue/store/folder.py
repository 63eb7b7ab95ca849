"""A session's folder: built complete or not at all, and read back as the session it is."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH102, PTH104, PTH108, PTH112, PTH118, PTH119, PTH120, PTH211

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from retinue.domain.chance import Chance
from retinue.domain.change import replace
from retinue.domain.session import NewSession, Session, child_slug, top_slug
from retinue.errors import BadDefinition, NotFound, Usage
from retinue.store import names
from retinue.store.disk import Stamp, no_room, read_file, read_start, stamp_of, write_new
from retinue.store.facts import (
    Facts,
    ceilings_of,
    in_utc,
    lifted_of,
    read_facts,
    read_plan,
    time_of,
    workspace_of,
    write_facts,
    write_plan,
)
from retinue.store.marker import Head, read_head
from retinue.store.snippet import last_words

_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_SLUG_TIME = re.compile(r"-(\d{14})(?:-|$)")
_NO_FACTS = Facts(id="")
_NO_HEAD = Head(slug="")
_NEVER = datetime.fromtimestamp(0, UTC)
_LAG = timedelta(seconds=1)

_MOST_OF_ONE_NAME = 1_000_000
_MOST_REMEMBERED = 1_000
_TRIED: dict[str, int] = {}

Stamps = tuple[Stamp | None, Stamp | None, Stamp | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A session as its files say, and what is wrong with them."""

    session: Session
    problems: tuple[str, ...]
    stamps: Stamps


def build(root: str, new: NewSession, chance: Chance) -> Session:
    """Makes the folder of a new session under a hidden name and renames it last."""
    if not new.agent:
        raise Usage("A session needs an agent; name one")
    now = chance.now()
    parent = new.parent
    if parent is None:
        where, slug = root, top_slug(new.agent, now)
    else:
        where, slug = os.path.join(parent.path, names.AGENTS), child_slug(new.agent, new.description, now)
        if not os.path.isdir(parent.path):
            raise NotFound(f"The folder of the parent session is gone: {parent.path}")
    token = chance.uuid()
    session = Session(
        id=token,
        slug=slug,
        agent=new.agent,
        type="agent" if parent else "branch",
        path="",
        parent=parent.id if parent else None,
        parent_slug=parent.slug if parent else None,
        depth=parent.depth + 1 if parent else 0,
        aliases=tuple(new.aliases),
        name=new.name,
        created_at=now,
        updated_at=now,
        attributes=new.attributes,
        workspace=new.workspace,
        ceilings=new.ceilings,
        lifted=new.lifted,
        preset_hash=new.preset_hash,
    )
    try:
        for folder in (os.path.join(root, names.STAGING), where):
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        return _built(session, root, where, new.preset)
    except OSError as error:
        raise no_room(where, error) from error


def _built(session: Session, root: str, where: str, preset: str) -> Session:
    """What dies half way is left where it is swept: in one folder for all, where that is one file system."""
    for above in (os.path.join(root, names.STAGING), where):
        temporary = os.path.join(above, f"{names.NEW}{session.id}")
        try:
            return _build(session, root, where, temporary, preset)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError) or error.errno != errno.EXDEV:
                raise
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _build(session: Session, root: str, where: str, temporary: str, preset: str) -> Session:
    os.mkdir(temporary, 0o700)
    inner = temporary
    if session.top:
        inner = os.path.join(temporary, names.BRANCHES, session.branch)
        os.mkdir(os.path.dirname(inner), 0o700)
        os.mkdir(inner, 0o700)
        os.symlink(os.path.join(names.BRANCHES, session.branch), os.path.join(temporary, names.CURRENT))
    make = _maker(root, session.id)
    make(os.path.join(inner, names.PRESET), preset.encode("utf-8", "surrogateescape"))
    wanted = os.path.join(where, session.slug)
    for count in range(_tried(wanted), _MOST_OF_ONE_NAME):
        _TRIED[wanted] = count
        slug = names.numbered(session.slug, count)
        folder = os.path.join(where, slug)
        if os.path.lexists(folder):
            continue
        named = replace(session, slug=slug)
        texts = {names.PLAN: write_plan(named), names.SESSION: b"", names.FACTS: write_facts(named)}
        for name, text in texts.items():
            make(os.path.join(inner, name), text)
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in _TAKEN or not os.path.isdir(where):
                raise
            for name in texts:
                os.unlink(os.path.join(inner, name))
            continue
        return replace(
            named, path=os.path.join(folder, os.path.relpath(inner, temporary)) if session.top else folder
        )
    raise OSError(errno.EEXIST, "too many folders of one name")


def _maker(root: str, token: str) -> Callable[[str, bytes], None]:
    """How a new file is made: in one folder for all and then moved, where that is one file system. A file made in a
    folder that is itself new costs a journalling file system several times as much."""
    staged = os.path.join(root, names.STAGING, token)

    def make(path: str, data: bytes) -> None:
        write_new(staged, data)
        try:
            os.rename(staged, path)
        except OSError as error:
            os.unlink(staged)
            if error.errno != errno.EXDEV:
                raise
            write_new(path, data)

    return make


def _tried(wanted: str) -> int:
    """Where to look for a free number: those below are taken, as this process has seen. A thousand children of one
    second would otherwise each count from one."""
    if len(_TRIED) > _MOST_REMEMBERED:
        _TRIED.clear()
    return _TRIED.get(wanted, 1)


def stamps_of(path: str) -> Stamps:
    return (
        stamp_of(f"{path}/{names.FACTS}"),
        stamp_of(f"{path}/{names.PLAN}"),
        stamp_of(f"{path}/{names.SESSION}"),
    )


def updated_at(stamps: Stamps, created: datetime) -> datetime:
    """The newer of what was said and what is known of the session; the plan's time is its own. The clock by which the
    kernel stamps files lags behind ours: nothing is older than its birth for that."""
    times = [each[2] for each in (stamps[0], stamps[2]) if each]
    last = datetime.fromtimestamp(max(times, default=0) / 1e9, UTC)
    return created if last < created <= last + _LAG else last


def read(path: str) -> Found:
    """The session in a folder, wherever the folder is. Damage is reported, and what else is known still counts."""
    stamps = stamps_of(path)
    problems: list[str] = []
    facts, plan = _facts(path, stamps, problems), _plan(path, stamps, problems)
    head = _NO_HEAD if facts.id and facts.slug else _head(path)
    session = _session(path, facts, plan, head, problems)
    return _told(Found(session=session, problems=tuple(problems), stamps=stamps), stamps)


def again(found: Found) -> Found:
    """The same session as its files are now. When only the conversation grew, only that is looked at."""
    stamps = stamps_of(found.session.path)
    if stamps == found.stamps:
        return found
    if stamps[:2] == found.stamps[:2] and stamps[0] is not None:
        return _told(found, stamps)
    return read(found.session.path)


def _told(found: Found, stamps: Stamps) -> Found:
    words = last_words(f"{found.session.path}/{names.SESSION}") if stamps[2] and stamps[2][1] else ""
    session = replace(
        found.session, updated_at=updated_at(stamps, found.session.created_at), last_snippet=words
    )
    return Found(session=session, problems=found.problems, stamps=stamps)


def _head(path: str) -> Head:
    try:
        text = read_start(f"{path}/{names.SESSION}").decode("utf-8", "replace")
    except OSError:
        return _NO_HEAD
    return read_head(text) or _NO_HEAD


def _facts(path: str, stamps: Stamps, problems: list[str]) -> Facts:
    if stamps[0] is None:
        problems.append(f"{path} has no {names.FACTS}; its identity is taken from {names.SESSION}")
        return _NO_FACTS
    try:
        return read_facts(read_file(os.path.join(path, names.FACTS)))
    except (ValueError, OSError) as error:
        problems.append(f"{os.path.join(path, names.FACTS)} cannot be read: {error}")
        return _NO_FACTS


def _plan(path: str, stamps: Stamps, problems: list[str]) -> Mapping[str, str]:
    where = os.path.join(path, names.PLAN)
    if stamps[1] is None:
        problems.append(f"{path} has no {names.PLAN}; {names.FACTS} is taken instead")
        return {}
    try:
        return read_plan(read_file(where), where)
    except (BadDefinition, OSError) as error:
        problems.append(f"{where} cannot be read: {error}")
        return {}


def _session(path: str, facts: Facts, plan: Mapping[str, str], head: Head, problems: list[str]) -> Session:
    slug, branch = _place(path)
    slug = facts.slug or head.slug or plan.get("session_id") or slug
    parent_slug = plan.get("parent_session_id") or facts.parent_slug or head.parent or None
    kind = plan.get("type") or facts.type
    if kind not in {"agent", "branch"}:
        if kind:
            problems.append(f"{path}: type {kind!r} is neither agent nor branch")
        kind = "agent" if parent_slug else "branch"
    created = time_of(plan.get("created", "")) or _aware(facts.created_at) or _slug_time(slug) or _NEVER
    exact = _aware(facts.created_at)
    if exact is not None and exact.replace(microsecond=0) == created:
        created = exact
    return Session(
        id=facts.id or head.id or str(uuid.uuid5(uuid.NAMESPACE_URL, f"retinue:{slug}/{branch}")),
        slug=slug,
        agent=plan.get("preset") or facts.agent or _slug_agent(slug),
        type="agent" if kind == "agent" else "branch",
        branch=facts.branch or head.branch or branch,
        path=path,
        parent=facts.parent,
        parent_slug=parent_slug,
        depth=facts.depth or int(kind == "agent"),
        aliases=facts.aliases,
        name=facts.name,
        pinned_at=_aware(facts.pinned_at) or (created if facts.pinned else None),
        created_at=created,
        updated_at=created,
        attributes=facts.attributes,
        workspace=workspace_of(facts.workspace, path),
        ceilings=ceilings_of(facts.ceiling),
        lifted=lifted_of(facts.lifted),
        preset_hash=facts.preset_hash,
    )


def _place(path: str) -> tuple[str, str]:
    """Slug and branch as the folder's name has them: the last resort."""
    above, name = os.path.split(path)
    if os.path.basename(above) == names.BRANCHES:
        return os.path.basename(os.path.dirname(above)), name
    return name, names.MAIN


def _slug_time(slug: str) -> datetime | None:
    found = _SLUG_TIME.search(slug)
    try:
        return datetime.strptime(found[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC) if found else None
    except ValueError:
        return None


def _slug_agent(slug: str) -> str:
    found = _SLUG_TIME.search(slug)
    return slug[: found.start()] if found else slug


def _aware(at: datetime | None) -> datetime | None:
    try:
        return None if at is None else in_utc(at)
    except OverflowError:
        return None
