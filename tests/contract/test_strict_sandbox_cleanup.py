"""The strict cell of somebody who is not root: modes bind them, so a command can close folders against the clean-up."""

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

SOMEBODY = 65534
PLANT = "mkdir -p r/.git/hooks && echo evil > r/.git/config && "


@pytest.fixture
def room() -> Iterator[Path]:
    """Where anybody can come: pytest's own folders are only for who runs it."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (place / "ws").mkdir()
    if os.geteuid() == 0:
        for path in (place, place / "ws"):
            os.chown(path, SOMEBODY, SOMEBODY)
    yield place.resolve()
    shutil.rmtree(place)


@pytest.fixture
def outside(room: Path) -> Scope:
    trees = (subtree_pattern(str(room / "ws")), "/tmp/**")
    return Scope(read=trees, write=trees, root=str(room / "ws"), tmp_folder=str(room / "own-tmp"))


def become_somebody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
        os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)


def as_somebody(work: Callable[[], Any]) -> Any:
    """What the work gives in a process that is not root's."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_somebody()
            said = json.dumps({"gives": work()})
        except BaseException:  # noqa: BLE001  (told to the test, which fails by it)
            said = json.dumps({"raises": traceback.format_exc()})
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(pid, 0)
    assert "raises" not in said, said["raises"]
    return said["gives"]


@pytest.mark.parametrize(
    ("command", "gone"),
    [
        (PLANT + "chmod 555 r/.git", "r/.git/config"),
        (PLANT + "chmod 555 r/.git r", "r/.git/config"),
        (PLANT + "chmod 0 r/.git", "r/.git/config"),
        (PLANT + "chmod 0 r/.git; chmod 0 r; chmod 0 .", "r/.git/config"),
        (PLANT + "chmod 444 r/.git; chmod 444 r", "r/.git/config"),
        (PLANT + "chmod 111 r/.git; chmod 311 r", "r/.git/config"),
        ("echo evil > .envrc; chmod 555 .", ".envrc"),
        ("mkfifo pipe; chmod 555 .", "pipe"),
        ("mkdir -p a/b/.ssh; chmod 0 a/b/.ssh; chmod 555 a/b; chmod 555 a", "a/b/.ssh"),
    ],
)
@pytest.mark.parametrize("who", ["somebody", "whoever runs this"])
def test_a_command_cannot_keep_what_it_planted_by_closing_its_folder(
    outside: Scope, run_in_sandbox: RunInSandbox, who: str, command: str, gone: str
):
    """We own the folders, so we open them again, and say so.

    Shows: S12, S13.
    """

    def work() -> tuple[str, list[str]]:
        came = run_in_sandbox(outside, command)
        return came.text, list(came.notes)

    if who != "somebody":
        os.chown(outside.root, os.geteuid(), os.getegid())
        os.chown(Path(outside.root).parent, os.geteuid(), os.getegid())
    text, notes = as_somebody(work) if who == "somebody" else work()
    assert not text
    assert any(f"{outside.root}/{gone}" in note for note in notes)
    assert not [note for note in notes if "tell the person" in note], notes
    assert not os.path.lexists(Path(outside.root) / gone)


def test_a_link_that_was_replaced_is_put_back_into_a_folder_that_was_closed(
    outside: Scope, run_in_sandbox: RunInSandbox
):
    link = Path(outside.root) / ".bashrc"
    link.symlink_to("dotfile")
    notes = as_somebody(lambda: run_in_sandbox(outside, "rm .bashrc; echo evil > .bashrc; chmod 555 .").notes)
    assert link.readlink() == Path("dotfile"), notes


def test_what_cannot_be_taken_away_is_said_to_the_person(outside: Scope, run_in_sandbox: RunInSandbox):
    """A place whose name is longer than the system takes can be reached step by step only."""
    step = "d" * 200
    deep = f"for i in $(seq 30); do mkdir {step} && cd {step}; done; mkdir .git; echo evil > .git/config"
    notes = as_somebody(lambda: run_in_sandbox(replace(outside, tmp_folder=""), deep).notes)
    assert notes[0].startswith("tell the person")


def started(scope: Scope, command: str, records: Path) -> tuple[SandboxedCommand, "subprocess.Popen[bytes]"]:
    """A cell whose command has said a line, and goes on."""
    cell = bubblewrap_command(scope, command, bwrap=str(find_bwrap()), records_folder=str(records))
    running = subprocess.Popen(cell.argv, env={}, cwd="/", stdout=subprocess.PIPE, pass_fds=cell.fds)
    for fd in cell.fds:
        os.close(fd)
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    return cell, running


