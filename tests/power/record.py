"""Record with strace what a process did to its files: a log of changes, syncs and visible effects."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "open", "openat", "openat2", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync", "fdatasync",
    "rename", "renameat", "renameat2", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir", "ftruncate", "truncate", "fallocate", "copy_file_range", "sendfile", "sendto",
)  # fmt: skip
STRACE = (
    "strace", "-f", "-y", "-qq", "-s", "10000000", "--seccomp-bpf", "-e", f"trace={','.join(f'?{c}' for c in CALLS)}",
)  # fmt: skip
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(?:<(.*?)>(?:\(deleted\))?)?(?: .*)?", re.DOTALL)
_UNFINISHED = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>", re.DOTALL)
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PATH = re.compile(r"^(?:\d+|AT_FDCWD)<(.*?)>(?:\(deleted\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteData:
    """Bytes written to a file."""

    inode: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A file truncated, or extended by zeros."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NameChange:
    """Names changed in one step: folder, name, and the new inode or None."""

    names: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Changes of this file or folder before `started_at_change` are on disk from now on."""

    inode: int
    started_at_change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleEffect:
    """An effect outside of the disk, which cannot be undone."""

    kind: str
    """request: a request to the model; effect: a side effect of a tool; output: text shown to the user."""
    text: bytes


Change = WriteData | Resize | NameChange | Sync | VisibleEffect
ROOT = 0
HOME = "home"
"""The folder on the failing disk, below a folder that existed before."""


@dataclass(slots=True)
class Log:
    """The changes in order, and the files as they are if nothing is lost."""

    root: str
    changes: list[Change] = field(default_factory=list[Change])
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    links: dict[int, str] = field(default_factory=dict[int, str])
    _last: int = ROOT

    def find(self, path: str) -> int | None:
        """Return the inode that a path names now."""
        inode: int | None = ROOT
        for name in self._names(path):
            inode = None if inode is None else self.folders.get(inode, {}).get(name)
        return inode

    def has(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self.root}/{HOME}/")

    def create(self, path: str, *, folder: bool = False, target: str | None = None) -> int:
        self._last += 1
        if folder:
            self.folders[self._last] = {}
        elif target is not None:
            self.links[self._last] = target
        else:
            self.files[self._last] = bytearray()
        self.set_names((path, self._last))
        return self._last

    def set_names(self, *names: tuple[str, int | None]) -> None:
        found: list[tuple[int, str, int | None]] = []
        for path, inode in names:
            parent, _, name = path.rpartition("/")
            folder = ROOT if parent == self.root else self.find(parent)
            assert folder is not None, f"{path} is in a folder that does not exist"
            found.append((folder, name, inode))
            if inode is None:
                self.folders[folder].pop(name, None)
            else:
                self.folders[folder][name] = inode
        self.changes.append(NameChange(names=tuple(found)))

    def write(self, inode: int, data: bytes, at: int | None) -> None:
        offset = len(self.files[inode]) if at is None else at
        self.changes.append(WriteData(inode=inode, at=offset, data=data))
        write_at(self.files[inode], offset, data)

    def cut(self, inode: int, size: int) -> None:
        self.changes.append(Resize(inode=inode, size=size))
        resize(self.files[inode], size)

    def _names(self, path: str) -> Sequence[str]:
        return path.removeprefix(self.root).strip("/").split("/") if path != self.root else ()


def write_at(file: bytearray, at: int, data: bytes) -> None:
    if len(file) < at:
        resize(file, at)
    file[at : at + len(data)] = data


def resize(file: bytearray, size: int) -> None:
    del file[size:]
    file.extend(bytes(size - len(file)))


def add_trace(log: Log, trace: Path, effects: str) -> None:
    """Add the changes in the log's folder and the visible effects from a trace."""
    unfinished: dict[str, tuple[str, int]] = {}
    for line in trace.read_text("utf-8", "replace").split("\n"):
        if started := _UNFINISHED.fullmatch(line):
            unfinished[started[1]] = (started[2], len(log.changes))
            continue
        started_at_change = len(log.changes)
        joined = line
        if resumed := _RESUMED.fullmatch(line):
            before, started_at_change = unfinished.pop(resumed[1])
            joined = f"{resumed[1]} {before}{resumed[2]}"
        if (call := _LINE.fullmatch(joined)) and not call[4].startswith(("-", "?")):
            _add_call(log, call, started_at_change, effects)


def _add_call(log: Log, call: re.Match[str], started_at_change: int, effects: str) -> None:
    name, args, result = call[2], call[3], call[5] or ""
    texts = [_bytes(text) for text in _TEXT.findall(args)]
    path = found[1] if (found := _PATH.match(args)) else ""
    if name == "sendto":
        if texts and texts[0].startswith(b"POST "):
            log.changes.append(VisibleEffect(kind="request", text=texts[0]))
    elif name == "write" and (path == effects or args.startswith("1<")):
        log.changes.append(VisibleEffect(kind="effect" if path == effects else "output", text=texts[0]))
    elif name in ("fsync", "fdatasync"):
        if log.has(path) and (inode := log.find(path)) is not None:
            log.changes.append(Sync(inode=inode, started_at_change=started_at_change))
        elif path == log.root:
            log.changes.append(Sync(inode=ROOT, started_at_change=started_at_change))
    elif name.startswith(("open", "creat")):
        _add_open(log, args, result)
    elif name in ("write", "pwrite64", "ftruncate"):
        if log.has(path) and (inode := log.find(path)) is not None:
            _add_write(log, name, inode, args, texts)
    else:
        _add_name_change(log, name, list(_paths(args)), texts)


def _add_open(log: Log, args: str, path: str) -> None:
    if not log.has(path) or "O_TMPFILE" in args:
        return
    inode = log.find(path)
    if inode is None:
        assert "O_CREAT" in args, f"{path} was opened but does not exist"
        log.create(path)
    elif "O_TRUNC" in args and log.files[inode]:
        log.cut(inode, 0)


def _add_write(log: Log, name: str, inode: int, args: str, texts: Sequence[bytes]) -> None:
    if name == "ftruncate":
        log.cut(inode, int(args.rpartition(",")[2]))
    else:
        log.write(inode, texts[0], int(args.rpartition(",")[2]) if name == "pwrite64" else None)


def _add_name_change(log: Log, name: str, paths: Sequence[str], texts: Sequence[bytes]) -> None:
    kind = name.removesuffix("2").removesuffix("at")
    if not paths or not any(map(log.has, paths)):
        return
    match kind:
        case "mkdir":
            log.create(paths[0], folder=True)
        case "symlink":
            log.create(paths[-1], target=texts[0].decode())
        case "unlink" | "rmdir":
            log.set_names((paths[0], None))
        case "link":
            log.set_names((paths[1], log.find(paths[0])))
        case "rename":
            log.set_names((paths[0], None), (paths[1], log.find(paths[0])))
        case _:
            raise AssertionError(f"unknown system call {name}: {paths}")


def _paths(args: str) -> Iterator[str]:
    """Yield the paths of a call, each relative to the folder descriptor before it."""
    parent = ""
    for part in re.findall(r'(?:\d+|AT_FDCWD)<[^>]*>|"(?:[^"\\]|\\.)*"', args):
        if part[0] != '"':
            parent = part.partition("<")[2][:-1]
        else:
            text = _bytes(part[1:-1]).decode("utf-8", "surrogateescape")
            yield text if text.startswith("/") else f"{parent}/{text}"


def _bytes(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")
