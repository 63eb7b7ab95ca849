"""The monitor of a running command: protected paths that the command creates are removed while it still runs."""

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.domain.permissions.scope import Scope
from retinue.errors import Failed
from retinue.sandbox import process
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
from retinue.sandbox.protected_file_monitor import (
    MAX_MONITORS,
    MAX_REMOVALS,
    reserve_monitor,
    wait_for_monitor,
)

TIMEOUT_S = 60.0
WAIT_UNTIL_REMOVED = (
    "wait_until_removed() { while [ -e $1 ] || [ -L $1 ]; do sleep 0.01; done; echo removed; }; "
)
"""Shell function that returns when a process outside the sandbox has removed the path."""


async def run_sandboxed(scope: Scope, command: str, seconds: float = TIMEOUT_S) -> process.ProcessResult:
    return await process.run_command(
        bubblewrap_command(scope, WAIT_UNTIL_REMOVED + command, bwrap=str(find_bwrap())), seconds
    )


@pytest.fixture
def repository(workspace: Path) -> Path:
    """The smallest git repository; the user works in it."""
    (workspace / ".git/objects").mkdir(parents=True)
    (workspace / ".git/refs").mkdir()
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (workspace / ".git/config").write_text("[core]\n")
    return workspace


@pytest.mark.parametrize(
    "setup", ["", "echo x > .envrc; wait_until_removed .envrc; "], ids=["at once", "later"]
)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        ("echo /evil > .git/commondir", ".git/commondir"),
        ("mkdir .git/hooks", ".git/hooks"),
        ("mkdir .git/worktrees", ".git/worktrees"),
        ("mkdir m; mv m .git/modules", ".git/modules"),
        ("echo x > .bashrc", ".bashrc"),
        ("echo x > src/.envrc", "src/.envrc"),
        ("mkdir .vscode", ".vscode"),
        ("echo x > fine; mv fine .mcp.json", ".mcp.json"),
        ("ln -s /etc/passwd .netrc", ".netrc"),
        ("mkdir -m 0300 .github; mkdir .github/workflows", ".github/workflows"),
        ("mkdir -p a/workflows; mv a .github", ".github/workflows"),
        ("mv src s2; mkdir src; echo x > src/.envrc", "src/.envrc"),
    ],
)
@pytest.mark.usefixtures("repository")
async def test_a_protected_path_is_removed_while_the_command_still_runs(
    scope: Scope, workspace: Path, setup: str, make: str, name: str
):
    """Shows: S12."""
    result = await run_sandboxed(scope, f"{setup}{make}; wait_until_removed {name}; echo on")
    assert not result.timed_out
    assert result.output.text().endswith("removed\non\n")
    assert result.exit_code == 0
    assert any(f"{workspace}/{name}" in note and "taken-" in note for note in result.notes)
    assert not (workspace / name).exists()


async def test_a_replaced_link_at_a_protected_path_is_restored_immediately(scope: Scope, workspace: Path):
    (workspace / ".bashrc").symlink_to("elsewhere")
    result = await run_sandboxed(
        scope, "echo evil > x; mv x .bashrc; until [ -L .bashrc ]; do sleep 0.01; done; echo back"
    )
    assert result.output.text() == "back\n"
    assert (workspace / ".bashrc").readlink() == Path("elsewhere")
    assert len(result.notes) == 1


async def test_a_command_that_keeps_creating_a_protected_path_is_killed(scope: Scope, workspace: Path):
    """Otherwise the file would exist half of the time.

    Shows: S12.
    """
    result = await run_sandboxed(scope, "while :; do echo evil > .envrc; done")
    assert result.killed
    assert not result.timed_out
    assert any("the command was killed: it repeatedly created" in note for note in result.notes)
    assert not (workspace / ".envrc").exists()
    assert len([path for path in workspace.iterdir() if path.name.startswith("taken-")]) >= MAX_REMOVALS


async def test_git_init_works_while_the_monitor_runs(scope: Scope, workspace: Path):
    result = await run_sandboxed(
        scope,
        "echo x > .envrc; wait_until_removed .envrc; mkdir r && cd r && git init -q && git config user.name me && "
        "touch ../.bashrc && wait_until_removed ../.bashrc && git config user.name",
    )
    assert result.output.text() == "removed\nremoved\nme\n"
    assert not (workspace / "r/.git/config").exists()
    assert any("r/.git/config is a closed path" in note for note in result.notes)


