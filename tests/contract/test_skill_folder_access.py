"""A skill's folder is there for who has the skill, to read and to run, wherever the configuration stands; for nobody else."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from strict_sandbox import RunInSandbox

from retinue.domain.agent import ToolExposure
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import subtree_pattern
from retinue.domain.skill import Skill
from retinue.errors import Failed, OutOfScope
from retinue.sandbox.files.guarded_files import GuardedFiles
from retinue.sandbox.landlock import allowed_trees


def skill(config: Path, plugin: str) -> Skill:
    folder = config / "skills" / plugin
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"how to use {plugin}\n")
    (folder / ".env").write_text("DENIED\n")
    command = folder / plugin
    command.write_text(f'#!/bin/sh\necho "{plugin} says $*"\n')
    command.chmod(0o755)
    return Skill(name=plugin, description="", folder=str(folder), cli=str(command))


@pytest.fixture(params=["beside", "inside"])
def config(request: pytest.FixtureRequest, workspace: Path) -> Path:
    """Beside the workspace, or in it: whoever works in their home has both there."""
    folder = (
        workspace / ".config/retinue" if request.param == "inside" else workspace.parent / "config/retinue"
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("SECRET")
    return folder


@pytest.fixture(params=["with its own /tmp", "without"])
def having(scope: Scope, config: Path, request: pytest.FixtureRequest) -> Scope:
    """An agent that has the skill notes, and not the skill mail."""
    notes, _ = skill(config, "notes"), skill(config, "mail")
    closed = replace(
        scope,
        retinue_paths=(subtree_pattern(str(config)),),
        deny=("**/.env",),
        tool_exposure=ToolExposure.MIXED,
    )
    return replace(
        closed.with_skills([notes]), tmp_folder="" if request.param == "without" else scope.tmp_folder
    )


def test_a_command_runs_the_skill_and_finds_nothing_else_of_the_configuration(
    having: Scope, config: Path, run_in_sandbox: RunInSandbox
):
    folder = f"{config}/skills/notes"
    came = run_in_sandbox(
        having,
        f"{folder}/notes add milk; cat {folder}/SKILL.md; ls -A {config} {config}/skills; "
        f"cat {folder}/.env {config}/config.toml {config}/skills/mail/SKILL.md; "
        f"echo changed > {folder}/SKILL.md; echo new > {folder}/new; echo new > {config}/skills/new; "
        f"mv {config} {config}.moved; touch src/made",
    )
    said = came.output.splitlines()
    assert said[:2] == ["notes says add milk", "how to use notes"]
    assert said[2:7] == [f"{config}:", "skills", "", f"{config}/skills:", "notes"]
    assert "SECRET" not in came.output
    assert "DENIED" not in came.output
    assert "how to use mail" not in came.output
    assert came.notes == ()
    assert (config / "skills/notes/SKILL.md").read_text() == "how to use notes\n"
    assert sorted(each.name for each in (config / "skills").iterdir()) == ["mail", "notes"]
    assert sorted(each.name for each in (config / "skills/notes").iterdir()) == [".env", "SKILL.md", "notes"]
    assert (Path(having.root) / "src/made").exists(), "the workspace is as it was"
    without = run_in_sandbox(having.with_skills([]), f"cat {folder}/SKILL.md; {folder}/notes")
    assert (without.exit_code != 0, "how to use" in without.output) == (True, False)


def test_the_file_tools_read_the_skill_and_change_nothing_there(having: Scope, config: Path):
    files, folder = GuardedFiles(having), f"{config}/skills/notes"
    assert files.read(f"{folder}/SKILL.md").data == b"how to use notes\n"
    assert [each.path for each in files.list(folder)] == ["SKILL.md", "notes"]
    for path in (f"{folder}/.env", f"{config}/config.toml", f"{config}/skills/mail/SKILL.md"):
        with pytest.raises(OutOfScope):
            files.read(path)
    with pytest.raises(OutOfScope):
        files.list(f"{config}/skills")
    with pytest.raises(OutOfScope):
        files.write(f"{folder}/SKILL.md", b"changed")
    with pytest.raises((OutOfScope, Failed)):
        GuardedFiles(having.with_skills([])).read(f"{folder}/SKILL.md")


def test_where_only_trees_can_be_allowed_the_skill_is_one(having: Scope, config: Path):
    assert f"{config}/skills/notes" in allowed_trees(having, "read")
    assert f"{config}/skills/notes" not in allowed_trees(having, "write")
    assert f"{config}/skills/notes" not in allowed_trees(having.with_skills([]), "read")
