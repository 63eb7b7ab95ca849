"""The guard of files: the one place where a path that an agent names becomes an open file."""

import difflib
import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from retinue.domain.ceiling import Wish
from retinue.domain.scope import NO_SCOPE, Scope
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.ports import Found, Opened, Written
from retinue.sandbox.listing import listed, walked
from retinue.sandbox.openat2 import Opener, best_opener
from retinue.sandbox.reach import anchor_of, components, forms, is_denied, is_readable, may_hold

MAX_PATH = 4096
MAX_READ = 16_000_000
MAX_WALK = 200_000

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Never waits for the other end of a pipe, never takes a terminal."""

_ANCHOR = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_DELETED = " (deleted)"
_SUGGEST_AMONG = 2_000
_PATTERNS_SHOWN = 8
_SHOWN = 300
_CHUNK = 1_000_000

_PROBLEMS = {
    errno.ENOTDIR: "a part of {path} is a file, not a folder",
    errno.EACCES: "this user may not read {path}",
    errno.EPERM: "this user may not read {path}",
    errno.ELOOP: "{path} goes through links that lead in a circle",
    errno.ENAMETOOLONG: "a name in {path} is too long",
    errno.ENXIO: "{path} is not a regular file",
    errno.ENODEV: "{path} is not a regular file",
    errno.EAGAIN: "{path} was being moved while it was opened; try again",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
    errno.ESTALE: "{path} is gone; look again with ls",
}
"""What the system's answers mean to the one who asked; the others speak for themselves."""


@dataclass(frozen=True, slots=True)
class GuardedFiles:
    """Files bound to one scope: what was opened is judged by its real name, so no way of asking leads around a rule."""

    scope: Scope
    opener: Opener = field(default_factory=best_opener, kw_only=True)

    def read(self, path: str, *, max_bytes: int = MAX_READ) -> Opened:
        """At most max_bytes of a regular file."""
        with self._opened(path) as (fd, real, status):
            if stat.S_ISDIR(status.st_mode):
                raise Failed(f"{shown(path)} is a folder: use ls to see what is in it")
            data = _content(fd, status.st_size, max_bytes)
            return Opened(real=real, data=data, size=max(status.st_size, len(data)))

    def list(self, path: str) -> list[Found]:
        """What a folder holds, sorted, links as links; what the scope refuses is left out."""
        with self._opened(path) as (fd, real, status):
            if not stat.S_ISDIR(status.st_mode):
                raise Failed(f"{shown(path)} is a file, not a folder: use read to see what is in it")
            return listed(self.scope, fd, real, limit=MAX_WALK)

    def walk(self, path: str, *, limit: int = MAX_WALK) -> Iterator[Found]:
        """Files and links below a folder, folder by folder in order; of a file, the file itself as `.`.
        Looks at no more than `limit` names; if there are more, the last one found is of kind `cut`."""
        with self._opened(path) as (base, real, status):
            if not stat.S_ISDIR(status.st_mode):
                yield Found(path=".", real=real, kind="file", size=status.st_size)
                return
            yield from walked(self.scope, base, real, limit=limit, opener=self.opener)

    def name(self, path: str) -> str:
        """The real name that a path stands for now, unjudged."""
        return os.path.realpath("/" + "/".join(components_of(path, self.scope.root)))

    def judge(self, path: str, wish: Wish) -> str:
        raise NotImplementedError

    def write(self, path: str, data: bytes, *, instead_of: bytes | None = None) -> Written:
        raise NotImplementedError

    def only(self, real: str) -> "GuardedFiles":
        raise NotImplementedError

    @contextmanager
    def _opened(self, path: str) -> Generator[tuple[int, str, os.stat_result]]:
        """A regular file or a folder that the scope lets this agent read; closed afterwards."""
        fd = self._open(path, components_of(path, self.scope.root))
        try:
            status = os.fstat(fd)
            real = _real_name(fd)
            if real is None:
                raise self._refusal(path, "it has no name any more")
            self._judge(path, real, status.st_mode)
            yield fd, real, status
        except OSError as error:
            raise Failed(_problem(error, path)) from error
        finally:
            os.close(fd)

    def _open(self, path: str, parts: tuple[str, ...]) -> int:
        anchor = anchor_of(self.scope, parts)
        if anchor is None:
            raise self._refusal(path, "nothing allows read")
        try:
            folder = os.open("/" + "/".join(anchor), _ANCHOR)
        except OSError as error:
            raise Failed(f"the folder /{'/'.join(anchor)} cannot be opened: {error.strerror}") from error
        try:
            return _lookup(self.opener, folder, parts[len(anchor) :])
        except OSError as error:
            raise self._explained(path, parts, error) from error
        finally:
            os.close(folder)

    def _judge(self, path: str, real: str, mode: int) -> None:
        verdicts = [self.scope.path(form, "read") for form in forms(real)]
        allowed = any(each.ok for each in verdicts) and (
            len(verdicts) == 1 or not is_denied(self.scope, real)
        )
        if stat.S_ISDIR(mode):
            allowed = allowed or may_hold(self.scope, real)
        if not allowed:
            raise self._refusal(path, next((each.rule for each in verdicts if not each.ok), "denied"))
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Failed(f"{shown(path)} is not a regular file")

    def _explained(self, path: str, parts: tuple[str, ...], error: OSError) -> RetinueError:
        """What is not in the scope is refused whether it exists or not."""
        if error.errno == errno.EXDEV:
            return self._refusal(path, "it leads out of the folder you may read")
        named = os.path.normpath("/" + "/".join(parts))
        if not is_readable(self.scope, named) and not may_hold(self.scope, named):
            return self._refusal(path, self.scope.path(named, "read").rule)
        if error.errno == errno.ENOENT:
            return Failed(f"no such file: {shown(path)} (in {self.scope.root}){self._nearest(path)}")
        return Failed(_problem(error, path))

    def _nearest(self, path: str) -> str:
        folder, slash, name = path.rstrip("/").rpartition("/")
        with suppress(RetinueError):
            names = {one.path for one in self.list(folder + slash or ".")[:_SUGGEST_AMONG]}
            close = difflib.get_close_matches(name, names, 1)
            return "".join(f"; did you mean {shown(folder + slash + one)}?" for one in close)
        return ""

    def _refusal(self, path: str, rule: str) -> OutOfScope:
        scope = self.scope
        allowed = scope.read if scope.configured else ()
        most = [each.read for each in scope.ceilings if each.read is not None]
        within = "".join(f", within {_some(each)}" for each in most)
        return OutOfScope(
            f"{shown(path)} is not in your scope ({rule}). "
            f"You may read {_some(allowed)}{within}; denied: {_some(scope.deny)}.",
            error="out_of_scope" if scope.configured else NO_SCOPE,
            resource=path,
            allowed=allowed,
            denied=scope.deny,
        )


