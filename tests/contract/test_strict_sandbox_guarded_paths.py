"""What other programs obey is there to be read, and a command changes none of it."""

from pathlib import Path

from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.permissions.scope import Scope


def test_a_command_reads_what_other_programs_obey_and_changes_none_of_it(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S11."""
    flow = workspace / ".github/workflows/ci.yml"
    flow.parent.mkdir(parents=True)
    flow.write_text("on: push\n")
    (workspace / ".mcp.json").write_text("{}")
    came = run_in_sandbox(
        scope,
        "cat .github/workflows/ci.yml; echo evil >> .github/workflows/ci.yml; echo evil > .mcp.json;"
        " rm -rf .github; mv .github .g2; touch .github/workflows/new.yml; echo done",
    )
    assert came.text.startswith("on: push\n")
    assert came.text.endswith("done\n")
    assert flow.read_text() == "on: push\n"
    assert (workspace / ".mcp.json").read_text() == "{}"
    assert [path.name for path in flow.parent.iterdir()] == ["ci.yml"]


def test_what_other_programs_would_obey_is_taken_away_when_a_command_makes_it(
    scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox
):
    """Shows: S12."""
    came = run_in_sandbox(
        scope, "mkdir -p .husky sub/.github/workflows; echo x > .husky/pre-commit; echo y > .envrc"
    )
    assert len(came.notes) == 3
    assert not (workspace / ".husky").exists()
    assert not (workspace / ".envrc").exists()
    assert not (workspace / "sub/.github/workflows").exists()
    assert any(path.name.startswith("taken-") for path in workspace.iterdir())


def test_a_grant_that_names_the_place_opens_it(scope: Scope, workspace: Path, run_in_sandbox: RunInSandbox):
    (workspace / ".github/workflows").mkdir(parents=True)
    named = replace(scope, write=(*scope.write, f"{workspace}/.github/workflows/**"))
    run_in_sandbox(named, "echo 'on: push' > .github/workflows/ci.yml")
    assert (workspace / ".github/workflows/ci.yml").read_text() == "on: push\n"
