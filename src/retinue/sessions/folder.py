"""A session's folder: created atomically, and loaded back as a session."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH102, PTH103, PTH104, PTH108, PTH112, PTH118, PTH119, PTH120, PTH211

import errno
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.clock import Clock
from retinue.domain.session import NewSession, Session, child_slug, top_level_slug
from retinue.errors import BadDefinition, NotFound, UsageError
from retinue.sessions.markdown.grammar import SessionHead
from retinue.sessions.markdown.marker import parse_head
from retinue.sessions.metadata_files import (
    SessionMetadata,
    as_utc,
    parse_ceilings,
    parse_metadata,
    parse_scope_plan,
    parse_time,
    parse_user_grants,
    parse_workspace,
    render_metadata,
    render_scope_plan,
)
from retinue.sessions.snippet import snippet_from_file
from retinue.storage import file_names
from retinue.storage.file_io import (
    FileStamp,
    file_stamp,
    read_file,
    read_prefix,
    stamp_from_stat,
    write_all,
    write_error,
)

_EXISTS_ERRNOS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_SLUG_TIME = re.compile(r"-(\d{14})(?:-|$)")
_NO_METADATA = SessionMetadata(id="")
_NO_HEAD = SessionHead(slug="")
_UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)
_CLOCK_LAG = timedelta(seconds=1)

_MAX_SAME_NAME = 1_000_000
_MAX_REMEMBERED = 1_000
_NEXT_NUMBERS: dict[str, int] = {}
_KNOWN_FOLDERS: set[str] = set()
"""Session folders seen a moment ago; when one turns out to be missing it is created again."""

SessionStamps = tuple[FileStamp | None, FileStamp | None, FileStamp | None]


class LoadedSession(Struct, frozen=True, kw_only=True):
    """A session as loaded from its files, with the problems found in them."""

    session: Session
    problems: tuple[str, ...]
    stamps: SessionStamps


class NewSessionFolder(Struct, frozen=True, kw_only=True):
    """A session folder that is complete under its final name, but not yet synced to disk."""

    session: Session
    preset_stamp: FileStamp
    """Stamp of preset.md as written, taken before the folder became visible."""
    open_fds: list[int]
    """Descriptors of the files to sync, in order."""

    def close(self) -> None:
        """Close the descriptors. The caller that received the value must call this; repeating is harmless."""
        while self.open_fds:
            os.close(self.open_fds.pop())


def create_session_folder(root: str, new: NewSession, clock: Clock) -> NewSessionFolder:
    """Create a new session's folder under a hidden name and rename it into place last."""
    if not new.agent:
        raise UsageError("A session needs an agent. Name one.")
    now = clock.now()
    parent = new.parent
    if parent is None:
        parent_folder, slug = root, top_level_slug(new.agent, now)
    else:
        parent_folder, slug = (
            f"{parent.path}/{file_names.AGENTS}",
            child_slug(new.agent, new.description, now),
        )
    session = Session(
        id=clock.new_uuid(),
        slug=slug,
        agent=new.agent,
        type="agent" if parent else "branch",
        path="",
        parent_id=parent.id if parent else None,
        parent_slug=parent.slug if parent else None,
        depth=parent.depth + 1 if parent else 0,
        aliases=tuple(new.aliases),
        name=new.name,
        created_at=now,
        updated_at=now,
        attributes=new.attributes,
        workspace=new.workspace,
        ceilings=new.ceilings,
        user_grants=new.user_grants,
        preset_hash=new.preset_hash,
    )
    try:
        try:
            if parent_folder not in _KNOWN_FOLDERS:
                _ensure_folder(parent_folder)
                _remember_folder(parent_folder)
            return _build_in_staging(session, root, parent_folder, new.preset_text)
        except FileNotFoundError:
            _create_parent_folders(root, parent_folder, parent)
            return _build_in_staging(session, root, parent_folder, new.preset_text)
    except OSError as error:
        raise write_error(parent_folder, error) from error


def _create_parent_folders(root: str, parent_folder: str, parent: Session | None) -> None:
    """Create all folders above a new one; only the first session of a root needs this."""
    os.makedirs(root, 0o700, exist_ok=True)
    if parent is not None and not os.path.isdir(parent.path):
        raise NotFound(f"The folder of the parent session is gone: {parent.path}")
    _ensure_folder(f"{root}/{file_names.STAGING}")
    _ensure_folder(parent_folder)


def _remember_folder(parent_folder: str) -> None:
    if len(_KNOWN_FOLDERS) > _MAX_REMEMBERED:
        _KNOWN_FOLDERS.clear()
    _KNOWN_FOLDERS.add(parent_folder)


