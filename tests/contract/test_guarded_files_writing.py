"""GuardedFiles, writing: nothing is created outside the scope, and every file is written completely or not at all."""

import errno
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from live_processes import open_descriptor_count

from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import DiskError, Failed, OutOfScope, RetinueError
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.files.messages import file_error
from retinue.sandbox.files.openat2 import Opener, best_opener, walk_open

OPENERS = {"kernel": best_opener(), "walk": walk_open}


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace with links and special files, and files beside it that must not change."""
    home = tmp_path.resolve()
    for folder in ("ws/src/deep", "ws/.git/hooks", "outside/dir", "ws_evil"):
        (home / folder).mkdir(parents=True)
    for path in ("outside/secret", "outside/dir/secret", "ws/.env", "ws/.git/config", "ws_evil/secret"):
        (home / path).write_text("SECRET")
    (home / "ws/src/app.py").write_text("app\n")
    for name, target in {
        "l1": "../outside/secret", "l1dir": "../outside", "l1abs": str(home / "outside/secret"),
        "l1absdir": str(home / "outside"), "dang": "../outside/new", "dangdir": "../outside/newdir", "dangin": "src/new",
        "l5": ".env", "lgit": ".git", "up": "..", "root": "/", "loopa": "loopb", "loopb": "loopa",
        "inner": "src/app.py", "innerdir": "src", "innerabs": str(home / "ws/src"),
        "proc": f"/proc/self/root{home}/outside/secret", "cwd": "/proc/self/cwd",
    }.items():  # fmt: skip
        (home / "ws" / name).symlink_to(target)
    os.mkfifo(home / "ws/fifo")
    return home / "ws"


def make_scope(ws: Path, **overrides: object) -> Scope:
    """Make a scope in which Retinue's home, with the folder behind /tmp, is closed as in the product."""
    home = ws.parent / "home"
    defaults = {
        "read": (subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS), "write": (subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS), "deny": DEFAULT_DENIED_PATHS,
        "root": str(ws), "tmp_folder": str(home / "tmp/s1"), "retinue_paths": (subtree_pattern(str(home)),),
    }  # fmt: skip
    return Scope(**{**defaults, **overrides})  # pyright: ignore[reportArgumentType]


def guarded_files(ws: Path, opener: Opener = OPENERS["kernel"], **overrides: object) -> GuardedFiles:
    return GuardedFiles(make_scope(ws, **overrides), opener=opener)


