"""The guard of files when they are written: what is not allowed is not made, and what is made is whole."""

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
    """A workspace full of traps, with things beside it that nobody may touch."""
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


def scope(ws: Path, **more: object) -> Scope:
    """Home, and with it what lies behind /tmp, is closed as Retinue's own is."""
    home = ws.parent / "home"
    everything = {
        "read": (subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS), "write": (subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS), "deny": DEFAULT_DENIED_PATHS,
        "root": str(ws), "tmp_folder": str(home / "tmp/s1"), "retinue_paths": (subtree_pattern(str(home)),),
    }  # fmt: skip
    return Scope(**{**everything, **more})  # pyright: ignore[reportArgumentType]


def guarded(ws: Path, opener: Opener = OPENERS["kernel"], **more: object) -> GuardedFiles:
    return GuardedFiles(scope(ws, **more), opener=opener)


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Everything below a folder: files with what they hold, links with where they lead."""
    return {
        str(one.relative_to(folder)): str(one.readlink())
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else None
        for one in sorted(folder.rglob("*"))
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
def test_nothing_is_made_where_the_scope_does_not_reach(template: str, ws: Path, opener: Opener):
    """Shows: F01, F02, F03, F05, F08, F12, F15, F16, F21, S14."""
    asked = template.format(ws=ws, home=ws.parent)
    before = tree(ws.parent)
    files = guarded(ws, opener, tmp_folder="")
    with pytest.raises(OutOfScope) as refused:
        files.check_access(asked, "write")
    assert refused.value.resource == asked
    with pytest.raises(OutOfScope):
        files.write(asked, b"MINE")
    with pytest.raises(OutOfScope):
        files.write(asked, b"MINE", expected=b"SECRET")
    assert tree(ws.parent) == before


@pytest.mark.parametrize("template", IMPOSSIBLE)
def test_what_is_no_file_is_not_written_and_nothing_is_left(template: str, ws: Path, opener: Opener):
    """Shows: F09, F10."""
    before = tree(ws)
    with pytest.raises(RetinueError) as failed:
        guarded(ws, opener).write(template.format(ws=ws), b"MINE")
    assert str(failed.value).isprintable()
    assert tree(ws) == before


@pytest.mark.parametrize(
    ("path", "real"),
    [("new", "new"), ("src/new.py", "src/new.py"), ("a/b/c/d", "a/b/c/d"), ("innerdir/x", "src/x"),
     ("innerabs/y/z", "src/y/z"), ("src/deep/../x", "src/x"), ("./a//b", "a/b"), ("{ws}/q", "q"), ("inner", "src/app.py"),
     ("~", "~"), ("$HOME/x", "$HOME/x"), ("a[1].py", "a[1].py"), ("*", "*"), ("a\nb", "a\nb"), ("é", "é"), ("-rf", "-rf")],
)  # fmt: skip
def test_a_file_is_made_under_its_real_name_with_the_folders_it_needs(
    path: str, real: str, ws: Path, opener: Opener
):
    """Shows: F11, F14, A089."""
    files = guarded(ws, opener)
    asked = path.format(ws=ws)
    assert files.check_access(asked, "write") == str(ws / real)
    written = files.write(asked, b"mine")
    assert (written.real_path, written.size, written.is_new) == (str(ws / real), 4, real != "src/app.py")
    assert (ws / real).read_bytes() == b"mine"
    assert not [name for name in tree(ws) if ".retinue-" in name]
    assert not files.write(asked, b"again").is_new


def test_a_path_that_needs_too_many_new_folders_makes_none_of_them(ws: Path, opener: Opener):
    """Shows: F20."""
    before = tree(ws)
    for depth in (65, 1_900):
        with pytest.raises(Failed, match="more than 64 folders would have to be made"):
            guarded(ws, opener).write("d/" * depth + "x", b"x")
    assert tree(ws) == before
    assert guarded(ws, opener).write("d/" * 64 + "x", b"x").is_new


def test_a_judgement_makes_nothing(ws: Path, opener: Opener):
    before = tree(ws)
    guarded(ws, opener).check_access("a/b/c", "write")
    assert tree(ws) == before


def test_a_link_to_a_file_inside_stays_a_link_and_its_file_is_written(ws: Path, opener: Opener):
    guarded(ws, opener).write("inner", b"new")
    assert (ws / "inner").is_symlink()
    assert (ws / "src/app.py").read_bytes() == b"new"


def test_the_rights_and_the_owner_of_a_file_stay_and_new_ones_are_as_any(ws: Path):
    (ws / "run.sh").write_text("x")
    (ws / "run.sh").chmod(0o751)
    guarded(ws).write("run.sh", b"y")
    assert stat.S_IMODE((ws / "run.sh").stat().st_mode) == 0o751
    before = os.umask(0o027)
    try:
        guarded(ws).write("fresh/file", b"y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((ws / "fresh/file").stat().st_mode) == 0o640
    assert stat.S_IMODE((ws / "fresh").stat().st_mode) == 0o750


def test_a_file_with_several_names_is_not_written(ws: Path, opener: Opener):
    """Shows: F07."""
    os.link(ws.parent / "outside/secret", ws / "hard")
    os.link(ws / ".env", ws / "envhard")
    for path in ("hard", "envhard"):
        with pytest.raises(OutOfScope, match="hard links") as refused:
            guarded(ws, opener).write(path, b"MINE")
        assert refused.value.error == "hard_link"
    assert (ws.parent / "outside/secret").read_text() == "SECRET"


def test_a_file_is_written_only_in_place_of_what_it_should_hold(ws: Path, opener: Opener):
    files = guarded(ws, opener)
    with pytest.raises(Failed, match=r"app\.py was changed by someone else meanwhile"):
        files.write("src/app.py", b"new", expected=b"apq\n")
    with pytest.raises(Failed, match="changed"):
        files.write("src/app.py", b"new", expected=b"app")
    with pytest.raises(Failed, match="no such file: src/none"):
        files.write("src/none", b"new", expected=b"")
    with pytest.raises(Failed, match="no such file: no/where"):
        files.write("no/where", b"new", expected=b"")
    assert tree(ws / "src") == {"app.py": b"app\n", "deep": None}
    files.write("src/app.py", b"new", expected=b"app\n")
    assert (ws / "src/app.py").read_bytes() == b"new"


def test_only_the_file_that_a_person_saw_can_be_written(ws: Path):
    files = guarded(ws).restrict_writes_to(f"{ws}/src/app.py")
    for path in ("src/other", "new/file", "/tmp/x"):
        with pytest.raises(OutOfScope, match=r"a person allowed .* and nothing else"):
            files.write(path, b"x")
    assert files.write("inner", b"x").real_path == f"{ws}/src/app.py"
    (ws / "inner").unlink()
    (ws / "inner").symlink_to("src/deep/x")
    (ws / "src/deep/x").touch()
    with pytest.raises(OutOfScope):
        files.write("inner", b"y")
    assert files.read("src/app.py").data == b"x"
    assert not (ws / "new").exists()


def test_a_read_only_workspace_is_named_in_the_refusal_and_only_tmp_is_written(ws: Path):
    """Shows: D013."""
    for label, said in (("the shop", "the shop"), ("", "ws")):
        files = guarded(ws, writable=False, workspace_label=label)
        for path in ("new", "src/app.py", f"{ws}/x", "../outside/x"):
            with pytest.raises(OutOfScope) as refused:
                files.check_access(path, "write")
            assert str(refused.value) == f'Workspace "{said}" is read-only. Cannot perform write.'
        assert files.write("/tmp/x", b"x").real_path == "/tmp/x"
    assert (ws / "src/app.py").read_bytes() == b"app\n"


def test_a_refusal_says_what_may_be_written(ws: Path):
    files = guarded(ws, write=(f"{ws}/out/**", *DEFAULT_WRITABLE_PATHS))
    with pytest.raises(OutOfScope) as refused:
        files.write("src/app.py", b"x")
    assert f"(nothing allows write). You may write {ws}/out/**, /tmp/**; denied:" in str(refused.value)
    assert refused.value.allowed == (f"{ws}/out/**", "/tmp/**")
    assert files.write("out/deep/x", b"x").is_new


def test_a_rule_and_a_new_name_meet_in_whichever_unicode_form_they_are_written(ws: Path):
    """Shows: F13."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for rule in (composed, decomposed):
        for name in (composed, decomposed):
            with pytest.raises(OutOfScope):
                guarded(ws, deny=(f"**/{rule}/**",)).write(f"{name}/x", b"x")
            with pytest.raises(OutOfScope):
                guarded(ws, deny=(f"**/{rule}",)).write(f"new/{name}/x", b"x")
    assert not (ws / "new").exists()


