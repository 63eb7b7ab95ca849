"""Runs a strict cell and nothing around it: what comes out is the cell's own doing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from strict_sandbox import RunInSandbox, SandboxResult

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap

PYTHON = os.path.realpath(sys.executable)
"""Of the tests; it may stand outside /usr, and is then brought in as a part of the scope."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The real name of a workspace, with a neighbour that holds a secret."""
    ws = tmp_path.resolve() / "ws"
    (ws / "src").mkdir(parents=True)
    (ws / "src/app.py").write_text("print('app')\n")
    (ws.parent / "outside").mkdir()
    (ws.parent / "outside/secret").write_text("SECRET")
    return ws


@pytest.fixture
def scope(workspace: Path) -> Scope:
    trees = (subtree_pattern(str(workspace)), "/tmp/**")
    return Scope(
        read=(*trees, subtree_pattern(sys.base_prefix)),
        write=trees,
        root=str(workspace),
        tmp_folder=str(workspace.parent / "own-tmp"),
    )


@pytest.fixture
def run_in_sandbox() -> RunInSandbox:
    return _run_in_sandbox


def _run_in_sandbox(
    scope: Scope,
    command: str,
    *,
    python: bool = False,
    stdin: int = subprocess.DEVNULL,
    records: Path | str = "",
) -> SandboxResult:
    bwrap = find_bwrap()
    assert bwrap is not None, "install bubblewrap: apt-get install bubblewrap"
    text = f"exec {PYTHON} -I - <<'PYTHON_ENDS'\n{command}\nPYTHON_ENDS\n" if python else command
    cell = bubblewrap_command(scope, text, bwrap=bwrap, records_folder=str(records))
    started = subprocess.Popen(
        cell.argv,
        env=dict(cell.env),
        cwd=cell.cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=cell.fds,
    )
    for fd in cell.fds:
        os.close(fd)
    text, _ = started.communicate()
    return SandboxResult(exit=started.returncode, text=text.decode(errors="replace"), notes=cell.clean_up())
