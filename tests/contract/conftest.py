"""Fixtures that run one command in the strict sandbox, without the rest of the product."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from model_providers import PROVIDER_FACTORIES
from new_session import new_session
from strict_sandbox import RunInSandbox, SandboxResult

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.session import Session
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
from retinue.sessions.store import FileStore
from retinue.testing.fixed_clock import fixed_clock

PYTHON = os.path.realpath(sys.executable)
"""The interpreter of the tests. It may lie outside /usr, so the scope lets the sandbox read it."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The real path of a workspace, with a secret file in a folder beside it."""
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
    shell_command = f"exec {PYTHON} -I - <<'PYTHON_ENDS'\n{command}\nPYTHON_ENDS\n" if python else command
    sandboxed = bubblewrap_command(scope, shell_command, bwrap=bwrap, records_folder=str(records))
    process = subprocess.Popen(
        sandboxed.argv,
        env=dict(sandboxed.env),
        cwd=sandboxed.cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=sandboxed.fds,
    )
    for fd in sandboxed.fds:
        os.close(fd)
    os.write(sandboxed.go_fd, b"\n")
    output, _ = process.communicate()
    return SandboxResult(
        exit_code=process.returncode, output=output.decode(errors="replace"), notes=sandboxed.clean_up()
    )


@pytest.fixture(params=PROVIDER_FACTORIES)
def provider(request: pytest.FixtureRequest) -> str:
    """The name of an HTTP provider; a test with this fixture runs for each."""
    return request.param


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileStore]:
    """An empty session store whose clock is fixed."""
    store = FileStore(tmp_path / "sessions", fixed_clock())
    yield store
    store.close()


@pytest.fixture
async def session(store: FileStore) -> Session:
    """A new session of the agent `general`."""
    return await store.create(new_session())
