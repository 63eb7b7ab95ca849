"""The guard of files: the one place where a path that an agent names becomes an open file."""

import difflib
import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from retinue.domain.ceiling import Wish
from retinue.domain.change import replace
from retinue.domain.glob import first_match
from retinue.domain.io_results import Found, Opened, Written
from retinue.domain.permissions.scope import NO_SCOPE, Scope
from retinue.domain.rules import Globs, literal
from retinue.domain.value import value
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.sandbox.files.atomic_write import found, reached, replaced
from retinue.sandbox.files.listing import listed, walked
from retinue.sandbox.files.messages import allowances, problem, shown, some
from retinue.sandbox.files.openat2 import Opener, best_opener
from retinue.sandbox.files.path_resolution import (
    Place,
    begin,
    climbed,
    components_of,
    kernel_name,
    lookup,
    name_of,
    named,
    opened,
    places,
    view,
)
from retinue.sandbox.files.pattern_roots import components, is_denied, may_hold, objection

MAX_READ = 16_000_000
MAX_WALK = 200_000
MAX_NEW = 64

LINKED: Globs = (
    "**/node_modules/**", "**/site-packages/**", "**/dist-packages/**", "**/.venv/**", "**/venv/**",
    "/usr/**", "/opt/**", "/nix/store/**",
)  # fmt: skip
"""Where installers give one file many names on purpose: there a file is read whatever its other names are."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Never waits for the other end of a pipe, never takes a terminal."""

_NOWHERE = "it goes through a link that leads nowhere, and nothing is made through a link"
_SUGGEST_AMONG = 2_000
_CHUNK = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is open: its name as the rules know it, and the scope by which that is judged."""

    fd: int
    name: str
    status: os.stat_result
    own: bool

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


@value
class Spot:
    """Where a file goes: an open folder, the folders missing below it, and the file's own name there."""

    folder: int
    missing: tuple[str, ...]
    leaf: str
    name: str
    """The whole name, as the rules know it."""


