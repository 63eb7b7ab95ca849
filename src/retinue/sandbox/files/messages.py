"""Error messages of guarded file access: printable paths, and operating-system errors in words."""

import errno
import os
from collections.abc import Iterable

from retinue.domain.ceiling import Ceiling, FileAccess
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Globs
from retinue.errors import Failed

_MAX_PATTERNS = 8
_MAX_PATH_CHARS = 300

_ERROR_MESSAGES = {
    errno.ENOTDIR: "a parent of {path} is a file, not a folder",
    errno.EACCES: "this user has no permission to {access} {path}",
    errno.EPERM: "this user has no permission to {access} {path}",
    errno.ELOOP: "{path} contains a loop of symbolic links",
    errno.ENAMETOOLONG: "a name in {path} is too long",
    errno.ENXIO: "{path} is not a regular file",
    errno.ENODEV: "{path} is not a regular file",
    errno.EISDIR: "{path} is a folder. Name a file",
    errno.EAGAIN: "{path} was moved while it was opened. Try again",
    errno.EMFILE: "too many files are open. Try again",
    errno.ENFILE: "too many files are open. Try again",
    errno.ESTALE: "{path} no longer exists. Check with ls",
    errno.ETXTBSY: "{path} is a running program. Stop it first",
}
"""Messages for the errors that an agent can understand; others keep the system's text."""

_DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota of this user is exhausted",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk reported an input/output error",
    errno.EFBIG: "it exceeds the maximum file size",
}


def printable_path(path: str) -> str:
    """Format a path for a message.

    Invisible or misleading characters are escaped, and the middle of a long path is left out.
    """
    text = (
        path
        if len(path) <= _MAX_PATH_CHARS
        else f"{path[: _MAX_PATH_CHARS // 2]}…{path[-_MAX_PATH_CHARS // 2 :]}"
    )
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def limited_list(patterns: Globs) -> str:
    if not patterns:
        return "nothing"
    omitted = len(patterns) - _MAX_PATTERNS
    return ", ".join(patterns[:_MAX_PATTERNS]) + (f" and {omitted} more" if omitted > 0 else "")


def describe_allowed(scope: Scope, access: FileAccess) -> str:
    """Describe what a scope allows to be read or written, with the ceilings that limit each pattern."""
    allowed = scope.read if access == "read" else scope.write
    if not allowed or not scope.has_paths:
        return f"nothing{_ceiling_limits(scope.ceilings, access)}"
    user_grants = (scope.user_grants.read if access == "read" else scope.user_grants.write) or ()
    operator_ceilings = [each for each in scope.ceilings if each.is_operator_ceiling]
    patterns_by_limit: dict[str, Globs] = {}
    for each in allowed:
        ceilings = (
            () if scope.is_private_tmp(each) else operator_ceilings if each in user_grants else scope.ceilings
        )
        limit = _ceiling_limits(ceilings, access)
        patterns_by_limit[limit] = (*patterns_by_limit.get(limit, ()), each)
    return ", and ".join(f"{limited_list(globs)}{limit}" for limit, globs in patterns_by_limit.items())


def _ceiling_limits(ceilings: Iterable[Ceiling], access: FileAccess) -> str:
    patterns = (each.read if access == "read" else each.write for each in ceilings)
    return "".join(f", within {limited_list(each)}" for each in patterns if each is not None)


def file_error(error: OSError, path: str, access: str) -> Failed:
    code = error.errno or 0
    if access == "write" and code in _DISK_ERRORS:
        return Failed(
            f"{printable_path(path)} was not written: {_DISK_ERRORS[code]}, and nothing was changed"
        )
    message = _ERROR_MESSAGES.get(code, "{path} cannot be {participle}: " + os.strerror(code))
    participle = "read" if access == "read" else "written"
    return Failed(message.format(path=printable_path(path), access=access, participle=participle))
