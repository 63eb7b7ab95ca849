"""The strict cell's files: what a command finds, what it does not, and what is left when it is gone."""

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


def test_a_command_works_in_the_workspace_and_what_it_writes_is_there(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    came = run_in_sandbox(
        scope, "pwd && cat src/app.py && echo new > src/new.txt && mkdir -p a/b && mv src/new.txt a/b"
    )
    assert came.text == f"{workspace}\nprint('app')\n"
    assert came.exit == 0
    assert came.notes == ()
    assert (workspace / "a/b/new.txt").read_text() == "new\n"


def test_programs_of_the_system_run(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """Whichever of them this machine has."""
    (workspace / "a.c").write_text("int main(void) { return 7; }\n")
    wanted = {
        "python3": "/usr/bin/python3 -c 'print(6 * 7)' | grep -q 42",
        "git": "git init -q r && cd r && echo x > y && git add y && git commit -qm one && git log --oneline | grep -q one",
        "gcc": "gcc a.c -o a.out; ./a.out; test $? = 7",
        "perl": "perl -e 'exit 0'",
        "awk": "awk 'BEGIN { exit 0 }'",
    }
    for name, line in wanted.items():
        if os.access(f"/usr/bin/{name}", os.X_OK):
            came = run_in_sandbox(scope, f"({line})")
            assert came.exit == 0, (name, came.text)


def test_only_the_scope_and_the_system_are_there(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    outside = workspace.parent / "outside"
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "up").symlink_to("../outside")
    came = run_in_sandbox(
        scope,
        f"cat {outside}/secret ../outside/secret link up/secret /proc/1/root{outside}/secret "
        "/proc/self/cwd/../outside/secret; cat /etc/shadow; ls /boot /sys /srv /mnt /media",
    )
    assert "SECRET" not in came.text
    assert came.text.count("No such file") == 12


def test_nothing_outside_the_workspace_can_be_made_or_changed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S18."""
    before = {name: Path(f"/dev/{name}").stat() for name in ("null", "zero", "tty")}
    came = run_in_sandbox(
        scope,
        """for place in / /usr /etc /dev /proc /run /var /dev/pts; do
            (touch $place/made-here) 2>/dev/null && echo "wrote in $place"; done
        for file in /etc/passwd /usr/bin/env /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/oom_score_adj; do
            (echo x >> $file) 2>/dev/null && echo "wrote $file"; done
        for node in null zero tty; do chmod 600 /dev/$node 2>/dev/null && echo "changed $node"; done
        touch -d 2001-01-01 /dev/null 2>/dev/null && echo "dated null"
        echo gone > /dev/null && echo end""",
    )
    assert came.text == "end\n"
    for name, was in before.items():
        now = Path(f"/dev/{name}").stat()
        assert (now.st_mode, now.st_uid) == (was.st_mode, was.st_uid)


def test_closed_and_denied_places_are_hidden(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """Also through links, by other capitals, and those a ceiling denies."""
    for name in (".env", "sub/.ENV", ".npmrc", "secrets/deep/key", "above/x", ".ssh/id"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("SECRET")
    (workspace / "innocent").symlink_to(".env")
    ceiling = Ceiling(set_by=OPERATOR, deny=(f"{workspace}/above/**",))
    bound = replace(scope, deny=("**/.env", f"{workspace}/secrets/**"), ceilings=(ceiling,))
    came = run_in_sandbox(
        bound,
        "cat $(find . -name '*' 2>/dev/null) innocent secrets/deep/key above/x .ssh/id; grep -r SECRET .",
    )
    assert "SECRET" not in came.text.replace("grep -r SECRET", "")
    assert "Permission denied" in came.text
    changed = run_in_sandbox(
        bound, "echo x > .env; rm -rf .env secrets .ssh above; mv secrets s2; chmod 777 .ssh; mkdir .ssh/x"
    )
    assert changed.text.count("busy") >= 4
    for name in (".env", "secrets/deep/key", "above/x", ".ssh/id"):
        assert (workspace / name).read_text() == "SECRET"


def test_what_git_and_editors_obey_cannot_be_changed(
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
    came = run_in_sandbox(
        scope,
        """cat .git/config
        git config core.fsmonitor evil; echo evil >> .git/config; echo evil > .git/hooks/post-checkout
        ln -sf /tmp/evil .git/hooks/pre-commit; rm -rf .git/hooks .git/config .vscode
        mv .git .g2; mv .vscode .v2; mv .git/hooks h2; echo evil > .vscode/tasks.json
        git add src && git commit -qm done && git log --oneline | wc -l""",
    )
    assert "SECRET" not in came.text
    assert came.text.rstrip().endswith("1"), came.text
    assert {path: path.read_text() for path in before} == before
    assert not (workspace / ".git/hooks/post-checkout").exists()
    assert "Device or resource busy" in came.text
    assert came.notes == ()


def test_closed_names_that_appear_are_taken_away_and_nothing_is_lost(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Also where a folder was moved to make room for another of its name.

    Shows: S12, S13.
    """
    (workspace / "sub/.git/hooks").mkdir(parents=True)
    (workspace / "sub/.git/hooks/keep").write_text("kept")
    came = run_in_sandbox(
        replace(scope, deny=(".github/workflows/**", f"{workspace}/.github/workflows/**")),
        """mkdir -p .vscode new/.GIT/hooks .github/workflows; echo evil > .vscode/tasks.json; echo evil > .bashrc
        echo evil > new/.GIT/hooks/pre-commit; echo evil > .github/workflows/ci.yml; ln -s /etc .ssh; mkfifo pipe
        mv sub sub2; mkdir -p sub/.git/hooks && echo evil > sub/.git/hooks/pre-commit
        mkdir other; echo "gitdir: ../evil" > other/.git; echo fine > ok""",
    )
    left = {str(path.relative_to(workspace)) for path in workspace.rglob("*")}
    for gone in (
        ".vscode/tasks.json",
        ".bashrc",
        "new/.GIT/hooks",
        ".github/workflows",
        ".ssh",
        "pipe",
        "other/.git",
    ):
        assert gone not in left, gone
        assert any(gone in note for note in came.notes), (gone, came.notes)
    assert (workspace / "sub/.git/hooks/keep").read_text() == "kept"
    assert not (workspace / "sub/.git/hooks/pre-commit").exists()
    assert (workspace / "ok").exists()
    assert sum(path.name.startswith("taken-") for path in workspace.rglob("*")) == 6
    again = run_in_sandbox(scope, "true")
    assert again.notes == ()


def test_a_link_at_a_closed_name_is_put_back_and_what_it_leads_to_is_not_changed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace / "dotfiles").mkdir()
    (workspace / "dotfiles/bashrc").write_text("mine\n")
    (workspace / ".bashrc").symlink_to("dotfiles/bashrc")
    came = run_in_sandbox(
        scope, "echo evil >> .bashrc; echo evil >> dotfiles/bashrc; rm .bashrc; echo evil > .bashrc"
    )
    assert (workspace / ".bashrc").readlink() == Path("dotfiles/bashrc")
    assert (workspace / "dotfiles/bashrc").read_text() == "mine\n"
    assert any("put back" in note for note in came.notes)


def test_where_a_worktree_finds_its_repository_cannot_be_changed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """The repository itself is not there.

    Shows: F15.
    """
    (workspace.parent / "outside/config").write_text("SECRET")
    (workspace / ".git").write_text(f"gitdir: {workspace.parent}/outside\n")
    came = run_in_sandbox(
        scope, f"echo 'gitdir: evil' > .git; rm -f .git; mv .git x; cat {workspace.parent}/outside/config"
    )
    assert (workspace / ".git").read_text() == f"gitdir: {workspace.parent}/outside\n"
    assert "SECRET" not in came.text


def test_a_folder_that_holds_a_closed_place_cannot_be_renamed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Under another name the next command would find it open.

    Shows: S13.
    """
    (workspace / "conf/.docker").mkdir(parents=True)
    (workspace / "conf/.docker/config.json").write_text("SECRET")
    first = run_in_sandbox(
        scope, "mv conf/.docker conf/d; mv conf c; echo fine > conf/new && mv conf/new conf/newer"
    )
    second = run_in_sandbox(scope, "cat */*/config.json conf/newer")
    assert first.text.count("busy") == 2
    assert "SECRET" not in second.text
    assert second.text.endswith("fine\n")


def test_retinues_own_folders_are_hidden_inside_a_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Its own preset, definitions and conversations.

    Shows: S14.
    """
    home = workspace / "data/retinue"
    (home / "sessions/main").mkdir(parents=True)
    (home / "sessions/main/preset.md").write_text("SECRET")
    bound = replace(scope, retinue_paths=(subtree_pattern(str(home)),))
    came = run_in_sandbox(
        bound,
        "cat data/retinue/sessions/main/preset.md; echo evil > data/retinue/sessions/main/preset.md; mv data d",
    )
    assert "SECRET" not in came.text
    assert (home / "sessions/main/preset.md").read_text() == "SECRET"


def test_a_worktree_that_retinue_made_is_open_inside_its_own_folders(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace.parent / "other").mkdir()
    (workspace.parent / "other/session.md").write_text("SECRET")
    bound = replace(scope, retinue_paths=(subtree_pattern(str(workspace.parent)),), is_worktree=True)
    came = run_in_sandbox(
        bound, f"cat src/app.py; echo x > new; cat {workspace.parent}/other/session.md ../other/session.md"
    )
    assert came.text.startswith("print('app')")
    assert "SECRET" not in came.text
    assert (workspace / "new").exists()


def test_a_workspace_that_is_read_only_is_so(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    came = run_in_sandbox(
        replace(scope, writable=False), "cat src/app.py; echo x > new; echo t > /tmp/t && cat /tmp/t"
    )
    assert came.text.startswith("print('app')")
    assert came.text.endswith("t\n")
    assert not (workspace / "new").exists()


def test_tmp_is_the_agents_own_and_lasts(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    """Shows: F18."""
    run_in_sandbox(scope, "echo mine > /tmp/note; echo v > /var/tmp/v")
    assert run_in_sandbox(scope, "cat /tmp/note /tmp/v").text == "mine\nv\n"
    assert (Path(scope.tmp_folder) / "note").read_text() == "mine\n"
    assert stat.S_IMODE(Path(scope.tmp_folder).stat().st_mode) == 0o700
    other = replace(scope, tmp_folder=str(workspace.parent / "another"))
    assert "No such file" in run_in_sandbox(other, "cat /tmp/note").text


def test_without_a_tmp_of_its_own_a_command_has_one_that_does_not_last(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    bare = replace(
        scope,
        tmp_folder="",
        read=(subtree_pattern(str(workspace)),),
        write=(subtree_pattern(str(workspace)),),
    )
    assert run_in_sandbox(bare, "echo x > /tmp/x && cat /tmp/x").text == "x\n"
    assert "No such file" in run_in_sandbox(bare, "cat /tmp/x").text


def test_a_workspace_below_var_tmp_is_there_like_any_other(scope: Scope, run_in_sandbox: RunInSandbox):
    """Elsewhere /var/tmp is another name for the agent's own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        trees = (subtree_pattern(folder), "/tmp/**")
        came = run_in_sandbox(
            replace(scope, root=folder, read=trees, write=trees), "pwd; echo words > made; ls /var/tmp"
        )
        assert came.text == f"{folder}\n{Path(folder).name}\n"
        assert (Path(folder) / "made").read_text() == "words\n"


def test_what_an_agent_puts_in_its_tmp_leads_no_mount_astray(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """A place below /tmp is laid into the agent's own /tmp: links there are not followed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "shared/deep").mkdir(parents=True)
        (Path(folder) / "shared/deep/f").write_text("there\n")
        (Path(scope.tmp_folder)).mkdir()
        (Path(scope.tmp_folder) / Path(folder).name).symlink_to(f"/oldroot{workspace.parent}/outside")
        bound = replace(scope, read=(*scope.read, f"{folder}/shared/deep/**"))
        came = run_in_sandbox(bound, f"cat {folder}/shared/deep/f; mv {folder} /tmp/moved")
    assert came.text.startswith("there\n")
    assert "busy" in came.text
    assert [path.name for path in (workspace.parent / "outside").iterdir()] == ["secret"]


def test_only_what_every_ceiling_allows_is_there(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
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
    came = run_in_sandbox(
        replace(scope, ceilings=ceilings), "cat */f; echo x > docs/new; echo x > src/new; ls"
    )
    assert "docs\nsrc\n" in came.text
    assert came.text.endswith("docs\nsrc\n")
    assert (workspace / "docs/new").exists()
    assert not (workspace / "src/new").exists()


def test_single_files_of_a_scope_are_there_by_themselves(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    for name in ("a.py", "b.py", "c.txt", "n.md", "deep/d.py"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(f"{name}\n")
    bound = replace(
        scope,
        read=(f"{workspace}/*.py", f"{workspace}/n.md", "/tmp/**"),
        write=(f"{workspace}/n.md", "/tmp/**"),
    )
    came = run_in_sandbox(bound, "cat a.py b.py c.txt deep/d.py; echo more >> n.md; echo x > a.py; ls")
    assert "a.py\nb.py\n" in came.text
    assert came.text.endswith("a.py\nb.py\nn.md\n")
    assert (workspace / "n.md").read_text() == "n.md\nmore\n"
    assert (workspace / "a.py").read_text() == "a.py\n"


def test_a_pattern_of_very_many_files_says_that_not_all_are_there(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    for number in range(MAX_SINGLE_FILES + 5):
        (workspace / f"{number:04}.txt").touch()
    came = run_in_sandbox(replace(scope, read=(f"{workspace}/*.txt",), write=()), "ls *.txt | wc -l")
    assert came.text == f"{MAX_SINGLE_FILES}\n"
    assert any(f"first {MAX_SINGLE_FILES}" in note for note in came.notes)


def test_a_scope_of_everything_brings_in_no_more_than_the_workspace(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    came = run_in_sandbox(
        replace(scope, read=("/**",), write=("/**",)),
        f"cat src/app.py {workspace.parent}/outside/secret; ls /home",
    )
    assert came.text.startswith("print('app')")
    assert "SECRET" not in came.text


def test_a_child_that_lost_its_paths_finds_nothing(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    came = run_in_sandbox(replace(scope, has_paths=False), f"pwd; ls {workspace}")
    assert came.text.startswith("/tmp\n")
    assert "No such file" in came.text


def test_what_the_system_folders_hold_is_hidden_if_it_is_denied_by_name(
    scope: Scope, run_in_sandbox: RunInSandbox
):
    came = run_in_sandbox(replace(scope, deny=("/usr/share/**",)), "ls /usr/share; ls /usr/bin/env")
    assert "Permission denied" in came.text
    assert "/usr/bin/env\n" in came.text


def test_a_folder_that_retinue_cannot_look_into_is_hidden(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Its owner could open it again."""
    dark = workspace / "dark"
    dark.mkdir()
    (dark / ".env").write_text("SECRET")
    dark.chmod(0)
    came = run_in_sandbox(replace(scope, deny=("**/.env",)), "chmod 700 dark; cat dark/.env")
    dark.chmod(0o700)
    assert "SECRET" not in came.text


def test_what_a_command_makes_in_a_folder_that_cannot_be_listed_is_found(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Git needs no list: it knows the names. Folders in such folders are found too.

    Shows: S12.
    """
    made = "mkdir -p {0}/.git/hooks && echo evil > {0}/.git/config && chmod 0311 {0}/.git && chmod 0 {0}; "
    came = run_in_sandbox(
        scope, made.format("new") + "mkdir deep; " + made.format("deep/er") + "chmod 0111 deep"
    )
    assert len(came.notes) >= 4
    for repository in (workspace / "new/.git", workspace / "deep/er/.git"):
        assert repository.is_dir()
        assert not (repository / "config").exists()
        assert not (repository / "hooks").exists()


def test_a_child_with_the_usual_denies_keeps_out_of_the_repository(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: F15, F23."""
    subprocess.run(["git", "init", "-q", workspace], check=True)
    came = run_in_sandbox(
        replace(scope, deny=DEFAULT_DENIED_PATHS),
        "ls .git; git show HEAD:.env; cat .git/HEAD; mv .git g; rm -rf .git",
    )
    assert "ref:" not in came.text
    assert (workspace / ".git/HEAD").exists()


def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere_else(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Another agent may be at work in the same workspace. A cell that cannot be sure of its folders is not started."""
    (workspace / "sub").mkdir()
    (workspace / "sub/secret").write_text("inside")
    (workspace / "link").symlink_to("../outside")
    swap = ctypes.CDLL(None).renameat2
    names = os.fsencode(workspace / "sub"), os.fsencode(workspace / "link")
    over = threading.Event()

    def swapping():
        while not over.is_set():
            swap(-100, names[0], -100, names[1], 2)

    bound = replace(
        scope,
        read=(subtree_pattern(str(workspace / "sub")), subtree_pattern(sys.base_prefix)),
        write=(subtree_pattern(str(workspace / "sub")),),
    )
    other = threading.Thread(target=swapping)
    other.start()
    try:
        for _ in range(15):
            with suppress(Failed):
                assert "SECRET" not in run_in_sandbox(bound, "cat sub/secret; echo evil > sub/evil").text
    finally:
        over.set()
        other.join()
    assert [path.name for path in (workspace.parent / "outside").iterdir()] == ["secret"]


def test_a_command_with_a_nul_is_refused(scope: Scope):
    with pytest.raises(Failed, match="NUL"):
        bubblewrap_command(scope, "echo \0", bwrap=str(shutil.which("bwrap")))
