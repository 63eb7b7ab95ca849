"""Protected paths: those closed to every agent, and those that need an approval to change, with examples per pattern."""

import pytest

from retinue.domain.permissions.guarded_paths import (
    GUARDED_PATH_TABLE,
    GUARDED_PATHS,
    guarding_program,
)
from retinue.domain.permissions.protected_paths import ALWAYS_CLOSED_PATHS
from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope

WIDE = Scope(read=("/**",), write=("/**",), preapproved_writes=("/**",), root="/w")

CLOSED = {
    "**/.git/hooks/**": ("/w/.git/hooks", "/w/.git/hooks/pre-commit", "/a/b/.GIT/Hooks/x"),
    "**/.git/config": ("/w/.git/config", "/w/sub/.git/config"),
    "**/.git/config.worktree": ("/w/.git/config.worktree",),
    "**/.git/commondir": ("/w/.git/commondir",),
    "**/.git/modules/**/config": ("/w/.git/modules/config", "/w/.git/modules/a/b/config"),
    "**/.git/modules/**/hooks/**": ("/w/.git/modules/a/hooks/x", "/w/.git/modules/hooks"),
    "**/.gitconfig": ("/home/u/.gitconfig",),
    "**/.config/git/**": ("/home/u/.config/git/config",),
    "**/.vscode/tasks.json": ("/w/.vscode/tasks.json",),
    "**/.vscode/launch.json": ("/w/.vscode/launch.json",),
    "**/.idea/runConfigurations/**": ("/w/.idea/runConfigurations/a.xml",),
    "**/.zed/tasks.json": ("/w/.zed/tasks.json",),
    "**/.bashrc": ("/home/u/.bashrc", "/w/.bashrc"),
    "**/.bash_profile": ("/home/u/.bash_profile",),
    "**/.bash_login": ("/home/u/.bash_login",),
    "**/.bash_logout": ("/home/u/.bash_logout",),
    "**/.profile": ("/home/u/.profile",),
    "**/.zshrc": ("/home/u/.zshrc",),
    "**/.zshenv": ("/home/u/.zshenv",),
    "**/.zprofile": ("/home/u/.zprofile",),
    "**/.zlogin": ("/home/u/.zlogin",),
    "**/.config/fish/**": ("/home/u/.config/fish/config.fish",),
    "**/.config/autostart/**": ("/home/u/.config/autostart/x.desktop",),
    "**/.config/systemd/**": ("/home/u/.config/systemd/user/x.service",),
    "**/.ssh/**": ("/home/u/.ssh", "/home/u/.ssh/id", "/home/u/.SSH/id"),
    "**/.gnupg/**": ("/home/u/.gnupg/x",),
    "**/.aws/**": ("/home/u/.aws/credentials",),
    "**/.netrc": ("/home/u/.netrc",),
    "**/.git-credentials": ("/home/u/.git-credentials",),
    "**/.pgpass": ("/home/u/.pgpass",),
    "**/.docker/config.json": ("/home/u/.docker/config.json",),
    "**/.kube/**": ("/home/u/.kube/config",),
    "**/.npmrc": ("/w/.npmrc",),
    "**/.pypirc": ("/home/u/.pypirc",),
    "**/.config/gcloud/**": ("/home/u/.config/gcloud/x",),
    "**/.config/gh/**": ("/home/u/.config/gh/hosts.yml",),
    "/proc/**": ("/proc", "/proc/1/environ", "/proc/self/root/etc"),
    "/sys/**": ("/sys/kernel/x",),
    "/dev/**": ("/dev/sda", "/dev/shm/x"),
    "/etc/shadow": ("/etc/shadow",),
    "/etc/gshadow": ("/etc/gshadow",),
}

