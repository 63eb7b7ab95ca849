"""The guard of files at its edges: every sentence as it is said, and what is exchanged between a look and a deed."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.agent import PathPatterns
from retinue.domain.ceiling import OPERATOR, Ceiling
from retinue.domain.permissions.scope import NO_SCOPE_RULE, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.sandbox.files.guarded_files import MAX_NEW_FOLDERS, GuardedFiles
from retinue.sandbox.files.hardlinks import can_be_denied
from retinue.sandbox.files.openat2 import best_opener


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path.resolve() / "ws"
    (ws / "src/deep").mkdir(parents=True)
    (ws / "src/app.py").write_text("app\n")
    (ws / "readme.md").write_text("inside\n")
    return ws


def scope(ws: Path, **more: Any) -> Scope:
    trees = (subtree_pattern(str(ws)),)
    everything: dict[str, Any] = {"read": trees, "write": trees, "root": str(ws), **more}
    return Scope(**everything)


def guarded(ws: Path, **more: Any) -> GuardedFiles:
    return GuardedFiles(scope(ws, **more))


def may(ws: Path, wish: str) -> str:
    return f"You may {wish} {ws}/**; denied: nothing."


class Meddler:
    """An opener that does something else just before, or just after, one of its lookups."""

    def __init__(
        self, at: str, deed: Callable[[], object], *, after: bool = False, links: bool = True
    ) -> None:
        self.at, self.deed, self.after, self.links = at, deed, after, links
        self.real = best_opener()

    def __call__(self, folder: int, path: str, flags: int, links: bool) -> int:
        mine = path == self.at and links is self.links
        if mine and not self.after:
            self.deed()
        fd = self.real(folder, path, flags, links)
        if mine and self.after:
            self.deed()
        return fd


def in_a_child(work: Callable[[], object], *, on: str, name: str, deed: Callable[[], object]) -> str:
    """What the work raised in a process in which a deed is done in the moment before one call of the system."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        done: list[str] = []

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == on and not done and str(args[0]).startswith(name):
                done.append(name)
                deed()

        sys.addaudithook(hook)
        try:
            work()
            said = "nothing"
        except RetinueError as error:
            said = str(error)
        except BaseException:  # noqa: BLE001  (it is told to the test)
            said = traceback.format_exc()
        os.write(writing, json.dumps(said if done else "the moment never came").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(pid, 0)
    return str(json.loads(said))


def open_here() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("path", [".", "src/.", "src/", "/", "..", "src/..", "./."])
def test_a_path_that_names_a_folder_is_said_to_before_anything_is_looked_at(ws: Path, path: str):
    with pytest.raises(Failed) as failed:
        guarded(ws).write(path, b"x")
    assert str(failed.value) == f"{path} names a folder: name a file"


def test_what_stands_there_and_is_no_file_is_named(ws: Path):
    os.mkfifo(ws / "fifo")
    reader = os.open(ws / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path, said in (("src", "src is a folder: name a file"), ("fifo", "fifo is not a regular file")):
            with pytest.raises(Failed) as failed:
                guarded(ws).write(path, b"x")
            assert str(failed.value) == said
    finally:
        os.close(reader)
    assert (ws / "fifo").is_fifo()


def test_a_name_that_no_file_can_have_is_told_before_it_is_written(ws: Path):
    with pytest.raises(Failed, match="is too long"):
        guarded(ws).check_access("n" * 300, "write")


def test_each_refusal_to_write_names_its_rule_and_what_may_be_written(ws: Path):
    (ws / "nowhere").symlink_to("src/none")
    (ws / "out").symlink_to("..")
    (ws / "nodir").symlink_to("src/nodir")
    (ws.parent / "outside").touch()
    (ws / "far").symlink_to("../outside")
    nowhere = "it goes through a link that leads nowhere, and nothing is made through a link"
    for path, rule in (
        ("nowhere", nowhere),
        ("nodir/x", nowhere),
        ("out/x", "it leads out of the folder you may write"),
        ("far", "it leads out of the folder you may write"),
        ("/elsewhere/x", "nothing allows write"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded(ws).write(path, b"x")
        assert str(refused.value) == f"{path} is not in your scope ({rule}). {may(ws, 'write')}"
        assert (refused.value.error, refused.value.resource) == ("out_of_scope", path)
    with pytest.raises(OutOfScope) as refused:
        guarded(ws).restrict_writes_to(f"{ws}/src/app.py").write("other", b"x")
    assert str(refused.value).endswith(
        f"({'a person allowed ' + str(ws)}/src/app.py and nothing else). {may(ws, 'write')}"
    )


def test_each_refusal_to_read_names_its_rule_and_what_may_be_read(ws: Path):
    (ws / "out").symlink_to("..")
    for path, rule in (
        ("/elsewhere/x", "nothing allows read"),
        ("out/x", "it leads out of the folder you may read"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded(ws).read(path)
        assert str(refused.value) == f"{path} is not in your scope ({rule}). {may(ws, 'read')}"


def test_a_refusal_names_the_ceilings_that_say_something_and_the_lost_scope(ws: Path):
    ceilings = tuple(Ceiling(set_by=OPERATOR, read=read) for read in ((f"{ws}/a/**",), None, (f"{ws}/b/**",)))
    for configured, error in ((True, "out_of_scope"), (False, NO_SCOPE_RULE)):
        with pytest.raises(OutOfScope) as refused:
            guarded(ws, ceilings=ceilings, has_paths=configured).read("readme.md")
        assert f", within {ws}/a/**, within {ws}/b/**; denied: nothing." in str(refused.value)
        assert refused.value.error == error


def test_a_refusal_holds_what_a_person_allowed_only_to_the_operators_ceiling(ws: Path):
    above, operator = (
        Ceiling(set_by="main-20261115184000", read=()),
        Ceiling(set_by=OPERATOR, read=("/srv/**",)),
    )
    for lifted, ceilings, said in (
        (("/**",), (above,), "/**, /tmp/**; denied:"),
        (("/**",), (operator, above), "/**, within /srv/**, and /tmp/**; denied:"),
        (None, (above,), "/**, within nothing, and /tmp/**; denied:"),
    ):
        files = guarded(
            ws,
            read=("/**", "/tmp/**"),
            deny=("**/x",),
            tmp_folder="/nowhere",
            ceilings=ceilings,
            user_grants=PathPatterns(read=lifted),
        )
        with pytest.raises(OutOfScope) as refused:
            files.read("/etc/x")
        assert f"You may read {said}" in str(refused.value)


def test_a_folder_that_would_have_to_be_made_is_judged_by_its_own_name(ws: Path):
    """In whichever form the name is written."""
    for rule, name, said in (
        ("secret", "secret", "deny **/secret"),
        ("caf\u00e9", "cafe\u0301", "denied"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded(ws, deny=(f"**/{rule}",)).write(f"new/{name}/x", b"x")
        assert f"({said}). You may write {ws}/**" in str(refused.value)
    assert not (ws / "new").exists()


def test_a_read_only_workspace_without_a_label_is_named_by_its_folder(ws: Path):
    for root, label in ((str(ws), "ws"), ("/", "/")):
        with pytest.raises(OutOfScope) as refused:
            guarded(ws, root=root, writable=False).write(f"{ws}/x", b"x")
        assert str(refused.value) == f'Workspace "{label}" is read-only. Cannot perform write.'
        assert refused.value.error == "read_only"


def test_other_names_of_a_file_are_counted_for_files_and_nowhere_else(ws: Path):
    """A folder has as many names as it has folders; what an agent links in its own /tmp is its own."""
    own = ws.parent / "own"
    own.mkdir()
    (own / "a").write_text("mine")
    os.link(own / "a", own / "b")
    os.link(ws / "readme.md", ws / "again")
    files = guarded(
        ws,
        tmp_folder=str(own),
        read=(subtree_pattern(str(ws)), "/tmp/**"),
        write=(f"{ws}/src/**", f"{ws}/again"),
    )
    assert files.check_access("src", "read") == f"{ws}/src"
    assert files.read("/tmp/a").data == b"mine"
    with pytest.raises(OutOfScope) as refused:
        files.read("again")
    assert "such a file is not read. A copy of it would be." in str(refused.value)
    assert refused.value.allowed == files.scope.read
    with pytest.raises(OutOfScope) as refused:
        files.write("again", b"x")
    assert "such a file is not written. A copy of it would be." in str(refused.value)
    assert refused.value.allowed == files.scope.write


@pytest.mark.parametrize("folder", ["node_modules", "site-packages", "dist-packages", ".venv", "venv"])
def test_files_of_installers_are_read_whatever_their_other_names_are(ws: Path, folder: str):
    (ws / folder).mkdir()
    os.link(ws / "readme.md", ws / folder / "x")
    assert guarded(ws).read(f"{folder}/x").data == b"inside\n"


def test_so_are_those_of_the_system(ws: Path):
    denied = scope(ws, deny=("**/.env",))
    places = ["/usr/lib/x", "/opt/tool/x", "/nix/store/abc/x", "/srv/x", f"{ws}/x"]
    assert [can_be_denied(denied, place) for place in places] == [False, False, False, True, True]


def test_missing_folders_and_dots_on_the_way_to_a_file(ws: Path):
    """What `..` means after a folder that is not there, nobody knows."""
    files = guarded(ws)
    for path in ("none/../x", "src/none/../../x", "none/../../ws/x"):
        with pytest.raises(RetinueError):
            files.write(path, b"x")
    with pytest.raises(Failed, match=r"no such file: none/\.\./x"):
        files.write("none/../x", b"x")
    assert sorted(path.name for path in ws.iterdir()) == ["readme.md", "src"]
    assert files.write("src/../none/x", b"x").real_path == f"{ws}/none/x"
    assert files.write("dir~/new~/x", b"x").real_path == f"{ws}/dir~/new~/x"
    assert files.write("dir~/y", b"x").real_path == f"{ws}/dir~/y"
    assert files.write("dir~/more/y", b"x").is_new


def test_as_many_folders_as_may_be_are_made_and_not_one_more(ws: Path):
    files = guarded(ws)
    assert files.write("/".join(["a"] * MAX_NEW_FOLDERS) + "/x", b"x").is_new
    with pytest.raises(Failed, match=f"more than {MAX_NEW_FOLDERS} folders would have to be made"):
        files.write("b/" + "/".join(["a"] * MAX_NEW_FOLDERS) + "/x", b"x")
    assert not (ws / "b").exists()


def test_a_missing_place_is_refused_where_it_could_not_be_used_and_missing_where_it_could(ws: Path):
    narrow = guarded(ws, write=(f"{ws}/out/**",))
    with pytest.raises(OutOfScope, match="nothing allows write"):
        narrow.write("src/none/../x", b"x")
    with pytest.raises(Failed, match="no such file: sub "):
        guarded(ws, read=(f"{ws}/sub/deep/*.md",)).read("sub")
    with pytest.raises(Failed, match=r"no such file: none/readme\.md .* use write to make it"):
        guarded(ws).write("none/readme.md", b"x", expected=b"inside\n")


def test_the_nearest_name_is_one_and_stands_where_it_was_looked_for(ws: Path):
    for name in ("one1.py", "one2.py"):
        (ws / "src" / name).touch()
    for path, near in (("readme.mx", "readme.md"), ("src/ap.py", "src/app.py"), ("/us", "/usr")):
        with pytest.raises(Failed) as failed:
            guarded(ws, read=("/**",)).read(path)
        assert str(failed.value) == f"no such file: {path} (in {ws}); did you mean {near}?"
    with pytest.raises(Failed) as failed:
        guarded(ws).read("src/one.py")
    assert str(failed.value).count("did you mean") == 1


def test_a_file_that_is_walked_is_told_as_a_file(ws: Path):
    (found,) = guarded(ws).walk("readme.md")
    assert (found.path, found.kind, found.size) == (".", "file", 7)


def test_the_last_byte_of_what_tells_no_size_is_read(ws: Path):
    everything = Scope(read=("/proc/**",), closed_paths=(), root=str(ws))
    whole = Path("/proc/version").read_bytes()
    for most in (1, 2, 3, len(whole), len(whole) + 1):
        assert GuardedFiles(everything).read("/proc/version", max_bytes=most).data == whole[:most]


def test_what_cannot_be_read_although_it_is_open_is_a_sentence(ws: Path):
    def writing(folder: int, path: str, flags: int, links: bool) -> int:
        return os.open(path, os.O_WRONLY, dir_fd=folder)

    with pytest.raises(Failed) as failed:
        GuardedFiles(scope(ws), opener=writing).read("readme.md")
    assert str(failed.value) == "readme.md cannot be read: Bad file descriptor"


def test_what_loses_its_name_while_it_is_opened_is_refused(ws: Path):
    (ws / "inner").symlink_to("src/app.py")

    def gone() -> None:
        (ws / "src/app.py").unlink()

    for path, wish in (("inner", "write"), ("src/app.py", "read")):
        (ws / "src/app.py").write_text("again")
        files = GuardedFiles(scope(ws), opener=Meddler(path, gone, after=True))
        with pytest.raises(OutOfScope) as refused:
            files.write(path, b"x") if wish == "write" else files.read(path)
        assert str(refused.value) == f"{path} is not in your scope (it has no name any more). {may(ws, wish)}"
    files = GuardedFiles(scope(ws), opener=Meddler("src/deep", (ws / "src/deep").rmdir, after=True))
    with pytest.raises(OutOfScope) as refused:
        files.write("src/deep/x", b"x")
    assert (
        str(refused.value) == f"src/deep/x is not in your scope (it has no name any more). {may(ws, 'write')}"
    )


def test_a_link_is_followed_once_and_what_becomes_one_meanwhile_is_refused(ws: Path):
    (ws / "src/deep/x").write_text("x")
    (ws / "inner").symlink_to("src/deep/x")
    assert guarded(ws).write("inner", b"new").real_path == f"{ws}/src/deep/x"
    (ws / "other").mkdir()

    def file_becomes_a_link() -> None:
        (ws / "src/deep/x").unlink()
        (ws / "src/deep/x").symlink_to("../../readme.md")

    files = GuardedFiles(scope(ws), opener=Meddler("src/deep", file_becomes_a_link, links=False))
    with pytest.raises(OutOfScope) as refused:
        files.write("inner", b"evil")
    assert (
        str(refused.value) == f"inner is not in your scope (it became a link meanwhile). {may(ws, 'write')}"
    )
    (ws / "src/deep/x").unlink()
    (ws / "src/deep/x").write_text("x")

    def folder_becomes_a_link() -> None:
        (ws / "src/deep").rename(ws / "src/was")
        (ws / "src/deep").symlink_to("../other")

    files = GuardedFiles(scope(ws), opener=Meddler("src/deep", folder_becomes_a_link, links=False))
    with pytest.raises(RetinueError):
        files.write("inner", b"evil")
    assert list((ws / "other").iterdir()) == []
    assert (ws / "readme.md").read_text() == "inside\n"


def test_a_folder_that_is_moved_while_others_are_made_in_it_gets_no_file(ws: Path):
    said = in_a_child(
        lambda: guarded(ws).write("a/b/x", b"x"),
        on="open", name="b", deed=lambda: (ws / "a").rename(ws / "src/a"),
    )  # fmt: skip
    assert said == f"a/b/x is not in your scope (its folder was moved meanwhile). {may(ws, 'write')}"
    assert not (ws / "src/a/b/x").exists()


@pytest.mark.parametrize("deed", ["changed", "removed", "replaced"])
def test_what_changes_between_the_comparison_and_the_rename_is_not_overwritten(ws: Path, deed: str):
    def meddle() -> None:
        if deed == "changed":
            (ws / "readme.md").write_text("theirs\n")
        else:
            (ws / "readme.md").unlink()
        if deed == "replaced":
            (ws / "readme.md").write_text("inside\n")

    said = in_a_child(
        lambda: guarded(ws).write("readme.md", b"mine", expected=b"inside\n"),
        on="open", name=".retinue-", deed=meddle,
    )  # fmt: skip
    assert said.startswith("readme.md was changed by someone else meanwhile")
    left = {"changed": "theirs\n", "replaced": "inside\n"}.get(deed)
    assert ((ws / "readme.md").read_text() if (ws / "readme.md").exists() else None) == left
    assert sorted(path.name for path in ws.iterdir() if path.name.startswith(".retinue")) == []


def test_a_large_file_is_compared_to_its_end_and_nothing_stays_open(ws: Path):
    large = os.urandom(1_000_000) + b"x" * 1_500_000
    (ws / "large").write_bytes(large)
    files = guarded(ws)
    with pytest.raises(Failed, match="changed by someone else"):
        files.write("large", b"new", expected=large[:-1] + b"y")
    opened = open_here()
    files.write("large", large + b"z", expected=large)
    files.write("large", b"new", expected=large + b"z")
    assert open_here() == opened
    assert (ws / "large").read_bytes() == b"new"


def test_a_new_file_has_the_rights_of_any_new_file(ws: Path):
    guarded(ws).write("new", b"x")
    (ws / "plain").touch()
    assert (ws / "new").stat().st_mode == (ws / "plain").stat().st_mode


def test_a_tmp_that_is_only_written_is_made_when_it_is_needed(ws: Path):
    own = ws.parent / "not/there/yet"
    files = guarded(ws, tmp_folder=str(own), write=(subtree_pattern(str(ws)), "/tmp/**"))
    assert files.write("/tmp/x", b"x").is_new
    assert (own / "x").read_bytes() == b"x"


def test_a_file_stays_its_owners(ws: Path):
    """Root writes in the place of others; who is not root has only files of their own to replace."""
    me, mine = os.geteuid(), os.getegid()
    owners = [(65534, 65533), (me, 65533), (65534, mine)] if me == 0 else [(me, mine)]
    for owner in owners:
        (ws / "theirs").write_text("x")
        os.chown(ws / "theirs", *owner)
        guarded(ws).write("theirs", b"y")
        status = (ws / "theirs").stat()
        assert (status.st_uid, status.st_gid, (ws / "theirs").read_text()) == (*owner, "y")
        (ws / "theirs").unlink()


def test_patterns_of_tmp_do_not_speak_for_the_machines_tmp(ws: Path):
    """A folder there that another pattern reaches shows what that pattern allows, and no more."""
    own = ws.parent / "own"
    own.mkdir()
    far = Path("/tmp") / f"retinue-edges-{os.getpid()}"
    far.mkdir()
    try:
        (far / "a.md").touch()
        (far / "b.txt").touch()
        wide = replace(scope(ws), read=("/tmp/**", "/**/*.md"), tmp_folder=str(own))
        assert [found.path for found in GuardedFiles(wide).list(str(far))] == ["a.md"]
        assert [found.path for found in GuardedFiles(wide).walk(str(far))] == ["a.md"]
    finally:
        for path in (*far.iterdir(), far):
            path.rmdir() if path.is_dir() else path.unlink()
