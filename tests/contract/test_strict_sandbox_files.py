"""Files in the strict sandbox: what a command can read and write, and what remains after it."""

import ctypes
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.ceiling import OPERATOR, Ceiling
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed
from retinue.sandbox.bubblewrap import bubblewrap_command
from retinue.sandbox.mounts import MAX_SINGLE_FILES


def test_a_command_reads_and_writes_files_in_the_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(
        scope, "pwd && cat src/app.py && echo new > src/new.txt && mkdir -p a/b && mv src/new.txt a/b"
    )
    assert result.output == f"{workspace}\nprint('app')\n"
    assert result.exit_code == 0
    assert result.notes == ()
    assert (workspace / "a/b/new.txt").read_text() == "new\n"


def test_system_programs_run_in_the_sandbox(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """Only the programs that this machine has are tried."""
    (workspace / "a.c").write_text("int main(void) { return 7; }\n")
    commands = {
        "python3": "/usr/bin/python3 -c 'print(6 * 7)' | grep -q 42",
        "git": "git init -q r && cd r && echo x > y && git add y && git commit -qm one && git log --oneline | grep -q one",
        "gcc": "gcc a.c -o a.out; ./a.out; test $? = 7",
        "perl": "perl -e 'exit 0'",
        "awk": "awk 'BEGIN { exit 0 }'",
    }
    for name, line in commands.items():
        if os.access(f"/usr/bin/{name}", os.X_OK):
            result = run_in_sandbox(scope, f"({line})")
            assert result.exit_code == 0, (name, result.output)


def test_a_command_sees_only_its_scope_and_the_system_folders(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    outside = workspace.parent / "outside"
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "up").symlink_to("../outside")
    result = run_in_sandbox(
        scope,
        f"cat {outside}/secret ../outside/secret link up/secret /proc/1/root{outside}/secret "
        "/proc/self/cwd/../outside/secret; cat /etc/shadow; ls /boot /sys /srv /mnt /media",
    )
    assert "SECRET" not in result.output
    assert result.output.count("No such file") == 12


def test_a_command_cannot_create_or_change_anything_outside_the_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S18."""
    before = {name: Path(f"/dev/{name}").stat() for name in ("null", "zero", "tty")}
    result = run_in_sandbox(
        scope,
        """for place in / /usr /etc /dev /proc /run /var /dev/pts; do
            (touch $place/made-here) 2>/dev/null && echo "wrote in $place"; done
        for file in /etc/passwd /usr/bin/env /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/oom_score_adj; do
            (echo x >> $file) 2>/dev/null && echo "wrote $file"; done
        for node in null zero tty; do chmod 600 /dev/$node 2>/dev/null && echo "changed $node"; done
        touch -d 2001-01-01 /dev/null 2>/dev/null && echo "dated null"
        echo gone > /dev/null && echo end""",
    )
    assert result.output == "end\n"
    for name, status in before.items():
        after = Path(f"/dev/{name}").stat()
        assert (after.st_mode, after.st_uid) == (status.st_mode, status.st_uid)


def test_closed_and_denied_paths_are_hidden(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """This includes links, names in other case, and paths that a ceiling denies."""
    for name in (".env", "sub/.ENV", ".npmrc", "secrets/deep/key", "above/x", ".ssh/id"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("SECRET")
    (workspace / "innocent").symlink_to(".env")
    ceiling = Ceiling(set_by=OPERATOR, deny=(f"{workspace}/above/**",))
    denying = replace(scope, deny=("**/.env", f"{workspace}/secrets/**"), ceilings=(ceiling,))
    result = run_in_sandbox(
        denying,
        "cat $(find . -name '*' 2>/dev/null) innocent secrets/deep/key above/x .ssh/id; grep -r SECRET .",
    )
    assert "SECRET" not in result.output.replace("grep -r SECRET", "")
    assert "Permission denied" in result.output
    changed = run_in_sandbox(
        denying, "echo x > .env; rm -rf .env secrets .ssh above; mv secrets s2; chmod 777 .ssh; mkdir .ssh/x"
    )
    assert changed.output.count("busy") >= 4
    for name in (".env", "secrets/deep/key", "above/x", ".ssh/id"):
        assert (workspace / name).read_text() == "SECRET"


def test_a_command_cannot_change_git_settings_hooks_or_editor_tasks(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S11, S13."""
    subprocess.run(["git", "init", "-q", workspace], check=True)
    config = workspace / ".git/config"
    config.write_text(config.read_text() + "# SECRET\n")
    (workspace / ".git/hooks").mkdir(exist_ok=True)
    (workspace / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode/tasks.json").write_text("{}")
    before = {
        path: path.read_text()
        for path in (config, workspace / ".git/hooks/pre-commit", workspace / ".vscode/tasks.json")
    }
    result = run_in_sandbox(
        scope,
        """cat .git/config
        git config core.fsmonitor evil; echo evil >> .git/config; echo evil > .git/hooks/post-checkout
        ln -sf /tmp/evil .git/hooks/pre-commit; rm -rf .git/hooks .git/config .vscode
        mv .git .g2; mv .vscode .v2; mv .git/hooks h2; echo evil > .vscode/tasks.json
        git add src && git commit -qm done && git log --oneline | wc -l""",
    )
    assert "SECRET" not in result.output
    assert result.output.rstrip().endswith("1"), result.output
    assert {path: path.read_text() for path in before} == before
    assert not (workspace / ".git/hooks/post-checkout").exists()
    assert "Device or resource busy" in result.output
    assert result.notes == ()


def test_closed_paths_that_a_command_creates_are_renamed_and_no_content_is_lost(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """This includes a folder that was moved away to make room for a new one with its name.

    Shows: S12, S13.
    """
    (workspace / "sub/.git/hooks").mkdir(parents=True)
    (workspace / "sub/.git/hooks/keep").write_text("original")
    result = run_in_sandbox(
        replace(scope, deny=(".github/workflows/**", f"{workspace}/.github/workflows/**")),
        """mkdir -p .vscode new/.GIT/hooks .github/workflows; echo evil > .vscode/tasks.json; echo evil > .bashrc
        echo evil > new/.GIT/hooks/pre-commit; echo evil > .github/workflows/ci.yml; ln -s /etc .ssh; mkfifo pipe
        mv sub sub2; mkdir -p sub/.git/hooks && echo evil > sub/.git/hooks/pre-commit
        mkdir other; echo "gitdir: ../evil" > other/.git; echo fine > ok""",
    )
    remaining = {str(path.relative_to(workspace)) for path in workspace.rglob("*")}
    for removed in (
        ".vscode/tasks.json",
        ".bashrc",
        "new/.GIT/hooks",
        ".github/workflows",
        ".ssh",
        "pipe",
        "other/.git",
    ):
        assert removed not in remaining, removed
        assert any(removed in note for note in result.notes), (removed, result.notes)
    assert (workspace / "sub/.git/hooks/keep").read_text() == "original"
    assert not (workspace / "sub/.git/hooks/pre-commit").exists()
    assert (workspace / "ok").exists()
    assert sum(path.name.startswith("taken-") for path in workspace.rglob("*")) == 7
    assert run_in_sandbox(scope, "true").notes == ()


def test_a_replaced_link_at_a_closed_path_is_restored_and_its_target_is_unchanged(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace / "dotfiles").mkdir()
    (workspace / "dotfiles/bashrc").write_text("mine\n")
    (workspace / ".bashrc").symlink_to("dotfiles/bashrc")
    result = run_in_sandbox(
        scope, "echo evil >> .bashrc; echo evil >> dotfiles/bashrc; rm .bashrc; echo evil > .bashrc"
    )
    assert (workspace / ".bashrc").readlink() == Path("dotfiles/bashrc")
    assert (workspace / "dotfiles/bashrc").read_text() == "mine\n"
    assert any("was restored" in note for note in result.notes)


def test_a_command_cannot_change_the_git_pointer_of_a_worktree(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The repository that the pointer names is not visible either.

    Shows: F15.
    """
    (workspace.parent / "outside/config").write_text("SECRET")
    (workspace / ".git").write_text(f"gitdir: {workspace.parent}/outside\n")
    result = run_in_sandbox(
        scope, f"echo 'gitdir: evil' > .git; rm -f .git; mv .git x; cat {workspace.parent}/outside/config"
    )
    assert (workspace / ".git").read_text() == f"gitdir: {workspace.parent}/outside\n"
    assert "SECRET" not in result.output


def test_a_folder_that_contains_a_closed_path_cannot_be_renamed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Under another name, the next command could read the closed path.

    Shows: S13.
    """
    (workspace / "conf/.docker").mkdir(parents=True)
    (workspace / "conf/.docker/config.json").write_text("SECRET")
    first = run_in_sandbox(
        scope, "mv conf/.docker conf/d; mv conf c; echo fine > conf/new && mv conf/new conf/newer"
    )
    second = run_in_sandbox(scope, "cat */*/config.json conf/newer")
    assert first.output.count("busy") == 2
    assert "SECRET" not in second.output
    assert second.output.endswith("fine\n")


def test_retinues_home_is_hidden_when_it_lies_inside_a_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S14."""
    home = workspace / "data/retinue"
    (home / "sessions/main").mkdir(parents=True)
    (home / "sessions/main/preset.md").write_text("SECRET")
    with_home = replace(scope, retinue_paths=(subtree_pattern(str(home)),))
    result = run_in_sandbox(
        with_home,
        "cat data/retinue/sessions/main/preset.md; echo evil > data/retinue/sessions/main/preset.md; mv data d",
    )
    assert "SECRET" not in result.output
    assert (home / "sessions/main/preset.md").read_text() == "SECRET"


def test_a_worktree_inside_retinues_home_is_readable_and_writable(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace.parent / "other").mkdir()
    (workspace.parent / "other/session.md").write_text("SECRET")
    in_worktree = replace(scope, retinue_paths=(subtree_pattern(str(workspace.parent)),), is_worktree=True)
    result = run_in_sandbox(
        in_worktree,
        f"cat src/app.py; echo x > new; cat {workspace.parent}/other/session.md ../other/session.md",
    )
    assert result.output.startswith("print('app')")
    assert "SECRET" not in result.output
    assert (workspace / "new").exists()


def test_a_command_cannot_write_in_a_read_only_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(
        replace(scope, writable=False), "cat src/app.py; echo x > new; echo t > /tmp/t && cat /tmp/t"
    )
    assert result.output.startswith("print('app')")
    assert result.output.endswith("t\n")
    assert not (workspace / "new").exists()


def test_tmp_is_private_to_the_agent_and_persists_between_commands(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: F18."""
    run_in_sandbox(scope, "echo mine > /tmp/note; echo v > /var/tmp/v")
    assert run_in_sandbox(scope, "cat /tmp/note /tmp/v").output == "mine\nv\n"
    assert (Path(scope.tmp_folder) / "note").read_text() == "mine\n"
    assert stat.S_IMODE(Path(scope.tmp_folder).stat().st_mode) == 0o700
    other = replace(scope, tmp_folder=str(workspace.parent / "another"))
    assert "No such file" in run_in_sandbox(other, "cat /tmp/note").output


def test_without_a_tmp_folder_a_command_gets_a_temporary_tmp(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    without_tmp = replace(
        scope,
        tmp_folder="",
        read=(subtree_pattern(str(workspace)),),
        write=(subtree_pattern(str(workspace)),),
    )
    assert run_in_sandbox(without_tmp, "echo x > /tmp/x && cat /tmp/x").output == "x\n"
    assert "No such file" in run_in_sandbox(without_tmp, "cat /tmp/x").output


def test_a_workspace_below_var_tmp_is_readable_and_writable(scope: Scope, run_in_sandbox: RunInSandbox):
    """With other workspaces, /var/tmp is another name for the agent's own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        trees = (subtree_pattern(folder), "/tmp/**")
        result = run_in_sandbox(
            replace(scope, root=folder, read=trees, write=trees), "pwd; echo words > made; ls /var/tmp"
        )
        assert result.output == f"{folder}\n{Path(folder).name}\n"
        assert (Path(folder) / "made").read_text() == "words\n"


def test_a_link_in_the_agents_tmp_cannot_redirect_a_mount(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """A readable folder below /tmp is mounted into the agent's own /tmp, and links there are not followed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "shared/deep").mkdir(parents=True)
        (Path(folder) / "shared/deep/f").write_text("there\n")
        (Path(scope.tmp_folder)).mkdir()
        (Path(scope.tmp_folder) / Path(folder).name).symlink_to(f"/oldroot{workspace.parent}/outside")
        with_shared = replace(scope, read=(*scope.read, f"{folder}/shared/deep/**"))
        result = run_in_sandbox(with_shared, f"cat {folder}/shared/deep/f; mv {folder} /tmp/moved")
    assert result.output.startswith("there\n")
    assert "busy" in result.output
    assert [path.name for path in (workspace.parent / "outside").iterdir()] == ["secret"]


def test_a_command_sees_only_folders_that_every_ceiling_allows(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    for name in ("src", "docs", "lib"):
        (workspace / name).mkdir(exist_ok=True)
        (workspace / name / "f").write_text(f"{name}\n")
    ceilings = (
        Ceiling(
            set_by=OPERATOR,
            read=(subtree_pattern(str(workspace / "src")), subtree_pattern(str(workspace / "docs"))),
        ),
        Ceiling(set_by="parent", write=(subtree_pattern(str(workspace / "docs")),)),
    )
    result = run_in_sandbox(
        replace(scope, ceilings=ceilings), "cat */f; echo x > docs/new; echo x > src/new; ls"
    )
    assert "docs\nsrc\n" in result.output
    assert result.output.endswith("docs\nsrc\n")
    assert (workspace / "docs/new").exists()
    assert not (workspace / "src/new").exists()


def test_a_pattern_for_single_files_shows_only_those_files(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    for name in ("a.py", "b.py", "c.txt", "n.md", "deep/d.py"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(f"{name}\n")
    single_files = replace(
        scope,
        read=(f"{workspace}/*.py", f"{workspace}/n.md", "/tmp/**"),
        write=(f"{workspace}/n.md", "/tmp/**"),
    )
    result = run_in_sandbox(
        single_files, "cat a.py b.py c.txt deep/d.py; echo more >> n.md; echo x > a.py; ls"
    )
    assert "a.py\nb.py\n" in result.output
    assert result.output.endswith("a.py\nb.py\nn.md\n")
    assert (workspace / "n.md").read_text() == "n.md\nmore\n"
    assert (workspace / "a.py").read_text() == "a.py\n"


def test_a_pattern_with_too_many_files_shows_the_first_ones_and_adds_a_note(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    for number in range(MAX_SINGLE_FILES + 5):
        (workspace / f"{number:04}.txt").touch()
    result = run_in_sandbox(replace(scope, read=(f"{workspace}/*.txt",), write=()), "ls *.txt | wc -l")
    assert result.output == f"{MAX_SINGLE_FILES}\n"
    assert any(f"first {MAX_SINGLE_FILES}" in note for note in result.notes)


def test_a_scope_for_all_paths_shows_only_the_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(
        replace(scope, read=("/**",), write=("/**",)),
        f"cat src/app.py {workspace.parent}/outside/secret; ls /home",
    )
    assert result.output.startswith("print('app')")
    assert "SECRET" not in result.output


def test_an_agent_without_paths_cannot_see_the_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    result = run_in_sandbox(replace(scope, has_paths=False), f"pwd; ls {workspace}")
    assert result.output.startswith("/tmp\n")
    assert "No such file" in result.output


def test_a_denied_system_folder_is_hidden(scope: Scope, run_in_sandbox: RunInSandbox):
    result = run_in_sandbox(replace(scope, deny=("/usr/share/**",)), "ls /usr/share; ls /usr/bin/env")
    assert "Permission denied" in result.output
    assert "/usr/bin/env\n" in result.output


def test_a_folder_without_read_permission_is_hidden(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The command owns the folder and could restore the permission."""
    unreadable = workspace / "dark"
    unreadable.mkdir()
    (unreadable / ".env").write_text("SECRET")
    unreadable.chmod(0)
    result = run_in_sandbox(replace(scope, deny=("**/.env",)), "chmod 700 dark; cat dark/.env")
    unreadable.chmod(0o700)
    assert "SECRET" not in result.output


def test_closed_paths_are_removed_even_from_a_folder_that_cannot_be_listed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Git knows the names of its files, so it needs no listing. Nested folders are searched too.

    Shows: S12.
    """
    make_repository = (
        "mkdir -p {0}/.git/hooks && echo evil > {0}/.git/config && chmod 0311 {0}/.git && chmod 0 {0}; "
    )
    result = run_in_sandbox(
        scope,
        make_repository.format("new")
        + "mkdir deep; "
        + make_repository.format("deep/er")
        + "chmod 0111 deep",
    )
    assert len(result.notes) >= 4
    for repository in (workspace / "new/.git", workspace / "deep/er/.git"):
        assert repository.is_dir()
        assert not (repository / "config").exists()
        assert not (repository / "hooks").exists()


def test_the_default_denied_paths_hide_the_git_folder(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: F15, F23."""
    subprocess.run(["git", "init", "-q", workspace], check=True)
    result = run_in_sandbox(
        replace(scope, deny=DEFAULT_DENIED_PATHS),
        "ls .git; git show HEAD:.env; cat .git/HEAD; mv .git g; rm -rf .git",
    )
    assert "ref:" not in result.output
    assert (workspace / ".git/HEAD").exists()


def test_swapping_a_folder_with_a_link_does_not_open_another_folder(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Another agent may work in the same workspace. If the folder changes during set-up, the command is not started."""
    (workspace / "sub").mkdir()
    (workspace / "sub/secret").write_text("inside")
    (workspace / "link").symlink_to("../outside")
    swap = ctypes.CDLL(None).renameat2
    names = os.fsencode(workspace / "sub"), os.fsencode(workspace / "link")
    stopped = threading.Event()

    def swap_until_stopped() -> None:
        while not stopped.is_set():
            swap(-100, names[0], -100, names[1], 2)

    sub_only = replace(
        scope,
        read=(subtree_pattern(str(workspace / "sub")), subtree_pattern(sys.base_prefix)),
        write=(subtree_pattern(str(workspace / "sub")),),
    )
    swapper = threading.Thread(target=swap_until_stopped)
    swapper.start()
    try:
        for _ in range(15):
            with suppress(Failed):
                assert "SECRET" not in run_in_sandbox(sub_only, "cat sub/secret; echo evil > sub/evil").output
    finally:
        stopped.set()
        swapper.join()
    assert [path.name for path in (workspace.parent / "outside").iterdir()] == ["secret"]


def test_a_command_with_a_nul_byte_is_refused(scope: Scope):
    with pytest.raises(Failed, match="NUL"):
        bubblewrap_command(scope, "echo \0", bwrap=str(shutil.which("bwrap")))
