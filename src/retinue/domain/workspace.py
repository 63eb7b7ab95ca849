"""Where a session works: a root, how far it is set apart, and whether it may write there."""

from enum import StrEnum
from typing import Any

from retinue.domain.value import value


class Isolation(StrEnum):
    SHARED = "shared"
    SANDBOX = "sandbox"
    CUSTOM = "custom"


@value
class Workspace:
    """Computed once per session and stored with it: state of the session, never of the process."""

    root: str
    """Absolute. Relative paths of tools start here."""
    isolation: Isolation = Isolation.SHARED
    writable: bool = True
    label: str = ""
    source: str = ""
    """The repository that this workspace is a worktree of, made for this session; empty for any other folder."""
    project: str = ""
    """The folder that was meant when the session was begun, if it works in another one: its project's agents count."""

    @property
    def meant(self) -> str:
        return self.project or self.root

    def as_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "isolation": str(self.isolation),
            "writable": self.writable,
            "label": self.label,
            "source": self.source or None,
            "project": self.project or None,
        }
