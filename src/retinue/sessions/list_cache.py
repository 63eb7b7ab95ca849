"""What the last list found and how the folders looked then: ten thousand sessions are listed without reading them."""

# Names are joined and opened thousands of times here, below descriptors: text is enough.
# ruff: noqa: PTH102, PTH105, PTH108, PTH118

import gc
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields

import msgspec

from retinue import __version__
from retinue.domain.session import Session
from retinue.domain.workspace import Workspace
from retinue.sessions import session_tree
from retinue.storage import file_names
from retinue.storage.file_io import Stamp, open_file, stamp_of, write_new

SETTLED_NS = 50_000_000
"""The kernel's clock for files ticks every few milliseconds: of two changes within one tick the second leaves no
trace. What changed so shortly before it was looked at is looked through again the next time."""
_FEWEST = 64
"""So many changed folders are read faster than the index is written."""
_RATIO = 64


class Look(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a file or folder looked: its path below the root, and its stamp."""

    path: str
    inode: int
    size: int
    changed: int
    touched: int


class Family(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """A folder below the root: the sessions in it, and the stamps that tell that they are still what they were."""

    looks: tuple[Look, ...]
    """None at all when the folder must be looked through in any case."""
    sessions: tuple[Session, ...]


class _Kept(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    form: str
    root: str
    families: dict[str, Family]


_FORM = f"1 {__version__} {' '.join(each.name for kind in (Session, Workspace) for each in fields(kind))}"
"""What wrote an index. Another release, or another idea of a session, begins anew."""
_DECODER = msgspec.msgpack.Decoder(_Kept)
_ENCODER = msgspec.msgpack.Encoder()


class Index:
    """Derived from the folders, and only for lists: whoever works in a session reads its files. It may be deleted at
    any time, and an index that cannot be read or written costs time and nothing else."""

    def __init__(self, root: str, token: Callable[[], str]) -> None:
        self._root = root
        self._token = token
        self._known: Mapping[str, Family] | None = None
        self._unsaved: frozenset[str] = frozenset()
        self._list: list[Session] = []
        """What was found last; nobody changes it, and a new one is made where anything is different."""
        self._fresh: set[str] = set()
        """Families that had changed so shortly before that a second change may not show."""
        self._looked = 0.0
        """When every folder was last looked at."""
        self._root_then: Stamp | None = None
        self._one = threading.Lock()
        """One list is made at a time, or an older one would come last."""
        self._lock = threading.Lock()
        self._touched: set[str] = set()
        """Families in which this process changed something since they were looked at."""
        self._worked: Counter[str] = Counter()
        """Families in which this process may change something at any time."""

    def touched(self, path: str) -> None:
        """This process has changed something in a session's folder."""
        if top := self._top(path):
            with self._lock:
                self._touched.add(top)

    def working(self, path: str, *, more: int) -> None:
        """This process begins to work in a session's folder, or has ended: `more` is 1 or -1."""
        if top := self._top(path):
            with self._lock:
                self._touched.add(top)
                self._worked[top] += more
                if not self._worked[top]:
                    del self._worked[top]

    def sessions(self, read: Callable[[str], Session], *, age: float = 0.0) -> list[Session]:
        """Every session below the root. `read` is asked for those in folders that do not look as they did. With an
        `age`, what others changed in a session so many seconds ago, or later, need not be seen yet."""
        with self._one:
            if self._known is not None and time.monotonic() - self._looked < age:
                return self._lately(self._known, read)
            return self._all(read)

    def _all(self, read: Callable[[str], Session]) -> list[Session]:
        try:
            directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            with _no_collecting():
                return self._sessions(directory, read)
        finally:
            os.close(directory)

    def _lately(self, known: Mapping[str, Family], read: Callable[[str], Session]) -> list[Session]:
        """The list as it was, but for sessions that came or went, and for those that this process works in."""
        then, anew = self._root_then, self._due(known)
        self._root_then = stamp_of(self._root)
        if then == self._root_then and not anew:
            return self._list
        tops = known.keys() if then == self._root_then else dict.fromkeys(session_tree.tops(self._root))
        with _no_collecting():
            found = {
                name: _surveyed(self._root, name, read) if name in anew or name not in known else known[name]
                for name in (*tops, *(each for each in anew if each not in tops))
            }
            self._fresh = {name for name, family in found.items() if not family.looks}
            self._known = {name: family for name, family in found.items() if family.sessions or name in tops}
            self._list = [session for family in self._known.values() for session in family.sessions]
        return self._list

    def _due(self, known: Mapping[str, Family]) -> set[str]:
        """Which families are looked through: this process changed them, or they had just been changed."""
        with self._lock:
            touched, self._touched = self._touched, set()
            touched |= self._worked.keys()
        return touched | {name for name in self._fresh if name in known and not known[name].looks}

    def _top(self, path: str) -> str:
        return path[len(self._root) + 1 :].partition("/")[0] if path.startswith(f"{self._root}/") else ""

    def _sessions(self, directory: int, read: Callable[[str], Session]) -> list[Session]:
        known = self._loaded() if self._known is None else self._known
        self._looked, self._root_then = time.monotonic(), stamp_of(self._root)
        self._due(known)
        found: dict[str, Family] = {}
        changed: set[str] = set()
        for name in session_tree.tops(self._root):
            family = known.get(name)
            if family is None or not _as_before(family, directory):
                family = _surveyed(self._root, name, read)
                changed.add(name)
            found[name] = family
        if changed or self._known is None or found.keys() != known.keys():
            self._list = [session for family in found.values() for session in family.sessions]
        self._known = found
        self._fresh = {name for name in changed if not found[name].looks}
        self._keep(found, self._unsaved | changed, gone=known.keys() - found.keys())
        return self._list

    def _loaded(self) -> Mapping[str, Family]:
        try:
            with open(
                os.path.join(self._root, file_names.INDEX), "rb", opener=lambda path, _: open_file(path)
            ) as file:
                data = memoryview(file.read())
            if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
                return {}
            kept = _DECODER.decode(data[4:])
        except (OSError, ValueError):
            return {}
        return kept.families if (kept.form, kept.root) == (_FORM, self._root) else {}

    def _keep(self, found: Mapping[str, Family], unsaved: frozenset[str], *, gone: set[str]) -> None:
        """Written when reading what changed costs more than writing it down, and when it names what is no more."""
        ripe = {name for name in unsaved if name in found and found[name].looks}
        many = len(ripe) >= _FEWEST and len(ripe) * _RATIO >= len(found)
        self._unsaved = unsaved
        if not many and not (gone and os.path.lexists(os.path.join(self._root, file_names.INDEX))):
            return
        staging = os.path.join(self._root, file_names.STAGING)
        temporary = os.path.join(staging, self._token())
        try:
            with suppress(FileExistsError):
                os.mkdir(staging, 0o700)
            write_new(temporary, _encoded(self._root, found))
            os.replace(temporary, os.path.join(self._root, file_names.INDEX))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
        self._unsaved = unsaved - ripe


def _as_before(family: Family, directory: int) -> bool:
    try:
        for look in family.looks:
            now = os.stat(look.path, dir_fd=directory)
            if (
                now.st_ctime_ns != look.touched
                or now.st_mtime_ns != look.changed
                or now.st_size != look.size
                or now.st_ino != look.inode
            ):
                return False
    except OSError:
        return False
    return bool(family.looks)


def _surveyed(root: str, name: str, read: Callable[[str], Session]) -> Family:
    """Each path is looked at before what it holds is read: a change in between is seen the next time."""
    began = time.time_ns()
    looks: list[Look] = []

    def look(path: str) -> None:
        with suppress(OSError):
            if found := stamp_of(path):
                looks.append(Look(path[len(root) + 1 :], *found))

    sessions = tuple(read(path) for path in session_tree.family(os.path.join(root, name), look))
    settled = all(each.touched < began - SETTLED_NS for each in looks)
    return Family(looks=tuple(looks) if settled else (), sessions=sessions)


def _encoded(root: str, found: Mapping[str, Family]) -> bytes:
    families: dict[str, msgspec.Raw] = {}
    for name, family in found.items():
        if family.looks:
            # What no such file can hold, a name that is no text for example, is read each time.
            with suppress(ValueError, TypeError, OverflowError):
                _ENCODER.encode(name)
                families[name] = msgspec.Raw(_ENCODER.encode(family))
    data = _ENCODER.encode((_FORM, root, families))
    return zlib.crc32(data).to_bytes(4, "big") + data


@contextmanager
def _no_collecting() -> Generator[None]:
    """Very many values with no cycles among them: looking for some again and again would take longer than making
    them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
