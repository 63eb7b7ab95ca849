"""What the guard of files says: names that cannot mislead, and the system's answers in words."""

import errno
import os
from collections.abc import Iterable

from retinue.domain.ceiling import Ceiling, Wish
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs
from retinue.errors import Failed, NoRoom

_PATTERNS_SHOWN = 8
_SHOWN = 300

_PROBLEMS = {
    errno.ENOTDIR: "a part of {path} is a file, not a folder",
    errno.EACCES: "this user may not {wish} {path}",
    errno.EPERM: "this user may not {wish} {path}",
    errno.ELOOP: "{path} goes through links that lead in a circle",
    errno.ENAMETOOLONG: "a name in {path} is too long",
    errno.ENXIO: "{path} is not a regular file",
    errno.ENODEV: "{path} is not a regular file",
    errno.EISDIR: "{path} is a folder: name a file",
    errno.EAGAIN: "{path} was being moved while it was opened; try again",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
    errno.ESTALE: "{path} is gone; look again with ls",
    errno.ETXTBSY: "{path} is a program that is running; stop it first",
}
"""What the system's answers mean to the one who asked; the others speak for themselves."""

_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of this user is used up",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk does not answer",
    errno.EFBIG: "it is larger than a file may be here",
}


def shown(path: str) -> str:
    """A path in a sentence: characters that would not show, or would mislead, are written out, and the middle of a
    long one is left out."""
    text = path if len(path) <= _SHOWN else f"{path[: _SHOWN // 2]}…{path[-_SHOWN // 2 :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def some(patterns: Globs) -> str:
    if not patterns:
        return "nothing"
    more = len(patterns) - _PATTERNS_SHOWN
    return ", ".join(patterns[:_PATTERNS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def allowances(scope: Scope, wish: Wish) -> str:
    """What a scope lets be read or written, each with the ceilings that bind it."""
    allowed = scope.read if wish == "read" else scope.write
    if not allowed or not scope.configured:
        return f"nothing{_within(scope.ceilings, wish)}"
    lifted = (scope.lifted.read if wish == "read" else scope.lifted.write) or ()
    firm = [each for each in scope.ceilings if each.firm]
    said: dict[str, Globs] = {}
    for each in allowed:
        over = () if scope.private(each) else firm if each in lifted else scope.ceilings
        within = _within(over, wish)
        said[within] = (*said.get(within, ()), each)
    return ", and ".join(f"{some(globs)}{within}" for within, globs in said.items())


def _within(ceilings: Iterable[Ceiling], wish: Wish) -> str:
    most = (each.read if wish == "read" else each.write for each in ceilings)
    return "".join(f", within {some(each)}" for each in most if each is not None)


def problem(error: OSError, path: str, wish: str) -> Failed:
    code = error.errno or 0
    if wish == "write" and code in _DISK:
        return NoRoom(f"{shown(path)} was not written: {_DISK[code]}. Nothing was changed")
    sentence = _PROBLEMS.get(code, "{path} cannot be {done}: " + os.strerror(code))
    done = "read" if wish == "read" else "written"
    return Failed(sentence.format(path=shown(path), wish=wish, done=done))
