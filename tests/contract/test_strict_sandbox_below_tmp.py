"""A workspace below /tmp in the strict sandbox, where /tmp is the agent's own folder."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import DEFAULT_DENIED_PATHS, DEFAULT_WRITABLE_PATHS, Scope
from retinue.domain.rules import subtree_pattern
from retinue.errors import Failed
from retinue.sandbox.bubblewrap import bubblewrap_command


@pytest.fixture
def ws() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        ws = Path(folder) / "deep/ws"
        (ws / "src/in").mkdir(parents=True)
        (ws / "src/in/app.py").write_text("app\n")
        yield ws


@pytest.fixture
def tmp_folder(tmp_path: Path) -> Path:
    return tmp_path / "home/tmp/id"


@pytest.fixture
def child(ws: Path, tmp_folder: Path) -> Scope:
    return Scope(
        read=(subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS),
        write=DEFAULT_WRITABLE_PATHS,
        root=str(ws),
        tmp_folder=str(tmp_folder),
        depth=1,
    )


@pytest.mark.parametrize("deny", [(), DEFAULT_DENIED_PATHS])
def test_a_child_agent_runs_commands_in_a_read_only_repository_below_tmp(
    child: Scope, ws: Path, tmp_folder: Path, run_in_sandbox: RunInSandbox, deny: tuple[str, ...]
):
    subprocess.run(["git", "init", "-q", ws], check=True)
    result = run_in_sandbox(
        replace(child, deny=deny), "pwd; cat src/in/app.py; echo x > kk; echo mine > /tmp/f && cat /tmp/f"
    )
    assert result.output.startswith(f"{ws}\napp\n")
    assert "Read-only" in result.output
    assert result.output.endswith("mine\n")
    assert not (ws / "kk").exists()
    assert (tmp_folder / "f").read_text() == "mine\n"
    assert not list(tmp_folder.rglob(".git"))


@pytest.mark.parametrize("part", ["src/**", "src/in/**", "src/in/*.py"])
@pytest.mark.parametrize("has_tmp_folder", [True, False])
def test_a_command_cannot_write_next_to_the_readable_parts_of_a_workspace(
    child: Scope, ws: Path, tmp_folder: Path, run_in_sandbox: RunInSandbox, part: str, has_tmp_folder: bool
):
    """Such a file would seem to be in the workspace, but would be in the agent's own /tmp."""
    partial_scope = replace(
        child,
        read=(f"{ws}/{part}", *DEFAULT_WRITABLE_PATHS),
        tmp_folder=str(tmp_folder) if has_tmp_folder else "",
    )
    result = run_in_sandbox(
        partial_scope,
        "pwd; cat src/in/app.py; echo x > kk; mkdir src/new; mv src s2; echo t > /tmp/t && cat /tmp/t",
    )
    assert result.output.startswith(f"{ws}\napp\n")
    assert result.output.count("Read-only") >= 2
    assert result.output.endswith("t\n")
    assert [path.name for path in ws.iterdir()] == ["src"]
    assert not list(tmp_folder.rglob("kk"))


def test_a_command_writes_in_the_writable_part_of_a_workspace(
    child: Scope, ws: Path, run_in_sandbox: RunInSandbox
):
    trees = (f"{ws}/src/in/**", *DEFAULT_WRITABLE_PATHS)
    result = run_in_sandbox(
        replace(child, read=trees, write=trees), "echo x > src/in/new && cat src/in/new; mv src/in s2"
    )
    assert result.output.startswith("x\n")
    assert (ws / "src/in/new").read_text() == "x\n"


def test_old_files_in_the_agents_tmp_do_not_appear_in_the_workspace(
    child: Scope, ws: Path, tmp_folder: Path, run_in_sandbox: RunInSandbox
):
    old_folder = tmp_folder / ws.relative_to("/tmp")
    old_folder.mkdir(parents=True)
    (old_folder / "stale").write_text("old")
    result = run_in_sandbox(replace(child, read=(f"{ws}/src/**", *DEFAULT_WRITABLE_PATHS)), "ls")
    assert result.output == "src\n"


def test_an_error_does_not_reveal_the_real_folder_behind_tmp(child: Scope, tmp_folder: Path):
    tmp_folder.parent.mkdir(parents=True)
    tmp_folder.write_text("in the way")
    with pytest.raises(Failed, match="behind /tmp") as raised:
        bubblewrap_command(child, "true", bwrap="/usr/bin/bwrap")
    assert str(tmp_folder.parent) not in str(raised.value)
