"""The guard of files while a folder is swapped with a link that leads out, as fast as another process can."""

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
PATIENCE = 20.0

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


def stopped(ws: Path) -> None:
    SWAPPERS[ws].kill()
    SWAPPERS[ws].wait()


@pytest.fixture(params=["relative", "absolute"])
def ws(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """`d` is a folder at one moment and a link to the outside at the next."""
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


def outcomes(read: Callable[[], bytes], *wanted: str) -> Counter[str]:
    """Reads for a while, and on a machine too busy to race for so long until each wanted outcome was seen."""
    seen: Counter[str] = Counter()
    start = time.monotonic()
    while (past := time.monotonic() - start) < SECONDS or (past < PATIENCE and not seen.keys() >= {*wanted}):
        try:
            seen["escaped" if read() == SECRET else "inside"] += 1
        except OutOfScope:
            seen["refused"] += 1
        except (RetinueError, OSError):
            seen["failed"] += 1
    return seen


def by_prefix(ws: Path) -> bytes:
    """The control: the name is compared, and then opened."""
    name = os.path.normpath(ws / "d/f")
    if not name.startswith(f"{ws}/"):
        raise OutOfScope(name)
    return Path(name).read_bytes()


@pytest.mark.parametrize("opener", [best_opener(), walk_open], ids=["kernel", "walk"])
def test_a_swap_between_look_and_open_never_leads_out(ws: Path, opener: Opener):
    """Shows: F06."""
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), root=str(ws)), opener=opener)
    seen = outcomes(lambda: files.read("d/f").data, "inside", "refused")
    assert seen["escaped"] == 0
    assert seen["inside"] > 0
    assert seen["refused"] > 0


def test_the_race_is_real_for_a_guard_that_compares_names(ws: Path):
    assert outcomes(lambda: by_prefix(ws), "escaped")["escaped"] > 0


def test_a_walk_never_looks_into_the_link(ws: Path):
    """Shows: F06, F20."""
    (ws.parent / "outside/only-outside").touch()
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), root=str(ws)))
    walks = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert all("only-outside" not in one.path for one in files.walk("."))
        walks += 1
    assert walks > 0


def inside_and_outside(ws: Path) -> tuple[set[str], set[str]]:
    """What lies in the folder that is swapped, whatever its name is just now, and what lies outside."""
    folder = next(one for one in (ws / "d", ws / "l") if not one.is_symlink())
    return {one.name for one in folder.rglob("*")}, {one.name for one in (ws.parent / "outside").rglob("*")}


@pytest.mark.parametrize("opener", [best_opener(), walk_open], ids=["kernel", "walk"])
@pytest.mark.parametrize("below_it", ["", "new/"], ids=["file", "folder"])
def test_a_swap_while_writing_never_makes_a_file_outside(ws: Path, opener: Opener, below_it: str):
    """Shows: F06, F16."""
    files = GuardedFiles(
        Scope(read=(subtree_pattern(str(ws)),), write=(subtree_pattern(str(ws)),), root=str(ws)),
        opener=opener,
    )
    numbers = iter(range(10**9))

    def write() -> bytes:
        return files.write(f"d/{below_it}{next(numbers)}", b"mine").real_path.encode()

    seen = outcomes(write, "inside", "refused")
    stopped(ws)
    inside, outside = inside_and_outside(ws)
    assert outside == {"f"}
    assert (ws.parent / "outside/f").read_bytes() == SECRET
    assert seen["inside"] > 0
    assert seen["refused"] > 0
    assert not [name for name in inside if name.startswith(".retinue-")]
    assert len(inside - {"f", "new"}) >= seen["inside"]


def test_a_swap_while_a_file_is_replaced_never_touches_the_one_outside(ws: Path):
    """Shows: F06."""
    files = GuardedFiles(
        Scope(read=(subtree_pattern(str(ws)),), write=(subtree_pattern(str(ws)),), root=str(ws))
    )

    def write() -> bytes:
        return files.write("d/f", b"mine").real_path.encode()

    assert outcomes(write, "inside", "refused")["inside"] > 0
    assert (ws.parent / "outside/f").read_bytes() == SECRET


def test_the_race_is_real_for_a_writer_that_compares_names(ws: Path):
    numbers = iter(range(10**9))

    def write() -> bytes:
        name = os.path.normpath(ws / f"d/{next(numbers)}")
        if not name.startswith(f"{ws}/"):
            raise OutOfScope(name)
        Path(name).write_bytes(b"mine")
        return b"" if not (ws.parent / "outside" / Path(name).name).exists() else SECRET

    assert outcomes(write, "escaped")["escaped"] > 0