def folder_contents(folder: Path) -> dict[str, bytes | str | None]:
    """All paths below a folder: files with their content, links with their target, folders with None."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


REFUSED = (
    "../outside/x", "../outside/secret", "{home}/outside/x", "src/../../outside/x", "{ws}/../outside/x", "{ws}_evil/x",
    "../ws_evil/secret", "/etc/x", "/x", "l1", "./l1", "l1abs", "l1dir/x", "l1dir/new/x", "l1absdir/x", "dang", "dang/x",
    "dangdir/x", "dangin", "up/x", "up/ws_evil/x", "root/x", "root{home}/outside/x", "proc", "cwd/x", "/proc/self/cwd/x",
    "/dev/null", "/proc/self/mem", "/dev/fd/1", "/sys/x",
    ".env", "l5", "src/.env", "src/.ENV", "sub/.env", ".git/hooks2", ".git/hooks/pre-commit", ".git/config", ".GIT/x",
    ".git", "src/.git", "src/.git/x", "lgit/x", "innerdir/../.git/x", "new/.git/hooks/x", "a/node_modules/b/c",
    ".bashrc", "x/.ssh/authorized_keys", ".vscode/tasks.json", "{home}/home/x", "{home}/home/tmp/s1/x",
)  # fmt: skip
IMPOSSIBLE = (
    "", "a\0b", "x" * 5000, "\ud800", "n" * 300, "loopa", "loopa/x", "fifo", "src", "src/", ".", "..", "src/.", "new/",
    "src/..", "src/app.py/x", "{ws}", "none/../x", "/tmp", "/tmp/", "/tmp/..",
)  # fmt: skip


@pytest.mark.parametrize("template", REFUSED)
def test_nothing_is_created_outside_the_scope(template: str, ws: Path, opener: Opener):
    """Shows: F01, F02, F03, F05, F08, F12, F15, F16, F21, S14."""
    path = template.format(ws=ws, home=ws.parent)
    before = folder_contents(ws.parent)
    files = guarded_files(ws, opener, tmp_folder="")
    with pytest.raises(OutOfScope) as refused:
        files.check_access(path, "write")
    assert refused.value.resource == path
    with pytest.raises(OutOfScope):
        files.write(path, b"MINE")
    with pytest.raises(OutOfScope):
        files.write(path, b"MINE", expected=b"SECRET")
    assert folder_contents(ws.parent) == before


@pytest.mark.parametrize("template", IMPOSSIBLE)
def test_a_path_that_names_no_file_is_not_written_and_leaves_no_traces(
    template: str, ws: Path, opener: Opener
):
    """Shows: F09, F10."""
    before = folder_contents(ws)
    with pytest.raises(RetinueError) as failed:
        guarded_files(ws, opener).write(template.format(ws=ws), b"MINE")
    assert str(failed.value).isprintable()
    assert folder_contents(ws) == before


@pytest.mark.parametrize(
    ("template", "real"),
    [("new", "new"), ("src/new.py", "src/new.py"), ("a/b/c/d", "a/b/c/d"), ("innerdir/x", "src/x"),
     ("innerabs/y/z", "src/y/z"), ("src/deep/../x", "src/x"), ("./a//b", "a/b"), ("{ws}/q", "q"), ("inner", "src/app.py"),
     ("~", "~"), ("$HOME/x", "$HOME/x"), ("a[1].py", "a[1].py"), ("*", "*"), ("a\nb", "a\nb"), ("é", "é"), ("-rf", "-rf")],
)  # fmt: skip
def test_a_file_is_created_at_its_real_path_with_its_missing_folders(
    template: str, real: str, ws: Path, opener: Opener
):
    """Shows: F11, F14, A089."""
    files = guarded_files(ws, opener)
    path = template.format(ws=ws)
    assert files.check_access(path, "write") == str(ws / real)
    written = files.write(path, b"mine")
    assert (written.real_path, written.size, written.is_new) == (str(ws / real), 4, real != "src/app.py")
    assert (ws / real).read_bytes() == b"mine"
    assert not [name for name in folder_contents(ws) if ".retinue-" in name]
    assert not files.write(path, b"again").is_new


def test_a_path_with_too_many_missing_folders_creates_none_of_them(ws: Path, opener: Opener):
    """Shows: F20."""
    before = folder_contents(ws)
    for depth in (65, 1_900):
        with pytest.raises(Failed, match="more than 64 folders would have to be created"):
            guarded_files(ws, opener).write("d/" * depth + "x", b"x")
    assert folder_contents(ws) == before
    assert guarded_files(ws, opener).write("d/" * 64 + "x", b"x").is_new


def test_an_access_check_creates_nothing(ws: Path, opener: Opener):
    before = folder_contents(ws)
    guarded_files(ws, opener).check_access("a/b/c", "write")
    assert folder_contents(ws) == before


def test_writing_through_a_link_changes_its_target_and_keeps_the_link(ws: Path, opener: Opener):
    guarded_files(ws, opener).write("inner", b"new")
    assert (ws / "inner").is_symlink()
    assert (ws / "src/app.py").read_bytes() == b"new"


def test_an_existing_file_keeps_its_mode_and_a_new_file_obeys_the_umask(ws: Path):
    (ws / "run.sh").write_text("x")
    (ws / "run.sh").chmod(0o751)
    guarded_files(ws).write("run.sh", b"y")
    assert stat.S_IMODE((ws / "run.sh").stat().st_mode) == 0o751
    umask = os.umask(0o027)
    try:
        guarded_files(ws).write("fresh/file", b"y")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((ws / "fresh/file").stat().st_mode) == 0o640
    assert stat.S_IMODE((ws / "fresh").stat().st_mode) == 0o750


def test_a_file_with_hard_links_is_not_written(ws: Path, opener: Opener):
    """Shows: F07."""
    os.link(ws.parent / "outside/secret", ws / "hard")
    os.link(ws / ".env", ws / "envhard")
    for path in ("hard", "envhard"):
        with pytest.raises(OutOfScope, match="hard links") as refused:
            guarded_files(ws, opener).write(path, b"MINE")
        assert refused.value.error == "hard_link"
    assert (ws.parent / "outside/secret").read_text() == "SECRET"


def test_a_file_is_replaced_only_if_it_has_the_expected_content(ws: Path, opener: Opener):
    files = guarded_files(ws, opener)
    with pytest.raises(Failed, match=r"app\.py was changed by another process"):
        files.write("src/app.py", b"new", expected=b"apq\n")
    with pytest.raises(Failed, match="changed"):
        files.write("src/app.py", b"new", expected=b"app")
    with pytest.raises(Failed, match="no such file: src/none"):
        files.write("src/none", b"new", expected=b"")
    with pytest.raises(Failed, match="no such file: no/where"):
        files.write("no/where", b"new", expected=b"")
    assert folder_contents(ws / "src") == {"app.py": b"app\n", "deep": None}
    files.write("src/app.py", b"new", expected=b"app\n")
    assert (ws / "src/app.py").read_bytes() == b"new"


def test_a_restricted_guard_writes_only_the_file_that_the_user_approved(ws: Path):
    files = guarded_files(ws).restrict_writes_to(f"{ws}/src/app.py")
    for path in ("src/other", "new/file", "/tmp/x"):
        with pytest.raises(OutOfScope, match=r"the approval covers only"):
            files.write(path, b"x")
    assert files.write("inner", b"x").real_path == f"{ws}/src/app.py"
    (ws / "inner").unlink()
    (ws / "inner").symlink_to("src/deep/x")
    (ws / "src/deep/x").touch()
    with pytest.raises(OutOfScope):
        files.write("inner", b"y")
    assert files.read("src/app.py").data == b"x"
    assert not (ws / "new").exists()


def test_in_a_read_only_workspace_only_tmp_is_writable_and_refusals_name_the_workspace(ws: Path):
    """Shows: D013."""
    for label, shown_name in (("the shop", "the shop"), ("", "ws")):
        files = guarded_files(ws, writable=False, workspace_label=label)
        for path in ("new", "src/app.py", f"{ws}/x", "../outside/x"):
            with pytest.raises(OutOfScope) as refused:
                files.check_access(path, "write")
            assert str(refused.value) == f'Workspace "{shown_name}" is read-only. Cannot perform write.'
        assert files.write("/tmp/x", b"x").real_path == "/tmp/x"
    assert (ws / "src/app.py").read_bytes() == b"app\n"


def test_a_refusal_lists_the_writable_patterns(ws: Path):
    files = guarded_files(ws, write=(f"{ws}/out/**", *DEFAULT_WRITABLE_PATHS))
    with pytest.raises(OutOfScope) as refused:
        files.write("src/app.py", b"x")
    assert f"(nothing allows write). You may write {ws}/out/**, /tmp/**; denied:" in str(refused.value)
    assert refused.value.allowed == (f"{ws}/out/**", "/tmp/**")
    assert files.write("out/deep/x", b"x").is_new


def test_a_rule_matches_a_new_name_in_every_unicode_normalisation_form(ws: Path):
    """Shows: F13."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for rule in (composed, decomposed):
        for name in (composed, decomposed):
            with pytest.raises(OutOfScope):
                guarded_files(ws, deny=(f"**/{rule}/**",)).write(f"{name}/x", b"x")
            with pytest.raises(OutOfScope):
                guarded_files(ws, deny=(f"**/{rule}",)).write(f"new/{name}/x", b"x")
    assert not (ws / "new").exists()


