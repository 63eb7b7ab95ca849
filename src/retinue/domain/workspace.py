"""A session's workspace: its root folder, its isolation, and whether it is writable."""

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Isolation(StrEnum):
    SHARED = "shared"
    SANDBOX = "sandbox"
    CUSTOM = "custom"


class Workspace(Struct, frozen=True, kw_only=True):
    """A workspace, computed once per session and stored with it; independent of the process's current folder."""

    root: str
    """Absolute. Relative paths of tools start here."""
    isolation: Isolation = Isolation.SHARED
    writable: bool = True
    label: str = ""
    source_repository: str = ""
    """The repository of which this workspace is a worktree; empty for any other folder."""
    git_dir: str = ""
    """Git's folder for this worktree, recorded when Retinue created it; empty if `root` is not the whole worktree."""
    project_folder: str = ""
    """The folder the session was started for, if its root is another one; agents and skills of its project apply."""

    @property
    def intended_folder(self) -> str:
        return self.project_folder or self.root

    def as_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "isolation": str(self.isolation),
            "writable": self.writable,
            "label": self.label,
            "source": self.source_repository or None,
            "git_dir": self.git_dir or None,
            "project": self.project_folder or None,
        }
