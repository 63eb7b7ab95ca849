"""Clean-up after a command in the strict sandbox: also for an ordinary user, who can be locked out of folders by their
mode, and after Retinue was killed during the command."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.app.sandbox_loader import SandboxLoader
from retinue.config.load import load_config
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
from retinue.sandbox.command import SandboxedCommand

NOBODY_ID = 65534
PLANT_REPOSITORY = "mkdir -p r/.git/hooks && echo evil > r/.git/config && "


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own folders are open only to the user who runs it."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "ws").mkdir()
    if os.geteuid() == 0:
        for path in (folder, folder / "ws"):
            os.chown(path, NOBODY_ID, NOBODY_ID)
    yield folder.resolve()
    shutil.rmtree(folder)


@pytest.fixture
def shared_scope(shared_folder: Path) -> Scope:
    trees = (subtree_pattern(str(shared_folder / "ws")), "/tmp/**")
    return Scope(
        read=trees, write=trees, root=str(shared_folder / "ws"), tmp_folder=str(shared_folder / "own-tmp")
    )


def take_ownership(shared_folder: Path) -> None:
    for path in (shared_folder, shared_folder / "ws"):
        os.chown(path, os.geteuid(), os.getegid())


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)


def run_as_nobody(work: Callable[[], Any]) -> Any:
    """Run the function in a forked process of an ordinary user, and return its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            outcome = json.dumps({"returned": work()})
        except BaseException:  # noqa: BLE001  (reported to the test, which then fails)
            outcome = json.dumps({"raised": traceback.format_exc()})
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        outcome = json.loads(pipe.read())
    os.waitpid(pid, 0)
    assert "raised" not in outcome, outcome["raised"]
    return outcome["returned"]


@pytest.mark.parametrize(
    ("command", "removed"),
    [
        (PLANT_REPOSITORY + "chmod 555 r/.git", "r/.git/config"),
        (PLANT_REPOSITORY + "chmod 555 r/.git r", "r/.git/config"),
        (PLANT_REPOSITORY + "chmod 0 r/.git", "r/.git/config"),
        (PLANT_REPOSITORY + "chmod 0 r/.git; chmod 0 r; chmod 0 .", "r/.git/config"),
        (PLANT_REPOSITORY + "chmod 444 r/.git; chmod 444 r", "r/.git/config"),
        (PLANT_REPOSITORY + "chmod 111 r/.git; chmod 311 r", "r/.git/config"),
        ("echo evil > .envrc; chmod 555 .", ".envrc"),
        ("mkfifo pipe; chmod 555 .", "pipe"),
        ("mkdir -p a/b/.ssh; chmod 0 a/b/.ssh; chmod 555 a/b; chmod 555 a", "a/b/.ssh"),
    ],
)
@pytest.mark.parametrize("user", ["nobody", "current user"])
def test_a_command_cannot_protect_a_closed_path_from_clean_up_by_changing_modes(
    shared_scope: Scope, run_in_sandbox: RunInSandbox, user: str, command: str, removed: str
):
    """Retinue runs as the owner of the folders, so it restores their modes and reports it.

    Shows: S12, S13.
    """

    def run_command() -> tuple[str, list[str]]:
        result = run_in_sandbox(shared_scope, command)
        return result.output, list(result.notes)

    if user != "nobody":
        take_ownership(Path(shared_scope.root).parent)
    output, notes = run_as_nobody(run_command) if user == "nobody" else run_command()
    assert not output
    assert any(f"{shared_scope.root}/{removed}" in note for note in notes)
    assert not [note for note in notes if "tell the user" in note], notes
    assert not os.path.lexists(Path(shared_scope.root) / removed)


def test_a_replaced_link_is_restored_in_a_folder_that_was_made_read_only(
    shared_scope: Scope, run_in_sandbox: RunInSandbox
):
    link = Path(shared_scope.root) / ".bashrc"
    link.symlink_to("dotfile")
    notes = run_as_nobody(
        lambda: run_in_sandbox(shared_scope, "rm .bashrc; echo evil > .bashrc; chmod 555 .").notes
    )
    assert link.readlink() == Path("dotfile"), notes


def test_a_closed_path_in_a_path_that_is_too_long_for_the_kernel_is_renamed(
    shared_folder: Path, shared_scope: Scope, run_in_sandbox: RunInSandbox
):
    """Such a path can be reached only folder by folder."""
    step = "d" * 200
    deep = (
        f"for i in $(seq 30); do mkdir {step} && cd {step}; done; mkdir .git; echo evil > .git/config;"
        " chmod 0 .git/config .git . .."
    )
    notes = run_as_nobody(lambda: run_in_sandbox(replace(shared_scope, tmp_folder=""), deep).notes)
    assert "is too long to search the folder: it was moved to" in notes[0]
    assert not [note for note in notes if "tell the user" in note], notes
    find = ["find", "ws", "-name", "config"]
    assert subprocess.check_output(find, cwd=shared_folder) == b""
    assert run_as_nobody(lambda: run_in_sandbox(shared_scope, "echo works").output) == "works\n"


