"""Trusted projects, each recorded by its real path and a hash of its `.retinue` folder."""

# Paths are compared as strings: a real path is the key; files below are opened by descriptor.
# ruff: noqa: PTH118, PTH119, PTH208

import hashlib
import json
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.domain.skill import SKILL_FILE
from retinue.errors import BadDefinition, Failed, NotFound, UsageError
from retinue.storage.file_io import read_file, replace_file, write_error
from retinue.storage.file_lock import file_lock
from retinue.storage.text_file import LstatStamp, check_regular_file, decode_text, stamp_from_stat

PROJECT_FOLDER = ".retinue"
AGENTS_PREFIX = "agents/"
SKILLS_PREFIX = "skills/"
_MAX_FILES = 10_000
_MAX_BYTES = 64_000_000
_MAX_DEPTH = 32
_SAFE_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class TrustState(StrEnum):
    """The trust state of a project: trusted, changed since then, or unknown."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    """Trusted earlier, but its `.retinue` folder has changed since."""
    UNKNOWN = "not trusted"


class ProjectSnapshot(Struct, frozen=True, kw_only=True):
    """A project's `.retinue` folder at one moment; exactly the hashed bytes are used."""

    path: str
    """The project's real path."""
    hash: str
    """Empty if the folder is too large or not fully readable; such a project is never trusted."""
    agent_texts: Mapping[str, str | BadDefinition]
    """The agent files by name, each with its text or with its error."""
    skill_texts: Mapping[str, str | BadDefinition]
    """The skill texts by folder name."""
    stamps: Mapping[str, LstatStamp]
    """Stamps of the folder and of everything in it, taken before they were read."""


