"""The vigil over commands that last: what others obey is gone long before the command is."""

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.domain.permissions.scope import Scope
from retinue.sandbox import process
from retinue.sandbox.bubblewrap import bubblewrap_command, find_bwrap
from retinue.sandbox.protected_file_monitor import MAX_REMOVALS

LONG = 60.0
GONE = "gone() { while [ -e $1 ] || [ -L $1 ]; do sleep 0.01; done; echo gone; }; "
"""Ends only when somebody outside has taken a name away."""


async def run(scope: Scope, command: str, seconds: float = LONG) -> process.ProcessResult:
    return await process.run_command(
        bubblewrap_command(scope, GONE + command, bwrap=str(find_bwrap())), seconds
    )


@pytest.fixture
def repository(workspace: Path) -> Path:
    """So much of one as git needs; the person works in it."""
    (workspace / ".git/objects").mkdir(parents=True)
    (workspace / ".git/refs").mkdir()
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (workspace / ".git/config").write_text("[core]\n")
    return workspace


@pytest.mark.parametrize("first", ["", "echo x > .envrc; gone .envrc; "], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        ("echo /evil > .git/commondir", ".git/commondir"),
        ("mkdir .git/hooks", ".git/hooks"),
        ("echo x > .bashrc", ".bashrc"),
        ("echo x > src/.envrc", "src/.envrc"),
        ("mkdir .vscode", ".vscode"),
        ("echo x > fine; mv fine .mcp.json", ".mcp.json"),
        ("ln -s /etc/passwd .netrc", ".netrc"),
        ("mkdir -m 0300 .github; mkdir .github/workflows", ".github/workflows"),
        ("mkdir -p a/workflows; mv a .github", ".github/workflows"),
        ("mv src s2; mkdir src; echo x > src/.envrc", "src/.envrc"),
    ],
)
@pytest.mark.usefixtures("repository")
async def test_what_others_obey_is_taken_away_while_the_command_that_made_it_runs(
    scope: Scope, workspace: Path, first: str, make: str, name: str
):
    """Shows: S12."""
    ended = await run(scope, f"{first}{make}; gone {name}; echo on")
    assert not ended.timed_out
    assert ended.output.text().endswith("gone\non\n")
    assert ended.exit_code == 0
    assert any(f"{workspace}/{name}" in note and "taken-" in note for note in ended.notes)
    assert not (workspace / name).exists()


async def test_a_closed_link_that_a_command_replaces_is_put_back_at_once(scope: Scope, workspace: Path):
    (workspace / ".bashrc").symlink_to("elsewhere")
    ended = await run(
        scope, "echo evil > x; mv x .bashrc; until [ -L .bashrc ]; do sleep 0.01; done; echo back"
    )
    assert ended.output.text() == "back\n"
    assert (workspace / ".bashrc").readlink() == Path("elsewhere")
    assert len(ended.notes) == 1


async def test_a_command_that_makes_a_closed_name_again_and_again_is_ended(scope: Scope, workspace: Path):
    """Else it would be there half of the time.

    Shows: S12.
    """
    ended = await run(scope, "while :; do echo evil > .envrc; done")
    assert ended.killed
    assert not ended.timed_out
    assert any("the command was ended: it made" in note for note in ended.notes)
    assert not (workspace / ".envrc").exists()
    assert len([path for path in workspace.iterdir() if path.name.startswith("taken-")]) >= MAX_REMOVALS


async def test_git_makes_a_repository_of_its_own_while_the_vigil_is_kept(scope: Scope, workspace: Path):
    ended = await run(
        scope,
        "echo x > .envrc; gone .envrc; mkdir r && cd r && git init -q && git config user.name me && "
        "touch ../.bashrc && gone ../.bashrc && git config user.name",
    )
    assert ended.output.text() == "gone\ngone\nme\n"
    assert not (workspace / "r/.git/config").exists()
    assert any("r/.git/config is closed" in note for note in ended.notes)


@pytest.mark.usefixtures("repository")
async def test_what_was_there_before_is_the_person_s_to_change(scope: Scope, workspace: Path):
    """Git replaces its configuration by renaming another file over it."""
    for name in ("ready", "go"):
        os.mkfifo(workspace / name)
    running = asyncio.create_task(
        run(scope, "echo x > .envrc; gone .envrc; echo > ready; read <go; echo x > .bashrc; gone .bashrc")
    )
    await asyncio.to_thread((workspace / "ready").read_text)
    (workspace / ".git/config.lock").write_text("[core]\n\tbare = false\n")
    (workspace / ".git/config.lock").rename(workspace / ".git/config")
    await asyncio.to_thread((workspace / "go").write_text, "\n")
    ended = await running
    assert ended.output.text() == "gone\ngone\n"
    assert "bare" in (workspace / ".git/config").read_text()


async def test_what_is_only_denied_stays_until_the_command_ends(scope: Scope, workspace: Path):
    """No other program obeys it, and a build may need it."""
    denied = replace(scope, deny=("**/runtime/**",))
    ended = await run(denied, "mkdir runtime && echo x > .envrc; gone .envrc; ls -d runtime")
    assert ended.output.text() == "gone\nruntime\n"
    assert not (workspace / "runtime").exists()


async def test_where_nothing_is_closed_nothing_is_taken(scope: Scope, workspace: Path):
    """As when git itself works for Retinue."""
    open_to_all = replace(scope, closed_paths=(), guarded_paths=())
    ended = await run(open_to_all, "echo x > .envrc; sleep 0.1; cat .envrc")
    assert ended.output.text() == "x\n"
    assert ended.notes == ()
    assert (workspace / ".envrc").exists()