def test_a_place_outside_is_written_when_a_pattern_names_it_and_made_if_need_be(ws: Path, opener: Opener):
    far = ws.parent / "far/away"
    files = guarded(ws, opener, write=(f"{far}/**",))
    assert files.write(f"{far}/x/y", b"y").real_path == f"{far}/x/y"
    with pytest.raises(OutOfScope):
        files.write(f"{ws.parent}/far/x", b"y")
    assert tree(ws.parent / "far") == {"away": None, "away/x": None, "away/x/y": b"y"}


@contextmanager
def at_most(size: int) -> Generator[None]:
    """Files may be so large and no larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(ws: Path, opener: Opener):
    before = tree(ws)
    for path in ("src/app.py", "new/folder/x", "x"):
        with (
            at_most(50_000),
            pytest.raises(DiskError, match="was not written: it is larger than a file may be"),
        ):
            guarded(ws, opener).write(path, b"x" * 100_000)
    assert tree(ws) == before


def test_a_file_that_the_system_lets_nobody_write_is_not_replaced_either(ws: Path, opener: Opener):
    """A rename would ask only the folder."""
    program = ws / "program"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as running:
        try:
            with pytest.raises(Failed, match="program is a program that is running; stop it first"):
                guarded(ws, opener).write("program", b"x")
        finally:
            running.kill()
    assert program.stat().st_size > 1_000
    assert not [name for name in tree(ws) if ".retinue-" in name]


def test_a_full_disk_and_a_forbidden_folder_are_said_in_a_sentence():
    full = file_error(OSError(errno.ENOSPC, "no space"), "a", "write")
    assert isinstance(full, DiskError)
    assert str(full) == "a was not written: the disk is full. Nothing was changed"
    assert str(file_error(OSError(errno.EACCES, "denied"), "a", "write")) == "this user may not write a"
    assert str(file_error(OSError(errno.EBUSY, "busy"), "a", "write")).startswith("a cannot be written: ")


def test_tmp_is_a_folder_of_the_agents_own_that_no_other_name_leads_to(ws: Path, opener: Opener):
    """Shows: F17, F18."""
    files, other = (
        guarded(ws, opener, tmp_folder=str(ws.parent / f"home/tmp/{name}")) for name in ("s1", "s2")
    )
    behind = ws.parent / "home/tmp/s1"
    assert files.list("/tmp") == []
    assert files.write("/tmp/notes/x", b"one").real_path == "/tmp/notes/x"
    other.write("/tmp/notes/x", b"two")
    assert (behind / "notes/x").read_bytes() == b"one"
    assert stat.S_IMODE(behind.stat().st_mode) == 0o700
    assert not Path("/tmp/notes/x").exists()
    opened = files.read("/tmp/notes/x")
    assert (opened.data, opened.real_path) == (b"one", "/tmp/notes/x")
    assert files.real_path("/tmp/notes/../notes/x") == "/tmp/notes/x"
    assert files.real_path("/tmp/notes/x") == files.check_access("/tmp/notes/x", "read") == "/tmp/notes/x"
    assert [(one.path, one.real_path) for one in files.walk("/tmp")] == [("notes/x", "/tmp/notes/x")]
    assert [(one.path, one.real_path) for one in files.list("/tmp/notes")] == [("x", "/tmp/notes/x")]
    for path in (str(behind / "notes/x"), f"{ws.parent}/home/tmp/s2/notes/x", "/tmp/../etc/passwd"):
        with pytest.raises(OutOfScope):
            files.read(path)
        with pytest.raises(OutOfScope):
            files.write(path, b"x")
    with pytest.raises(Failed, match="no such file: /tmp/note") as failed:
        files.read("/tmp/note")
    assert str(behind) not in str(failed.value)


def test_links_in_tmp_lead_nowhere_else(ws: Path, opener: Opener):
    """Shows: F03, F16, F18."""
    files = guarded(ws, opener)
    files.write("/tmp/x", b"x")
    behind = ws.parent / "home/tmp/s1"
    for name, target in {
        "out": "../../../outside/secret", "abs": str(ws.parent / "outside/secret"), "dang": "../s2", "ws": str(ws),
        "up": "..", "in": "x",
    }.items():  # fmt: skip
        (behind / name).symlink_to(target)
    before = tree(ws.parent / "outside")
    for path in ("/tmp/out", "/tmp/abs", "/tmp/dang", "/tmp/ws/src/app.py", "/tmp/up/x", "/tmp/ws/new"):
        with pytest.raises(OutOfScope):
            files.read(path)
        with pytest.raises(OutOfScope):
            files.write(path, b"MINE")
    assert files.write("/tmp/in", b"y").real_path == "/tmp/x"
    assert tree(ws.parent / "outside") == before


def test_other_programs_files_in_tmp_are_not_reached_by_a_pattern_of_tmp(ws: Path, opener: Opener):
    """The workspace lies below /tmp here, and is the real place; so is what a pattern names outright.

    Shows: F18."""
    home = ws.parent
    assert str(home).startswith("/tmp/")
    child = guarded(ws, opener, write=DEFAULT_WRITABLE_PATHS)
    assert child.read("src/app.py").data == b"app\n"
    with pytest.raises(Failed, match="no such file"):
        child.read(str(home / "outside/secret"))
    with pytest.raises(OutOfScope, match="nothing allows write"):
        child.write("src/app.py", b"MINE")
    child.write(str(home / "outside/secret"), b"private")
    assert (home / "outside/secret").read_text() == "SECRET"
    assert child.read(str(home / "outside/secret")).data == b"private"
    named = guarded(
        ws, opener, read=(subtree_pattern(str(ws)), f"{home}/outside/**", *DEFAULT_WRITABLE_PATHS)
    )
    assert named.read(str(home / "outside/secret")).data == b"SECRET"


def test_a_pattern_that_reaches_tmp_without_naming_it_finds_the_own_file_first(ws: Path, opener: Opener):
    real = ws.parent / "outside/secret"
    files = guarded(ws, opener, read=("/**",), write=())
    assert files.read(str(real)).data == b"SECRET"
    assert not (ws.parent / "home").exists()
    own = guarded(ws, opener, read=("/**", *DEFAULT_WRITABLE_PATHS))
    assert own.write(str(real), b"mine").is_new
    assert own.read(str(real)).data == b"mine"
    assert files.read(str(real)).data == b"mine"
    assert real.read_bytes() == b"SECRET"
    none = guarded(ws, opener, read=("/**",), tmp_folder="")
    assert none.read(str(real)).data == b"SECRET"
    with pytest.raises(OutOfScope):
        none.write("/tmp/x", b"x")


def test_of_many_random_paths_none_is_written_outside(ws: Path, opener: Opener):
    """Shows: F01, F16."""
    chance = random.Random(11)
    pieces = [
        "..", "..", ".", "", "src", "deep", "ws", "ws_evil", "outside", "dir", "secret", ".env", ".ENV", ".git", "config",
        "l1", "l1dir", "l1abs", "l1absdir", "dang", "dangdir", "l5", "lgit", "up", "root", "inner", "innerdir", "innerabs",
        "loopa", "new", "tmp", "app.py", str(ws)[1:], str(ws.parent)[1:], "home", "s1", "hooks", "~",
    ]  # fmt: skip
    guarded_before = {name: tree(ws.parent / name) for name in ("outside", "ws_evil", "ws/.git")}
    files = guarded(ws, opener)
    written = 0
    for _ in range(1_500):
        path = chance.choice(("", "", "/", f"{ws}/", "/tmp/")) + "/".join(
            chance.choices(pieces, k=chance.randint(1, 6))
        )
        with suppress(RetinueError):
            real = files.write(path, b"MINE").real_path
            assert real.startswith((f"{ws}/", "/tmp/"))
            written += 1
    assert written > 50
    assert guarded_before == {name: tree(ws.parent / name) for name in guarded_before}
    assert (ws / ".env").read_text() == "SECRET"
    assert sorted(one.name for one in ws.parent.iterdir()) == ["home", "outside", "ws", "ws_evil"]
    assert not Path("/tmp/ws").exists()


def test_no_descriptor_is_left_open_by_a_write(ws: Path, opener: Opener):
    files = guarded(ws, opener)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for template in (*REFUSED, *IMPOSSIBLE, "new/x", "inner", "/tmp/x"):
        with suppress(RetinueError):
            files.write(template.format(ws=ws, home=ws.parent), b"x")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