GUARDED = {
    "**/.git/**": (
        "/w/.git",
        "/w/sub/.git",
        "/w/.git/index",
        "/w/.GIT/worktrees/a/commondir",
        "/w/.git/modules/a/HEAD",
    ),
    "**/.hg/hgrc": ("/w/.hg/hgrc", "/w/sub/.HG/hgrc"),
    "**/.jj/repo/config.toml": ("/w/.jj/repo/config.toml",),
    "**/lefthook-local.*": ("/w/lefthook-local.yml",),
    "**/mise.*.toml": ("/w/mise.production.toml",),
    "**/.github/workflows/**": ("/w/.github/workflows/ci.yml", "/w/.github/workflows"),
    "**/.vscode/**": ("/w/.vscode/settings.json",),
    "**/*.code-workspace": ("/w/sub/Project.code-workspace",),
    "**/site-packages/*.pth": ("/w/.venv/lib/python3.11/site-packages/evil.pth",),
    "**/dist-packages/*.pth": ("/usr/lib/python3/dist-packages/evil.pth",),
    "**/.cargo/config.toml": ("/w/.cargo/config.toml",),
    "**/Jenkinsfile": ("/w/jenkinsfile",),
    "**/AGENTS.md": ("/w/AGENTS.md", "/w/sub/Agents.MD", "/w/node_modules/x/AGENTS.md"),
    "**/CLAUDE.md": ("/w/docs/CLAUDE.md",),
    "**/.local/bin/**": ("/home/u/.local/bin/ls",),
}
"""Examples for some patterns; the others get one that is made from the pattern."""


def guarded_examples(pattern: str) -> tuple[str, ...]:
    made = pattern.replace("**/", "/w/sub/", 1).replace("/**", "/inner/x").replace("*", "name")
    return (*GUARDED.get(pattern, ()), made)


def test_every_protected_pattern_has_an_example():
    """Update the examples when a pattern is added or removed."""
    assert set(CLOSED) == set(ALWAYS_CLOSED_PATHS)
    assert set(GUARDED) <= set(GUARDED_PATHS)
    assert DEFAULT_DENIED_PATHS == ("**/.git/**", "**/runtime/**", "**/.env", "**/node_modules/**")
    assert DEFAULT_WRITABLE_PATHS == ("/tmp/**",)


@pytest.mark.parametrize("pattern", CLOSED)
def test_a_closed_path_is_neither_readable_nor_writable_in_the_widest_scope(pattern: str):
    for path in CLOSED[pattern]:
        assert WIDE.check_path(path).rule == f"always closed {pattern}"
        assert not WIDE.check_path(path, "write").ok
        assert not WIDE.with_user_grant(path, "read").check_path(path).ok


@pytest.mark.parametrize("pattern", GUARDED_PATHS)
def test_a_guarded_path_is_readable_and_a_wide_grant_does_not_preapprove_writes(pattern: str):
    for path in guarded_examples(pattern):
        assert WIDE.check_path(path).ok
        assert WIDE.check_path(path, "write").ok
        assert WIDE.is_guarded(path)
        assert not WIDE.is_write_preapproved(path)


@pytest.mark.parametrize(
    "path",
    [
        "/w/git/config",
        "/w/.gitignore",
        "/w/bashrc",
        "/w/ssh/id",
        "/etc/passwd",
        "/procs/x",
        "/w/.env",
        "/w/.github/x",
        "/w/.editorconfig",
        "/w/.gitattributes",
        "/w/.hg/store/data/x",
        "/w/.jj/repo/store/x",
        "/w/Makefile",
        "/w/package.json",
        "/w/pyproject.toml",
        "/w/conftest.py",
        "/w/model.pth",
        "/w/docs/agents.txt",
        "/w/src/main.rs",
        "/w/Dockerfile",
        "/w/cargo/config.toml",
        "/w/node_modules/x/.travis.yml",
    ],
)
def test_a_path_that_only_resembles_a_protected_path_is_open(path: str):
    assert WIDE.check_path(path).ok
    assert WIDE.is_write_preapproved(path)


def test_every_guarded_pattern_names_a_program_and_a_source_and_is_listed_once():
    assert len(set(GUARDED_PATHS)) == len(GUARDED_PATHS)
    for row in GUARDED_PATH_TABLE:
        assert row.program.strip()
        assert row.source.strip()
        assert guarding_program(row.pattern) == row.program