def start_command(
    scope: Scope, command: str, records: Path
) -> tuple[SandboxedCommand, "subprocess.Popen[bytes]"]:
    """Start a command in the sandbox and wait for its line `ready`."""
    sandboxed = bubblewrap_command(scope, command, bwrap=str(find_bwrap()), records_folder=str(records))
    process = subprocess.Popen(
        sandboxed.argv, env={}, cwd="/", stdout=subprocess.PIPE, pass_fds=sandboxed.fds
    )
    for fd in sandboxed.fds:
        os.close(fd)
    os.write(sandboxed.go_fd, b"\n")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return sandboxed, process


def run_and_kill(scope: Scope, command: str, records: Path, number: int) -> None:
    """Run a command in a forked process, and kill that process by a signal when the command has done its work."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            for handled in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(handled, signal.SIG_DFL)
            start_command(scope, f"{command}; echo ready; sleep 1000", records)
            os.write(writing, b"ready")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read(5) == b"ready"
        os.kill(pid, number)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_closed_paths_are_removed_by_the_next_command_after_retinue_was_killed(
    shared_scope: Scope, shared_folder: Path, run_in_sandbox: RunInSandbox, number: int
):
    """Shows: S12, S13."""
    (shared_folder / "ws/.npmrc").write_text("mine")
    run_and_kill(
        shared_scope,
        "echo evil > .envrc; " + PLANT_REPOSITORY + "chmod 555 r/.git",
        shared_folder / "cells",
        number,
    )
    assert (shared_folder / "ws/.envrc").exists()
    notes = run_as_nobody(lambda: run_in_sandbox(shared_scope, "true", records=shared_folder / "cells").notes)
    assert not (shared_folder / "ws/.envrc").exists()
    assert not (shared_folder / "ws/r/.git/config").exists()
    assert (shared_folder / "ws/.npmrc").read_text() == "mine"
    assert any(".envrc" in note and "killed" in note for note in notes)
    assert list((shared_folder / "cells").iterdir()) == []
    assert (
        run_as_nobody(lambda: run_in_sandbox(shared_scope, "true", records=shared_folder / "cells").notes)
        == []
    )


def test_a_command_in_another_workspace_cleans_up_too_but_its_notes_name_no_paths(
    shared_scope: Scope, shared_folder: Path, run_in_sandbox: RunInSandbox
):
    run_and_kill(shared_scope, "ln -s evil .bashrc", shared_folder / "cells", signal.SIGKILL)
    other_workspace = shared_folder / "other"
    other_workspace.mkdir()
    other_scope = replace(
        shared_scope,
        root=str(other_workspace),
        read=(subtree_pattern(str(other_workspace)),),
        write=(),
        tmp_folder="",
    )
    notes = run_as_nobody(lambda: run_in_sandbox(other_scope, "true", records=shared_folder / "cells").notes)
    assert notes == []
    assert not os.path.lexists(shared_folder / "ws/.bashrc")


def test_the_application_cleans_up_after_killed_commands_when_it_starts(
    shared_scope: Scope, shared_folder: Path
):
    run_and_kill(shared_scope, "echo evil > .envrc; chmod 555 .", shared_folder / "cells", signal.SIGKILL)
    assert (shared_folder / "ws/.envrc").exists()
    notes = run_as_nobody(SandboxLoader(load_config({}, home=str(shared_folder))).clean_up_killed_commands)
    assert any(".envrc" in note for note in notes)
    assert not (shared_folder / "ws/.envrc").exists()
    assert SandboxLoader(load_config({}, home=str(shared_folder))).clean_up_killed_commands() == []


def test_an_unreadable_record_does_not_prevent_the_next_command(
    shared_scope: Scope, shared_folder: Path, run_in_sandbox: RunInSandbox
):
    (shared_folder / "cells").mkdir()
    (shared_folder / "cells/half.json").write_text('{"scope":')
    (shared_folder / "cells/begun").touch()
    take_ownership(shared_folder)
    result = run_in_sandbox(shared_scope, "echo ran", records=shared_folder / "cells")
    assert result.output == "ran\n"
    assert any("tell the user" in note and "half.json" in note for note in result.notes)
    assert list((shared_folder / "cells").iterdir()) == []


def test_paths_that_a_running_command_created_do_not_count_as_existing_for_a_later_command(
    shared_scope: Scope, shared_folder: Path
):
    """Otherwise the later command could create a closed path again after the first has ended.

    Shows: S12.
    """
    (shared_folder / "ws/.npmrc").write_text("mine")
    take_ownership(shared_folder)
    wait_for = "; echo ready; while [ ! -e {0} ]; do sleep 0.01; done; "
    plant = "ln -s evil .bashrc; echo evil > .envrc"
    first, first_process = start_command(
        shared_scope, plant + wait_for.format("go1"), shared_folder / "cells"
    )
    second, second_process = start_command(
        shared_scope, "true" + wait_for.format("go2") + plant, shared_folder / "cells"
    )
    assert len(list((shared_folder / "cells").iterdir())) == 2
    for sandboxed, process, name in ((first, first_process, "go1"), (second, second_process, "go2")):
        (shared_folder / "ws" / name).touch()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        assert any(".envrc" in note for note in sandboxed.clean_up())
        assert not os.path.lexists(shared_folder / "ws/.envrc")
        assert not os.path.lexists(shared_folder / "ws/.bashrc")
    assert (shared_folder / "ws/.npmrc").read_text() == "mine"
    assert list((shared_folder / "cells").iterdir()) == []
