"""A session's folder: built complete or not at all, and read back as the session it is."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH102, PTH103, PTH104, PTH108, PTH112, PTH118, PTH119, PTH120, PTH211

import errno
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from retinue.domain.change import replace
from retinue.domain.clock import Chance
from retinue.domain.session import NewSession, Session, child_slug, top_slug
from retinue.domain.value import value
from retinue.errors import BadDefinition, NotFound, Usage
from retinue.sessions.markdown.marker import Head, read_head
from retinue.sessions.metadata_files import (
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
from retinue.sessions.snippet import last_words
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, no_room, read_file, read_start, stamp, stamp_of, write_all

_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_SLUG_TIME = re.compile(r"-(\d{14})(?:-|$)")
_NO_FACTS = Facts(id="")
_NO_HEAD = Head(slug="")
_NEVER = datetime.fromtimestamp(0, UTC)
_LAG = timedelta(seconds=1)

_MOST_OF_ONE_NAME = 1_000_000
_MOST_REMEMBERED = 1_000
_TRIED: dict[str, int] = {}
_MADE: set[str] = set()
"""Folders of sessions that were there a moment ago: whoever finds one gone makes it anew."""

Stamps = tuple[Stamp | None, Stamp | None, Stamp | None]


@value
class Found:
    """A session as its files say, and what is wrong with them."""

    session: Session
    problems: tuple[str, ...]
    stamps: Stamps


@value
class Built:
    """A session whose folder is complete under its name, and not yet on disk."""

    session: Session
    preset: Stamp
    """Of preset.md as it was written, before anybody could find it."""
    opened: list[int]
    """Descriptors of what must be on disk, in the order in which it is synced."""

    def close(self) -> None:
        """Whoever has it closes it, once or twice."""
        while self.opened:
            os.close(self.opened.pop())


def build(root: str, new: NewSession, chance: Chance) -> Built:
    """Makes the folder of a new session under a hidden name and renames it last."""
    if not new.agent:
        raise Usage("A session needs an agent; name one")
    now = chance.now()
    parent = new.parent
    if parent is None:
        where, slug = root, top_slug(new.agent, now)
    else:
        where, slug = f"{parent.path}/{file_names.AGENTS}", child_slug(new.agent, new.description, now)
    session = Session(
        id=chance.uuid(),
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
        try:
            if where not in _MADE:
                _make(where)
                _remember(where)
            return _built(session, root, where, new.preset)
        except FileNotFoundError:
            _make_room(root, where, parent)
            return _built(session, root, where, new.preset)
    except OSError as error:
        raise no_room(where, error) from error


def _make_room(root: str, where: str, parent: Session | None) -> None:
    """All folders above a new one: only the first session of a root finds none."""
    os.makedirs(root, 0o700, exist_ok=True)
    if parent is not None and not os.path.isdir(parent.path):
        raise NotFound(f"The folder of the parent session is gone: {parent.path}")
    _make(f"{root}/{file_names.STAGING}")
    _make(where)


def _remember(where: str) -> None:
    if len(_MADE) > _MOST_REMEMBERED:
        _MADE.clear()
    _MADE.add(where)


def _make(folder: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def _built(session: Session, root: str, where: str, preset: str) -> Built:
    """What dies half way is left where it is swept: in one folder for all, where that is one file system."""
    for above in (f"{root}/{file_names.STAGING}", where):
        temporary = f"{above}/{file_names.NEW}{session.id}"
        try:
            return _build(session, where, temporary, preset)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError) or error.errno != errno.EXDEV:
                raise
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _build(session: Session, where: str, temporary: str, preset: str) -> Built:
    os.mkdir(temporary, 0o700)
    inner = temporary
    if session.top:
        inner = f"{temporary}/{file_names.BRANCHES}/{session.branch}"
        os.mkdir(os.path.dirname(inner), 0o700)
        os.mkdir(inner, 0o700)
        os.symlink(f"{file_names.BRANCHES}/{session.branch}", f"{temporary}/{file_names.CURRENT}")
    opened = [os.open(inner, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        opened.insert(0, _made(f"{inner}/{file_names.PRESET}", preset.encode("utf-8", "surrogateescape")))
        written = stamp(os.fstat(opened[0]))
        named, facts = _named(session, where, temporary, inner)
    except BaseException:
        for each in opened:
            os.close(each)
        raise
    opened.insert(1, facts)
    folder = f"{where}/{named.slug}"
    path = f"{folder}/{file_names.BRANCHES}/{session.branch}" if session.top else folder
    return Built(session=replace(named, path=path), preset=written, opened=opened)


def _named(session: Session, where: str, temporary: str, inner: str) -> tuple[Session, int]:
    """The folder takes the first of its names that is free, and its files say which. With it comes the descriptor of
    session.json."""
    wanted = f"{where}/{session.slug}"
    for count in range(_tried(wanted), _MOST_OF_ONE_NAME):
        _TRIED[wanted] = count
        slug = file_names.numbered(session.slug, count)
        folder = f"{where}/{slug}"
        if os.path.lexists(folder):
            continue
        named = replace(session, slug=slug)
        os.close(_made(f"{inner}/{file_names.PLAN}", write_plan(named)))
        os.close(_made(f"{inner}/{file_names.SESSION}", b""))
        facts = _made(f"{inner}/{file_names.FACTS}", write_facts(named))
        try:
            os.rename(temporary, folder)
        except OSError as error:
            os.close(facts)
            if error.errno not in _TAKEN or not os.path.isdir(where):
                raise
            for name in (file_names.PLAN, file_names.SESSION, file_names.FACTS):
                os.unlink(f"{inner}/{name}")
            continue
        return named, facts
    raise OSError(errno.EEXIST, "too many folders of one name")


def _made(path: str, data: bytes) -> int:
    """A new file of a folder that is being built, for its owner's eyes only; it stays open, to be synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _tried(wanted: str) -> int:
    """Where to look for a free number: those below are taken, as this process has seen. A thousand children of one
    second would otherwise each count from one."""
    if len(_TRIED) > _MOST_REMEMBERED:
        _TRIED.clear()
    return _TRIED.get(wanted, 1)


