"""Opening a path below a folder, by the kernel's openat2 and by our own walk: both give the same result."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.sandbox.files.openat2 import Opener, best_opener, walk_open

READ = os.O_RDONLY | os.O_NONBLOCK
PATH = os.O_PATH


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    ws = tmp_path / "ws"
    (ws / "a/b").mkdir(parents=True)
    (ws / "a/b/f").write_text("f")
    (tmp_path / "secret").write_text("s")
    for name, target in {
        "in": "a/b", "file": "a/b/f", "out": "../secret", "abs": "/", "loop": "loop", "a/up": "..", "a/b/upup": "../..",
        "far": "a/up/a/up/in/f", "gone": "nowhere",
    }.items():  # fmt: skip
        (ws / name).symlink_to(target)
    fd = os.open(ws, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def open_result(opener: Opener, folder: int, rest: str, flags: int, *, links: bool) -> str:
    """Return the real path of the opened file, or the name of the error."""
    try:
        fd = opener(folder, rest, flags, links)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    finally:
        os.close(fd)


def test_the_best_opener_is_determined_once():
    assert best_opener() is best_opener()


@pytest.mark.parametrize("flags", [READ, READ | os.O_DIRECTORY, PATH, PATH | os.O_DIRECTORY])
@pytest.mark.parametrize("links", [True, False])
def test_both_openers_give_the_same_result_for_every_path(folder: int, flags: int, links: bool):
    rng = random.Random(flags)
    parts = [
        "a",
        "b",
        "f",
        "in",
        "file",
        "out",
        "abs",
        "loop",
        "up",
        "upup",
        "far",
        "gone",
        "..",
        ".",
        "",
        "none",
    ]
    for _ in range(1_500):
        rest = "/".join(rng.choices(parts, k=rng.randint(1, 5))).lstrip("/") or "."
        if rest.endswith(("/", "/.")):
            continue  # the kernel requires a folder here; GuardedFiles never opens such a path
        walk_result, kernel_result = (
            open_result(opener, folder, rest, flags, links=links) for opener in (walk_open, best_opener())
        )
        assert walk_result == kernel_result, rest


def test_both_openers_report_the_same_errors_for_files_loops_and_escapes(folder: int):
    for opener in (walk_open, best_opener()):
        assert open_result(opener, folder, "a/b/f/x", READ, links=True) == "ENOTDIR"
        assert open_result(opener, folder, "loop", READ, links=True) == "ELOOP"
        assert open_result(opener, folder, "a/../..", READ, links=True) == "EXDEV"
        assert open_result(opener, folder, "abs/etc", READ, links=True) == "EXDEV"
        assert open_result(opener, folder, "in", PATH, links=True).endswith("/ws/a/b")
