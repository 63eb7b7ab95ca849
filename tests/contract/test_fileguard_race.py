"""The guard of files while a folder is swapped with a link that leads out, as fast as another process can."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retinue.domain.rule import below
from retinue.domain.scope import Scope
from retinue.errors import OutOfScope, RetinueError
from retinue.sandbox.fileguard import GuardedFiles
from retinue.sandbox.openat2 import Opener, best_opener, walk_open

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
        try:
            yield home / "ws"
        finally:
            swapper.kill()


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
    files = GuardedFiles(Scope(read=(below(str(ws)),), root=str(ws)), opener=opener)
    seen = outcomes(lambda: files.read("d/f").data, "inside", "refused")
    assert seen["escaped"] == 0
    assert seen["inside"] > 0
    assert seen["refused"] > 0


def test_the_race_is_real_for_a_guard_that_compares_names(ws: Path):
    assert outcomes(lambda: by_prefix(ws), "escaped")["escaped"] > 0


def test_a_walk_never_looks_into_the_link(ws: Path):
    """Shows: F06, F20."""
    (ws.parent / "outside/only-outside").touch()
    files = GuardedFiles(Scope(read=(below(str(ws)),), root=str(ws)))
    walks = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert all("only-outside" not in one.path for one in files.walk("."))
        walks += 1
    assert walks > 0
