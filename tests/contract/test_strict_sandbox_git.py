"""Git folders in the strict sandbox: git works, and a command cannot make the user's git run or overwrite anything."""

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from git_repository import commit_all, create_repository, run_git
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import Scope
from retinue.errors import OutOfScope
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.git.failure_advice import git_failure_advice
from retinue.sandbox.git.index_check import unsafe_index_reason
from retinue.sandbox.git.safe_config import read_safe_config
from retinue.sandbox.mountpoints import prepare_mount_points
from retinue.sandbox.mounts import plan_mounts

CLOSED = 0x10
"""The kernel's event for a folder that a program has read and closed (IN_CLOSE_NOWRITE)."""
LIVE = (
    "objects",
    "logs",
    "refs/heads",
    "index",
    "HEAD",
    "ORIG_HEAD",
    "COMMIT_EDITMSG",
    "AUTO_MERGE",
    "taken-",
)


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A workspace with a commit, a tag, a linked worktree and a submodule."""
    (workspace / ".gitignore").write_text("linked/\n")
    create_repository(workspace)
    library = workspace.parent / "library"
    library.mkdir()
    (library / "lib.py").write_text("pass\n")
    create_repository(library)
    run_git(workspace, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "module")
    commit_all(workspace)
    run_git(workspace, "tag", "v1")
    run_git(workspace, "worktree", "add", "-q", "linked")
    return workspace


def protected_files(repository: Path) -> dict[str, bytes]:
    """Return the files of the git folder that no command may change, with their content."""
    top = repository / ".git"
    names = (str(path.relative_to(top)) for path in top.rglob("*") if path.is_file() or path.is_symlink())
    return {name: (top / name).read_bytes() for name in names if not name.startswith(LIVE)}


def test_git_commands_work_in_the_workspace(scope: Scope, repository: Path, run_in_sandbox: RunInSandbox):
    run_in_sandbox(scope, "true")
    before = protected_files(repository)
    run_in_sandbox(scope, "git checkout -q -b topic; echo two > two.txt; git add two.txt; git commit -qm two")
    result = run_in_sandbox(
        scope,
        "git checkout -q main && echo three > three.txt && git add . && git commit -qm three"
        " && git merge -q --no-edit topic && git commit -q --amend -m merged && git reset -q --hard HEAD"
        " && git rebase -q HEAD~1 && git status --short && git log --oneline | wc -l",
    )
    assert (result.exit_code, result.output, result.notes) == (0, "4\n", ())
    assert run_git(repository, "status", "--short") == ""
    assert run_git(repository, "log", "--format=%s", "-2").split() == ["two", "three"]
    assert run_git(repository, "fsck", "--strict") == ""
    assert protected_files(repository) == before


@pytest.mark.parametrize(
    "command",
    [
        "for d in .git/worktrees/*; do echo /evil > $d/commondir; echo x > $d/config.worktree; done",
        "mv .git/worktrees .git/w; rm -rf .git/worktrees; cp -r .git/worktrees w; mv w .git/worktrees",
        "echo '[core]' >> .git/modules/module/config; mkdir .git/modules/module/hooks; rm -rf .git/modules",
        "mkdir -p .git/modules/other; echo x > .git/modules/other/config",
        "echo x > .git/commondir; echo x > .git/config.worktree; mkdir -p .git/remotes; echo x > .git/remotes/o",
        "echo x > .git/info/attributes; rm -rf .git/info; mkdir .git/info; echo x > .git/info/attributes",
        "echo /evil > .git/objects/info/alternates; rm -rf .git/objects/info",
        "git tag v2; git tag -d v1; git update-ref refs/replace/$(git rev-parse HEAD) HEAD; git gc -q",
        "mkdir .git/rebase-merge .git/sequencer; echo 'exec x' > .git/rebase-merge/git-rebase-todo; echo x > .git/MERGE_HEAD",
        "mv .git .g2; mv .git/info .git/i2; mv .git/hooks .git/h2; rm -rf .git/refs/tags",
    ],
)
def test_settings_and_state_of_a_repository_stay_as_they_were(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox, command: str
):
    run_in_sandbox(scope, "true")
    before = protected_files(repository)
    run_in_sandbox(scope, f"{command}; echo done")
    assert protected_files(repository) == before
    assert run_git(repository, "rev-parse", "v1") == run_git(repository, "rev-parse", "HEAD")


def test_a_branch_survives_a_failing_attempt_to_pack_or_delete_it(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox
):
    run_git(repository, "branch", "kept")
    result = run_in_sandbox(scope, "git pack-refs --all --prune; git branch -D kept; git stash; git gc -q")
    assert "packed-refs" in result.output
    assert run_git(repository, "rev-parse", "kept") == run_git(repository, "rev-parse", "HEAD")
    assert result.notes == ()


def test_a_command_accepts_packed_refs_that_another_command_creates_while_its_sandbox_is_built(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox
):
    """The other command's file appears when the git folder has been scanned, before the rest of the workspace."""
    packed_refs = repository / ".git/packed-refs"
    for number in range(600):
        (repository / f"src/{number}").mkdir()
    libc = ctypes.CDLL(None)
    inotify = libc.inotify_init1(os.O_CLOEXEC)
    libc.inotify_add_watch(inotify, os.fsencode(packed_refs.parent), ctypes.c_uint32(CLOSED))

    def create_after_scan() -> None:
        os.read(inotify, 4096)
        packed_refs.touch()  # on a busy machine, Retinue may have created it first

    creation = threading.Thread(target=create_after_scan)
    creation.start()
    result = run_in_sandbox(scope, "git pack-refs --all --prune; git rev-parse main")
    creation.join()
    os.close(inotify)
    assert "packed-refs: Device or resource busy" in result.output
    assert result.notes == ()
    assert packed_refs.read_bytes() == b""
    assert run_git(repository, "rev-parse", "main") == run_git(repository, "rev-parse", "HEAD")


