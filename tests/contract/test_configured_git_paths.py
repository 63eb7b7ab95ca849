"""What a repository's configuration makes git execute or include, as git itself reads that configuration."""

from pathlib import Path

import pytest
from git_repository import create_repository, run_git

from retinue.sandbox.git.configured_paths import configured_git_paths


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/a.sh", "scripts/with space.sh", "run.py"):
        (folder / name).touch()
    create_repository(folder)
    return folder


def guarded_names(repository: Path) -> list[str]:
    return sorted(each.removeprefix(f"{repository}/") for each in configured_git_paths(str(repository)))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("core.hooksPath", "scripts/hooks", ["scripts/hooks/**"]),
        ("core.hooksPath", "./scripts", ["scripts/**"]),
        ("core.fsmonitor", "scripts/a.sh", ["scripts/a.sh"]),
        ("core.sshCommand", "ssh -i ~/.ssh/key", []),
        ("filter.x.smudge", "scripts/a.sh %f", ["scripts/a.sh"]),
        ("diff.x.command", "'scripts/with space.sh'", ["scripts/with\\ space.sh"]),
        ("alias.go", "!sh -c 'python3 run.py; scripts/a.sh'", ["run.py", "scripts/a.sh"]),
        ("include.path", "../not-there.inc", ["not-there.inc"]),
        ("includeIf.onbranch:main.path", "../scripts/a.sh", ["scripts/a.sh"]),
        ("core.hooksPath", "/etc/hooks", []),
        ("core.hooksPath", ".", []),
        ("user.name", "Somebody", []),
        ("branch.main.merge", "refs/heads/main", []),
        ("remote.origin.url", "https://example.org/run.py", []),
    ],
)
def test_settings_name_files_in_the_repository(repository: Path, name: str, value: str, expected: list[str]):
    run_git(repository, "config", name, value)
    escaped = [each.replace("\\ ", " ") for each in expected]
    assert guarded_names(repository) in (expected, escaped)


def test_unusual_spellings_are_read_as_git_reads_them(repository: Path):
    config = repository / ".git" / "config"
    config.write_text(
        config.read_text()
        + '[CORE]HooksPath="scripts/h"; a comment\n[diff "x\\"y"]\n\ttextconv = scri\\\npts/a.sh # why\n'
    )
    assert run_git(repository, "config", "core.hooksPath") == "scripts/h"
    assert run_git(repository, "config", 'diff.x"y.textconv') == "scripts/a.sh"
    assert guarded_names(repository) == ["scripts/a.sh", "scripts/h/**"]


def test_a_changed_configuration_counts_at_once_and_a_folder_inside_has_the_same(repository: Path):
    assert guarded_names(repository) == []
    run_git(repository, "config", "core.hooksPath", "scripts/hooks")
    assert guarded_names(repository) == ["scripts/hooks/**"]
    assert configured_git_paths(str(repository / "scripts")) == configured_git_paths(str(repository))


def test_a_linked_worktree_has_the_paths_in_its_own_folder(repository: Path, tmp_path: Path):
    run_git(repository, "config", "core.hooksPath", "scripts/hooks")
    run_git(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert configured_git_paths(str(tmp_path / "tree")) == (f"{tmp_path}/tree/scripts/hooks/**",)


def test_a_folder_without_a_readable_repository_has_none(tmp_path: Path):
    assert configured_git_paths(str(tmp_path)) == ()
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert configured_git_paths(str(tmp_path)) == ()
