"""What a process did to its files and told the world, as strace recorded it: a log of changes, syncs and words."""

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
_BEGUN = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>", re.DOTALL)
_OVER = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r"^(?:\d+|AT_FDCWD)<(.*?)>(?:\(deleted\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Bytes put into a file."""

    inode: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A file made shorter, or longer by zeros."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names given and taken in one step: in which folder, which name, and what it names from then on, if anything."""

    names: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Everything that was done to this file or folder before `since` is on disk from here on."""

    inode: int
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Something that the world saw, and that cannot be taken back."""

    kind: str
    """asked: a request to the model; effect: a tool's mark; said: an answer to the person."""
    text: bytes


Change = Data | Cut | Names | Sync | Word
ROOT = 0
HOME = "home"
"""What stands on the disk that fails, below a folder that was there before."""


@dataclass(slots=True)
class Log:
    """The changes in their order, and what they leave when nothing is lost."""

    root: str
    changes: list[Change] = field(default_factory=list[Change])
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    links: dict[int, str] = field(default_factory=dict[int, str])
    _last: int = ROOT

    def find(self, path: str) -> int | None:
        """What a path names now."""
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
            above, _, name = path.rpartition("/")
            folder = ROOT if above == self.root else self.find(above)
            assert folder is not None, f"{path} is named in a folder that nobody made"
            found.append((folder, name, inode))
            if inode is None:
                self.folders[folder].pop(name, None)
            else:
                self.folders[folder][name] = inode
        self.changes.append(Names(names=tuple(found)))

    def write(self, inode: int, data: bytes, at: int | None) -> None:
        place = len(self.files[inode]) if at is None else at
        self.changes.append(Data(inode=inode, at=place, data=data))
        put(self.files[inode], place, data)

    def cut(self, inode: int, size: int) -> None:
        self.changes.append(Cut(inode=inode, size=size))
        resize(self.files[inode], size)

    def _names(self, path: str) -> Sequence[str]:
        return path.removeprefix(self.root).strip("/").split("/") if path != self.root else ()


def put(file: bytearray, at: int, data: bytes) -> None:
    if len(file) < at:
        resize(file, at)
    file[at : at + len(data)] = data


def resize(file: bytearray, size: int) -> None:
    del file[size:]
    file.extend(bytes(size - len(file)))


def add_trace(log: Log, trace: Path, effects: str) -> None:
    """Adds what a trace tells of the folder that the log is about, and of what the world saw."""
    began: dict[str, tuple[str, int]] = {}
    for line in trace.read_text("utf-8", "replace").split("\n"):
        if begun := _BEGUN.fullmatch(line):
            began[begun[1]] = (begun[2], len(log.changes))
            continue
        since = len(log.changes)
        whole = line
        if over := _OVER.fullmatch(line):
            before, since = began.pop(over[1])
            whole = f"{over[1]} {before}{over[2]}"
        if (call := _LINE.fullmatch(whole)) and not call[4].startswith(("-", "?")):
            _add_call(log, call, since, effects)


def _add_call(log: Log, call: re.Match[str], since: int, effects: str) -> None:
    name, args, result = call[2], call[3], call[5] or ""
    texts = [_bytes(text) for text in _TEXT.findall(args)]
    place = found[1] if (found := _PLACE.match(args)) else ""
    if name == "sendto":
        if texts and texts[0].startswith(b"POST "):
            log.changes.append(Word(kind="asked", text=texts[0]))
    elif name == "write" and (place == effects or args.startswith("1<")):
        log.changes.append(Word(kind="effect" if place == effects else "said", text=texts[0]))
    elif name in ("fsync", "fdatasync"):
        if log.has(place) and (inode := log.find(place)) is not None:
            log.changes.append(Sync(inode=inode, since=since))
        elif place == log.root:
            log.changes.append(Sync(inode=ROOT, since=since))
    elif name.startswith(("open", "creat")):
        _add_open(log, args, result)
    elif name in ("write", "pwrite64", "ftruncate"):
        if log.has(place) and (inode := log.find(place)) is not None:
            _add_write(log, name, inode, args, texts)
    else:
        _add_name_change(log, name, list(_paths(args)), texts)


def _add_open(log: Log, args: str, path: str) -> None:
    if not log.has(path) or "O_TMPFILE" in args:
        return
    inode = log.find(path)
    if inode is None:
        assert "O_CREAT" in args, f"{path} was opened, and nobody made it"
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
            raise AssertionError(f"{name} is not understood: {paths}")


def _paths(args: str) -> Iterator[str]:
    """The paths of a call, each below the folder whose descriptor stands before it."""
    above = ""
    for part in re.findall(r'(?:\d+|AT_FDCWD)<[^>]*>|"(?:[^"\\]|\\.)*"', args):
        if part[0] != '"':
            above = part.partition("<")[2][:-1]
        else:
            text = _bytes(part[1:-1]).decode("utf-8", "surrogateescape")
            yield text if text.startswith("/") else f"{above}/{text}"


def _bytes(text: str) -> bytes:
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")
