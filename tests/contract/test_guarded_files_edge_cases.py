"""GuardedFiles in edge cases: the exact error messages, and changes between a check and the operation."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_processes import open_descriptor_count
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


def make_scope(ws: Path, **overrides: Any) -> Scope:
    trees = (subtree_pattern(str(ws)),)
    fields: dict[str, Any] = {"read": trees, "write": trees, "root": str(ws), **overrides}
    return Scope(**fields)


def guarded_files(ws: Path, **overrides: Any) -> GuardedFiles:
    return GuardedFiles(make_scope(ws, **overrides))


def allowed_text(ws: Path, access: str) -> str:
    return f"You may {access} {ws}/**; denied: nothing."


class InterferingOpener:
    """An opener that runs an action just before, or just after, one of its lookups."""

    def __init__(
        self, path: str, action: Callable[[], object], *, after: bool = False, links: bool = True
    ) -> None:
        self.path, self.action, self.after, self.links = path, action, after, links
        self.opener = best_opener()

    def __call__(self, folder: int, path: str, flags: int, links: bool) -> int:
        interferes = path == self.path and links is self.links
        if interferes and not self.after:
            self.action()
        fd = self.opener(folder, path, flags, links)
        if interferes and self.after:
            self.action()
        return fd


def error_in_child(
    operation: Callable[[], object], *, event: str, name: str, action: Callable[[], object]
) -> str:
    """Return the error of an operation in a forked process, where an action runs just before one audited call."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        done: list[str] = []

        def hook(audited: str, args: tuple[Any, ...]) -> None:
            if audited == event and not done and str(args[0]).startswith(name):
                done.append(name)
                action()

        sys.addaudithook(hook)
        try:
            operation()
            message = "no error"
        except RetinueError as error:
            message = str(error)
        except BaseException:  # noqa: BLE001  (it is reported to the test)
            message = traceback.format_exc()
        os.write(writing, json.dumps(message if done else "the call was never made").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        message = pipe.read()
    os.waitpid(pid, 0)
    return str(json.loads(message))


@pytest.mark.parametrize("path", [".", "src/.", "src/", "/", "..", "src/..", "./."])
def test_a_write_to_a_path_that_names_a_folder_is_refused(ws: Path, path: str):
    with pytest.raises(Failed) as failed:
        guarded_files(ws).write(path, b"x")
    assert str(failed.value) == f"{path} is a folder. Name a file"


def test_a_write_to_a_folder_or_pipe_names_its_kind_in_the_error(ws: Path):
    os.mkfifo(ws / "fifo")
    reader = os.open(ws / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path, message in (
            ("src", "src is a folder. Name a file"),
            ("fifo", "fifo is not a regular file"),
        ):
            with pytest.raises(Failed) as failed:
                guarded_files(ws).write(path, b"x")
            assert str(failed.value) == message
    finally:
        os.close(reader)
    assert (ws / "fifo").is_fifo()


def test_an_access_check_refuses_a_name_that_is_too_long(ws: Path):
    with pytest.raises(Failed, match="is too long"):
        guarded_files(ws).check_access("n" * 300, "write")


def test_each_refusal_to_write_names_its_rule_and_the_writable_paths(ws: Path):
    (ws / "nowhere").symlink_to("src/none")
    (ws / "out").symlink_to("..")
    (ws / "nodir").symlink_to("src/nodir")
    (ws.parent / "outside").touch()
    (ws / "far").symlink_to("../outside")
    dangling = "it contains a symbolic link to a missing target, and files are not created through links"
    for path, rule in (
        ("nowhere", dangling),
        ("nodir/x", dangling),
        ("out/x", "it leads outside the folder you may write"),
        ("far", "it leads outside the folder you may write"),
        ("/elsewhere/x", "nothing allows write"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws).write(path, b"x")
        assert str(refused.value) == f"{path} is not in your scope ({rule}). {allowed_text(ws, 'write')}"
        assert (refused.value.error, refused.value.resource) == ("out_of_scope", path)
    with pytest.raises(OutOfScope) as refused:
        guarded_files(ws).restrict_writes_to(f"{ws}/src/app.py").write("other", b"x")
    assert str(refused.value).endswith(
        f"(the approval covers only {ws}/src/app.py). {allowed_text(ws, 'write')}"
    )


def test_each_refusal_to_read_names_its_rule_and_the_readable_paths(ws: Path):
    (ws / "out").symlink_to("..")
    for path, rule in (
        ("/elsewhere/x", "nothing allows read"),
        ("out/x", "it leads outside the folder you may read"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws).read(path)
        assert str(refused.value) == f"{path} is not in your scope ({rule}). {allowed_text(ws, 'read')}"


def test_a_refusal_names_the_ceilings_that_limit_reading_and_a_missing_scope(ws: Path):
    ceilings = tuple(Ceiling(set_by=OPERATOR, read=read) for read in ((f"{ws}/a/**",), None, (f"{ws}/b/**",)))
    for has_paths, error in ((True, "out_of_scope"), (False, NO_SCOPE_RULE)):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws, ceilings=ceilings, has_paths=has_paths).read("readme.md")
        assert f", within {ws}/a/**, within {ws}/b/**; denied: nothing." in str(refused.value)
        assert refused.value.error == error


def test_paths_that_the_user_granted_are_limited_only_by_the_operators_ceiling(ws: Path):
    parent, operator = (
        Ceiling(set_by="main-20261115184000", read=()),
        Ceiling(set_by=OPERATOR, read=("/srv/**",)),
    )
    for granted, ceilings, allowed in (
        (("/**",), (parent,), "/**, /tmp/**; denied:"),
        (("/**",), (operator, parent), "/**, within /srv/**, and /tmp/**; denied:"),
        (None, (parent,), "/**, within nothing, and /tmp/**; denied:"),
    ):
        files = guarded_files(
            ws,
            read=("/**", "/tmp/**"),
            deny=("**/x",),
            tmp_folder="/nowhere",
            ceilings=ceilings,
            user_grants=PathPatterns(read=granted),
        )
        with pytest.raises(OutOfScope) as refused:
            files.read("/etc/x")
        assert f"You may read {allowed}" in str(refused.value)


def test_a_missing_folder_is_checked_against_the_rules_before_it_is_created(ws: Path):
    """This holds for every unicode form of the name."""
    for rule, name, reason in (
        ("secret", "secret", "deny **/secret"),
        ("caf\u00e9", "cafe\u0301", "denied"),
    ):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws, deny=(f"**/{rule}",)).write(f"new/{name}/x", b"x")
        assert f"({reason}). You may write {ws}/**" in str(refused.value)
    assert not (ws / "new").exists()


def test_a_read_only_workspace_without_a_label_is_named_by_its_folder(ws: Path):
    for root, label in ((str(ws), "ws"), ("/", "/")):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws, root=root, writable=False).write(f"{ws}/x", b"x")
        assert str(refused.value) == f'Workspace "{label}" is read-only. Cannot perform write.'
        assert refused.value.error == "read_only"


def test_hard_links_matter_only_for_files_outside_the_agents_own_tmp(ws: Path):
    """The link count of a folder counts its subfolders, and files in the agent's own /tmp are its own."""
    tmp_folder = ws.parent / "own"
    tmp_folder.mkdir()
    (tmp_folder / "a").write_text("mine")
    os.link(tmp_folder / "a", tmp_folder / "b")
    os.link(ws / "readme.md", ws / "again")
    files = guarded_files(
        ws,
        tmp_folder=str(tmp_folder),
        read=(subtree_pattern(str(ws)), "/tmp/**"),
        write=(f"{ws}/src/**", f"{ws}/again"),
    )
    assert files.check_access("src", "read") == f"{ws}/src"
    assert files.read("/tmp/a").data == b"mine"
    with pytest.raises(OutOfScope) as refused:
        files.read("again")
    assert "so it was not read. A copy of it would be allowed." in str(refused.value)
    assert refused.value.allowed == files.scope.read
    with pytest.raises(OutOfScope) as refused:
        files.write("again", b"x")
    assert "so it was not written. A copy of it would be allowed." in str(refused.value)
    assert refused.value.allowed == files.scope.write


@pytest.mark.parametrize("folder", ["node_modules", "site-packages", "dist-packages", ".venv", "venv"])
def test_a_hard_link_in_a_package_folder_is_readable(ws: Path, folder: str):
    (ws / folder).mkdir()
    os.link(ws / "readme.md", ws / folder / "x")
    assert guarded_files(ws).read(f"{folder}/x").data == b"inside\n"


def test_files_in_system_folders_need_no_hard_link_check(ws: Path):
    denying = make_scope(ws, deny=("**/.env",))
    paths = ["/usr/lib/x", "/opt/tool/x", "/nix/store/abc/x", "/srv/x", f"{ws}/x"]
    assert [can_be_denied(denying, path) for path in paths] == [False, False, False, True, True]


def test_a_dot_dot_after_a_missing_folder_is_refused(ws: Path):
    """The parent of a missing folder is undefined."""
    files = guarded_files(ws)
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


def test_the_number_of_folders_that_one_write_creates_is_limited(ws: Path):
    files = guarded_files(ws)
    assert files.write("/".join(["a"] * MAX_NEW_FOLDERS) + "/x", b"x").is_new
    with pytest.raises(Failed, match=f"more than {MAX_NEW_FOLDERS} folders would have to be created"):
        files.write("b/" + "/".join(["a"] * MAX_NEW_FOLDERS) + "/x", b"x")
    assert not (ws / "b").exists()


def test_a_missing_path_is_reported_as_missing_only_inside_the_scope(ws: Path):
    writes_out_only = guarded_files(ws, write=(f"{ws}/out/**",))
    with pytest.raises(OutOfScope, match="nothing allows write"):
        writes_out_only.write("src/none/../x", b"x")
    with pytest.raises(Failed, match="no such file: sub "):
        guarded_files(ws, read=(f"{ws}/sub/deep/*.md",)).read("sub")
    with pytest.raises(Failed, match=r"no such file: none/readme\.md .* Use write to create it"):
        guarded_files(ws).write("none/readme.md", b"x", expected=b"inside\n")


def test_a_missing_file_error_suggests_one_name_in_the_same_folder(ws: Path):
    for name in ("one1.py", "one2.py"):
        (ws / "src" / name).touch()
    for path, suggestion in (("readme.mx", "readme.md"), ("src/ap.py", "src/app.py"), ("/us", "/usr")):
        with pytest.raises(Failed) as failed:
            guarded_files(ws, read=("/**",)).read(path)
        assert str(failed.value) == f"no such file: {path} (in {ws}); did you mean {suggestion}?"
    with pytest.raises(Failed) as failed:
        guarded_files(ws).read("src/one.py")
    assert str(failed.value).count("did you mean") == 1


def test_a_walk_of_a_file_yields_that_file(ws: Path):
    (entry,) = guarded_files(ws).walk("readme.md")
    assert (entry.path, entry.kind, entry.size) == (".", "file", 7)


def test_a_proc_file_without_a_size_is_read_to_the_last_byte(ws: Path):
    proc_scope = Scope(read=("/proc/**",), closed_paths=(), root=str(ws))
    content = Path("/proc/version").read_bytes()
    for limit in (1, 2, 3, len(content), len(content) + 1):
        assert GuardedFiles(proc_scope).read("/proc/version", max_bytes=limit).data == content[:limit]


def test_a_read_error_after_opening_becomes_a_readable_message(ws: Path):
    def open_for_writing(folder: int, path: str, flags: int, links: bool) -> int:
        return os.open(path, os.O_WRONLY, dir_fd=folder)

    with pytest.raises(Failed) as failed:
        GuardedFiles(make_scope(ws), opener=open_for_writing).read("readme.md")
    assert str(failed.value) == "readme.md cannot be read: Bad file descriptor"


def test_a_file_that_is_deleted_while_it_is_opened_is_refused(ws: Path):
    (ws / "inner").symlink_to("src/app.py")

    def delete_file() -> None:
        (ws / "src/app.py").unlink()

    for path, access in (("inner", "write"), ("src/app.py", "read")):
        (ws / "src/app.py").write_text("again")
        files = GuardedFiles(make_scope(ws), opener=InterferingOpener(path, delete_file, after=True))
        with pytest.raises(OutOfScope) as refused:
            files.write(path, b"x") if access == "write" else files.read(path)
        assert (
            str(refused.value)
            == f"{path} is not in your scope (it was deleted or moved). {allowed_text(ws, access)}"
        )
    files = GuardedFiles(
        make_scope(ws), opener=InterferingOpener("src/deep", (ws / "src/deep").rmdir, after=True)
    )
    with pytest.raises(OutOfScope) as refused:
        files.write("src/deep/x", b"x")
    assert (
        str(refused.value)
        == f"src/deep/x is not in your scope (it was deleted or moved). {allowed_text(ws, 'write')}"
    )


def test_a_link_is_resolved_once_and_a_path_that_becomes_a_link_later_is_refused(ws: Path):
    (ws / "src/deep/x").write_text("x")
    (ws / "inner").symlink_to("src/deep/x")
    assert guarded_files(ws).write("inner", b"new").real_path == f"{ws}/src/deep/x"
    (ws / "other").mkdir()

    def replace_file_with_link() -> None:
        (ws / "src/deep/x").unlink()
        (ws / "src/deep/x").symlink_to("../../readme.md")

    files = GuardedFiles(
        make_scope(ws), opener=InterferingOpener("src/deep", replace_file_with_link, links=False)
    )
    with pytest.raises(OutOfScope) as refused:
        files.write("inner", b"evil")
    assert (
        str(refused.value)
        == f"inner is not in your scope (it was replaced by a symbolic link). {allowed_text(ws, 'write')}"
    )
    (ws / "src/deep/x").unlink()
    (ws / "src/deep/x").write_text("x")

    def replace_folder_with_link() -> None:
        (ws / "src/deep").rename(ws / "src/was")
        (ws / "src/deep").symlink_to("../other")

    files = GuardedFiles(
        make_scope(ws), opener=InterferingOpener("src/deep", replace_folder_with_link, links=False)
    )
    with pytest.raises(RetinueError):
        files.write("inner", b"evil")
    assert list((ws / "other").iterdir()) == []
    assert (ws / "readme.md").read_text() == "inside\n"


def test_a_new_folder_that_is_moved_during_a_write_gets_no_file(ws: Path):
    message = error_in_child(
        lambda: guarded_files(ws).write("a/b/x", b"x"),
        event="open", name="b", action=lambda: (ws / "a").rename(ws / "src/a"),
    )  # fmt: skip
    assert message == f"a/b/x is not in your scope (its folder was moved). {allowed_text(ws, 'write')}"
    assert not (ws / "src/a/b/x").exists()


@pytest.mark.parametrize("change", ["changed", "removed", "replaced"])
def test_a_file_that_changes_after_its_content_was_compared_is_not_overwritten(ws: Path, change: str):
    def interfere() -> None:
        if change == "changed":
            (ws / "readme.md").write_text("theirs\n")
        else:
            (ws / "readme.md").unlink()
        if change == "replaced":
            (ws / "readme.md").write_text("inside\n")

    message = error_in_child(
        lambda: guarded_files(ws).write("readme.md", b"mine", expected=b"inside\n"),
        event="open", name=".retinue-", action=interfere,
    )  # fmt: skip
    assert message.startswith("readme.md was changed by another process")
    content = {"changed": "theirs\n", "replaced": "inside\n"}.get(change)
    assert ((ws / "readme.md").read_text() if (ws / "readme.md").exists() else None) == content
    assert sorted(path.name for path in ws.iterdir() if path.name.startswith(".retinue")) == []


def test_a_large_file_is_compared_completely_and_leaves_no_open_descriptor(ws: Path):
    large = os.urandom(1_000_000) + b"x" * 1_500_000
    (ws / "large").write_bytes(large)
    files = guarded_files(ws)
    with pytest.raises(Failed, match="changed by another process"):
        files.write("large", b"new", expected=large[:-1] + b"y")
    before = open_descriptor_count()
    files.write("large", large + b"z", expected=large)
    files.write("large", b"new", expected=large + b"z")
    assert open_descriptor_count() == before
    assert (ws / "large").read_bytes() == b"new"


def test_a_new_file_has_the_default_mode(ws: Path):
    guarded_files(ws).write("new", b"x")
    (ws / "plain").touch()
    assert (ws / "new").stat().st_mode == (ws / "plain").stat().st_mode


def test_the_tmp_folder_is_created_by_the_first_write(ws: Path):
    tmp_folder = ws.parent / "not/there/yet"
    files = guarded_files(ws, tmp_folder=str(tmp_folder), write=(subtree_pattern(str(ws)), "/tmp/**"))
    assert files.write("/tmp/x", b"x").is_new
    assert (tmp_folder / "x").read_bytes() == b"x"


def test_a_rewritten_file_keeps_its_owner_and_group(ws: Path):
    """Root can write files of other users; an ordinary user can replace only files that they own."""
    uid, gid = os.geteuid(), os.getegid()
    owners = [(65534, 65533), (uid, 65533), (65534, gid)] if uid == 0 else [(uid, gid)]
    for owner in owners:
        (ws / "theirs").write_text("x")
        os.chown(ws / "theirs", *owner)
        guarded_files(ws).write("theirs", b"y")
        status = (ws / "theirs").stat()
        assert (status.st_uid, status.st_gid, (ws / "theirs").read_text()) == (*owner, "y")
        (ws / "theirs").unlink()


def test_a_pattern_for_tmp_does_not_apply_to_the_machines_tmp(ws: Path):
    """In a folder of the machine's /tmp, only the other patterns of the scope apply."""
    tmp_folder = ws.parent / "own"
    tmp_folder.mkdir()
    shared_folder = Path("/tmp") / f"retinue-edges-{os.getpid()}"
    shared_folder.mkdir()
    try:
        (shared_folder / "a.md").touch()
        (shared_folder / "b.txt").touch()
        markdown_scope = replace(make_scope(ws), read=("/tmp/**", "/**/*.md"), tmp_folder=str(tmp_folder))
        files = GuardedFiles(markdown_scope)
        assert [entry.path for entry in files.list(str(shared_folder))] == ["a.md"]
        assert [entry.path for entry in files.walk(str(shared_folder))] == ["a.md"]
    finally:
        for path in (*shared_folder.iterdir(), shared_folder):
            path.rmdir() if path.is_dir() else path.unlink()
