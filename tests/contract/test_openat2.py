"""Two ways to open below a folder, the kernel's and ours: what one answers, the other answers."""

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


def answer(opener: Opener, folder: int, rest: str, flags: int, *, links: bool) -> str:
    """The real name of what was opened, or the error's."""
    try:
        fd = opener(folder, rest, flags, links)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    finally:
        os.close(fd)


def test_which_way_is_best_is_found_out_once():
    assert best_opener() is best_opener()


@pytest.mark.parametrize("flags", [READ, READ | os.O_DIRECTORY, PATH, PATH | os.O_DIRECTORY])
@pytest.mark.parametrize("links", [True, False])
def test_both_ways_give_the_same_answer_to_every_path(folder: int, flags: int, links: bool):
    chance = random.Random(flags)
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
        rest = "/".join(chance.choices(parts, k=chance.randint(1, 5))).lstrip("/") or "."
        if rest.endswith(("/", "/.")):
            continue  # the kernel insists on a folder there; the guard never asks so
        ours, kernels = (
            answer(opener, folder, rest, flags, links=links) for opener in (walk_open, best_opener())
        )
        assert ours == kernels, rest


def test_a_file_in_the_middle_is_no_folder_and_too_many_links_are_a_circle(folder: int):
    for opener in (walk_open, best_opener()):
        assert answer(opener, folder, "a/b/f/x", READ, links=True) == "ENOTDIR"
        assert answer(opener, folder, "loop", READ, links=True) == "ELOOP"
        assert answer(opener, folder, "a/../..", READ, links=True) == "EXDEV"
        assert answer(opener, folder, "abs/etc", READ, links=True) == "EXDEV"
        assert answer(opener, folder, "in", PATH, links=True).endswith("/ws/a/b")
