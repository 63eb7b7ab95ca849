"""GuardedFiles, reading: every way to ask for a path outside the scope, with both implementations of opening."""

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from live_processes import open_descriptor_count

from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, Scope
from retinue.domain.rules import escape_glob, subtree_pattern
from retinue.errors import Failed, OutOfScope, RetinueError
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.files.openat2 import Opener, best_opener, walk_open

OPENERS = {"kernel": best_opener(), "walk": walk_open}
SECRET = "SECRET"


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest) -> Opener:
    return OPENERS[request.param]


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Path]:
    """A workspace with links and special files, a secret beside it, and a folder whose name has the same prefix."""
    home = tmp_path.resolve()
    for folder in ("ws/src/deep", "ws/sub", "ws/.git/hooks", "outside/dir", "ws_evil"):
        (home / folder).mkdir(parents=True)
    for path in ("outside/secret", "outside/dir/secret", "ws_evil/secret", "ws/.env", "ws/sub/.ENV"):
        (home / path).write_text(SECRET)
    (home / "ws/.git/config").write_text(SECRET)
    (home / "ws/readme.md").write_text("inside\n")
    (home / "ws/src/app.py").write_text("app\n")
    (home / "ws/src/deep/x.txt").write_text("deep\n")
    ws = home / "ws"
    links = {
        "l1": "../outside/secret",
        "l1dir": "../outside",
        "l1abs": str(home / "outside/secret"),
        "l1absdir": str(home / "outside"),
        "src/l2": "../l1dir/dir",
        "l5": ".env",
        "l6": "sub/.ENV",
        "lgit": ".git",
        "up": "..",
        "root": "/",
        "proc": f"/proc/self/root{home}/outside/secret",
        "cwd": "/proc/self/cwd",
        "zero": "/dev/zero",
        "dang": "../outside/new",
        "loopa": "loopb",
        "loopb": "loopa",
        "inner": "src/app.py",
        "innerdir": "src",
        "innerabs": str(ws / "src"),
    }
    for name, target in links.items():
        (ws / name).symlink_to(target)
    os.mkfifo(ws / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        working_folder = Path.cwd()
        os.chdir(ws)
        server.bind("sock")
        os.chdir(working_folder)
        yield ws


def guarded_files(ws: Path, opener: Opener = OPENERS["kernel"]) -> GuardedFiles:
    return GuardedFiles(
        Scope(read=(subtree_pattern(str(ws)),), deny=DEFAULT_DENIED_PATHS, root=str(ws)), opener=opener
    )


OUTSIDE = (
    "../outside/secret", "./../outside/secret", "src/../../outside/secret", "src/deep/../../../outside/secret",
    "{home}/outside/secret", "{home}//outside//secret", "/{home}/outside/./secret", "{ws}/../outside/secret",
    "{ws}/./../outside/secret", "{ws}/src/../../outside/secret", "{ws}//..//outside//secret", "..", "../", "/",
    "../ws_evil/secret", "{home}/ws_evil/secret", "{ws}_evil/secret", "../ws/readme.md", "{ws}/../ws/readme.md",
    "l1", "l1/", "l1/.", "./l1", "{ws}/l1", "l1abs", "l1abs/", "l1dir/secret", "l1dir/dir/secret", "l1absdir/secret",
    "l1dir/../outside/secret", "src/l2/secret", "src/l2/../secret", "up/outside/secret",
    "root{home}/outside/secret", "root/etc/passwd", "innerdir/../../outside/secret",
    "proc", "cwd/secret", "zero", "dang", "l1dir", "l1absdir", "up", "root",
    "/proc/self/root{home}/outside/secret", "/proc/self/cwd/readme.md", "/proc/self/environ", "/proc/1/environ",
    "/dev/fd/0", "/dev/stdin", "/dev/zero", "/etc/passwd", "/etc/shadow", "/proc/self/fd/0",
)  # fmt: skip
DENIED = (
    ".env", "./.env", "{ws}/.env", "src/../.env", ".ENV", "sub/.ENV", "sub/.env", "l5", "l5/", "l6",
    ".git", ".git/", ".git/config", ".GIT/config", ".git/./config", "src/../.git/config", ".git/hooks", "lgit",
    "lgit/config", "innerdir/../.git/config", "nowhere/.git/config", "{ws}/.git/hooks/none",
)  # fmt: skip
IMPOSSIBLE = (
    "", "a\0b", "readme.md\0", "x" * 5000, "/" * 5000, "\ud800", "src/\udcff", "n" * 300, "loopa", "loopa/x",
    "fifo", "sock", "src", "src/", ".", "readme.md/x", "readme.md/../readme.md",
    "~", "~/x", "~root/x", "$HOME", "${{HOME}}/x", "%2e%2e/outside/secret", "..%2foutside/secret",
    "file://{home}/outside/secret", "..\\outside\\secret", "\uff0e\uff0e/outside/secret", "*", "src/*.py", "a\u202eb",
)  # fmt: skip


def fill_template(template: str, ws: Path) -> str:
    return template.format(ws=ws, home=ws.parent)


@pytest.mark.parametrize("template", OUTSIDE + DENIED)
def test_a_path_outside_the_scope_or_denied_is_refused(template: str, ws: Path, opener: Opener):
    """Shows: F01, F02, F03, F04, F05, F08, F12, F15, A085, A087, A089."""
    path = fill_template(template, ws)
    with pytest.raises(OutOfScope) as refused:
        guarded_files(ws, opener).read(path)
    assert refused.value.resource == path
    with pytest.raises(RetinueError):
        guarded_files(ws, opener).list(path)


@pytest.mark.parametrize("template", IMPOSSIBLE)
def test_a_path_that_names_no_file_fails_with_a_printable_error_and_never_blocks(
    template: str, ws: Path, opener: Opener
):
    """Shows: F09, F10, F11, F20."""
    with pytest.raises(Failed) as failed:
        guarded_files(ws, opener).read(fill_template(template, ws))
    assert str(failed.value).isprintable()


def read_by_name_check(ws: Path, path: str) -> str:
    """Read a file after comparing only its name with the scope, which is unsafe."""
    name = os.path.normpath(ws / path)
    if not name.startswith(str(ws)) or Path(name).name == ".env":
        raise OutOfScope(path)
    return Path(name).read_text()


def test_the_same_paths_reach_the_secret_when_only_names_are_compared(ws: Path):
    """Control test: without real checks, the attack paths work."""
    leaked: list[str] = []
    for template in OUTSIDE + DENIED:
        if template in ("zero", "/dev/zero"):
            continue
        try:
            leaked += [template] * (SECRET in read_by_name_check(ws, fill_template(template, ws)))
        except (OSError, ValueError, RetinueError):
            continue
    assert len(leaked) >= 12


def test_special_characters_in_a_file_name_are_not_expanded(ws: Path, opener: Opener):
    """Shows: F11, F14."""
    for name in ("~", "$HOME", "%2e%2e", "a[1].py", "*", "?", "..\\up", "file:", "-rf", " ", "é", "a\nb"):
        (ws / name).write_text(name)
        assert guarded_files(ws, opener).read(name).data.decode() == name
        assert guarded_files(ws, opener).read(f"{ws}/{name}").data.decode() == name


@pytest.mark.parametrize(
    "path",
    ["src/app.py", "./src/app.py", "src//app.py", "src/./app.py", "src/deep/../app.py", "inner", "innerdir/app.py",
     "innerabs/app.py", "up/ws/src/app.py", "{ws}/src/app.py", "/{ws}/src/app.py", "{ws}/innerabs/app.py"],
)  # fmt: skip
def test_every_path_to_a_file_in_the_workspace_opens_it_with_its_real_path(
    path: str, ws: Path, opener: Opener
):
    """Shows: L003, A089."""
    opened = guarded_files(ws, opener).read(fill_template(path, ws))
    assert (opened.data, opened.size, opened.real_path) == (b"app\n", 4, str(ws / "src/app.py"))


def test_a_refusal_contains_the_resource_and_the_allowed_and_denied_patterns(ws: Path):
    """The tool executor needs these fields to tell the model how to request access."""
    with pytest.raises(OutOfScope) as refused:
        guarded_files(ws).read(".env")
    error = refused.value
    assert (error.resource, error.allowed, error.denied) == (".env", (f"{ws}/**",), DEFAULT_DENIED_PATHS)
    assert "deny **/.env" in str(error)
    assert str(ws) in str(error)


def test_the_error_for_a_missing_file_suggests_the_nearest_name(ws: Path):
    with pytest.raises(Failed, match=r"no such file: src/ap\.py \(in .*\); did you mean src/app\.py\?"):
        guarded_files(ws).read("src/ap.py")
    with pytest.raises(Failed, match=r"no such file: nowhere/at/all \(in [^)]*\)$"):
        guarded_files(ws).read("nowhere/at/all")


def test_a_denied_file_is_never_suggested_as_the_nearest_name(ws: Path):
    with pytest.raises(Failed) as failed:
        guarded_files(ws).read(".en")
    assert ".env" not in str(failed.value)


def test_a_refusal_does_not_reveal_whether_a_denied_file_exists(ws: Path):
    refusals: list[str] = []
    for name in ("sub/.env", "src/.env"):
        with pytest.raises(OutOfScope) as refused:
            guarded_files(ws).read(name)
        refusals.append(str(refused.value).replace(name, ""))
    assert refusals[0] == refusals[1]


def test_reading_a_folder_and_listing_a_file_fail_with_the_right_tool_to_use(ws: Path):
    with pytest.raises(Failed, match=r"src is a folder\. Use ls"):
        guarded_files(ws).read("src")
    with pytest.raises(Failed, match=r"readme\.md is a file, not a folder. Use read"):
        guarded_files(ws).list("readme.md")


def test_a_read_returns_at_most_max_bytes(ws: Path):
    (ws / "big").write_bytes(b"x" * 100_000)
    opened = guarded_files(ws).read("big", max_bytes=10)
    assert (opened.data, opened.size) == (b"x" * 10, 100_000)
    assert guarded_files(ws).read("big").data == b"x" * 100_000


def test_a_proc_file_that_reports_no_size_is_read_to_its_end(ws: Path):
    files = GuardedFiles(Scope(read=("/proc/sys/kernel/**",), root=str(ws), closed_paths=()))
    opened = files.read("/proc/sys/kernel/ostype")
    assert (opened.data, opened.size) == (b"Linux\n", 6)
    assert files.read("/proc/sys/kernel/ostype", max_bytes=3).data == b"Lin"


def test_a_file_whose_name_looks_like_a_deleted_file_is_refused(ws: Path):
    (ws / "gone (deleted)").write_text("x")
    with pytest.raises(OutOfScope):
        guarded_files(ws).read("gone (deleted)")


def test_a_narrow_pattern_allows_only_matching_files_of_the_workspace(ws: Path, opener: Opener):
    """Shows: A087, A088."""
    files = GuardedFiles(Scope(read=(f"{ws}/src/*.py",), root=str(ws)), opener=opener)
    assert files.read("src/app.py").data == b"app\n"
    for path in ("readme.md", "src/deep/x.txt", "sub/none", "src/deep/none.py", "../outside/secret"):
        with pytest.raises(OutOfScope):
            files.read(path)
    assert [entry.path for entry in files.list(".")] == ["src"]
    assert [entry.path for entry in files.list("src")] == ["app.py"]
    assert [entry.path for entry in files.walk(".")] == ["src/app.py"]
    for folder in ("sub", "src/deep"):
        with pytest.raises(OutOfScope):
            files.list(folder)


def test_a_folder_outside_the_workspace_is_readable_when_a_pattern_names_it(ws: Path, opener: Opener):
    home = ws.parent
    files = GuardedFiles(
        Scope(
            read=(subtree_pattern(str(ws)), f"{home}/outside/**", "/etc/hostname"),
            deny=("**/dir/**",),
            root=str(ws),
        ),
        opener=opener,
    )
    assert files.read(f"{home}/outside/secret").data.decode() == SECRET
    assert [entry.path for entry in files.list(f"{home}/outside")] == ["secret"]
    for path in (
        f"{home}/outside/dir/secret",
        f"{home}/ws_evil/secret",
        "/etc/passwd",
        f"{home}/outside/../ws_evil/secret",
    ):
        with pytest.raises(OutOfScope):
            files.read(path)


def test_retinues_home_stays_closed_even_if_the_scope_allows_all_paths(ws: Path):
    """Shows: F21."""
    home = ws.parent / "home/sessions/other"
    home.mkdir(parents=True)
    (home / "session.md").write_text(SECRET)
    scope = Scope(read=("/**",), root=str(ws), closed_paths=(f"{ws.parent}/home/**", "/proc/**"))
    for path in (str(home / "session.md"), "../home/sessions/other/session.md", "/proc/self/environ"):
        with pytest.raises(OutOfScope):
            GuardedFiles(scope).read(path)


def test_a_project_file_that_is_a_link_to_the_outside_is_refused(ws: Path):
    """Shows: F24."""
    (ws / "AGENTS.md").symlink_to("../outside/secret")
    with pytest.raises(OutOfScope):
        guarded_files(ws).read("AGENTS.md")


def test_a_rule_matches_a_name_in_every_unicode_normalisation_form(ws: Path):
    """Shows: F13."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for name in (composed, decomposed):
        (ws / name).mkdir()
        (ws / name / "x").write_text("x")
    for rule in (composed, decomposed):
        denying = GuardedFiles(Scope(read=(subtree_pattern(str(ws)),), deny=(f"**/{rule}/**",), root=str(ws)))
        for name in (composed, decomposed):
            with pytest.raises(OutOfScope):
                denying.read(f"{name}/x")
    allowing = GuardedFiles(Scope(read=(f"{ws}/{composed}/**",), root=str(ws)))
    assert allowing.read(f"{decomposed}/x").data == b"x"


def test_control_characters_in_a_name_are_escaped_in_the_error(ws: Path):
    """Shows: F13."""
    with pytest.raises(Failed, match=r"no such file: a\\u202eb\\x1b\[31m "):
        guarded_files(ws).read("a\u202eb\x1b[31m")


def test_a_file_with_hard_links_is_not_read_except_in_package_folders(ws: Path, opener: Opener):
    """Another name of the file may be denied, and the kernel does not list the other names.

    Shows: F07."""
    os.link(ws / ".env", ws / "envhard")
    os.link(ws.parent / "outside/secret", ws / "hard")
    installed = ws / ".venv/lib/site-packages/x.py"
    installed.parent.mkdir(parents=True)
    os.link(ws / "readme.md", installed)
    files = guarded_files(ws, opener)
    for path in ("envhard", "hard", "readme.md"):
        with pytest.raises(OutOfScope, match=r"has 2 hard links") as refused:
            files.read(path)
        assert refused.value.error == "hard_link"
        with pytest.raises(OutOfScope):
            files.check_access(path, "read")
    assert files.read(".venv/lib/site-packages/x.py").data == b"inside\n"
    scope_naming_file = Scope(
        read=(subtree_pattern(str(ws)), escape_glob(f"{ws}/readme.md")),
        deny=DEFAULT_DENIED_PATHS,
        root=str(ws),
    )
    assert GuardedFiles(scope_naming_file, opener=opener).read("readme.md").data == b"inside\n"
    os.link(ws / "readme.md", ws / "src/.env")
    with pytest.raises(OutOfScope, match="deny"):
        files.read("src/.env")


def test_a_listing_shows_links_as_links_and_omits_denied_files(ws: Path, opener: Opener):
    entries = {entry.path: entry for entry in guarded_files(ws, opener).list(".")}
    assert not {".env", ".git"} & set(entries)
    assert {entries[name].kind for name in ("l1", "loopa", "innerdir", "root")} == {"link"}
    assert (entries["src"].kind, entries["fifo"].kind, entries["readme.md"].kind) == ("dir", "other", "file")
    assert entries["readme.md"].size == 7
    assert [*entries] == sorted(entries)


def test_a_walk_yields_files_in_order_and_follows_no_link(ws: Path, opener: Opener):
    """Shows: F20."""
    entries = list(guarded_files(ws, opener).walk("."))
    assert [entry.path for entry in entries if entry.kind == "file"] == [
        "readme.md",
        "src/app.py",
        "src/deep/x.txt",
    ]
    assert all(entry.real_path == f"{ws}/{entry.path}" for entry in entries)
    assert {entry.path for entry in entries if entry.kind == "link"} >= {"up", "root", "loopa", "src/l2"}
    assert [entry.path for entry in guarded_files(ws, opener).walk("src/app.py")] == ["."]
    assert [entry.path for entry in guarded_files(ws, opener).walk("innerdir/deep")] == ["x.txt"]


def test_a_walk_stops_at_its_limit_and_ends_with_a_cut_entry(tmp_path: Path, opener: Opener):
    """Shows: F20."""
    ws = tmp_path.resolve()
    for folder in ("a", "b", ".git"):
        (ws / folder).mkdir()
        for number in range(20):
            (ws / folder / f"{number:02}").touch()
    files = guarded_files(ws, opener)
    assert [entry.kind for entry in files.walk(".", limit=43)] == ["file"] * 40
    cut = [entry.kind for entry in files.walk(".", limit=30)]
    assert (cut.count("file"), cut[-1]) == (27, "cut")
    assert [entry.kind for entry in files.walk("a", limit=5)] == ["file"] * 5 + ["cut"]


def test_a_walk_goes_as_deep_as_a_path_can_be(tmp_path: Path, opener: Opener):
    ws = tmp_path.resolve()
    deep = ws / "/".join(["d"] * 500)
    deep.mkdir(parents=True)
    (deep / "f").touch()
    assert [entry.kind for entry in guarded_files(ws, opener).walk(".")] == ["file"]


def test_a_missing_workspace_is_reported(tmp_path: Path):
    with pytest.raises(Failed, match="cannot be opened: No such file or directory"):
        guarded_files(tmp_path.resolve() / "gone").read("x")


def test_none_of_many_random_paths_reaches_a_secret(ws: Path, opener: Opener):
    """Shows: F01."""
    rng = random.Random(7)
    pieces = [
        "..", "..", "..", ".", "", "src", "deep", "sub", "ws", "ws_evil", "outside", "dir", "secret", ".env", ".ENV",
        ".git", "config", "l1", "l1dir", "l1absdir", "l5", "lgit", "up", "root", "proc", "self", "fd", "innerdir",
        "innerabs", "loopa", *["app.py", "readme.md"] * 4, str(ws)[1:], str(ws.parent)[1:], "~", "%2e%2e", "...", "\\..",
    ]  # fmt: skip
    files = guarded_files(ws, opener)
    read_count = 0
    for _ in range(10_000):
        path = rng.choice(("", "", "/", f"{ws}/")) + "/".join(rng.choices(pieces, k=rng.randint(1, 7)))
        try:
            data = files.read(path).data.decode()
        except RetinueError:
            continue
        assert SECRET not in data, path
        read_count += 1
    assert read_count > 100


def test_no_file_descriptor_is_left_open_by_reads_lists_and_walks(ws: Path, opener: Opener):
    before = open_descriptor_count()
    files = guarded_files(ws, opener)
    operations: tuple[Callable[[str], object], ...] = (
        files.read,
        files.list,
        lambda path: list(files.walk(path)),
    )
    for template in (*OUTSIDE, *DENIED, *IMPOSSIBLE, "readme.md", "innerabs/app.py"):
        for operation in operations:
            with suppress(RetinueError):
                operation(fill_template(template, ws))
    unfinished = files.walk(".")
    next(unfinished)
    del unfinished
    assert open_descriptor_count() == before
