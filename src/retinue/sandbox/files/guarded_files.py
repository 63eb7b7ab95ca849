"""Guarded file access: the one place where a path that an agent names becomes an open file."""

import difflib
import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct, field
from msgspec.structs import replace

from retinue.domain.ceiling import FileAccess
from retinue.domain.glob import first_match
from retinue.domain.io_results import FileContent, FileEntry, WriteResult
from retinue.domain.permissions.scope import NO_SCOPE_RULE, Scope
from retinue.domain.rules import Globs, escape_glob
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.sandbox.files.atomic_write import open_target_folder, replace_file, stat_entry
from retinue.sandbox.files.git_folders import is_in_guarded_repository, serialize_repository_writes
from retinue.sandbox.files.listing import list_folder, walk_folder
from retinue.sandbox.files.messages import describe_allowed, file_error, limited_list, printable_path
from retinue.sandbox.files.openat2 import Opener, best_opener
from retinue.sandbox.files.path_resolution import (
    LookupStart,
    from_existing_folder,
    lookup_starts,
    name_of_fd,
    open_below,
    open_path,
    open_start_folder,
    parse_path,
    resolve_name,
    scope_for_name,
    visible_name,
)
from retinue.sandbox.files.pattern_roots import (
    can_contain_readable,
    is_denied,
    path_components,
    refusing_rule,
)

MAX_READ_BYTES = 16_000_000
MAX_WALK_NAMES = 200_000
MAX_NEW_FOLDERS = 64

SHARED_FILE_PATTERNS: Globs = (
    "**/node_modules/**", "**/site-packages/**", "**/dist-packages/**", "**/.venv/**", "**/venv/**",
    "/usr/**", "/opt/**", "/nix/store/**",
)  # fmt: skip
"""Folders in which installers create hard links on purpose: files there may be read."""

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Opening never blocks on a pipe and never acquires a controlling terminal."""

_DANGLING_LINK = "it contains a symbolic link to a missing target, and files are not created through links"
_SUGGEST_AMONG = 2_000
_CHUNK_BYTES = 1_000_000


class OpenFile(Struct, frozen=True):
    """An open file or folder, and its name as used in rules."""

    fd: int
    name: str
    status: os.stat_result
    is_private_tmp: bool

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class WriteTarget(Struct, frozen=True, kw_only=True):
    """Destination of a write: an open folder, the missing folders below it, and the file's name."""

    folder: int
    missing_folders: tuple[str, ...]
    file_name: str
    name: str
    """The whole path, as used in rules."""


