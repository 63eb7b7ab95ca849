"""Find and hash the files that a command uses, as far as its text and these files tell."""

import asyncio
import hashlib
import json
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from retinue.domain.approval import MAX_COMPARED_BYTES, MAX_COMPARED_FILES, NamedFile
from retinue.domain.glob import matches
from retinue.domain.permissions.command_files import (
    MAX_NESTED,
    make_includes,
    package_script_commands,
    runs_make,
    used_names,
    working_folders,
)
from retinue.domain.sanitize import safe_name
from retinue.errors import OutOfScope, RetinueError
from retinue.interfaces import RuntimeContext, ScopedFiles


async def hash_used_files(command: str, files: ScopedFiles, context: RuntimeContext) -> tuple[NamedFile, ...]:
    """Hash the current content of the files that a command uses and the agent may read.

    The sandbox decides what the command may do to other files.
    """
    return await asyncio.to_thread(lambda: _FileFinder(files, context).find(command))


class _FileFinder:
    """The search for one command's files."""

    def __init__(self, files: ScopedFiles, context: RuntimeContext) -> None:
        self._files = files
        self._context = context
        self._found: dict[str, NamedFile] = {}
        self._tried: set[str] = set()
        self._listed: dict[str, frozenset[str] | None] = {}

    def find(self, command: str) -> tuple[NamedFile, ...]:
        self._search(command, ".", 0)
        return tuple(self._found.values())

    def _search(self, command: str, start: str, depth: int) -> None:
        """Try all names of a command in all its folders, and what the files that it finds name in turn."""
        names = used_names(command)
        for folder in working_folders(command):
            base = posixpath.join(start, folder)
            for name in names:
                for path in self._expand(base, name):
                    data = self._add(path)
                    if data is not None and depth < MAX_NESTED:
                        self._follow(path, data, command, base, depth)

    def _follow(self, path: str, data: bytes, command: str, base: str, depth: int) -> None:
        """Search the files that a makefile includes, and those of the scripts of a package."""
        text = data.decode("utf-8", "replace")
        if posixpath.basename(path) == "package.json":
            for script in package_script_commands(command, _package_scripts(text)):
                self._search(script, posixpath.dirname(path) or ".", depth + 1)
        elif runs_make(command):
            self._follow_includes(text, base, depth)

    def _follow_includes(self, makefile: str, base: str, depth: int) -> None:
        if depth >= MAX_NESTED:
            return
        for name in make_includes(makefile):
            for path in self._expand(base, name):
                if (data := self._add(path)) is not None:
                    self._follow_includes(data.decode("utf-8", "replace"), base, depth + 1)

    def _add(self, path: str) -> bytes | None:
        """Add a file; return its content, or None if it is no readable file or was tried before."""
        if path in self._tried or len(self._found) >= MAX_COMPARED_FILES:
            return None
        self._tried.add(path)
        folder, name = posixpath.split(path)
        listed = self._list(folder)
        if listed is not None and name not in listed:
            return None  # listing a folder once costs less than opening many files that do not exist
        with suppress(RetinueError):  # not a file, or not one that this agent may read
            opened = self._files.read(path, max_bytes=MAX_COMPARED_BYTES)
            digest = hashlib.sha256(opened.data).hexdigest()
            shown = safe_name(self._context.redact(opened.real_path))
            self._found.setdefault(opened.real_path, NamedFile(path=shown, sha256=digest, size=opened.size))
            return opened.data
        return None

    def _expand(self, base: str, name: str) -> Iterator[str]:
        """Yield the paths that a name stands for in a folder: itself, and the matches of a pattern."""
        path = name if base == "." else posixpath.join(base, name)
        yield path
        if any(char in name for char in "*?["):
            yield from self._glob(path)

    def _glob(self, pattern: str) -> list[str]:
        """Return the paths that match a shell pattern, which never matches a leading dot."""
        paths = ["/"] if pattern.startswith("/") else [""]
        for part in pattern.strip("/").split("/"):
            if any(char in part for char in "*?["):
                paths = [
                    posixpath.join(path, name)
                    for path in paths
                    for name in sorted(self._list(path) or ())
                    if matches(part, name) and (part.startswith(".") or not name.startswith("."))
                ]
            else:
                paths = [posixpath.join(path, part) for path in paths]
        return paths[:MAX_COMPARED_FILES]

    def _list(self, folder: str) -> frozenset[str] | None:
        """Return the names in a folder; empty if there is no such folder, None if they are not known."""
        if folder not in self._listed:
            self._listed[folder] = self._read_folder(folder)
        return self._listed[folder]

    def _read_folder(self, folder: str) -> frozenset[str] | None:
        try:
            entries = self._files.list(folder or ".")
        except OutOfScope:
            return None  # single files in it may be readable
        except RetinueError:
            return frozenset()
        return (
            None if any(each.kind == "cut" for each in entries) else frozenset(each.path for each in entries)
        )


def _package_scripts(text: str) -> dict[str, str]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    scripts = cast("dict[str, Any]", document).get("scripts") if isinstance(document, dict) else None
    if not isinstance(scripts, dict):
        return {}
    return {name: text for name, text in cast("dict[str, Any]", scripts).items() if isinstance(text, str)}