class TrustStore:
    """Stores real path → hash in `<home>/trust.json`. A project that changed is no longer trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list_states(self) -> dict[str, TrustState]:
        """Return every project that was trusted, with its current state."""
        return {path: self.state(scan_project(path)) for path in sorted(self._load())}

    def is_trusted(self, path: str) -> bool:
        return os.path.realpath(path) in self._load() and self.state(scan_project(path)) is TrustState.TRUSTED

    def state(self, snapshot: ProjectSnapshot) -> TrustState:
        trusted_hash = self._load().get(snapshot.path)
        if trusted_hash is None:
            return TrustState.UNKNOWN
        return TrustState.TRUSTED if snapshot.hash and snapshot.hash == trusted_hash else TrustState.CHANGED

    def add(self, snapshot: ProjectSnapshot, *, unique_suffix: str) -> None:
        """Trust exactly this snapshot; later changes are not trusted."""
        if not snapshot.hash:
            raise UsageError(
                f"{snapshot.path}/{PROJECT_FOLDER} is too large to review, or cannot be read. "
                "Keep only agents and skills there."
            )
        with self._exclusive():
            self._save({**self._load(), snapshot.path: snapshot.hash}, unique_suffix)

    def remove(self, path: str, *, unique_suffix: str) -> str:
        real_path = os.path.realpath(path)
        if not {real_path, path} & set(self._load()):
            raise NotFound(f"{path} is not trusted. List trusted projects with `retinue trust list`.")
        with self._exclusive():
            trusted = self._load()
            removed = real_path if real_path in trusted else path
            self._save({key: value for key, value in trusted.items() if key != removed}, unique_suffix)
        return removed

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        """Hold the write lock, so that a removal by another process is never overwritten."""
        lock = f"{self.path}.lock"
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(file_lock(lock))
            except OSError as error:
                raise write_error(lock, error) from error
            yield

    def _load(self) -> dict[str, str]:
        try:
            document: Any = json.loads(read_file(os.fspath(self.path)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise Failed(f"{self.path} cannot be read ({error}). Repair or remove it.") from error
        if not isinstance(document, dict):
            raise Failed(f"{self.path} is not a map of projects. Repair or remove it.")
        pairs = cast("dict[Any, Any]", document).items()
        return {str(path): digest for path, digest in pairs if isinstance(digest, str) and digest}

    def _save(self, trusted: Mapping[str, str], unique_suffix: str) -> None:
        text = json.dumps(dict(sorted(trusted.items())), indent=2) + "\n"
        replace_file(os.fspath(self.path), text.encode("utf-8", "surrogatepass"), token=unique_suffix)


def scan_project(path: str) -> ProjectSnapshot:
    """Take a snapshot of a project.

    Links are not followed, not even `.retinue` itself; only their target names are hashed.
    """
    real_path = os.path.realpath(path)
    scanner = _ProjectScanner(path=real_path)
    try:
        scanner.add_entry(os.path.join(real_path, PROJECT_FOLDER), None, "")
    except (_ProjectTooLarge, OSError):
        return ProjectSnapshot(path=real_path, hash="", agent_texts={}, skill_texts={}, stamps={})
    return ProjectSnapshot(
        path=real_path,
        hash=scanner.digest.hexdigest(),
        agent_texts=scanner.agent_texts,
        skill_texts=scanner.skill_texts,
        stamps=scanner.stamps,
    )


class _ProjectTooLarge(Exception):
    """The folder holds more than a person could have reviewed."""


@dataclass(slots=True, kw_only=True)
class _ProjectScanner:
    """Scanner that walks the folder from descriptor to descriptor."""

    path: str
    digest: Any = field(default_factory=hashlib.sha256)
    files: int = 0
    size: int = 0
    agent_texts: dict[str, str | BadDefinition] = field(default_factory=dict[str, str | BadDefinition])
    skill_texts: dict[str, str | BadDefinition] = field(default_factory=dict[str, str | BadDefinition])
    stamps: dict[str, LstatStamp] = field(default_factory=dict[str, LstatStamp])

    def add_entry(self, name: str, parent_fd: int | None, project_path: str) -> None:
        """Add one name below an open folder; `project_path` is relative to `.retinue`."""
        try:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        path = os.path.join(self.path, PROJECT_FOLDER, project_path).rstrip("/")
        self.stamps[path] = stamp_from_stat(status)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            self._add_folder(name, parent_fd, f"{project_path}/" if project_path else "")
        elif stat.S_ISLNK(mode):
            self._hash_entry(project_path, b"link:" + os.fsencode(os.readlink(name, dir_fd=parent_fd)))
            self._keep_problem(
                project_path, "is a symbolic link, which is not followed; replace it with the file itself"
            )
        elif stat.S_ISREG(mode):
            self._add_file(name, parent_fd, project_path)
        else:
            self._hash_entry(project_path, b"other")
            self._keep_problem(project_path, "is not a regular file")

    def _add_folder(self, name: str, parent_fd: int | None, project_path: str) -> None:
        if project_path.count("/") > _MAX_DEPTH:
            raise _ProjectTooLarge
        handle = os.open(name, _SAFE_OPEN_FLAGS | os.O_DIRECTORY, dir_fd=parent_fd)
        try:
            for each in sorted(os.listdir(handle)):
                self.add_entry(each, handle, project_path + each)
        finally:
            os.close(handle)

    def _add_file(self, name: str, parent_fd: int | None, project_path: str) -> None:
        handle = os.open(name, _SAFE_OPEN_FLAGS, dir_fd=parent_fd)
        try:
            status = os.fstat(handle)
            data = b"" if not stat.S_ISREG(status.st_mode) else _read_limited(handle, _MAX_BYTES - self.size)
        finally:
            os.close(handle)
        self._hash_entry(project_path, b"file:" + data)
        if _is_agent_file(project_path) or _skill_folder(project_path):
            file_path = Path(self.path, PROJECT_FOLDER, project_path)
            try:
                check_regular_file(file_path, status)
                self._keep_text(project_path, decode_text(file_path, data))
            except BadDefinition as error:
                self._keep_text(project_path, error)

    def _keep_problem(self, project_path: str, problem: str) -> None:
        self._keep_text(project_path, BadDefinition(f"{self.path}/{PROJECT_FOLDER}/{project_path}", problem))

    def _keep_text(self, project_path: str, text: str | BadDefinition) -> None:
        """Keep the text of definitions only; other files are just hashed."""
        if _is_agent_file(project_path):
            self.agent_texts[os.path.basename(project_path)] = text
        elif folder := _skill_folder(project_path):
            self.skill_texts[folder] = text

    def _hash_entry(self, project_path: str, data: bytes) -> None:
        self.files += 1
        self.size += len(data)
        if self.files > _MAX_FILES or self.size > _MAX_BYTES:
            raise _ProjectTooLarge
        self.digest.update(
            f"{len(project_path)}:{project_path}:{len(data)}:".encode("utf-8", "surrogatepass") + data
        )


def _is_agent_file(project_path: str) -> bool:
    name = project_path.removeprefix(AGENTS_PREFIX)
    return (
        project_path.startswith(AGENTS_PREFIX)
        and "/" not in name
        and not name.startswith(".")
        and name.endswith((".md", ".json"))
    )


def _skill_folder(project_path: str) -> str:
    """Return the skill folder that a file describes, or an empty string."""
    folder, slash, file = project_path.removeprefix(SKILLS_PREFIX).partition("/")
    return folder if project_path.startswith(SKILLS_PREFIX) and slash and file == SKILL_FILE else ""


def _read_limited(handle: int, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(handle, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise _ProjectTooLarge
    return b"".join(chunks)
