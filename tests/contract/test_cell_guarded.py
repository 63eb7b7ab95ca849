"""What other programs obey is there to be read, and a command changes none of it."""

from pathlib import Path

from msgspec.structs import replace
from strict_cell import RunInCell

from retinue.domain.permissions.scope import Scope


def test_a_command_reads_what_other_programs_obey_and_changes_none_of_it(
    scope: Scope, here: Path, in_cell: RunInCell
):
    """Shows: S11."""
    flow = here / ".github/workflows/ci.yml"
    flow.parent.mkdir(parents=True)
    flow.write_text("on: push\n")
    (here / ".mcp.json").write_text("{}")
    came = in_cell(
        scope,
        "cat .github/workflows/ci.yml; echo evil >> .github/workflows/ci.yml; echo evil > .mcp.json;"
        " rm -rf .github; mv .github .g2; touch .github/workflows/new.yml; echo done",
    )
    assert came.text.startswith("on: push\n")
    assert came.text.endswith("done\n")
    assert flow.read_text() == "on: push\n"
    assert (here / ".mcp.json").read_text() == "{}"
    assert [path.name for path in flow.parent.iterdir()] == ["ci.yml"]


def test_what_other_programs_would_obey_is_taken_away_when_a_command_makes_it(
    scope: Scope, here: Path, in_cell: RunInCell
):
    """Shows: S12."""
    came = in_cell(
        scope, "mkdir -p .husky sub/.github/workflows; echo x > .husky/pre-commit; echo y > .envrc"
    )
    assert len(came.notes) == 3
    assert not (here / ".husky").exists()
    assert not (here / ".envrc").exists()
    assert not (here / "sub/.github/workflows").exists()
    assert any(path.name.startswith("taken-") for path in here.iterdir())


def test_a_grant_that_names_the_place_opens_it(scope: Scope, here: Path, in_cell: RunInCell):
    (here / ".github/workflows").mkdir(parents=True)
    named = replace(scope, write=(*scope.write, f"{here}/.github/workflows/**"))
    in_cell(named, "echo 'on: push' > .github/workflows/ci.yml")
    assert (here / ".github/workflows/ci.yml").read_text() == "on: push\n"
