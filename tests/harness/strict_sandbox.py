"""Types of the `run_in_sandbox` fixture, which runs a command in the strict sandbox."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retinue.domain.permissions.scope import Scope


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    exit_code: int
    output: str
    """Standard output and standard error in one stream."""
    notes: tuple[str, ...]
    """What the clean-up after the command reported."""


class RunInSandbox(Protocol):
    """Run a shell command, or Python code with `python`, in the strict sandbox until it ends."""

    def __call__(
        self,
        scope: Scope,
        command: str,
        *,
        python: bool = False,
        stdin: int = subprocess.DEVNULL,
        records: Path | str = "",
    ) -> SandboxResult: ...