def test_packed_refs_is_not_created_through_a_link_that_another_command_makes(scope: Scope, repository: Path):
    outside = repository.parent / "outside/new"
    for folder in (repository / "new", outside):
        folder.mkdir()
        run_git(folder, "init", "-q")
    plan = plan_mounts(scope)
    assert f"{repository}/new/.git/packed-refs" in plan.missing_files
    shutil.rmtree(repository / "new")
    (repository / "new").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        prepare_mount_points(plan)
    assert not (outside / ".git/packed-refs").exists()


@pytest.mark.parametrize("name", ["logs/HEAD", "index", "COMMIT_EDITMSG", "ORIG_HEAD", "refs/heads/topic"])
def test_git_does_not_write_through_a_link_that_a_command_made(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox, name: str
):
    target = repository.parent / "outside/secret"
    result = run_in_sandbox(scope, f"ln -s {target} l; mv -f l .git/{name}")
    assert len(result.notes) == 1
    assert not (repository / ".git" / name).is_symlink()
    run_git(repository, "reset", "-q", "--hard")
    run_git(repository, "commit", "--allow-empty", "-qm", "mine")
    run_git(repository, "branch", "-f", "topic")
    assert target.read_text() == "SECRET"


def test_a_new_repository_keeps_its_packed_objects_and_a_command_cannot_destroy_them(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(
        scope, "git clone -q . copy && cd copy && git repack -adq && ls .git/objects/pack"
    )
    assert ".pack" in result.output
    assert run_git(repository / "copy", "fsck", "--strict") == ""
    run_in_sandbox(scope, "rm -rf copy/.git/objects/pack/*; cd copy; echo x > x; git add x; git commit -qm x")
    assert run_git(repository / "copy", "log", "--format=%s").startswith("x")
    assert run_git(repository / "copy", "fsck", "--strict") == ""


def test_links_in_a_repository_of_another_name_are_removed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    run_git(workspace, "init", "-q", "--bare", "store")
    result = run_in_sandbox(
        scope, "ln -s /x store/refs/heads/a; mkdir store/logs; ln -s /x store/logs/HEAD; ln -s /x store/index"
    )
    assert len(result.notes) == 3
    links = [each.name for each in (workspace / "store").rglob("*") if each.is_symlink()]
    assert [each[:6] for each in links] == ["taken-"], result.notes


@pytest.mark.parametrize("make", ["echo broken > .git/HEAD", "ln -sf nowhere .git/HEAD", "rm .git/HEAD"])
def test_a_broken_head_is_restored(scope: Scope, repository: Path, run_in_sandbox: RunInSandbox, make: str):
    """Without it, git would look for another repository: in the workspace itself."""
    result = run_in_sandbox(scope, make)
    assert any("HEAD was restored" in note for note in result.notes)
    assert run_git(repository, "symbolic-ref", "HEAD") == "refs/heads/main"


def test_an_unfinished_merge_is_moved_aside(scope: Scope, repository: Path, run_in_sandbox: RunInSandbox):
    for branch in ("one", "other"):
        run_git(repository, "checkout", "-q", "-b", branch, "main")
        (repository / "src/app.py").write_text(f"{branch}\n")
        run_git(repository, "commit", "-qam", branch)
    result = run_in_sandbox(scope, "git merge -q one; test -e .git/MERGE_HEAD")
    assert result.exit_code == 0
    assert not (repository / ".git/MERGE_HEAD").exists()
    assert any("must end in the command that begins it" in note for note in result.notes)


def test_a_repository_of_any_name_is_protected_like_a_git_folder(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    run_git(workspace, "init", "-q", "--bare", "--initial-branch", "main", "store")
    before = (workspace / "store/config").read_bytes()
    result = run_in_sandbox(
        scope,
        "echo evil >> store/config; echo x > c; mv -f c store/config; mkdir store/worktrees;"
        " git init -q --bare new; mkdir -p new/hooks; echo x > new/hooks/post-commit; echo x >> new/config;"
        " git init -q mine; cd mine; echo x > x; git add x; git commit -qm x; git push -q ../store HEAD:refs/heads/main",
    )
    assert "Device or resource busy" in result.output
    assert (workspace / "store/config").read_bytes() == before
    assert not (workspace / "store/worktrees").exists()
    assert not (workspace / "new/config").exists()
    assert not (workspace / "new/hooks").exists()
    assert run_git(workspace / "store", "log", "--format=%s", "main") == "x"


@pytest.mark.parametrize(
    "folder",
    [
        ".git/objects/inner",
        ".git/refs/heads/inner",
        ".git/logs",
        "new/.git/info/inner",
        "store/objects/inner",
    ],
)
def test_a_repository_that_a_command_hides_in_a_git_folder_gets_no_settings(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox, folder: str
):
    run_git(repository, "init", "-q", "--bare", "store")
    result = run_in_sandbox(
        scope,
        f"git init -q new; mkdir -p {folder}/objects {folder}/refs/heads {folder}/hooks; cd {folder}; echo x > hooks/post-commit"
        " && echo 'ref: refs/heads/main' > HEAD && printf '[core]\\nfsmonitor = evil\\n' > config && echo done",
    )
    assert result.output.endswith("done\n"), result.output
    assert not (repository / folder / "config").exists()
    assert not (repository / folder / "hooks").exists()


def settings_below(folder: Path) -> list[str]:
    """Return the settings of all repositories below a folder, found as by git: without absolute paths."""
    found = subprocess.run(
        ["find", ".", "-name", "config"], cwd=folder, capture_output=True, text=True, check=True
    )
    return found.stdout.split()


@pytest.mark.parametrize(
    "build",
    [
        "mkdir -p a/.husky/.husky/.husky/.husky && mv inner a/.husky/.husky/.husky/.husky && mv a .husky",
        (
            "mkdir -p new/.git/worktrees/a && cd new/.git/worktrees/a && for n in 1 2 3 4 5 6; do"
            " cp -r {top}/inner/.git/* .; mkdir -p worktrees/a; cd worktrees/a; done; rm -r {top}/inner"
        ),
    ],
)
def test_a_repository_in_many_closed_folders_gets_no_settings(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox, build: str
):
    result = run_in_sandbox(
        scope,
        f"git init -q inner; git init -q new; {build.replace('{top}', str(workspace))} && echo done",
    )
    assert result.output.endswith("done\n"), result.output
    assert settings_below(workspace) == []


def test_writing_a_file_of_a_repository_needs_an_approval(scope: Scope, repository: Path):
    run_git(repository, "init", "-q", "--bare", "store")
    (repository / "half/refs").mkdir(parents=True)
    (repository / "half/HEAD").touch()
    files = GuardedFiles(scope)
    for name in (
        ".git/worktrees/linked/commondir",
        ".git/index",
        "store/config",
        "store/hooks/x",
        "half/objects/x",
    ):
        assert files.is_guarded(f"{repository}/{name}"), name
    for name in ("src/app.py", "half/config", "half/notes/x", "store2/config", "store/notes.txt"):
        assert not files.is_guarded(f"{repository}/{name}"), name


def test_a_file_that_became_guarded_after_its_write_was_authorized_is_not_written(
    scope: Scope, repository: Path
):
    """As by another call of the same reply, or by a link that a command moved meanwhile."""
    (repository / "half/refs").mkdir(parents=True)
    (repository / "half/HEAD").touch()
    (repository / ".vscode").mkdir()
    (repository / "link").symlink_to(".vscode")
    files = GuardedFiles(scope)
    for name in ("half/objects/x", "link/settings.json"):
        with pytest.raises(OutOfScope, match="nobody approved it"):
            files.write(name, b"x")
    assert sorted(each.name for each in (repository / "half").iterdir()) == ["HEAD", "refs"]
    assert list((repository / ".vscode").iterdir()) == []
    approved = files.restrict_writes_to(f"{repository}/half/objects/x")
    assert approved.write("half/objects/x", b"x").is_new


def test_concurrent_writes_do_not_complete_a_repository(scope: Scope, repository: Path):
    files, markers = GuardedFiles(scope), ("HEAD", "objects/x", "refs/x", "objects/y", "refs/y")

    def write_file(number: int, name: str) -> None:
        with suppress(OutOfScope):
            files.write(f"{number}/{name}", b"x")

    with ThreadPoolExecutor(len(markers)) as pool:
        for number in range(30):
            pool.map(partial(write_file, number), markers)
    for number in range(30):
        names = {each.name for each in (repository / str(number)).iterdir()}
        assert not names >= {"HEAD", "objects", "refs"}


def test_a_write_grant_for_the_git_folder_allows_changing_its_state(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox
):
    """Settings and hooks stay closed."""
    granted = replace(scope, write=(*scope.write, f"{repository}/.git/**"))
    run_in_sandbox(granted, "git tag v2; echo x > .git/MERGE_MSG; echo x >> .git/config")
    assert run_git(repository, "rev-parse", "v2") == run_git(repository, "rev-parse", "HEAD")
    assert (repository / ".git/MERGE_MSG").read_text() == "x\n"
    assert "x" not in run_git(repository, "config", "--list", "--local", "--name-only").split()


@pytest.mark.parametrize(
    "command", ["tag v2", "tag -d v1", "stash", "branch -D topic", "gc", "worktree add x", "config a.b c"]
)
def test_the_error_of_a_refused_git_command_says_what_to_do(
    scope: Scope, repository: Path, run_in_sandbox: RunInSandbox, command: str
):
    run_git(repository, "branch", "topic")
    (repository / "src/app.py").write_text("changed\n")
    result = run_in_sandbox(scope, f"git {command}")
    assert result.exit_code != 0
    advice = git_failure_advice(result.output, scope)
    assert advice is not None, result.output
    assert "ask the user to add '.git/**' to paths.write" in advice
    granted = replace(scope, write=(*scope.write, f"{repository}/.git/**"))
    result = run_in_sandbox(granted, f"git {command}")
    assert (result.exit_code == 0) == (command != "config a.b c"), result.output


def test_other_errors_of_git_get_no_advice(scope: Scope, repository: Path, run_in_sandbox: RunInSandbox):
    result = run_in_sandbox(
        scope,
        "git checkout nowhere; git branch main; git commit -qm x; touch .git/index.lock; git add .; git tag v1;"
        " echo x > /usr/x; echo 'error: /data: Read-only file system'",
    )
    assert result.output.count("fatal: ") == 3
    assert git_failure_advice(result.output, scope) is None


def make_index(*paths: str, version: int = 2, extensions: bytes = b"") -> bytes:
    entries = b""
    for path in paths:
        raw = os.fsencode(path)
        stat_data = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0) + bytes(20)
        entry = stat_data + struct.pack(">H", min(len(raw), 0xFFF))
        entry += b"\0" + raw + b"\0" if version == 4 else raw + b"\0" * (8 - (62 + len(raw)) % 8)
        entries += entry
    data = struct.pack(">4sII", b"DIRC", version, len(paths)) + entries + extensions
    return data + hashlib.sha1(data).digest()


@pytest.mark.parametrize(
    "path",
    [".git/hooks/post-checkout", "a/.GIT/config", "../x", "/etc/x", "a/../b", "a//b", "git~1/x", "a\\.git\\x", "a\0b", ""],
)  # fmt: skip
@pytest.mark.parametrize("version", [2, 4])
def test_an_index_that_git_would_not_write_is_unsafe(path: str, version: int):
    assert unsafe_index_reason(make_index(path, version=version), sha256=False)


def test_an_index_with_hidden_entries_is_unsafe():
    """Git may start to read at the offsets that an extension gives."""
    hidden = make_index(".git/hooks/x")[12:-20]
    extension = b"ZZZZ" + struct.pack(">I", len(hidden)) + hidden
    offsets = b"IEOT" + struct.pack(">I", 12) + struct.pack(">III", 1, 12 + 72 + 8, 1)
    assert not unsafe_index_reason(make_index("plain", extensions=extension), sha256=False)
    assert unsafe_index_reason(make_index("plain", extensions=extension + offsets), sha256=False)
    assert unsafe_index_reason(make_index("plain")[:-30], sha256=False)
    assert unsafe_index_reason(b"DIRC", sha256=False)


def test_every_index_that_git_writes_is_safe(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for number in range(300):
        (tmp_path / f"deep/file{number}").write_text("x")
    (tmp_path / "\u00e9 \\ .gitignore").write_text("x")
    create_repository(tmp_path)
    index = tmp_path / ".git/index"
    for arguments in (
        ("status",),
        ("update-index", "--index-version", "4"),
        ("-c", "index.threads=2", "update-index", "--force-write-index"),
        ("update-index", "--index-version", "2", "--untracked-cache"),
        ("update-index", "--skip-worktree", "deep/file1"),
        ("update-index", "--split-index"),
        ("update-index", "--no-split-index"),
        ("sparse-checkout", "set", "--sparse-index", "other"),
    ):
        run_git(tmp_path, *arguments)
        assert unsafe_index_reason(index.read_bytes(), sha256=False) == "", arguments


def test_the_safe_part_of_a_configuration_starts_no_program(tmp_path: Path):
    config = tmp_path / "config"
    config.write_text(
        '[core]\n\tbare = false\n\tfsmonitor = touch x\n\tautocrlf = input\n[include]\n\tpath = y\n[core "x"]\n\teol = lf\n'
        '[extensions]\n\tobjectFormat = sha256\n\tworktreeConfig = true\n[filter "z"]\n\tclean = touch x\n'
        "[core] sshCommand = x\n[core]\n\tsymlinks = a\\\n\tb\n\teditor = x\n"
    )
    assert read_safe_config(str(config)) == (
        b"[core]\n\tbare = false\n\tautocrlf = input\n[extensions]\n\tobjectformat = sha256\n"
    )
    assert read_safe_config(str(tmp_path / "missing")) == b""