@pytest.mark.usefixtures("repository")
async def test_the_user_can_change_an_existing_protected_file_during_a_command(scope: Scope, workspace: Path):
    """The user's git replaces its configuration by renaming a new file over it."""
    for name in ("ready", "go"):
        os.mkfifo(workspace / name)
    task = asyncio.create_task(
        run_sandboxed(
            scope,
            "echo x > .envrc; wait_until_removed .envrc; echo > ready; read <go; echo x > .bashrc; wait_until_removed .bashrc",
        )
    )
    await asyncio.to_thread((workspace / "ready").read_text)
    (workspace / ".git/config.lock").write_text("[core]\n\tbare = false\n")
    (workspace / ".git/config.lock").rename(workspace / ".git/config")
    await asyncio.to_thread((workspace / "go").write_text, "\n")
    result = await task
    assert result.output.text() == "removed\nremoved\n"
    assert "bare" in (workspace / ".git/config").read_text()


async def test_a_denied_path_is_removed_only_after_the_command(scope: Scope, workspace: Path):
    """No other program obeys the path, and a build may need it."""
    denied = replace(scope, deny=("**/runtime/**",))
    result = await run_sandboxed(
        denied, "mkdir runtime && echo x > .envrc; wait_until_removed .envrc; ls -d runtime"
    )
    assert result.output.text() == "removed\nruntime\n"
    assert not (workspace / "runtime").exists()


async def test_nothing_is_removed_for_a_scope_without_closed_paths(scope: Scope, workspace: Path):
    """Retinue's own git commands have such a scope."""
    without_closed_paths = replace(scope, closed_paths=(), guarded_paths=())
    result = await run_sandboxed(without_closed_paths, "echo x > .envrc; sleep 0.1; cat .envrc")
    assert result.output.text() == "x\n"
    assert result.notes == ()
    assert (workspace / ".envrc").exists()


TAKE_ALL_INSTANCES = f"""
{os.path.realpath(sys.executable)} -I -c '
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
while libc.inotify_init1(0) >= 0: pass
print(ctypes.get_errno(), flush=True)
open(".envrc", "w").close()
while os.path.exists(".envrc"): time.sleep(0.01)
print("removed", flush=True)
'
"""


async def test_a_command_cannot_take_the_instances_that_watch_it(scope: Scope):
    """They are the user's: nothing of the command's counts against those of other programs either."""
    result = await run_sandboxed(scope, TAKE_ALL_INSTANCES)
    assert result.output.text() == f"{errno.ENOSYS}\nremoved\n"
    assert not result.timed_out


async def test_programs_that_watch_files_poll_instead(scope: Scope):
    result = await run_sandboxed(
        scope,
        "echo one > log; timeout 20 tail -f log 2>/dev/null | (read a; echo two >> log; read b; echo $a $b)",
    )
    assert result.output.text() == "one two\n"


async def test_commands_wait_for_a_monitor_while_others_hold_them_all():
    held = [reserve_monitor() for _ in range(MAX_MONITORS)]
    try:
        with pytest.raises(Failed, match="too many other commands"):
            reserve_monitor()
        waiting = asyncio.ensure_future(wait_for_monitor())
        await asyncio.sleep(0)
        assert not waiting.done()
        held.pop().release()
        held.append(await waiting)
    finally:
        for each in held:
            each.release()


def test_a_command_that_cannot_be_watched_is_not_run(workspace: Path):
    """The program runs in a user namespace whose user may watch nothing."""
    program = f"""
from retinue.domain.permissions.scope import Scope
from retinue.errors import Failed
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
open('/proc/sys/user/max_inotify_instances', 'w').write('0')
try:
    bubblewrap_command(
        Scope(read=('{workspace}/**',), write=('{workspace}/**',), root='{workspace}'), 'true', bwrap=find_bwrap())
except Failed as error:
    print(error)
"""
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", program],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "the command was not run: no inotify instance is left" in result.stdout
