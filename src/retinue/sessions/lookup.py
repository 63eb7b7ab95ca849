"""All sessions below one root, found by any of their names; each folder is read again only when its files changed."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH111, PTH112, PTH113, PTH118, PTH119, PTH120, PTH206

import difflib
import os
from collections.abc import Callable, Iterable, Sequence

from retinue.domain.change import replace
from retinue.domain.session import Session
from retinue.errors import NotFound, Usage
from retinue.sessions import folder, session_tree
from retinue.sessions.list_cache import Index
from retinue.sessions.markdown.marker import read_head
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, read_start, stamp_of

LATELY = 1.0
"""Seconds for which a list of very many sessions may not show what other processes changed in them."""
_SHOWN = 8
_MOST_PATHS = 1000
_COMPARED = 1000
"""Among more sessions no nearest name is looked for: that would take longer than looking oneself."""


class Shelf:
    """The files are the truth. What is remembered is where a session was and how its files looked then."""

    def __init__(self, root: str, token: Callable[[], str]) -> None:
        self.root = root
        self._index = Index(root, token)
        self._known: dict[str, folder.Found] = {}
        self._places: dict[str, str] = {}
        self._files: dict[str, tuple[str, str]] = {}
        """By a path that somebody named: the session.md it leads to, and the session's folder."""
        self._list: Sequence[Session] = ()

    def at(self, path: str) -> folder.Found:
        """The session in this folder, as its files are now."""
        known = self._known.get(path)
        found = folder.read(path) if known is None else folder.again(known)
        if found is not known:
            self._known[path] = found
            self._places[found.session.id] = path
        return found

    def put(self, session: Session) -> Session:
        """Remembers a session that was just made, without reading back what was just written."""
        stamps = folder.stamps_of(session.path)
        fresh = replace(session, updated_at=folder.updated_at(stamps, session.created_at))
        self._known[session.path] = folder.Found(session=fresh, problems=(), stamps=stamps)
        self._places[session.id] = session.path
        return fresh

    def listed(self, *, age: float = 0.0) -> Sequence[Session]:
        """Every session, for showing. Whether a person wrote into a session's small files in place is not looked at.
        With an `age`, what other processes changed in one so lately need not show yet."""
        found = self._index.sessions(lambda path: self.at(path).session, age=age)
        if found is not self._list:
            self._list = found
            self._places = {each.id: each.path for each in found}
        return found

    def touched(self, path: str) -> None:
        """This process has changed something in a session's folder."""
        self._index.touched(path)

    def working(self, path: str, *, more: int) -> None:
        """This process begins to work in a session's folder (1), or has ended (-1)."""
        self._index.working(path, more=more)

    def all(self) -> list[Session]:
        """Every session, as all of its files are now."""
        found = {path: self.at(path) for path in session_tree.walk(self.root)}
        self._known = found
        self._places = {each.session.id: path for path, each in found.items()}
        return [each.session for each in found.values()]

    def find(self, ref: str, *, paths: bool = True) -> Session:
        """The one session that is meant. Usage lists the candidates of an ambiguous name, NotFound the nearest. Without
        `paths` nothing outside the root is ever looked at, the list is believed, and what people call a session counts
        for nothing: who asks again for one that is gone must never get another."""
        if not ref.strip():
            raise Usage("Name a session: its id, slug, alias, name or path")
        found = self._remembered(ref) or self._named(ref)
        age = 0.0 if paths else LATELY
        found = found or (self._by_path(ref) if paths else None) or self._listed(ref, age=age)
        if found is not None:
            return found
        everything = self.all() if paths else self.listed(age=age)
        for matches in _WAYS if paths else _FAR_WAYS:
            meant = self._one([each for each in everything if matches(each, ref)], ref)
            if meant is not None:
                return meant
        raise NotFound(f"There is no session {ref!r}{_nearest(ref, everything, called=paths)}")

    def unchanged(self, session_id: str) -> Session | None:
        """A session of this id whose files are as they were: a few looks at the disk, no reading."""
        known = self._known.get(self._places.get(session_id, ""))
        if known is None or known.stamps != folder.stamps_of(known.session.path):
            return None
        return known.session if known.session.id == session_id and known.stamps[2] else None

    def at_the_same(self, path: str) -> Session | None:
        """A session that was found by this path before, and whose files, the one that it leads to among them, are as they
        were."""
        file = self._files.get(path)
        if file is None:
            return None
        known = self._known.get(file[1])
        if known is None or known.stamps[2] is None or stamp_of(file[0]) != known.stamps[2]:
            return None
        return known.session if known.stamps == folder.stamps_of(file[1]) else None

    def grown(self, path: str, left: tuple[Stamp, str] | None) -> None:
        """This process has ended its work in a conversation: what it wrote there it need not read. The stamps say so as
        long as nobody else has written."""
        known = self._known.get(path)
        if known is not None and left is not None and known.stamps[2] != left[0]:
            self._known[path] = folder.grown(known, *left)

    def _remembered(self, ref: str) -> Session | None:
        path = self._places.get(ref)
        if path is None or not os.path.lexists(os.path.join(path, file_names.SESSION)):
            return None
        session = self.at(path).session
        return session if session.id == ref else None

    def _named(self, ref: str) -> Session | None:
        """A top-level session by the name of its folder: no list is needed."""
        slug, _, branch = ref.partition("/")
        top = os.path.join(self.root, slug)
        if slug in {"", ".", ".."} or "/" in branch or not file_names.listed(slug) or not os.path.isdir(top):
            return None
        if not branch:
            path = session_tree.current(top)
            return self.at(path).session if path else None
        path = os.path.join(top, file_names.BRANCHES, branch)
        hidden = branch in {".", ".."} or not file_names.listed(branch)
        if hidden or not os.path.lexists(os.path.join(path, file_names.SESSION)):
            return None
        return self.at(path).session

    def _by_path(self, ref: str) -> Session | None:
        path = os.path.realpath(os.path.expanduser(ref))
        if os.path.isdir(path):
            found = self._by_folder(path, ref)
            return (
                self._kept(found, ref, f"{ref}/{file_names.SESSION}")
                if found and found.path == path
                else found
            )
        if os.path.isfile(path):
            return self._kept(self._by_file(path, ref), ref, ref)
        if ref.startswith(("/", "./", "../", "~")):
            raise NotFound(f"There is no file or folder {ref}")
        return None

    def _kept(self, found: Session | None, ref: str, file: str) -> Session | None:
        """Remembers what a whole path leads to."""
        if found is not None and ref.startswith("/"):
            if len(self._files) >= _MOST_PATHS:
                self._files.clear()
            self._files[ref] = (file, found.path)
        return found

    def _by_folder(self, path: str, ref: str) -> Session | None:
        if os.path.isfile(os.path.join(path, file_names.SESSION)) and _is_session(path):
            return self.at(path).session
        branch = (
            session_tree.current(path) if os.path.isdir(os.path.join(path, file_names.BRANCHES)) else None
        )
        if branch is not None and _is_session(branch):
            return self.at(branch).session
        if "/" in ref:
            raise Usage(f"{ref} is not a session's folder: it holds no {file_names.SESSION} of Retinue's")
        return None

    def _by_file(self, path: str, ref: str) -> Session | None:
        above, name = os.path.split(path)
        if name == file_names.SESSION and _is_session(above):
            return self.at(above).session
        if name == file_names.SESSION or "/" in ref or name.endswith(".md"):
            raise Usage(f"{ref} is not a session: it does not begin with Retinue's head line")
        return None

    def _listed(self, ref: str, *, age: float) -> Session | None:
        """The list says where to look, and the files there whether it was right."""
        found = [each for each in self.listed(age=age) if _exactly(each, ref)]
        if len(found) != 1:
            return None
        session = self.at(found[0].path).session
        return session if _exactly(session, ref) else None

    def _one(self, found: Sequence[Session], ref: str) -> Session | None:
        """Branches of one session are told apart by which of them is current."""
        if len(found) <= 1:
            return found[0] if found else None
        if len({each.slug for each in found}) == 1:
            live = [each for each in found if self._is_current(each)]
            if len(live) == 1:
                return live[0]
        shown = ", ".join(f"{each.slug}/{each.branch} ({each.id})" for each in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise Usage(f"{ref!r} could be {len(found)} sessions: {shown}{more}; say more of it")

    def _is_current(self, session: Session) -> bool:
        inside = os.path.relpath(session.path, self.root).split(os.sep)
        branch = os.path.join(self.root, *inside[:3])
        return session_tree.current(os.path.join(self.root, inside[0])) == os.path.realpath(branch)


def top_folder(session: Session) -> str:
    """The folder that is the whole session: of a top-level one the folder above its branches."""
    above = os.path.dirname(session.path)
    return os.path.dirname(above) if os.path.basename(above) == file_names.BRANCHES else session.path


def _is_session(path: str) -> bool:
    """By content: our head line at the very start, or an empty conversation beside our other files."""
    try:
        text = read_start(os.path.join(path, file_names.SESSION)).decode("utf-8", "replace")
    except OSError:
        return False
    if read_head(text) is not None:
        return True
    ours = file_names.FACTS if text.strip() else file_names.PRESET
    return any(os.path.isfile(os.path.join(path, name)) for name in (file_names.FACTS, ours))


def _labels(session: Session) -> Iterable[str]:
    return (session.id, session.slug, *session.aliases)


def _exactly(session: Session, ref: str) -> bool:
    return ref in _labels(session) or ref == f"{session.slug}/{session.branch}"


def _by_name(session: Session, ref: str) -> bool:
    return session.name is not None and session.name.casefold() == ref.casefold()


def _by_prefix(session: Session, ref: str) -> bool:
    return any(label.startswith(ref) for label in _labels(session))


def _by_beginning(session: Session, ref: str) -> bool:
    """As by prefix, but a whole slug means itself, and never another that goes on with a number or more words."""
    return session.id.startswith(ref) or (not file_names.stamped(ref) and _by_prefix(session, ref))


_WAYS: tuple[Callable[[Session, str], bool], ...] = (_exactly, _by_name, _by_prefix)
"""What a reference may be, in this order; the first that fits anything decides."""
_FAR_WAYS: tuple[Callable[[Session, str], bool], ...] = (_exactly, _by_beginning)
"""The same for programs that are far away."""


def _nearest(ref: str, everything: Sequence[Session], *, called: bool) -> str:
    if len(everything) > _COMPARED:
        return ""
    known = {
        label for each in everything for label in (*_labels(each), *((each.name or "",) if called else ()))
    }
    near = difflib.get_close_matches(ref, sorted(known), n=1)
    return f"; the nearest is {near[0]!r}" if near else ""
