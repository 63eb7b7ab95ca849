"""The guard of files against random paths in random forests of links, judged by an oracle that resolves names by itself.

`FOREST_PATHS=200000 scripts/test -s tests/contract/test_guarded_files_random_trees.py` takes the long way and prints what it saw.
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


def forest(home: Path, chance: random.Random) -> Path:
    """Folders, files and links inside and outside of a workspace; links lead anywhere, relative or not."""
    ws = home / "ws"
    folders = [ws, home / "out", home / "ws2"]
    for folder in folders:
        folder.mkdir()
    for _ in range(14):
        new = chance.choice(folders) / chance.choice(NAMES)
        if not new.exists():
            new.mkdir()
            folders.append(new)
    for _ in range(60):
        new = chance.choice(folders) / chance.choice(NAMES)
        if new.exists() or new.is_symlink():
            continue
        if chance.random() < 0.5:
            new.write_bytes(INSIDE if allowed(str(new), ws) else OUTSIDE)
        else:
            new.symlink_to(target(chance, folders, new))
    return ws


def target(chance: random.Random, folders: list[Path], link: Path) -> str:
    goal = chance.choice(folders) / chance.choice((*NAMES, "."))
    return str(goal) if chance.random() < 0.4 else os.path.relpath(goal, link.parent)


def asked(chance: random.Random, ws: Path) -> str:
    start = chance.choice(("", "", "", "./", f"{ws}/", f"{ws.parent}/", "/", "../", f"{ws}2/"))
    parts = [
        chance.choice((*NAMES, *NAMES[:5] * 3, "..", "..", ".", "", "ws", "out"))
        for _ in range(chance.choice((1, 1, 2, 2, 3, 3, 4, 5, 6)))
    ]
    return start + "/".join(parts) + chance.choice(("", "", "", "/", "/."))


def allowed(real: str, ws: Path) -> bool:
    """The oracle: the real name is below the workspace, and no part of it is denied in any case."""
    inner = real.removeprefix(f"{ws}/")
    parts = inner.casefold().split("/")
    return inner != real and not {".git", "node_modules"} & {*parts} and parts[-1] != ".env"


def everything(*folders: Path) -> dict[str, bytes | str]:
    return {
        str(one): os.readlink(one) if one.is_symlink() else one.read_bytes()  # noqa: PTH115  (a text, not a path)
        for folder in folders
        for one in folder.rglob("*")
        if one.is_symlink() or one.is_file()
    }


@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_read_is_what_the_oracle_allows(
    tmp_path: Path, opener: str, capsys: pytest.CaptureFixture[str]
):
    """Shows: F01, F03, F05, F12."""
    seen: Counter[str] = Counter()
    for number in range(TREES):
        chance = random.Random(number)
        home = tmp_path.resolve() / str(number)
        home.mkdir()
        ws = forest(home, chance)
        files = GuardedFiles(
            Scope(read=(subtree_pattern(str(ws)),), deny=DEFAULT_DENIED_PATHS, root=str(ws)),
            opener=OPENERS[opener],
        )
        for _ in range(PATHS // TREES):
            path = asked(chance, ws)
            try:
                opened = files.read(path)
            except OutOfScope:
                seen["refused"] += 1
            except Failed:
                seen["failed"] += 1
            else:
                assert opened.data == INSIDE, path
                assert opened.real_path == os.path.realpath(ws / path), path
                assert allowed(opened.real_path, ws), path
                seen["read"] += 1
    assert seen["read"] > PATHS // 100
    with capsys.disabled():
        sys.stdout.write(f"\n{PATHS:,} random paths read ({opener}): 0 escapes, {dict(seen)}\n")


@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_written_is_where_the_oracle_allows(
    tmp_path: Path, opener: str, capsys: pytest.CaptureFixture[str]
):
    """Shows: F01, F03, F05, F12, F15, F16."""
    seen: Counter[str] = Counter()
    for number in range(TREES):
        chance = random.Random(-1 - number)
        home = tmp_path.resolve() / str(number)
        home.mkdir()
        ws = forest(home, chance)
        before = everything(home)
        made: set[str] = set()
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
            path = asked(chance, ws)
            expected = os.path.realpath(ws / path)
            try:
                written = files.write(path, INSIDE)
            except OutOfScope:
                seen["refused"] += 1
            except Failed:
                seen["failed"] += 1
            else:
                assert written.real_path == expected, path
                assert allowed(written.real_path, ws), path
                made.add(written.real_path)
                seen["written"] += 1
        after = everything(home)
        assert {name: after[name] for name in before if name not in made} == {
            name: data for name, data in before.items() if name not in made
        }
        assert after.keys() - before.keys() == made - before.keys()
    assert seen["written"] > PATHS // 100
    with capsys.disabled():
        sys.stdout.write(f"\n{PATHS:,} random paths written ({opener}): 0 escapes, {dict(seen)}\n")


def test_a_child_told_it_may_read_everything_reads_what_its_parent_could_hand_on(tmp_path: Path):
    """Shows: F19."""
    ws = forest(tmp_path.resolve(), random.Random(1))
    (ws / "plain").write_bytes(INSIDE)
    (ws.parent / "out/plain").write_bytes(OUTSIDE)
    handed = Ceiling(set_by="parent", read=(subtree_pattern(str(ws)), "/tmp/**"), write=("/tmp/**",))
    child = GuardedFiles(
        Scope(
            read=("/**",),
            write=("/**",),
            root=str(ws),
            ceilings=(handed,),
            tmp_folder=str(ws.parent / "home/tmp/1"),
        )
    )
    assert child.read("plain").data == INSIDE
    for path in (str(ws.parent / "out/plain"), "../out/plain", "/etc/passwd"):
        with pytest.raises(RetinueError):
            child.read(path)
    with pytest.raises(OutOfScope, match="the ceiling of parent allows write only in"):
        child.write("plain", OUTSIDE)


def test_what_was_denied_is_not_found_in_the_history_either(tmp_path: Path):
    """Shows: F23."""
    ws = tmp_path.resolve()
    (ws / ".git/objects/ab").mkdir(parents=True)
    (ws / ".git/objects/ab/cdef").write_bytes(OUTSIDE)
    files = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), deny=DEFAULT_DENIED_PATHS, root=str(ws)))
    for path in (".git/objects/ab/cdef", ".git/HEAD", ".git/packed-refs"):
        with pytest.raises(OutOfScope, match=r"deny \*\*/\.git/\*\*"):
            files.read(path)
    assert list(files.walk(".")) == []