def stamps_of(path: str) -> Stamps:
    return (
        stamp_of(f"{path}/{file_names.FACTS}"),
        stamp_of(f"{path}/{file_names.PLAN}"),
        stamp_of(f"{path}/{file_names.SESSION}"),
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
    words = last_words(f"{found.session.path}/{file_names.SESSION}") if stamps[2] and stamps[2][1] else ""
    return _saying(found, stamps, words)


def grown(found: Found, now: Stamp, words: str) -> Found:
    """The same session with a conversation that ends with these words."""
    return _saying(found, (found.stamps[0], found.stamps[1], now), words)


def _saying(found: Found, stamps: Stamps, words: str) -> Found:
    session = replace(
        found.session, updated_at=updated_at(stamps, found.session.created_at), last_snippet=words
    )
    return Found(session=session, problems=found.problems, stamps=stamps)


def _head(path: str) -> Head:
    try:
        text = read_start(f"{path}/{file_names.SESSION}").decode("utf-8", "replace")
    except OSError:
        return _NO_HEAD
    return read_head(text) or _NO_HEAD


def _facts(path: str, stamps: Stamps, problems: list[str]) -> Facts:
    if stamps[0] is None:
        problems.append(f"{path} has no {file_names.FACTS}; its identity is taken from {file_names.SESSION}")
        return _NO_FACTS
    try:
        return read_facts(read_file(os.path.join(path, file_names.FACTS)))
    except (ValueError, OSError) as error:
        problems.append(f"{os.path.join(path, file_names.FACTS)} cannot be read: {error}")
        return _NO_FACTS


def _plan(path: str, stamps: Stamps, problems: list[str]) -> Mapping[str, str]:
    where = os.path.join(path, file_names.PLAN)
    if stamps[1] is None:
        problems.append(f"{path} has no {file_names.PLAN}; {file_names.FACTS} is taken instead")
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
    if os.path.basename(above) == file_names.BRANCHES:
        return os.path.basename(os.path.dirname(above)), name
    return name, file_names.MAIN


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
