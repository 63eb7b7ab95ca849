"""GuardedFiles while another process keeps swapping a folder with a link to the outside."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import OutOfScope, RetinueError
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.files.openat2 import Opener, best_opener, walk_open

SECRET = b"SECRET"
SECONDS = 0.8
MAX_SECONDS = 20.0

SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
here, there = (os.fsencode(path) for path in sys.argv[1:])
print("ready", flush=True)
while os.getppid() == {parent}:
    for _ in range(1000):
        libc.renameat2(-100, here, -100, there, 2)
"""


SWAPPERS: dict[Path, "subprocess.Popen[bytes]"] = {}


def stop_swapper(ws: Path) -> None:
    SWAPPERS[ws].kill()
    SWAPPERS[ws].wait()


@pytest.fixture(params=["relative", "absolute"])
def ws(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A workspace in which `d` and `l`, a folder and a link to the outside, are swapped continuously."""
    home = tmp_path.resolve()
    for folder, text in (("ws/d", b"inside"), ("outside", SECRET)):
        (home / folder).mkdir(parents=True)
        (home / folder / "f").write_bytes(text)
    (home / "ws/l").symlink_to("../outside" if request.param == "relative" else home / "outside")
    command = [sys.executable, "-S", "-c", SWAPPER.replace("{parent}", str(os.getpid()))]
    with subprocess.Popen([*command, home / "ws/d", home / "ws/l"], stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        SWAPPERS[home / "ws"] = swapper
        try:
            yield home / "ws"
        finally:
            SWAPPERS.pop(home / "ws").kill()


def count_outcomes(read: Callable[[], bytes], *required: str) -> Counter[str]:
    """Call the function repeatedly and count the outcomes, on a busy machine until each required one was seen."""
    counts: Counter[str] = Counter()
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < SECONDS or (
        elapsed < MAX_SECONDS and not counts.keys() >= {*required}
    ):
        try:
            counts["escaped" if read() == SECRET else "inside"] += 1
        except OutOfScope:
            counts["refused"] += 1
        except (RetinueError, OSError):
            counts["failed"] += 1
    return counts


def read_by_name_check(ws: Path) -> bytes:
    """Read the file after comparing only its name with the workspace, which is unsafe."""
    name = os.path.normpath(ws / "d/f")
    if not name.startswith(f"{ws}/"):
        raise OutOfScope(name)
    return Path(name).read_bytes()


@pytest.mark.parametrize("opener", [best_opener(), walk_open], ids=["kernel", "walk"])
def test_a_swap_between_check_and_open_never_reads_outside(ws: Path, opener: Opener):
    """Shows: F06."""
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), root=str(ws)), opener=opener)
    counts = count_outcomes(lambda: files.read("d/f").data, "inside", "refused")
    assert counts["escaped"] == 0
    assert counts["inside"] > 0
    assert counts["refused"] > 0


def test_the_swap_reaches_the_secret_when_only_names_are_compared(ws: Path):
    assert count_outcomes(lambda: read_by_name_check(ws), "escaped")["escaped"] > 0


def test_a_walk_never_follows_the_swapped_link(ws: Path):
    """Shows: F06, F20."""
    (ws.parent / "outside/only-outside").touch()
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), root=str(ws)))
    walks = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert all("only-outside" not in path.path for path in files.walk("."))
        walks += 1
    assert walks > 0


def inside_and_outside(ws: Path) -> tuple[set[str], set[str]]:
    """Return the names in the swapped folder, under its current name, and those outside."""
    folder = next(path for path in (ws / "d", ws / "l") if not path.is_symlink())
    return {path.name for path in folder.rglob("*")}, {
        path.name for path in (ws.parent / "outside").rglob("*")
    }


@pytest.mark.parametrize("opener", [best_opener(), walk_open], ids=["kernel", "walk"])
@pytest.mark.parametrize("subfolder", ["", "new/"], ids=["file", "folder"])
def test_a_swap_while_writing_never_creates_a_file_outside(ws: Path, opener: Opener, subfolder: str):
    """Shows: F06, F16."""
    files = GuardedFiles(
        Scope(read=(subtree_pattern(str(ws)),), write=(subtree_pattern(str(ws)),), root=str(ws)),
        opener=opener,
    )
    counter = iter(range(10**9))

    def write() -> bytes:
        return files.write(f"d/{subfolder}{next(counter)}", b"mine").real_path.encode()

    counts = count_outcomes(write, "inside", "refused")
    stop_swapper(ws)
    inside, outside = inside_and_outside(ws)
    assert outside == {"f"}
    assert (ws.parent / "outside/f").read_bytes() == SECRET
    assert counts["inside"] > 0
    assert counts["refused"] > 0
    assert not [name for name in inside if name.startswith(".retinue-")]
    assert len(inside - {"f", "new"}) >= counts["inside"]


def test_a_swap_while_replacing_a_file_never_changes_the_file_outside(ws: Path):
    """Shows: F06."""
    files = GuardedFiles(
        Scope(read=(subtree_pattern(str(ws)),), write=(subtree_pattern(str(ws)),), root=str(ws))
    )

    def write() -> bytes:
        return files.write("d/f", b"mine").real_path.encode()

    assert count_outcomes(write, "inside", "refused")["inside"] > 0
    assert (ws.parent / "outside/f").read_bytes() == SECRET


def test_the_swap_creates_files_outside_when_only_names_are_compared(ws: Path):
    counter = iter(range(10**9))

    def write() -> bytes:
        name = os.path.normpath(ws / f"d/{next(counter)}")
        if not name.startswith(f"{ws}/"):
            raise OutOfScope(name)
        Path(name).write_bytes(b"mine")
        return b"" if not (ws.parent / "outside" / Path(name).name).exists() else SECRET

    assert count_outcomes(write, "escaped")["escaped"] > 0