def _ensure_folder(folder: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def _build_in_staging(session: Session, root: str, parent_folder: str, preset: str) -> NewSessionFolder:
    """Build in the shared staging folder, or next to the target if that is another file system.

    A crash leaves the half-built folder where the sweep finds it.
    """
    for staging_folder in (f"{root}/{file_names.STAGING}", parent_folder):
        temporary = f"{staging_folder}/{file_names.NEW_PREFIX}{session.id}"
        try:
            return _build_folder(session, parent_folder, temporary, preset)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError) or error.errno != errno.EXDEV:
                raise
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _build_folder(session: Session, parent_folder: str, temporary: str, preset: str) -> NewSessionFolder:
    os.mkdir(temporary, 0o700)
    branch_folder = temporary
    if session.is_top_level:
        branch_folder = f"{temporary}/{file_names.BRANCHES}/{session.branch}"
        os.mkdir(os.path.dirname(branch_folder), 0o700)
        os.mkdir(branch_folder, 0o700)
        os.symlink(f"{file_names.BRANCHES}/{session.branch}", f"{temporary}/{file_names.CURRENT}")
    open_fds = [os.open(branch_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        open_fds.insert(
            0,
            _create_open_file(
                f"{branch_folder}/{file_names.PRESET}", preset.encode("utf-8", "surrogateescape")
            ),
        )
        preset_stamp = stamp_from_stat(os.fstat(open_fds[0]))
        renamed, metadata_fd = _claim_slug(session, parent_folder, temporary, branch_folder)
    except BaseException:
        for each in open_fds:
            os.close(each)
        raise
    open_fds.insert(1, metadata_fd)
    folder = f"{parent_folder}/{renamed.slug}"
    path = f"{folder}/{file_names.BRANCHES}/{session.branch}" if session.is_top_level else folder
    return NewSessionFolder(session=replace(renamed, path=path), preset_stamp=preset_stamp, open_fds=open_fds)


def _claim_slug(
    session: Session, parent_folder: str, temporary: str, branch_folder: str
) -> tuple[Session, int]:
    """Rename the folder to the first free slug and write that slug to its files.

    Returns the session and the open descriptor of session.json.
    """
    wanted_path = f"{parent_folder}/{session.slug}"
    for count in range(_next_number(wanted_path), _MAX_SAME_NAME):
        _NEXT_NUMBERS[wanted_path] = count
        slug = file_names.numbered_name(session.slug, count)
        folder = f"{parent_folder}/{slug}"
        if os.path.lexists(folder):
            continue
        renamed = replace(session, slug=slug)
        os.close(_create_open_file(f"{branch_folder}/{file_names.PLAN}", render_scope_plan(renamed)))
        os.close(_create_open_file(f"{branch_folder}/{file_names.SESSION}", b""))
        metadata_fd = _create_open_file(f"{branch_folder}/{file_names.METADATA}", render_metadata(renamed))
        try:
            os.rename(temporary, folder)
        except OSError as error:
            os.close(metadata_fd)
            if error.errno not in _EXISTS_ERRNOS or not os.path.isdir(parent_folder):
                raise
            for name in (file_names.PLAN, file_names.SESSION, file_names.METADATA):
                os.unlink(f"{branch_folder}/{name}")
            continue
        return renamed, metadata_fd
    raise OSError(errno.EEXIST, "too many folders have this name")


def _create_open_file(path: str, data: bytes) -> int:
    """Create a private file and return its open descriptor, for the later fsync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _next_number(wanted_path: str) -> int:
    """Return the first number that may still be free; lower ones were taken earlier in this process.

    Without this, a thousand children created in one second would each count from one.
    """
    if len(_NEXT_NUMBERS) > _MAX_REMEMBERED:
        _NEXT_NUMBERS.clear()
    return _NEXT_NUMBERS.get(wanted_path, 1)


def session_stamps(path: str) -> SessionStamps:
    return (
        file_stamp(f"{path}/{file_names.METADATA}"),
        file_stamp(f"{path}/{file_names.PLAN}"),
        file_stamp(f"{path}/{file_names.SESSION}"),
    )


def last_update_time(stamps: SessionStamps, created: datetime) -> datetime:
    """Return the newer modification time of session.json and session.md; the plan has its own time.

    The kernel's file clock lags behind ours, so a time slightly before `created` counts as `created`.
    """
    times = [each[2] for each in (stamps[0], stamps[2]) if each]
    last_change = datetime.fromtimestamp(max(times, default=0) / 1e9, UTC)
    return created if last_change < created <= last_change + _CLOCK_LAG else last_change


def load_session(path: str) -> LoadedSession:
    """Load the session in a folder, wherever the folder is. Report damaged files and use the intact ones."""
    stamps = session_stamps(path)
    problems: list[str] = []
    metadata, plan = _load_metadata(path, stamps, problems), _load_scope_plan(path, stamps, problems)
    head = _NO_HEAD if metadata.id and metadata.slug else _read_head_line(path)
    session = _assemble_session(path, metadata, plan, head, problems)
    return _with_snippet(LoadedSession(session=session, problems=tuple(problems), stamps=stamps), stamps)


def reload_session(loaded: LoadedSession) -> LoadedSession:
    """Return the session as its files are now; if only the conversation grew, read nothing else."""
    stamps = session_stamps(loaded.session.path)
    if stamps == loaded.stamps:
        return loaded
    if stamps[:2] == loaded.stamps[:2] and stamps[0] is not None:
        return _with_snippet(loaded, stamps)
    return load_session(loaded.session.path)


def _with_snippet(loaded: LoadedSession, stamps: SessionStamps) -> LoadedSession:
    snippet = (
        snippet_from_file(f"{loaded.session.path}/{file_names.SESSION}") if stamps[2] and stamps[2][1] else ""
    )
    return _with_conversation_state(loaded, stamps, snippet)


def with_new_conversation_end(loaded: LoadedSession, stamp_now: FileStamp, snippet: str) -> LoadedSession:
    """Return the same session with a new end of its conversation, given its stamp and snippet."""
    return _with_conversation_state(loaded, (loaded.stamps[0], loaded.stamps[1], stamp_now), snippet)


def _with_conversation_state(loaded: LoadedSession, stamps: SessionStamps, snippet: str) -> LoadedSession:
    session = replace(
        loaded.session, updated_at=last_update_time(stamps, loaded.session.created_at), last_snippet=snippet
    )
    return LoadedSession(session=session, problems=loaded.problems, stamps=stamps)


def _read_head_line(path: str) -> SessionHead:
    try:
        text = read_prefix(f"{path}/{file_names.SESSION}").decode("utf-8", "replace")
    except OSError:
        return _NO_HEAD
    return parse_head(text) or _NO_HEAD


def _load_metadata(path: str, stamps: SessionStamps, problems: list[str]) -> SessionMetadata:
    if stamps[0] is None:
        problems.append(
            f"{path} has no {file_names.METADATA}; its identity is taken from {file_names.SESSION}"
        )
        return _NO_METADATA
    try:
        return parse_metadata(read_file(os.path.join(path, file_names.METADATA)))
    except (ValueError, OSError) as error:
        problems.append(f"{os.path.join(path, file_names.METADATA)} cannot be read: {error}")
        return _NO_METADATA


def _load_scope_plan(path: str, stamps: SessionStamps, problems: list[str]) -> Mapping[str, str]:
    plan_path = os.path.join(path, file_names.PLAN)
    if stamps[1] is None:
        problems.append(f"{path} has no {file_names.PLAN}; {file_names.METADATA} is taken instead")
        return {}
    try:
        return parse_scope_plan(read_file(plan_path), plan_path)
    except (BadDefinition, OSError) as error:
        problems.append(f"{plan_path} cannot be read: {error}")
        return {}


def _assemble_session(
    path: str, metadata: SessionMetadata, plan: Mapping[str, str], head: SessionHead, problems: list[str]
) -> Session:
    slug, branch = _slug_and_branch(path)
    slug = metadata.slug or head.slug or plan.get("session_id") or slug
    parent_slug = plan.get("parent_session_id") or metadata.parent_slug or head.parent or None
    kind = plan.get("type") or metadata.type
    if kind not in {"agent", "branch"}:
        if kind:
            problems.append(f"{path}: type {kind!r} is neither agent nor branch")
        kind = "agent" if parent_slug else "branch"
    created = (
        parse_time(plan.get("created", ""))
        or _utc_or_none(metadata.created_at)
        or _slug_time(slug)
        or _UNKNOWN_TIME
    )
    precise = _utc_or_none(metadata.created_at)
    if precise is not None and precise.replace(microsecond=0) == created:
        created = precise
    return Session(
        id=metadata.id or head.id or str(uuid.uuid5(uuid.NAMESPACE_URL, f"retinue:{slug}/{branch}")),
        slug=slug,
        agent=plan.get("preset") or metadata.agent or _agent_from_slug(slug),
        type="agent" if kind == "agent" else "branch",
        branch=metadata.branch or head.branch or branch,
        path=path,
        parent_id=metadata.parent,
        parent_slug=parent_slug,
        depth=metadata.depth or int(kind == "agent"),
        aliases=metadata.aliases,
        name=metadata.name,
        pinned_at=_utc_or_none(metadata.pinned_at) or (created if metadata.pinned else None),
        created_at=created,
        updated_at=created,
        attributes=metadata.attributes,
        workspace=parse_workspace(metadata.workspace, path),
        ceilings=parse_ceilings(metadata.ceiling),
        user_grants=parse_user_grants(metadata.lifted),
        preset_hash=metadata.preset_hash,
    )


def _slug_and_branch(path: str) -> tuple[str, str]:
    """Derive slug and branch from the folder's name, as a last resort."""
    parent_folder, name = os.path.split(path)
    if os.path.basename(parent_folder) == file_names.BRANCHES:
        return os.path.basename(os.path.dirname(parent_folder)), name
    return name, file_names.MAIN


def _slug_time(slug: str) -> datetime | None:
    match = _SLUG_TIME.search(slug)
    try:
        return datetime.strptime(match[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def _agent_from_slug(slug: str) -> str:
    match = _SLUG_TIME.search(slug)
    return slug[: match.start()] if match else slug


def _utc_or_none(time: datetime | None) -> datetime | None:
    try:
        return None if time is None else as_utc(time)
    except OverflowError:
        return None
