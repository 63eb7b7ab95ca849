"""GuardedFiles with random paths in random trees of files and links, checked against an independent oracle.

`FOREST_PATHS=200000 scripts/test -s tests/contract/test_guarded_files_random_trees.py` tries more paths and prints the counts.
"""

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from retinue.domain.ceiling import Ceiling
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.files.openat2 import best_opener, walk_open

PATHS = int(os.environ.get("FOREST_PATHS", "3000"))
TREES = max(1, PATHS // 1_500)
OPENERS = {"kernel": best_opener(), "walk": walk_open}
NAMES = ("a", "b", "c", "d", "e", ".env", ".git", ".ENV", "node_modules")
INSIDE, OUTSIDE = b"inside", b"OUTSIDE"

pytestmark = pytest.mark.timeout(3600 if PATHS > 3000 else 60)


def make_random_tree(home: Path, rng: random.Random) -> Path:
    """Create folders, files and links inside and outside a workspace; links are relative or absolute and lead anywhere."""
    ws = home / "ws"
    folders = [ws, home / "out", home / "ws2"]
    for folder in folders:
        folder.mkdir()
    for _ in range(14):
        path = rng.choice(folders) / rng.choice(NAMES)
        if not path.exists():
            path.mkdir()
            folders.append(path)
    for _ in range(60):
        path = rng.choice(folders) / rng.choice(NAMES)
        if path.exists() or path.is_symlink():
            continue
        if rng.random() < 0.5:
            path.write_bytes(INSIDE if is_allowed(str(path), ws) else OUTSIDE)
        else:
            path.symlink_to(random_link_target(rng, folders, path))
    return ws


def random_link_target(rng: random.Random, folders: list[Path], link: Path) -> str:
    target = rng.choice(folders) / rng.choice((*NAMES, "."))
    return str(target) if rng.random() < 0.4 else os.path.relpath(target, link.parent)


def random_path(rng: random.Random, ws: Path) -> str:
    start = rng.choice(("", "", "", "./", f"{ws}/", f"{ws.parent}/", "/", "../", f"{ws}2/"))
    parts = [
        rng.choice((*NAMES, *NAMES[:5] * 3, "..", "..", ".", "", "ws", "out"))
        for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6)))
    ]
    return start + "/".join(parts) + rng.choice(("", "", "", "/", "/."))


def is_allowed(real: str, ws: Path) -> bool:
    """Return the oracle's answer: the real path is below the workspace, and none of its parts is denied in any case."""
    relative = real.removeprefix(f"{ws}/")
    parts = relative.casefold().split("/")
    return relative != real and not {".git", "node_modules"} & {*parts} and parts[-1] != ".env"


def folder_contents(*folders: Path) -> dict[str, bytes | str]:
    return {
        str(entry): os.readlink(entry) if entry.is_symlink() else entry.read_bytes()  # noqa: PTH115  (a str, not a Path)
        for folder in folders
        for entry in folder.rglob("*")
        if entry.is_symlink() or entry.is_file()
    }


@pytest.mark.parametrize("opener", OPENERS)
def test_only_paths_that_the_oracle_allows_are_read(
    tmp_path: Path, opener: str, capsys: pytest.CaptureFixture[str]
):
    """Shows: F01, F03, F05, F12."""
    counts: Counter[str] = Counter()
    for number in range(TREES):
        rng = random.Random(number)
        home = tmp_path.resolve() / str(number)
        home.mkdir()
        ws = make_random_tree(home, rng)
        files = GuardedFiles(
            Scope(read=(subtree_pattern(str(ws)),), deny=DEFAULT_DENIED_PATHS, root=str(ws)),
            opener=OPENERS[opener],
        )
        for _ in range(PATHS // TREES):
            path = random_path(rng, ws)
            try:
                opened = files.read(path)
            except OutOfScope:
                counts["refused"] += 1
            except Failed:
                counts["failed"] += 1
            else:
                assert opened.data == INSIDE, path
                assert opened.real_path == os.path.realpath(ws / path), path
                assert is_allowed(opened.real_path, ws), path
                counts["read"] += 1
    assert counts["read"] > PATHS // 100
    with capsys.disabled():
        sys.stdout.write(f"\n{PATHS:,} random paths read ({opener}): 0 escapes, {dict(counts)}\n")


@pytest.mark.parametrize("opener", OPENERS)
def test_only_paths_that_the_oracle_allows_are_written(
    tmp_path: Path, opener: str, capsys: pytest.CaptureFixture[str]
):
    """Shows: F01, F03, F05, F12, F15, F16."""
    counts: Counter[str] = Counter()
    for number in range(TREES):
        rng = random.Random(-1 - number)
        home = tmp_path.resolve() / str(number)
        home.mkdir()
        ws = make_random_tree(home, rng)
        before = folder_contents(home)
        written_paths: set[str] = set()
        files = GuardedFiles(
            Scope(
                read=(subtree_pattern(str(ws)),),
                write=(subtree_pattern(str(ws)),),
                deny=DEFAULT_DENIED_PATHS,
                root=str(ws),
            ),
            opener=OPENERS[opener],
        )
        for _ in range(PATHS // TREES):
            path = random_path(rng, ws)
            expected = os.path.realpath(ws / path)
            try:
                written = files.write(path, INSIDE)
            except OutOfScope:
                counts["refused"] += 1
            except Failed:
                counts["failed"] += 1
            else:
                assert written.real_path == expected, path
                assert is_allowed(written.real_path, ws), path
                written_paths.add(written.real_path)
                counts["written"] += 1
        after = folder_contents(home)
        assert {name: after[name] for name in before if name not in written_paths} == {
            name: data for name, data in before.items() if name not in written_paths
        }
        assert after.keys() - before.keys() == written_paths - before.keys()
    assert counts["written"] > PATHS // 100
    with capsys.disabled():
        sys.stdout.write(f"\n{PATHS:,} random paths written ({opener}): 0 escapes, {dict(counts)}\n")


def test_a_child_with_all_paths_allowed_stays_within_its_parents_ceiling(tmp_path: Path):
    """Shows: F19."""
    ws = make_random_tree(tmp_path.resolve(), random.Random(1))
    (ws / "plain").write_bytes(INSIDE)
    (ws.parent / "out/plain").write_bytes(OUTSIDE)
    parent_ceiling = Ceiling(set_by="parent", read=(subtree_pattern(str(ws)), "/tmp/**"), write=("/tmp/**",))
    child = GuardedFiles(
        Scope(
            read=("/**",),
            write=("/**",),
            root=str(ws),
            ceilings=(parent_ceiling,),
            tmp_folder=str(ws.parent / "home/tmp/1"),
        )
    )
    assert child.read("plain").data == INSIDE
    for path in (str(ws.parent / "out/plain"), "../out/plain", "/etc/passwd"):
        with pytest.raises(RetinueError):
            child.read(path)
    with pytest.raises(OutOfScope, match="the ceiling of parent allows no write access"):
        child.write("plain", OUTSIDE)


def test_the_git_folder_with_its_history_is_denied(tmp_path: Path):
    """Shows: F23."""
    ws = tmp_path.resolve()
    (ws / ".git/objects/ab").mkdir(parents=True)
    (ws / ".git/objects/ab/cdef").write_bytes(OUTSIDE)
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), deny=DEFAULT_DENIED_PATHS, root=str(ws)))
    for path in (".git/objects/ab/cdef", ".git/HEAD", ".git/packed-refs"):
        with pytest.raises(OutOfScope, match=r"deny \*\*/\.git/\*\*"):
            files.read(path)
    assert list(files.walk(".")) == []