def test_a_folder_outside_the_workspace_is_created_and_written_when_a_pattern_names_it(
    ws: Path, opener: Opener
):
    outside = ws.parent / "far/away"
    files = guarded_files(ws, opener, write=(f"{outside}/**",))
    assert files.write(f"{outside}/x/y", b"y").real_path == f"{outside}/x/y"
    with pytest.raises(OutOfScope):
        files.write(f"{ws.parent}/far/x", b"y")
    assert folder_contents(ws.parent / "far") == {"away": None, "away/x": None, "away/x/y": b"y"}


@contextmanager
def limit_file_size(size: int) -> Generator[None]:
    """Limit the size of files, so that a larger write fails half-way as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_half_way_keeps_the_old_file_and_leaves_no_traces(ws: Path, opener: Opener):
    before = folder_contents(ws)
    for path in ("src/app.py", "new/folder/x", "x"):
        with (
            limit_file_size(50_000),
            pytest.raises(Failed, match="was not written: it exceeds the maximum file size"),
        ):
            guarded_files(ws, opener).write(path, b"x" * 100_000)
    assert folder_contents(ws) == before


def test_a_running_program_is_not_replaced(ws: Path, opener: Opener):
    """The kernel refuses to write the file, but would let a rename replace it."""
    program = ws / "program"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as running:
        try:
            with pytest.raises(Failed, match="program is a running program"):
                guarded_files(ws, opener).write("program", b"x")
        finally:
            running.kill()
    assert program.stat().st_size > 1_000
    assert not [name for name in folder_contents(ws) if ".retinue-" in name]


def test_os_errors_become_readable_messages():
    full = file_error(OSError(errno.ENOSPC, "no space"), "a", "write")
    assert not isinstance(full, DiskError)  # the disk of an agent's files is the model's concern
    assert str(full) == "a was not written: the disk is full, and nothing was changed"
    assert (
        str(file_error(OSError(errno.EACCES, "denied"), "a", "write"))
        == "this user has no permission to write a"
    )
    assert str(file_error(OSError(errno.EBUSY, "busy"), "a", "write")).startswith("a cannot be written: ")


def test_tmp_is_a_private_folder_that_no_other_path_reaches(ws: Path, opener: Opener):
    """Shows: F17, F18."""
    files, other_files = (
        guarded_files(ws, opener, tmp_folder=str(ws.parent / f"home/tmp/{name}")) for name in ("s1", "s2")
    )
    behind = ws.parent / "home/tmp/s1"
    assert files.list("/tmp") == []
    assert files.write("/tmp/notes/x", b"one").real_path == "/tmp/notes/x"
    other_files.write("/tmp/notes/x", b"two")
    assert (behind / "notes/x").read_bytes() == b"one"
    assert stat.S_IMODE(behind.stat().st_mode) == 0o700
    assert not Path("/tmp/notes/x").exists()
    opened = files.read("/tmp/notes/x")
    assert (opened.data, opened.real_path) == (b"one", "/tmp/notes/x")
    assert files.real_path("/tmp/notes/../notes/x") == "/tmp/notes/x"
    assert files.real_path("/tmp/notes/x") == files.check_access("/tmp/notes/x", "read") == "/tmp/notes/x"
    assert [(entry.path, entry.real_path) for entry in files.walk("/tmp")] == [("notes/x", "/tmp/notes/x")]
    assert [(entry.path, entry.real_path) for entry in files.list("/tmp/notes")] == [("x", "/tmp/notes/x")]
    for path in (str(behind / "notes/x"), f"{ws.parent}/home/tmp/s2/notes/x", "/tmp/../etc/passwd"):
        with pytest.raises(OutOfScope):
            files.read(path)
        with pytest.raises(OutOfScope):
            files.write(path, b"x")
    with pytest.raises(Failed, match="no such file: /tmp/note") as failed:
        files.read("/tmp/note")
    assert str(behind) not in str(failed.value)


def test_a_link_in_tmp_cannot_reach_another_folder(ws: Path, opener: Opener):
    """Shows: F03, F16, F18."""
    files = guarded_files(ws, opener)
    files.write("/tmp/x", b"x")
    behind = ws.parent / "home/tmp/s1"
    for name, target in {
        "out": "../../../outside/secret", "abs": str(ws.parent / "outside/secret"), "dang": "../s2", "ws": str(ws),
        "up": "..", "in": "x",
    }.items():  # fmt: skip
        (behind / name).symlink_to(target)
    before = folder_contents(ws.parent / "outside")
    for path in ("/tmp/out", "/tmp/abs", "/tmp/dang", "/tmp/ws/src/app.py", "/tmp/up/x", "/tmp/ws/new"):
        with pytest.raises(OutOfScope):
            files.read(path)
        with pytest.raises(OutOfScope):
            files.write(path, b"MINE")
    assert files.write("/tmp/in", b"y").real_path == "/tmp/x"
    assert folder_contents(ws.parent / "outside") == before


def test_a_pattern_for_tmp_does_not_reach_files_of_other_programs_in_tmp(ws: Path, opener: Opener):
    """The workspace, which lies below /tmp here, and paths that a pattern names exactly are the real ones.

    Shows: F18."""
    home = ws.parent
    assert str(home).startswith("/tmp/")
    child = guarded_files(ws, opener, write=DEFAULT_WRITABLE_PATHS)
    assert child.read("src/app.py").data == b"app\n"
    with pytest.raises(Failed, match="no such file"):
        child.read(str(home / "outside/secret"))
    with pytest.raises(OutOfScope, match="nothing allows write"):
        child.write("src/app.py", b"MINE")
    child.write(str(home / "outside/secret"), b"private")
    assert (home / "outside/secret").read_text() == "SECRET"
    assert child.read(str(home / "outside/secret")).data == b"private"
    with_outside = guarded_files(
        ws, opener, read=(subtree_pattern(str(ws)), f"{home}/outside/**", *DEFAULT_WRITABLE_PATHS)
    )
    assert with_outside.read(str(home / "outside/secret")).data == b"SECRET"


def test_a_pattern_for_all_paths_reads_the_agents_own_tmp_file_first(ws: Path, opener: Opener):
    real = ws.parent / "outside/secret"
    files = guarded_files(ws, opener, read=("/**",), write=())
    assert files.read(str(real)).data == b"SECRET"
    assert not (ws.parent / "home").exists()
    with_tmp = guarded_files(ws, opener, read=("/**", *DEFAULT_WRITABLE_PATHS))
    assert with_tmp.write(str(real), b"mine").is_new
    assert with_tmp.read(str(real)).data == b"mine"
    assert files.read(str(real)).data == b"mine"
    assert real.read_bytes() == b"SECRET"
    without_tmp_folder = guarded_files(ws, opener, read=("/**",), tmp_folder="")
    assert without_tmp_folder.read(str(real)).data == b"SECRET"
    with pytest.raises(OutOfScope):
        without_tmp_folder.write("/tmp/x", b"x")


def test_none_of_many_random_paths_is_written_outside(ws: Path, opener: Opener):
    """Shows: F01, F16."""
    rng = random.Random(11)
    pieces = [
        "..", "..", ".", "", "src", "deep", "ws", "ws_evil", "outside", "dir", "secret", ".env", ".ENV", ".git", "config",
        "l1", "l1dir", "l1abs", "l1absdir", "dang", "dangdir", "l5", "lgit", "up", "root", "inner", "innerdir", "innerabs",
        "loopa", "new", "tmp", "app.py", str(ws)[1:], str(ws.parent)[1:], "home", "s1", "hooks", "~",
    ]  # fmt: skip
    contents_before = {name: folder_contents(ws.parent / name) for name in ("outside", "ws_evil", "ws/.git")}
    files = guarded_files(ws, opener)
    written_count = 0
    for _ in range(1_500):
        path = rng.choice(("", "", "/", f"{ws}/", "/tmp/")) + "/".join(
            rng.choices(pieces, k=rng.randint(1, 6))
        )
        with suppress(RetinueError):
            real = files.write(path, b"MINE").real_path
            assert real.startswith((f"{ws}/", "/tmp/"))
            written_count += 1
    assert written_count > 50
    assert contents_before == {name: folder_contents(ws.parent / name) for name in contents_before}
    assert (ws / ".env").read_text() == "SECRET"
    assert sorted(path.name for path in ws.parent.iterdir()) == ["home", "outside", "ws", "ws_evil"]
    assert not Path("/tmp/ws").exists()


def test_no_file_descriptor_is_left_open_by_a_write(ws: Path, opener: Opener):
    files = guarded_files(ws, opener)
    before = open_descriptor_count()
    for template in (*REFUSED, *IMPOSSIBLE, "new/x", "inner", "/tmp/x"):
        with suppress(RetinueError):
            files.write(template.format(ws=ws, home=ws.parent), b"x")
    assert open_descriptor_count() == before
