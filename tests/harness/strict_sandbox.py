"""What a test sees of a command in a strict sandbox cell."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retinue.domain.permissions.scope import Scope


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    exit: int
    text: str
    notes: tuple[str, ...]


class RunInSandbox(Protocol):
    """Run a command in a strict cell, or a program with `python`, until it ends."""

    def __call__(
        self,
        scope: Scope,
        command: str,
        *,
        python: bool = False,
        stdin: int = subprocess.DEVNULL,
        records: Path | str = "",
    ) -> SandboxResult: ...
