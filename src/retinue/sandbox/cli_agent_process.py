"""A guest: a program that lives in a cell instead of a command, with what it brings along."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from retinue.domain.value import value
from retinue.errors import Failed
from retinue.sandbox.mounts import SYSTEM, How, Mount, Plan

HOME = "/run/home"
"""Where a guest finds the home that is its own: no place of the machine."""
_SHEBANG = 256
_BINARIES = "bin"
_SHIMS = "shims"
_LIBRARIES = ("lib", "lib64", "pyvenv.cfg")


@value
class Installed:
    """A program of this machine, and where the parts of it lie that are not the system's."""

    path: str
    laid: Mapping[str, str] = field(default_factory=dict[str, str])
    """Places inside, and the real files or folders that are laid there."""
    beside: tuple[str, ...] = ()
    """Folders in which it looks for its interpreter."""


@dataclass(slots=True, kw_only=True)
class Guest:
    argv: tuple[str, ...]
    """The program by its real path, and its words."""
    env: Mapping[str, str]
    home: str
    """The real folder behind its home."""
    laid: Mapping[str, str]
    cwd: str
    grace: float
    gate: int = -1
    """What lets it begin, from when its cell is built."""

    def opens(self, gate: int) -> None:
        self.gate = gate


def brought(guest: Guest, plan: Plan) -> Plan:
    """The cell's plan with the program and its home. What the scope shows already is not laid a second time."""
    shown = [mount.at for mount in plan.mounts if mount.source == mount.at]
    more = [
        Mount(how=How.READ, at=at, source=source)
        for at, source in guest.laid.items()
        if not _within(at, shown)
    ]
    home = Mount(how=How.WRITE, at=HOME, source=guest.home)
    every = sorted((*plan.mounts, *more, home), key=lambda mount: mount.at.split("/"))
    return replace(plan, mounts=tuple(every), cwd=guest.cwd or plan.cwd)


def installed(binary: str, path: str, around: tuple[str, ...]) -> Installed | None:
    """A program by its name or its path. What is laid into the cell never holds one of the folders `around`: the
    workspace, Retinue's own, and a person's home."""
    found = binary if "/" in binary else _looked_up(binary, path)
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):  # noqa: PTH113
        return None
    real = os.path.realpath(found)
    laid = _parts(real, around)
    beside: list[str] = []
    if interpreter := _interpreter(real, path):
        below = _parts(os.path.realpath(interpreter), around)
        if not _within(interpreter, (*SYSTEM, *laid, *below)):
            below |= _venv(interpreter, around) or {interpreter: os.path.realpath(interpreter)}
        laid |= below
        beside.append(os.path.dirname(interpreter))  # noqa: PTH120
    return Installed(path=real, laid=laid, beside=tuple(beside))


def _looked_up(binary: str, path: str) -> str | None:
    """A shim only knows where the program is by asking what a cell does not have: the program itself comes first."""
    places = [each for each in path.split(os.pathsep) if each.startswith("/")]
    for place in sorted(places, key=lambda each: Path(each).name == _SHIMS):
        if os.access(f"{place}/{binary}", os.X_OK) and os.path.isfile(f"{place}/{binary}"):  # noqa: PTH113
            return f"{place}/{binary}"
    return None


def _parts(real: str, around: tuple[str, ...]) -> dict[str, str]:
    """The file, or the installation that it is part of: a folder of modules, or one with programs and libraries."""
    if _within(real, SYSTEM):
        return {}
    head, modules, _ = real.partition("/node_modules/")
    if modules:
        place = f"{head}/node_modules"
        return {place: place} if _apart(place, around) else {real: real}
    prefix = Path(real).parent.parent
    whole = Path(real).parent.name == _BINARIES and any((prefix / each).exists() for each in _LIBRARIES)
    place = str(prefix) if whole and _apart(str(prefix), around) else real
    return {place: place}


def _venv(interpreter: str, around: tuple[str, ...]) -> dict[str, str]:
    """An interpreter that is only a link still finds its own libraries beside the link."""
    place = os.path.realpath(Path(interpreter).parent.parent)
    there = (Path(place) / "pyvenv.cfg").exists() and _apart(place, around)
    return {place: place} if there else {}


def _interpreter(real: str, path: str) -> str | None:
    """The program that a script names in its first line."""
    try:
        with open(real, "rb") as file:  # noqa: PTH123
            line = file.read(_SHEBANG).partition(b"\n")[0]
    except OSError as error:
        raise Failed(f"{real} cannot be read: {error.strerror}") from error
    words = os.fsdecode(line.removeprefix(b"#!")).split() if line.startswith(b"#!") else []
    if not words:
        return None
    if Path(words[0]).name != "env":
        return words[0]
    named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _looked_up(named[0], path) if named else None


def _apart(place: str, around: tuple[str, ...]) -> bool:
    return not any(_within(each, (place,)) for each in around if each)


def _within(path: str, folders: "tuple[str, ...] | list[str]") -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
