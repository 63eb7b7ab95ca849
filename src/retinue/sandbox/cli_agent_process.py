"""Locate a CLI agent's program and mount it, with its home, into the sandbox."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from retinue.errors import Failed
from retinue.sandbox.mounts import SYSTEM_FOLDERS, Mount, MountKind, MountPlan
from retinue.search_path import absolute_entries

AGENT_HOME = "/run/home"
"""Path of the agent's own home inside the sandbox; it does not exist on the machine."""
_MAX_SHEBANG_BYTES = 256
_BIN_FOLDER = "bin"
_SHIMS_FOLDER = "shims"
_LIBRARY_MARKERS = ("lib", "lib64", "pyvenv.cfg")


class InstalledProgram(Struct, frozen=True, kw_only=True):
    """A program of this machine, and its files that are not part of the system's folders."""

    path: str
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps paths inside the sandbox to the real files or folders mounted there."""
    interpreter_folders: tuple[str, ...] = ()
    """Folders in which the program looks for its interpreter."""


@dataclass(slots=True, kw_only=True)
class CliAgentProcess:
    argv: tuple[str, ...]
    """The program's real path and its arguments."""
    env: Mapping[str, str]
    home: str
    """Real folder mounted as its home."""
    mounts: Mapping[str, str]
    cwd: str
    sigterm_grace_s: float
    start_gate_fd: int = -1
    """Descriptor that lets the process start; set when its sandbox is built."""

    def set_start_gate(self, fd: int) -> None:
        self.start_gate_fd = fd


def with_program_mounts(process: CliAgentProcess, plan: MountPlan) -> MountPlan:
    """Add the program and its home to a mount plan, without what the scope already shows."""
    visible = [mount.target for mount in plan.mounts if mount.source == mount.target]
    program_mounts = [
        Mount(kind=MountKind.READ, target=target, source=source)
        for target, source in process.mounts.items()
        if not _is_within(target, visible)
    ]
    home = Mount(kind=MountKind.WRITE, target=AGENT_HOME, source=process.home)
    ordered = sorted((*plan.mounts, *program_mounts, home), key=lambda mount: mount.target.split("/"))
    return replace(plan, mounts=tuple(ordered), cwd=process.cwd or plan.cwd)


def find_program(binary: str, path: str, private_folders: tuple[str, ...]) -> InstalledProgram | None:
    """Find a program by name or path; None if it is not installed.

    Its mounts never contain one of the private folders: the workspace, Retinue's own files and the person's
    home.
    """
    found = binary if "/" in binary else _find_on_path(binary, path)
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):  # noqa: PTH113
        return None
    real = os.path.realpath(found)
    mounts = _installation_mounts(real, private_folders)
    interpreter_folders: list[str] = []
    if interpreter := _script_interpreter(real, path):
        interpreter_mounts = _installation_mounts(os.path.realpath(interpreter), private_folders)
        if not _is_within(interpreter, (*SYSTEM_FOLDERS, *mounts, *interpreter_mounts)):
            interpreter_mounts |= _venv_mounts(interpreter, private_folders) or {
                interpreter: os.path.realpath(interpreter)
            }
        mounts |= interpreter_mounts
        interpreter_folders.append(os.path.dirname(interpreter))  # noqa: PTH120
    return InstalledProgram(path=real, mounts=mounts, interpreter_folders=tuple(interpreter_folders))


def _find_on_path(binary: str, path: str) -> str | None:
    """Find an executable on PATH; shims come last.

    A shim finds its program only with tools that the sandbox does not have.
    """
    folders = absolute_entries(path).split(os.pathsep)
    for folder in sorted(folders, key=lambda each: Path(each).name == _SHIMS_FOLDER):
        if os.access(f"{folder}/{binary}", os.X_OK) and os.path.isfile(f"{folder}/{binary}"):  # noqa: PTH113
            return f"{folder}/{binary}"
    return None


def _installation_mounts(real: str, private_folders: tuple[str, ...]) -> dict[str, str]:
    """Mount the file or the installation it belongs to.

    An installation is a node_modules folder, or a folder with programs and libraries.
    """
    if _is_within(real, SYSTEM_FOLDERS):
        return {}
    head, modules, _ = real.partition("/node_modules/")
    if modules:
        folder = f"{head}/node_modules"
        return {folder: folder} if _excludes_folders(folder, private_folders) else {real: real}
    prefix = Path(real).parent.parent
    is_installation = Path(real).parent.name == _BIN_FOLDER and any(
        (prefix / each).exists() for each in _LIBRARY_MARKERS
    )
    folder = str(prefix) if is_installation and _excludes_folders(str(prefix), private_folders) else real
    return {folder: folder}


def _venv_mounts(interpreter: str, private_folders: tuple[str, ...]) -> dict[str, str]:
    """Mount the virtual environment of an interpreter that is a link, for its libraries."""
    folder = os.path.realpath(Path(interpreter).parent.parent)
    is_venv = (Path(folder) / "pyvenv.cfg").exists() and _excludes_folders(folder, private_folders)
    return {folder: folder} if is_venv else {}


def _script_interpreter(real: str, path: str) -> str | None:
    """Return the interpreter named in a script's first line."""
    try:
        with open(real, "rb") as file:  # noqa: PTH123
            line = file.read(_MAX_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError as error:
        raise Failed(f"{real} cannot be read: {error.strerror}") from error
    words = os.fsdecode(line.removeprefix(b"#!")).split() if line.startswith(b"#!") else []
    if not words:
        return None
    if Path(words[0]).name != "env":
        return words[0]
    candidates = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _find_on_path(candidates[0], path) if candidates else None


def _excludes_folders(folder: str, private_folders: tuple[str, ...]) -> bool:
    return not any(_is_within(each, (folder,)) for each in private_folders if each)


def _is_within(path: str, folders: "tuple[str, ...] | list[str]") -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