@dataclass(frozen=True, slots=True)
class GuardedFiles:
    """Files bound to one scope: what was opened is judged by its real name, so no way of asking leads around a rule."""

    scope: Scope
    opener: Opener = field(default_factory=best_opener, kw_only=True)
    sole: str | None = field(default=None, kw_only=True)
    """The one file that may be written, when a person allowed just that."""

    def read(self, path: str, *, max_bytes: int = MAX_READ) -> Opened:
        """At most max_bytes of a regular file."""
        with self._opened(path) as held:
            if held.is_folder:
                raise Failed(f"{shown(path)} is a folder: use ls to see what is in it")
            self._has_one_name(path, held)
            data = _content(held.fd, held.status.st_size, max_bytes)
            return Opened(real=held.name, data=data, size=max(held.status.st_size, len(data)))

    def list(self, path: str) -> list[Found]:
        """What a folder holds, sorted, links as links; what the scope refuses is left out."""
        with self._opened(path) as held:
            if not held.is_folder:
                raise Failed(f"{shown(path)} is a file, not a folder: use read to see what is in it")
            return listed(self._view(held), held.fd, held.name, limit=MAX_WALK)

    def walk(self, path: str, *, limit: int = MAX_WALK) -> Iterator[Found]:
        """Files and links below a folder, folder by folder in order; of a file, the file itself as `.`.
        Looks at no more than `limit` names; if there are more, the last one found is of kind `cut`."""
        with self._opened(path) as held:
            if not held.is_folder:
                yield Found(path=".", real=held.name, kind="file", size=held.status.st_size)
                return
            yield from walked(self._view(held), held.fd, held.name, limit=limit, opener=self.opener)

    def name(self, path: str) -> str:
        """The real name that a path stands for now, unjudged, in the agent's own words."""
        return name_of(self.scope, components_of(path, self.scope.root))

    def judge(self, path: str, wish: Wish) -> str:
        """The real name that a path stands for now: of a file that is there, or of one that would be made."""
        if wish == "write":
            with self._spot(path) as spot:
                return spot.name
        with self._opened(path) as held:
            self._has_one_name(path, held)
            return held.name

    def write(self, path: str, data: bytes, *, instead_of: bytes | None = None) -> Written:
        """The whole file, in one step, in the folder that was judged. Missing folders are made."""
        with self._spot(path) as spot:
            if self.sole is not None and spot.name != self.sole:
                raise self._refusal(path, f"a person allowed {shown(self.sole)} and nothing else", "write")
            if instead_of is not None and (spot.missing or _there(path, spot.folder, spot.leaf) is None):
                raise Failed(f"no such file: {shown(path)} (in {self.scope.root}); use write to make it")
            try:
                with reached(spot.folder, spot.missing) as folder:
                    self._still_there(path, spot, folder)
                    made = replaced(folder, spot.leaf, data, instead_of=instead_of)
            except OSError as error:
                raise problem(error, path, "write") from error
            return Written(real=spot.name, made=made, size=len(data))

    def only(self, real: str) -> "GuardedFiles":
        return replace(self, sole=real)

    @contextmanager
    def _opened(self, path: str) -> Generator[Held]:
        """A regular file or a folder that the scope lets this agent read; closed afterwards."""
        fd, name, place = self._open(path)
        try:
            status = os.fstat(fd)
            if name is None:
                raise self._refusal(path, "it has no name any more")
            self._judge(path, name, status.st_mode, place)
            yield Held(fd, name, status, place.own)
        except OSError as error:
            raise problem(error, path, "read") from error
        finally:
            os.close(fd)

    def _open(self, path: str) -> tuple[int, str | None, Place]:
        parts = components_of(path, self.scope.root)
        failed: OSError | None = None
        for place in places(self.scope, parts, "read"):
            try:
                return *opened(place, self.opener, _FLAGS), place
            except OSError as error:
                failed = error
        if failed is None:
            raise self._refusal(path, "nothing allows read")
        raise self._explained(path, parts, failed) from failed

    def _judge(self, path: str, name: str, mode: int, place: Place) -> None:
        scope = view(self.scope, name, own=place.own)
        refused = objection(scope, name, "read")
        if refused is not None and not (stat.S_ISDIR(mode) and may_hold(scope, name)):
            raise self._refusal(path, refused)
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Failed(f"{shown(path)} is not a regular file")

    def _has_one_name(self, path: str, held: Held) -> None:
        """Of a file with several names only this one is known here, and the others may be denied."""
        if held.status.st_nlink == 1 or held.is_folder or held.own:
            return
        if first_match(LINKED, held.name) is None and literal(held.name) not in self.scope.read:
            raise self._linked(path, held.status, "read")

    def _view(self, held: Held) -> Scope:
        return self.scope if held.own or not self.scope.tmp else replace(self.scope, tmp="")

    @contextmanager
    def _spot(self, path: str) -> Generator[Spot]:
        """Where a file may be written: judged, and held open. A link is replaced by what it leads to, once; nothing
        is made through one."""
        parts = components_of(path, self.scope.root)
        if path.endswith(("/", "/.")) or path == "." or parts[-1:] in ((), ("..",)):
            raise Failed(f"{shown(path)} names a folder: name a file")
        if not self.scope.writable and not self.scope.private("/" + "/".join(parts)):
            raise self._read_only(path)
        with self._approached(path, parts, links=True) as spot:
            if not self._is_link(path, spot):
                yield spot
                return
        with self._approached(path, self._target(path, parts), links=False) as spot:
            if self._is_link(path, spot):
                raise self._refusal(path, "it became a link meanwhile", "write")
            yield spot

    def _is_link(self, path: str, spot: Spot) -> bool:
        """Or else nothing, or a file that may be replaced."""
        status = None if spot.missing else _there(path, spot.folder, spot.leaf)
        if status is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            return True
        if stat.S_ISDIR(status.st_mode):
            raise Failed(f"{shown(path)} is a folder: name a file")
        if not stat.S_ISREG(status.st_mode):
            raise Failed(f"{shown(path)} is not a regular file")
        if status.st_nlink > 1:
            raise self._linked(path, status, "write")
        return False

    def _target(self, path: str, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Where a link leads: to something that is there, or it is refused."""
        place = next(places(self.scope, parts, "write"))
        try:
            fd, name = opened(place, self.opener, os.O_PATH)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise self._refusal(path, _NOWHERE, "write") from error
            raise self._explained(path, parts, error, "write") from error
        os.close(fd)
        if name is None:
            raise self._refusal(path, "it has no name any more", "write")
        return components(name)

    @contextmanager
    def _approached(self, path: str, parts: tuple[str, ...], *, links: bool) -> Generator[Spot]:
        """The deepest folder on the way that is there, open; what is missing below it; all judged by its real name."""
        way = next(places(self.scope, parts, "write"), None)
        if way is None:
            raise self._refusal(path, "nothing allows write", "write")
        place = climbed(way)
        if not place.rest:
            raise Failed(f"{shown(path)} is a folder: name a file")
        anchor = begin(place)
        try:
            folder, missing = self._deepest(anchor, place.rest[:-1], links=links)
            above = named(place, anchor, folder)
        except OSError as error:
            raise self._explained(path, parts, error, "write") from error
        finally:
            os.close(anchor)
        try:
            if above is None:
                raise self._refusal(path, "it has no name any more", "write")
            name = "/".join((above.rstrip("/"), *missing, place.rest[-1]))
            self._judge_write(path, name, above, missing, place)
            if missing and _there(path, folder, missing[0]) is not None:
                raise self._refusal(path, _NOWHERE, "write")
            yield Spot(folder=folder, missing=missing, leaf=place.rest[-1], name=name)
        finally:
            os.close(folder)

    def _deepest(self, anchor: int, rest: tuple[str, ...], *, links: bool) -> tuple[int, tuple[str, ...]]:
        """An open folder and what is missing below it; how many folders one file may need is bounded."""
        flags = os.O_PATH | os.O_DIRECTORY
        for depth in range(len(rest), max(-1, len(rest) - MAX_NEW - 1), -1):
            there, missing = rest[:depth], rest[depth:]
            try:
                if links:
                    return lookup(self.opener, anchor, there, flags), missing
                return self.opener(anchor, "/".join(there) or ".", flags, False), missing
            except FileNotFoundError:
                if not depth or ".." in rest[depth - 1 :]:
                    raise
        raise Failed(
            f"more than {MAX_NEW} folders would have to be made for one file: name a place nearer by"
        )

    def _judge_write(self, path: str, name: str, above: str, missing: tuple[str, ...], place: Place) -> None:
        scope = view(self.scope, name, own=place.own)
        refused = objection(scope, name, "write")
        if refused is not None:
            raise self._refusal(path, refused, "write")
        for part in missing:
            above = f"{above.rstrip('/')}/{part}"
            if is_denied(scope, above):
                raise self._refusal(path, scope.shut(above) or "denied", "write")

    def _still_there(self, path: str, spot: Spot, folder: int) -> None:
        """Folders that were made just now have the names they were made by."""
        if spot.missing:
            wanted = (kernel_name(spot.folder) or "").rstrip("/") + "/" + "/".join(spot.missing)
            if kernel_name(folder) != wanted:
                raise self._refusal(path, "its folder was moved meanwhile", "write")

    def _explained(
        self, path: str, parts: tuple[str, ...], error: OSError, wish: Wish = "read"
    ) -> RetinueError:
        """What is not in the scope is refused whether it exists or not."""
        if error.errno == errno.EXDEV:
            return self._refusal(path, f"it leads out of the folder you may {wish}", wish)
        named = os.path.normpath("/" + "/".join(parts))
        refused = objection(self.scope, named, wish)
        if refused is not None and (wish == "write" or not may_hold(self.scope, named)):
            return self._refusal(path, refused, wish)
        if error.errno == errno.ENOENT:
            return Failed(f"no such file: {shown(path)} (in {self.scope.root}){self._nearest(path)}")
        return problem(error, path, wish)

    def _nearest(self, path: str) -> str:
        folder, slash, name = path.rstrip("/").rpartition("/")
        with suppress(RetinueError):
            names = {one.path for one in self.list(folder + slash or ".")[:_SUGGEST_AMONG]}
            close = difflib.get_close_matches(name, names, 1)
            return "".join(f"; did you mean {shown(folder + slash + one)}?" for one in close)
        return ""

    def _refusal(self, path: str, rule: str, wish: Wish = "read", error: str = "out_of_scope") -> OutOfScope:
        scope = self.scope
        own = scope.read if wish == "read" else scope.write
        allowed = own if scope.configured else ()
        return OutOfScope(
            f"{shown(path)} is not in your scope ({rule}). "
            f"You may {wish} {allowances(scope, wish)}; denied: {some(scope.deny)}.",
            error=error if scope.configured else NO_SCOPE,
            resource=path,
            allowed=allowed,
            denied=scope.deny,
        )

    def _linked(self, path: str, status: os.stat_result, wish: Wish) -> OutOfScope:
        return OutOfScope(
            f"{shown(path)} has {status.st_nlink} names (hard links), and the others may be closed to you: "
            f"such a file is not {'read' if wish == 'read' else 'written'}. A copy of it would be.",
            error="hard_link",
            resource=path,
            allowed=self.scope.read if wish == "read" else self.scope.write,
            denied=self.scope.deny,
        )

    def _read_only(self, path: str) -> OutOfScope:
        label = self.scope.label or self.scope.root.rpartition("/")[2] or self.scope.root
        return OutOfScope(
            f'Workspace "{label}" is read-only. Cannot perform write.',
            error="read_only",
            resource=path,
            allowed=tuple(each for each in self.scope.write if self.scope.private(each)),
            denied=self.scope.deny,
        )


def _there(path: str, folder: int, name: str) -> os.stat_result | None:
    try:
        return found(folder, name)
    except OSError as error:
        raise problem(error, path, "write") from error


def _content(fd: int, size: int, max_bytes: int) -> bytes:
    """One read is the rule; a file that grows meanwhile takes more."""
    data = os.read(fd, min(max_bytes, size + 1))
    if len(data) in (size, max_bytes):
        return data
    pieces = [data]
    left = max_bytes - len(data)
    while left > 0 and pieces[-1]:
        pieces.append(os.read(fd, min(left, _CHUNK)))
        left -= len(pieces[-1])
    return b"".join(pieces)
