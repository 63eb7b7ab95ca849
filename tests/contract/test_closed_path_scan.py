"""The scan for closed paths before and after a command, and its cache."""

import os
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed
from retinue.sandbox.files.closed_path_scan import PathKind, find_closed_paths
from retinue.sandbox.files.pattern_roots import is_readable

NAMES = st.sampled_from(["a", "b", "AB", "a.key", "Key", "é", "e\u0301", ".env", "[x]", "a b"])
PIECES = st.sampled_from(
    ["a", "b", "AB", "*", "**", "?", "*.key", "[ab]", "[!a]", "a**", "**b", "é", "[x", "x]", ".env", "A*"]
)


@given(
    paths=st.lists(st.lists(NAMES, min_size=1, max_size=4), min_size=1, max_size=8),
    patterns=st.lists(st.lists(PIECES, min_size=1, max_size=4).map("/".join), max_size=4),
    anywhere=st.booleans(),
)
def test_a_scan_finds_exactly_the_outermost_closed_folders(
    paths: list[list[str]], patterns: list[str], anywhere: bool, tmp_path_factory: pytest.TempPathFactory
):
    """The oracle checks every path against the scope."""
    top = tmp_path_factory.mktemp("tree").resolve()
    for parts in paths:
        folder = top.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
    prefix = "**" if anywhere else str(top)
    deny = tuple(f"{prefix}/{pattern}" for pattern in patterns)
    scope = Scope(read=(subtree_pattern(str(top)),), deny=deny, root=str(top))
    assume(is_readable(scope, str(top)))  # the sandbox contains only readable folders
    expected: set[str] = set()
    for folder, inside, _ in os.walk(top):
        for name in list(inside):
            if not is_readable(scope, f"{folder}/{name}"):
                expected.add(f"{folder}/{name}")
                inside.remove(name)
    assert {
        path for path, kind in find_closed_paths(scope, (str(top),)).items() if kind is PathKind.FOLDER
    } == expected


def test_a_changed_folder_is_scanned_again(tmp_path: Path):
    """This holds even if a program restores the modification time."""
    top = tmp_path.resolve()
    (top / "sub").mkdir()
    scope = Scope(read=(subtree_pattern(str(top)),), root=str(top))
    assert find_closed_paths(scope, (str(top),)) == {}
    status = (top / "sub").stat()
    (top / "sub/.bashrc").touch()
    os.utime(top / "sub", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find_closed_paths(scope, (str(top),)) == {f"{top}/sub/.bashrc": PathKind.FILE}
    (top / "sub/.bashrc").rename(top / "sub/fine")
    assert find_closed_paths(scope, (str(top),)) == {}


def test_a_scan_reports_the_kind_of_each_closed_path(tmp_path: Path):
    top = tmp_path.resolve()
    for folder in (".git/hooks", "work", "linked"):
        (top / folder).mkdir(parents=True)
    (top / ".git/config").touch()
    (top / "work/.git").write_text("gitdir: elsewhere")
    (top / "linked/.npmrc").symlink_to("elsewhere")
    os.mkfifo(top / "work/pipe")
    scope = Scope(read=(subtree_pattern(str(top)),), root=str(top))
    assert find_closed_paths(scope, (str(top),)) == {
        f"{top}/.git/hooks": PathKind.FOLDER,
        f"{top}/.git/config": PathKind.FILE,
        f"{top}/work/.git": PathKind.PROTECTED,
        f"{top}/linked/.npmrc": PathKind.LINK,
        f"{top}/work/pipe": PathKind.PIPE,
    }


def test_a_scan_of_too_many_entries_fails(tmp_path: Path):
    for number in range(4):
        (tmp_path / str(number)).touch()
    scope = Scope(read=(subtree_pattern(str(tmp_path)),), root=str(tmp_path))
    with pytest.raises(Failed, match="smaller folder"):
        find_closed_paths(scope, (str(tmp_path),), limit=3)