def killed(scope: Scope, command: str, records: Path, number: int) -> None:
    """A process that runs a command is ended by a signal while the command does nothing any more but wait."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become_somebody()
            for each in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(each, signal.SIG_DFL)
            started(scope, f"{command}; echo ready; sleep 1000", records)
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
def test_what_a_command_planted_is_taken_away_although_retinue_was_killed_meanwhile(
    outside: Scope, room: Path, run_in_sandbox: RunInSandbox, number: int
):
    """The next command does it, before it looks at what is there.

    Shows: S12, S13.
    """
    (room / "ws/.npmrc").write_text("mine")
    killed(outside, "echo evil > .envrc; " + PLANT + "chmod 555 r/.git", room / "cells", number)
    assert (room / "ws/.envrc").exists()
    notes = as_somebody(lambda: run_in_sandbox(outside, "true", records=room / "cells").notes)
    assert not (room / "ws/.envrc").exists()
    assert not (room / "ws/r/.git/config").exists()
    assert (room / "ws/.npmrc").read_text() == "mine"
    assert any(".envrc" in note and "killed" in note for note in notes)
    assert list((room / "cells").iterdir()) == []
    assert as_somebody(lambda: run_in_sandbox(outside, "true", records=room / "cells").notes) == []


def test_a_command_elsewhere_puts_it_right_too_and_is_not_told_the_names(
    outside: Scope, room: Path, run_in_sandbox: RunInSandbox
):
    killed(outside, "ln -s evil .bashrc", room / "cells", signal.SIGKILL)
    other = room / "other"
    other.mkdir()
    elsewhere = replace(
        outside, root=str(other), read=(subtree_pattern(str(other)),), write=(), tmp_folder=""
    )
    notes = as_somebody(lambda: run_in_sandbox(elsewhere, "true", records=room / "cells").notes)
    assert notes == []
    assert not os.path.lexists(room / "ws/.bashrc")


def test_the_application_puts_it_right_when_it_starts(outside: Scope, room: Path):
    killed(outside, "echo evil > .envrc; chmod 555 .", room / "cells", signal.SIGKILL)
    assert (room / "ws/.envrc").exists()
    notes = as_somebody(SandboxLoader(load_config({}, home=str(room))).clean_up_killed_commands)
    assert any(".envrc" in note for note in notes)
    assert not (room / "ws/.envrc").exists()
    assert SandboxLoader(load_config({}, home=str(room))).clean_up_killed_commands() == []


def test_a_record_that_cannot_be_read_keeps_no_command_from_running(
    outside: Scope, room: Path, run_in_sandbox: RunInSandbox
):
    (room / "cells").mkdir()
    (room / "cells/half.json").write_text('{"scope":')
    (room / "cells/begun").touch()
    os.chown(room / "ws", os.geteuid(), os.getegid())
    os.chown(room, os.geteuid(), os.getegid())
    came = run_in_sandbox(outside, "echo ran", records=room / "cells")
    assert came.text == "ran\n"
    assert any("tell the person" in note and "half.json" in note for note in came.notes)
    assert list((room / "cells").iterdir()) == []


def test_what_one_command_planted_was_not_there_before_another_that_began_later(outside: Scope, room: Path):
    """Else the later one could plant it again when the first has ended.

    Shows: S12.
    """
    (room / "ws/.npmrc").write_text("mine")
    os.chown(room / "ws", os.geteuid(), os.getegid())
    os.chown(room, os.geteuid(), os.getegid())
    wait = "; echo ready; while [ ! -e {0} ]; do sleep 0.01; done; "
    plant = "ln -s evil .bashrc; echo evil > .envrc"
    first, one = started(outside, plant + wait.format("go1"), room / "cells")
    second, two = started(outside, "true" + wait.format("go2") + plant, room / "cells")
    assert len(list((room / "cells").iterdir())) == 2
    for cell, running, name in ((first, one, "go1"), (second, two, "go2")):
        (room / "ws" / name).touch()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()
        assert any(".envrc" in note for note in cell.clean_up())
        assert not os.path.lexists(room / "ws/.envrc")
        assert not os.path.lexists(room / "ws/.bashrc")
    assert (room / "ws/.npmrc").read_text() == "mine"
    assert list((room / "cells").iterdir()) == []