class GuardedFiles(Struct, frozen=True):
    """Files bound to one scope.

    An opened file is checked by its real name, so that no other name of it bypasses a rule.
    """

    scope: Scope
    opener: Opener = field(default_factory=best_opener)
    only_writable: str | None = None
    """The only file that may be written, when a person allowed just that."""

    def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> FileContent:
        """Read at most max_bytes of a regular file."""
        with self._open_readable(path) as file:
            if file.is_folder:
                raise Failed(f"{printable_path(path)} is a folder. Use ls to list it")
            self._check_hard_links(path, file)
            data = _read_content(file.fd, file.status.st_size, max_bytes)
            return FileContent(real_path=file.name, data=data, size=max(file.status.st_size, len(data)))

    def list(self, path: str) -> list[FileEntry]:
        """List a folder, sorted, links as links, without what the scope refuses."""
        with self._open_readable(path) as file:
            if not file.is_folder:
                raise Failed(f"{printable_path(path)} is a file, not a folder. Use read to read it")
            return list_folder(self._listing_scope(file), file.fd, file.name, limit=MAX_WALK_NAMES)

    def walk(self, path: str, *, limit: int = MAX_WALK_NAMES) -> Iterator[FileEntry]:
        """Yield the files and links below a folder, folder by folder in order.

        For a file, yields the file itself as `.`. Looks at no more than `limit` names; if there are more, the
        last item has the kind `cut`.
        """
        with self._open_readable(path) as file:
            if not file.is_folder:
                yield FileEntry(path=".", real_path=file.name, kind="file", size=file.status.st_size)
                return
            yield from walk_folder(
                self._listing_scope(file), file.fd, file.name, limit=limit, opener=self.opener
            )

    def real_path(self, path: str) -> str:
        """Return the real name of a path, as the agent sees it, without checking the scope."""
        return resolve_name(self.scope, parse_path(path, self.scope.root))

    def check_access(self, path: str, access: FileAccess) -> str:
        """Check a path against the scope; return its real name, also for a file that does not exist yet."""
        if access == "write":
            with self._open_write_target(path) as target:
                return target.name
        with self._open_readable(path) as file:
            self._check_hard_links(path, file)
            return file.name

    def is_guarded(self, real_path: str) -> bool:
        """Return whether other programs act on this file, also as part of a repository of any name."""
        return self.scope.is_guarded(real_path) or is_in_guarded_repository(self.scope, real_path)

    def write(self, path: str, data: bytes, *, expected: bytes | None = None) -> WriteResult:
        """Write the whole file atomically, in the folder that was checked. Missing folders are created."""
        with self._open_write_target(path) as target:
            if self.only_writable is not None and target.name != self.only_writable:
                raise self._out_of_scope(
                    path, f"the approval covers only {printable_path(self.only_writable)}", "write"
                )
            if expected is not None and (
                target.missing_folders or _stat_or_fail(path, target.folder, target.file_name) is None
            ):
                raise Failed(
                    f"no such file: {printable_path(path)} (in {self.scope.root}). Use write to create it"
                )
            try:
                with (
                    serialize_repository_writes(target.name),
                    open_target_folder(target.folder, target.missing_folders) as folder,
                ):
                    self._check_not_moved(path, target, folder)
                    self._check_approved(path, target)
                    is_new = replace_file(folder, target.file_name, data, expected=expected)
                    self._undo_if_guarded(path, target, folder)
            except OSError as error:
                raise file_error(error, path, "write") from error
            return WriteResult(real_path=target.name, is_new=is_new, size=len(data))

    def restrict_writes_to(self, real_path: str) -> "GuardedFiles":
        return replace(self, only_writable=real_path)

    @contextmanager
    def _open_readable(self, path: str) -> Generator[OpenFile]:
        """Open a regular file or folder that the scope lets this agent read, and close it afterwards."""
        fd, name, start = self._open(path)
        try:
            status = os.fstat(fd)
            if name is None:
                raise self._out_of_scope(path, "it was deleted or moved")
            self._check_readable(path, name, status.st_mode, start)
            yield OpenFile(fd, name, status, start.is_private_tmp)
        except OSError as error:
            raise file_error(error, path, "read") from error
        finally:
            os.close(fd)

    def _open(self, path: str) -> tuple[int, str | None, LookupStart]:
        parts = parse_path(path, self.scope.root)
        failed: OSError | None = None
        for start in lookup_starts(self.scope, parts, "read"):
            try:
                return *open_path(start, self.opener, _READ_FLAGS), start
            except OSError as error:
                failed = error
        if failed is None:
            raise self._out_of_scope(path, "nothing allows read")
        raise self._access_error(path, parts, failed) from failed

    def _check_readable(self, path: str, name: str, mode: int, start: LookupStart) -> None:
        scope = scope_for_name(self.scope, name, is_private_tmp=start.is_private_tmp)
        rule = refusing_rule(scope, name, "read")
        if rule is not None and not (stat.S_ISDIR(mode) and can_contain_readable(scope, name)):
            raise self._out_of_scope(path, rule)
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Failed(f"{printable_path(path)} is not a regular file")

    def _check_hard_links(self, path: str, file: OpenFile) -> None:
        """Refuse a file with several hard links.

        Only this name is known here, and another one may be denied.
        """
        if file.status.st_nlink == 1 or file.is_folder or file.is_private_tmp:
            return
        if (
            first_match(SHARED_FILE_PATTERNS, file.name) is None
            and escape_glob(file.name) not in self.scope.read
        ):
            raise self._hard_link_error(path, file.status, "read")

    def _listing_scope(self, file: OpenFile) -> Scope:
        return (
            self.scope
            if file.is_private_tmp or not self.scope.tmp_folder
            else replace(self.scope, tmp_folder="")
        )

    @contextmanager
    def _open_write_target(self, path: str) -> Generator[WriteTarget]:
        """Check where a file may be written, and hold that folder open.

        A link is replaced once by its target; nothing is created through a link.
        """
        parts = parse_path(path, self.scope.root)
        if path.endswith(("/", "/.")) or path == "." or parts[-1:] in ((), ("..",)):
            raise Failed(f"{printable_path(path)} is a folder. Name a file")
        if not self.scope.writable and not self.scope.is_private_tmp("/" + "/".join(parts)):
            raise self._read_only_error(path)
        with self._open_existing_folder(path, parts, follow_links=True) as target:
            if not self._is_symlink(path, target):
                yield target
                return
        with self._open_existing_folder(path, self._link_target(path, parts), follow_links=False) as target:
            if self._is_symlink(path, target):
                raise self._out_of_scope(path, "it was replaced by a symbolic link", "write")
            yield target

    def _is_symlink(self, path: str, target: WriteTarget) -> bool:
        """Return whether the target is a link; False for nothing or a file that may be replaced."""
        status = None if target.missing_folders else _stat_or_fail(path, target.folder, target.file_name)
        if status is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            return True
        if stat.S_ISDIR(status.st_mode):
            raise Failed(f"{printable_path(path)} is a folder. Name a file")
        if not stat.S_ISREG(status.st_mode):
            raise Failed(f"{printable_path(path)} is not a regular file")
        if status.st_nlink > 1:
            raise self._hard_link_error(path, status, "write")
        return False

    def _link_target(self, path: str, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return where a link leads. A link to nothing is refused."""
        start = next(lookup_starts(self.scope, parts, "write"))
        try:
            fd, name = open_path(start, self.opener, os.O_PATH)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise self._out_of_scope(path, _DANGLING_LINK, "write") from error
            raise self._access_error(path, parts, error, "write") from error
        os.close(fd)
        if name is None:
            raise self._out_of_scope(path, "it was deleted or moved", "write")
        return path_components(name)

    @contextmanager
    def _open_existing_folder(
        self, path: str, parts: tuple[str, ...], *, follow_links: bool
    ) -> Generator[WriteTarget]:
        """Open the deepest existing folder of a path and check the whole path by its real name."""
        first_start = next(lookup_starts(self.scope, parts, "write"), None)
        if first_start is None:
            raise self._out_of_scope(path, "nothing allows write", "write")
        start = from_existing_folder(first_start)
        if not start.components:
            raise Failed(f"{printable_path(path)} is a folder. Name a file")
        anchor = open_start_folder(start)
        try:
            folder, missing = self._open_deepest_folder(
                anchor, start.components[:-1], follow_links=follow_links
            )
            folder_name = visible_name(start, anchor, folder)
        except OSError as error:
            raise self._access_error(path, parts, error, "write") from error
        finally:
            os.close(anchor)
        try:
            if folder_name is None:
                raise self._out_of_scope(path, "it was deleted or moved", "write")
            name = "/".join((folder_name.rstrip("/"), *missing, start.components[-1]))
            self._check_writable(path, name, folder_name, missing, start)
            if missing and _stat_or_fail(path, folder, missing[0]) is not None:
                raise self._out_of_scope(path, _DANGLING_LINK, "write")
            yield WriteTarget(
                folder=folder, missing_folders=missing, file_name=start.components[-1], name=name
            )
        finally:
            os.close(folder)

    def _open_deepest_folder(
        self, anchor: int, rest: tuple[str, ...], *, follow_links: bool
    ) -> tuple[int, tuple[str, ...]]:
        """Open the deepest existing folder; return it and the missing components.

        The number of folders that one file may need is limited.
        """
        flags = os.O_PATH | os.O_DIRECTORY
        for depth in range(len(rest), max(-1, len(rest) - MAX_NEW_FOLDERS - 1), -1):
            existing, missing = rest[:depth], rest[depth:]
            try:
                if follow_links:
                    return open_below(self.opener, anchor, existing, flags), missing
                return self.opener(anchor, "/".join(existing) or ".", flags, False), missing
            except FileNotFoundError:
                if not depth or ".." in rest[depth - 1 :]:
                    raise
        raise Failed(
            f"more than {MAX_NEW_FOLDERS} folders would have to be created for one file. Use a shorter path"
        )

    def _check_writable(
        self, path: str, name: str, folder_name: str, missing: tuple[str, ...], start: LookupStart
    ) -> None:
        scope = scope_for_name(self.scope, name, is_private_tmp=start.is_private_tmp)
        rule = refusing_rule(scope, name, "write")
        if rule is not None:
            raise self._out_of_scope(path, rule, "write")
        for part in missing:
            folder_name = f"{folder_name.rstrip('/')}/{part}"
            if is_denied(scope, folder_name):
                raise self._out_of_scope(path, scope.closing_rule(folder_name) or "denied", "write")

    def _check_not_moved(self, path: str, target: WriteTarget, folder: int) -> None:
        """Check that the folders created just now still have the names under which they were created."""
        if target.missing_folders:
            expected = (name_of_fd(target.folder) or "").rstrip("/") + "/" + "/".join(target.missing_folders)
            if name_of_fd(folder) != expected:
                raise self._out_of_scope(path, "its folder was moved", "write")

    def _check_approved(self, path: str, target: WriteTarget) -> None:
        """Refuse a file that was guarded only after the call had been authorized, such as by another call."""
        if self.only_writable is None and self.is_guarded(target.name):
            raise self._out_of_scope(path, "other programs obey this file, and nobody approved it", "write")

    def _undo_if_guarded(self, path: str, target: WriteTarget, folder: int) -> None:
        """Remove a file that became part of a repository while it was written."""
        if self.only_writable is None and is_in_guarded_repository(self.scope, target.name):
            with suppress(FileNotFoundError):
                os.unlink(target.file_name, dir_fd=folder)
            raise self._out_of_scope(path, "its folder became a git repository meanwhile", "write")

    def _access_error(
        self, path: str, parts: tuple[str, ...], error: OSError, access: FileAccess = "read"
    ) -> RetinueError:
        """Return the error for a failed open.

        A path outside the scope is refused whether it exists or not.
        """
        if error.errno == errno.EXDEV:
            return self._out_of_scope(path, f"it leads outside the folder you may {access}", access)
        normal_path = os.path.normpath("/" + "/".join(parts))
        rule = refusing_rule(self.scope, normal_path, access)
        if rule is not None and (access == "write" or not can_contain_readable(self.scope, normal_path)):
            return self._out_of_scope(path, rule, access)
        if error.errno == errno.ENOENT:
            return Failed(
                f"no such file: {printable_path(path)} (in {self.scope.root}){self._suggestion(path)}"
            )
        return file_error(error, path, access)

    def _suggestion(self, path: str) -> str:
        folder, slash, name = path.rstrip("/").rpartition("/")
        with suppress(RetinueError):
            names = {entry.path for entry in self.list(folder + slash or ".")[:_SUGGEST_AMONG]}
            close = difflib.get_close_matches(name, names, 1)
            return "".join(f"; did you mean {printable_path(folder + slash + match)}?" for match in close)
        return ""

    def _out_of_scope(
        self, path: str, rule: str, access: FileAccess = "read", code: str = "out_of_scope"
    ) -> OutOfScope:
        scope = self.scope
        patterns = scope.read if access == "read" else scope.write
        allowed = patterns if scope.has_paths else ()
        return OutOfScope(
            f"{printable_path(path)} is not in your scope ({rule}). "
            f"You may {access} {describe_allowed(scope, access)}; denied: {limited_list(scope.deny)}.",
            error=code if scope.has_paths else NO_SCOPE_RULE,
            resource=path,
            allowed=allowed,
            denied=scope.deny,
        )

    def _hard_link_error(self, path: str, status: os.stat_result, access: FileAccess) -> OutOfScope:
        return OutOfScope(
            f"{printable_path(path)} has {status.st_nlink} hard links, and another one may be denied to you, so it was not "
            f"{'read' if access == 'read' else 'written'}. A copy of it would be allowed.",
            error="hard_link",
            resource=path,
            allowed=self.scope.read if access == "read" else self.scope.write,
            denied=self.scope.deny,
        )

    def _read_only_error(self, path: str) -> OutOfScope:
        label = self.scope.workspace_label or self.scope.root.rpartition("/")[2] or self.scope.root
        return OutOfScope(
            f'Workspace "{label}" is read-only. Cannot perform write.',
            error="read_only",
            resource=path,
            allowed=tuple(each for each in self.scope.write if self.scope.is_private_tmp(each)),
            denied=self.scope.deny,
        )


def _stat_or_fail(path: str, folder: int, name: str) -> os.stat_result | None:
    try:
        return stat_entry(folder, name)
    except OSError as error:
        raise file_error(error, path, "write") from error


def _read_content(fd: int, size: int, max_bytes: int) -> bytes:
    """Read a file.

    Usually one read is enough; a file that grows meanwhile takes more.
    """
    data = os.read(fd, min(max_bytes, size + 1))
    if len(data) in (size, max_bytes):
        return data
    pieces = [data]
    remaining = max_bytes - len(data)
    while remaining > 0 and pieces[-1]:
        pieces.append(os.read(fd, min(remaining, _CHUNK_BYTES)))
        remaining -= len(pieces[-1])
    return b"".join(pieces)
