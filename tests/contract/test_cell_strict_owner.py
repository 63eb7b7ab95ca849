"""The strict cell of somebody who is not root: modes bind them, so a command can close folders against the clean-up."""

import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.rule import below
from retinue.domain.scope import Scope

InCell = Callable[..., Any]

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
    trees = (below(str(room / "ws")), "/tmp/**")
    return Scope(read=trees, write=trees, root=str(room / "ws"), tmp=str(room / "own-tmp"))


def as_somebody(work: Callable[[], Any]) -> Any:
    """What the work gives in a process that is not root's."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
                os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            said = json.dumps({"gives": work()})
        except BaseException:  # noqa: BLE001  (told to the test, which fails by it)
            said = json.dumps({"raises": traceback.format_exc()})
        os.write(writing, said.encode())
        sys.stdout.flush()
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
    outside: Scope, in_cell: InCell, who: str, command: str, gone: str
):
    """We own the folders, so we open them again, and say so. Shows: S12, S13."""

    def work() -> tuple[str, list[str]]:
        came = in_cell(outside, command)
        return came.text, list(came.notes)

    if who != "somebody":
        os.chown(outside.root, os.geteuid(), os.getegid())
        os.chown(Path(outside.root).parent, os.geteuid(), os.getegid())
    text, notes = as_somebody(work) if who == "somebody" else work()
    assert not text
    assert any(f"{outside.root}/{gone}" in note for note in notes)
    assert not [note for note in notes if "tell the person" in note], notes
    assert not os.path.lexists(Path(outside.root) / gone)


def test_a_link_that_was_replaced_is_put_back_into_a_folder_that_was_closed(outside: Scope, in_cell: InCell):
    link = Path(outside.root) / ".bashrc"
    link.symlink_to("dotfile")
    notes = as_somebody(lambda: in_cell(outside, "rm .bashrc; echo evil > .bashrc; chmod 555 .").notes)
    assert link.readlink() == Path("dotfile"), notes


def test_what_cannot_be_taken_away_is_said_to_the_person(outside: Scope, in_cell: InCell):
    """A place whose name is longer than the system takes can be reached step by step only."""
    step = "d" * 200
    deep = f"for i in $(seq 30); do mkdir {step} && cd {step}; done; mkdir .git; echo evil > .git/config"
    notes = as_somebody(lambda: in_cell(replace(outside, tmp=""), deep).notes)
    assert notes[0].startswith("tell the person")
