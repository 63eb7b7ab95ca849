"""Guarded paths, which other programs execute or obey: a command can read them, but not change them."""

from pathlib import Path

from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import Scope


def test_a_command_can_read_guarded_paths_but_not_change_them(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S11."""
    workflow = workspace / ".github/workflows/ci.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text("on: push\n")
    (workspace / ".mcp.json").write_text("{}")
    result = run_in_sandbox(
        scope,
        "cat .github/workflows/ci.yml; echo evil >> .github/workflows/ci.yml; echo evil > .mcp.json;"
        " rm -rf .github; mv .github .g2; touch .github/workflows/new.yml; echo done",
    )
    assert result.output.startswith("on: push\n")
    assert result.output.endswith("done\n")
    assert workflow.read_text() == "on: push\n"
    assert (workspace / ".mcp.json").read_text() == "{}"
    assert [path.name for path in workflow.parent.iterdir()] == ["ci.yml"]


def test_guarded_paths_that_a_command_creates_are_removed(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S12."""
    result = run_in_sandbox(
        scope, "mkdir -p .husky sub/.github/workflows; echo x > .husky/pre-commit; echo y > .envrc"
    )
    assert len(result.notes) == 3
    assert not (workspace / ".husky").exists()
    assert not (workspace / ".envrc").exists()
    assert not (workspace / "sub/.github/workflows").exists()
    assert any(path.name.startswith("taken-") for path in workspace.iterdir())


def test_a_write_grant_for_a_guarded_path_allows_writing(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    (workspace / ".github/workflows").mkdir(parents=True)
    granted = replace(scope, write=(*scope.write, f"{workspace}/.github/workflows/**"))
    run_in_sandbox(granted, "echo 'on: push' > .github/workflows/ci.yml")
    assert (workspace / ".github/workflows/ci.yml").read_text() == "on: push\n"