def components_of(path: str, root: str) -> tuple[str, ...]:
    """The absolute path's components. A path is data: nothing in it is expanded, and what no file can be called is refused."""
    if not path:
        raise Failed("a path is needed, and this one is empty")
    if len(path) > MAX_PATH:
        raise Failed(f"the path {shown(path)} is longer than {MAX_PATH:,} characters")
    if "\0" in path:
        raise Failed(f"the path {shown(path)} holds a NUL character, which no file name can")
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise Failed(f"the path {shown(path)} is not valid Unicode")
    return components(path if path.startswith("/") else f"{root}/{path}")


def shown(path: str) -> str:
    """A path in a sentence: characters that would not show, or would mislead, are written out."""
    text = path if len(path) <= _SHOWN else path[:_SHOWN] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _lookup(opener: Opener, folder: int, rest: tuple[str, ...]) -> int:
    """An absolute link is no way the kernel goes below a folder. If its target is inside, that is opened instead:
    the answer of realpath is only a guess, and the kernel judges it like any other path."""
    try:
        return opener(folder, "/".join(rest) or ".", _FLAGS, True)
    except OSError as error:
        anchor = _real_name(folder)
        if error.errno != errno.EXDEV or ".." in rest or anchor is None:
            raise
        guess = components(os.path.realpath("/".join((anchor, *rest))))
        inside = components(anchor)
        if guess[: len(inside)] != inside:
            raise
        return opener(folder, "/".join(guess[len(inside) :]) or ".", _FLAGS, True)


def _real_name(fd: int) -> str | None:
    """The kernel's own name of what is open; None when it has none any more."""
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  (on every open: a Path costs more than the call)
    except OSError:
        return None
    return name if name.startswith("/") and not name.endswith(_DELETED) else None


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


def _problem(error: OSError, path: str) -> str:
    code = error.errno or 0
    return _PROBLEMS.get(code, "{path} cannot be read: " + os.strerror(code)).format(path=shown(path))


def _some(patterns: tuple[str, ...]) -> str:
    if not patterns:
        return "nothing"
    more = len(patterns) - _PATTERNS_SHOWN
    return ", ".join(patterns[:_PATTERNS_SHOWN]) + (f" and {more} more" if more > 0 else "")
