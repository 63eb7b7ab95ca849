"""Look up sessions below one root by any reference; a folder is read again only when its files changed."""

# Paths are joined and opened thousands of times here, so plain strings are used instead of pathlib.
# ruff: noqa: PTH111, PTH112, PTH113, PTH118, PTH119, PTH120, PTH206

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from retinue.domain.session import Session
from retinue.errors import NotFound, UsageError
from retinue.sessions import folder, session_tree
from retinue.sessions.list_cache import SessionListCache
from retinue.sessions.markdown.marker import parse_head
from retinue.storage import file_names
from retinue.storage.file_io import FileStamp, file_stamp, read_prefix

LIST_MAX_AGE_S = 1.0
"""Seconds for which a list of very many sessions may miss changes by other processes."""
_MAX_CANDIDATES_SHOWN = 8
_MAX_RESOLVED_PATHS = 1000
_MAX_LOADED = 2048
"""Sessions that are remembered with their stamps; others are read again."""
_MAX_COMPARED = 1000
"""With more sessions no nearest name is suggested, because the search would take too long."""


class SessionLookup:
    """Session lookup with a cache of paths and file stamps; the files are authoritative."""

    def __init__(self, root: str, token: Callable[[], str]) -> None:
        self.root = root
        self._list_cache = SessionListCache(root, token)
        self._loaded: dict[str, folder.LoadedSession] = {}
        self._path_by_id: dict[str, str] = {}
        self._resolved_paths: dict[str, tuple[str, str]] = {}
        """The session.md and session folder that a path leads to, by the path somebody used."""
        self._last_list: Sequence[Session] = ()

    def load(self, path: str) -> folder.LoadedSession:
        """Load the session in this folder as its files are now."""
        cached = self._loaded.get(path)
        loaded = folder.load_session(path) if cached is None else folder.reload_session(cached)
        if loaded is not cached:
            self._remember(path, loaded)
        return loaded

    def _remember(self, path: str, loaded: folder.LoadedSession) -> None:
        """Cache a session, and drop the older half of the cache when it is full."""
        if len(self._loaded) >= _MAX_LOADED and path not in self._loaded:
            for old_path in list(islice(self._loaded, _MAX_LOADED // 2)):
                self._path_by_id.pop(self._loaded.pop(old_path).session.id, None)
        self._loaded[path] = loaded
        self._path_by_id[loaded.session.id] = path

    def remember_new(self, session: Session) -> Session:
        """Remember a session that was just created, without reading its files back."""
        stamps = folder.session_stamps(session.path)
        fresh = replace(session, updated_at=folder.last_update_time(stamps, session.created_at))
        self._remember(session.path, folder.LoadedSession(session=fresh, problems=(), stamps=stamps))
        return fresh

    def list_cached(self, *, max_age_s: float = 0.0) -> Sequence[Session]:
        """Return every session for display.

        With `max_age_s`, changes that other processes and people made in that time may not show.
        """
        found = self._list_cache.list_sessions(lambda path: self.load(path).session, max_age_s=max_age_s)
        if found is not self._last_list:
            self._last_list = found
            self._path_by_id = {each.id: each.path for each in found}
        return found

    def mark_changed(self, path: str) -> None:
        """Record that this process changed something in a session's folder."""
        self._list_cache.mark_changed(path)

    def track_work(self, path: str, *, change: int) -> None:
        """Record that this process started (1) or stopped (-1) working in a session's folder."""
        self._list_cache.track_work(path, change=change)

    def load_all(self) -> list[Session]:
        """Load every session as its files are now."""
        found = {path: self.load(path) for path in session_tree.walk_sessions(self.root)}
        if len(found) <= _MAX_LOADED:
            self._loaded = found
            self._path_by_id = {each.session.id: path for path, each in found.items()}
        return [each.session for each in found.values()]

    def find(self, ref: str, *, paths: bool = True) -> Session:
        """Return the session that a reference identifies.

        Without `paths` nothing outside the root is read, the cached list is trusted, and display names are
        ignored: a caller that asks again for a deleted session must never get another one.

        Raises:
            UsageError: The reference is ambiguous; lists the candidates.
            NotFound: Nothing matches; names the nearest.
        """
        if not ref.strip():
            raise UsageError("Name a session by its id, slug, alias, name or path.")
        found = self._find_remembered(ref) or self._find_by_folder_name(ref)
        max_age_s = 0.0 if paths else LIST_MAX_AGE_S
        found = (
            found
            or (self._find_by_path(ref) if paths else None)
            or self._find_in_list(ref, max_age_s=max_age_s)
        )
        if found is not None:
            return found
        sessions = self.load_all() if paths else self.list_cached(max_age_s=max_age_s)
        for is_match in _MATCHERS if paths else _REMOTE_MATCHERS:
            match = self._single_match([each for each in sessions if is_match(each, ref)], ref)
            if match is not None:
                return match
        raise NotFound(f"Session {ref!r} not found{_nearest_hint(ref, sessions, with_names=paths)}")

    def get_if_unchanged(self, session_id: str) -> Session | None:
        """Return the session of this id if its files have not changed, without reading them."""
        loaded = self._loaded.get(self._path_by_id.get(session_id, ""))
        if loaded is None or loaded.stamps != folder.session_stamps(loaded.session.path):
            return None
        return loaded.session if loaded.session.id == session_id and loaded.stamps[2] else None

    def get_by_same_path(self, path: str) -> Session | None:
        """Return the session found earlier under this path if all its files are unchanged."""
        file = self._resolved_paths.get(path)
        if file is None:
            return None
        loaded = self._loaded.get(file[1])
        if loaded is None or loaded.stamps[2] is None or file_stamp(file[0]) != loaded.stamps[2]:
            return None
        return loaded.session if loaded.stamps == folder.session_stamps(file[1]) else None

    def update_conversation_end(self, path: str, final_state: tuple[FileStamp, str] | None) -> None:
        """Record the end of a conversation that this process wrote, so that it need not be read.

        The stamps stay valid as long as nobody else writes.
        """
        loaded = self._loaded.get(path)
        if loaded is not None and final_state is not None and loaded.stamps[2] != final_state[0]:
            self._loaded[path] = folder.with_new_conversation_end(loaded, *final_state)

    def _find_remembered(self, ref: str) -> Session | None:
        path = self._path_by_id.get(ref)
        if path is None or not os.path.lexists(os.path.join(path, file_names.SESSION)):
            return None
        session = self.load(path).session
        return session if session.id == ref else None

    def _find_by_folder_name(self, ref: str) -> Session | None:
        """Find a top-level session by its folder's name; needs no list."""
        slug, _, branch = ref.partition("/")
        top_path = os.path.join(self.root, slug)
        if (
            slug in {"", ".", ".."}
            or "/" in branch
            or not file_names.is_listable(slug)
            or not os.path.isdir(top_path)
        ):
            return None
        if not branch:
            path = session_tree.current_branch(top_path)
            return self.load(path).session if path else None
        path = os.path.join(top_path, file_names.BRANCHES, branch)
        hidden = branch in {".", ".."} or not file_names.is_listable(branch)
        if hidden or not os.path.lexists(os.path.join(path, file_names.SESSION)):
            return None
        return self.load(path).session

    def _find_by_path(self, ref: str) -> Session | None:
        path = os.path.realpath(os.path.expanduser(ref))
        if os.path.isdir(path):
            found = self._session_in_folder(path, ref)
            return (
                self._remember_path(found, ref, f"{ref}/{file_names.SESSION}")
                if found and found.path == path
                else found
            )
        if os.path.isfile(path):
            return self._remember_path(self._session_of_file(path, ref), ref, ref)
        if ref.startswith(("/", "./", "../", "~")):
            raise NotFound(f"There is no file or folder {ref}")
        return None

    def _remember_path(self, found: Session | None, ref: str, file: str) -> Session | None:
        """Remember which session an absolute path leads to."""
        if found is not None and ref.startswith("/"):
            if len(self._resolved_paths) >= _MAX_RESOLVED_PATHS:
                self._resolved_paths.clear()
            self._resolved_paths[ref] = (file, found.path)
        return found

    def _session_in_folder(self, path: str, ref: str) -> Session | None:
        if os.path.isfile(os.path.join(path, file_names.SESSION)) and _is_session_folder(path):
            return self.load(path).session
        branch = (
            session_tree.current_branch(path)
            if os.path.isdir(os.path.join(path, file_names.BRANCHES))
            else None
        )
        if branch is not None and _is_session_folder(branch):
            return self.load(branch).session
        if "/" in ref:
            raise UsageError(
                f"{ref} is not a session folder: it has no {file_names.SESSION} written by Retinue."
            )
        return None

    def _session_of_file(self, path: str, ref: str) -> Session | None:
        folder_path, name = os.path.split(path)
        if name == file_names.SESSION and _is_session_folder(folder_path):
            return self.load(folder_path).session
        if name == file_names.SESSION or "/" in ref or name.endswith(".md"):
            raise UsageError(f"{ref} is not a session file: it does not start with Retinue's head line.")
        return None

    def _find_in_list(self, ref: str, *, max_age_s: float) -> Session | None:
        """Find a session in the cached list, then verify it against its files."""
        found = [each for each in self.list_cached(max_age_s=max_age_s) if _matches_exactly(each, ref)]
        if len(found) != 1:
            return None
        session = self.load(found[0].path).session
        return session if _matches_exactly(session, ref) else None

    def _single_match(self, found: Sequence[Session], ref: str) -> Session | None:
        """Return the single match, preferring the current branch among branches of one session."""
        if len(found) <= 1:
            return found[0] if found else None
        if len({each.slug for each in found}) == 1:
            current = [each for each in found if self._is_current(each)]
            if len(current) == 1:
                return current[0]
        shown = ", ".join(f"{each.slug}/{each.branch} ({each.id})" for each in found[:_MAX_CANDIDATES_SHOWN])
        rest = f" and {len(found) - _MAX_CANDIDATES_SHOWN} more" if len(found) > _MAX_CANDIDATES_SHOWN else ""
        raise UsageError(
            f"{ref!r} matches {len(found)} sessions: {shown}{rest}. Use more characters, the id or the path."
        )

    def _is_current(self, session: Session) -> bool:
        parts = os.path.relpath(session.path, self.root).split(os.sep)
        branch = os.path.join(self.root, *parts[:3])
        return session_tree.current_branch(os.path.join(self.root, parts[0])) == os.path.realpath(branch)


def top_folder(session: Session) -> str:
    """Return the folder of the whole session; for a top-level one, the folder above its branches."""
    parent = os.path.dirname(session.path)
    return os.path.dirname(parent) if os.path.basename(parent) == file_names.BRANCHES else session.path


def _is_session_folder(path: str) -> bool:
    """Return True if the folder's content is a session.

    Either session.md starts with the head line, or the conversation is empty and other session files exist.
    """
    try:
        text = read_prefix(os.path.join(path, file_names.SESSION)).decode("utf-8", "replace")
    except OSError:
        return False
    if parse_head(text) is not None:
        return True
    other_file = file_names.METADATA if text.strip() else file_names.PRESET
    return any(os.path.isfile(os.path.join(path, name)) for name in (file_names.METADATA, other_file))


def _reference_names(session: Session) -> Iterable[str]:
    return (session.id, session.slug, *session.aliases)


def _matches_exactly(session: Session, ref: str) -> bool:
    return ref in _reference_names(session) or ref == f"{session.slug}/{session.branch}"


def _matches_name(session: Session, ref: str) -> bool:
    return session.name is not None and session.name.casefold() == ref.casefold()


def _matches_prefix(session: Session, ref: str) -> bool:
    return any(label.startswith(ref) for label in _reference_names(session))


def _matches_id_prefix(session: Session, ref: str) -> bool:
    """Match by prefix, except that a whole slug matches only itself and never a longer one."""
    return session.id.startswith(ref) or (not file_names.contains_slug(ref) and _matches_prefix(session, ref))


_MATCHERS: tuple[Callable[[Session, str], bool], ...] = (_matches_exactly, _matches_name, _matches_prefix)
"""Kinds of reference in order; the first kind with a match decides."""
_REMOTE_MATCHERS: tuple[Callable[[Session, str], bool], ...] = (_matches_exactly, _matches_id_prefix)
"""The kinds of reference accepted from remote programs."""


def _nearest_hint(ref: str, sessions: Sequence[Session], *, with_names: bool) -> str:
    if len(sessions) > _MAX_COMPARED:
        return ""
    candidates = {
        label
        for each in sessions
        for label in (*_reference_names(each), *((each.name or "",) if with_names else ()))
    }
    near = difflib.get_close_matches(ref, sorted(candidates), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
