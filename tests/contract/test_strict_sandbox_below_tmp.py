"""The strict cell of a workspace below /tmp: what is the machine's there, and what is the agent's own."""

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
def own(tmp_path: Path) -> Path:
    return tmp_path / "home/tmp/id"


@pytest.fixture
def child(ws: Path, own: Path) -> Scope:
    return Scope(
        read=(subtree_pattern(str(ws)), *DEFAULT_WRITABLE_PATHS),
        write=DEFAULT_WRITABLE_PATHS,
        root=str(ws),
        tmp_folder=str(own),
        depth=1,
    )


@pytest.mark.parametrize("deny", [(), DEFAULT_DENIED_PATHS])
def test_a_child_that_reads_a_repository_below_tmp_runs_commands(
    child: Scope, ws: Path, own: Path, run_in_sandbox: RunInSandbox, deny: tuple[str, ...]
):
    subprocess.run(["git", "init", "-q", ws], check=True)
    came = run_in_sandbox(
        replace(child, deny=deny), "pwd; cat src/in/app.py; echo x > kk; echo mine > /tmp/f && cat /tmp/f"
    )
    assert came.text.startswith(f"{ws}\napp\n")
    assert "Read-only" in came.text
    assert came.text.endswith("mine\n")
    assert not (ws / "kk").exists()
    assert (own / "f").read_text() == "mine\n"
    assert not list(own.rglob(".git"))


@pytest.mark.parametrize("part", ["src/**", "src/in/**", "src/in/*.py"])
@pytest.mark.parametrize("lasts", [True, False])
def test_beside_the_parts_of_a_workspace_nothing_can_be_written(
    child: Scope, ws: Path, own: Path, run_in_sandbox: RunInSandbox, part: str, lasts: bool
):
    """It would look like the workspace and be the agent's own /tmp."""
    bound = replace(
        child, read=(f"{ws}/{part}", *DEFAULT_WRITABLE_PATHS), tmp_folder=str(own) if lasts else ""
    )
    came = run_in_sandbox(
        bound, "pwd; cat src/in/app.py; echo x > kk; mkdir src/new; mv src s2; echo t > /tmp/t && cat /tmp/t"
    )
    assert came.text.startswith(f"{ws}\napp\n")
    assert came.text.count("Read-only") >= 2
    assert came.text.endswith("t\n")
    assert [path.name for path in ws.iterdir()] == ["src"]
    assert not list(own.rglob("kk"))


def test_a_part_of_a_workspace_that_may_be_written_is_written(
    child: Scope, ws: Path, run_in_sandbox: RunInSandbox
):
    trees = (f"{ws}/src/in/**", *DEFAULT_WRITABLE_PATHS)
    came = run_in_sandbox(
        replace(child, read=trees, write=trees), "echo x > src/in/new && cat src/in/new; mv src/in s2"
    )
    assert came.text.startswith("x\n")
    assert (ws / "src/in/new").read_text() == "x\n"


def test_what_an_agent_left_under_the_name_of_its_workspace_is_not_in_it(
    child: Scope, ws: Path, own: Path, run_in_sandbox: RunInSandbox
):
    old = own / ws.relative_to("/tmp")
    old.mkdir(parents=True)
    (old / "stale").write_text("old")
    came = run_in_sandbox(replace(child, read=(f"{ws}/src/**", *DEFAULT_WRITABLE_PATHS)), "ls")
    assert came.text == "src\n"


def test_no_error_names_the_real_folder_behind_tmp(child: Scope, own: Path):
    own.parent.mkdir(parents=True)
    own.write_text("in the way")
    with pytest.raises(Failed, match="behind /tmp") as raised:
        bubblewrap_command(child, "true", bwrap="/usr/bin/bwrap")
    assert str(own.parent) not in str(raised.value)
