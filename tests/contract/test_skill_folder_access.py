"""Access to skill folders: an agent with the skill may read and run it, and no other agent may."""

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


def write_skill(config: Path, plugin: str) -> Skill:
    folder = config / "skills" / plugin
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"how to use {plugin}\n")
    (folder / ".env").write_text("DENIED\n")
    command = folder / plugin
    command.write_text(f'#!/bin/sh\necho "{plugin} says $*"\n')
    command.chmod(0o755)
    return Skill(name=plugin, description="", folder=str(folder), cli=str(command))


@pytest.fixture(params=["outside", "inside"])
def config(request: pytest.FixtureRequest, workspace: Path) -> Path:
    """The configuration folder: next to the workspace, or inside it as when the workspace is the home."""
    folder = (
        workspace / ".config/retinue" if request.param == "inside" else workspace.parent / "config/retinue"
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("SECRET")
    return folder


@pytest.fixture(params=["own /tmp", "shared /tmp"])
def skill_scope(scope: Scope, config: Path, request: pytest.FixtureRequest) -> Scope:
    """The scope of an agent that has the skill `notes` and not the skill `mail`."""
    notes, _ = write_skill(config, "notes"), write_skill(config, "mail")
    base_scope = replace(
        scope,
        retinue_paths=(subtree_pattern(str(config)),),
        deny=("**/.env",),
        tool_exposure=ToolExposure.MIXED,
    )
    return replace(
        base_scope.with_skills([notes]), tmp_folder="" if request.param == "shared /tmp" else scope.tmp_folder
    )


def test_a_command_can_run_its_skill_and_read_nothing_else_in_the_configuration(
    skill_scope: Scope, config: Path, run_in_sandbox: RunInSandbox
):
    folder = f"{config}/skills/notes"
    result = run_in_sandbox(
        skill_scope,
        f"{folder}/notes add milk; cat {folder}/SKILL.md; ls -A {config} {config}/skills; "
        f"cat {folder}/.env {config}/config.toml {config}/skills/mail/SKILL.md; "
        f"echo changed > {folder}/SKILL.md; echo new > {folder}/new; echo new > {config}/skills/new; "
        f"mv {config} {config}.moved; touch src/made",
    )
    lines = result.output.splitlines()
    assert lines[:2] == ["notes says add milk", "how to use notes"]
    assert lines[2:7] == [f"{config}:", "skills", "", f"{config}/skills:", "notes"]
    assert "SECRET" not in result.output
    assert "DENIED" not in result.output
    assert "how to use mail" not in result.output
    assert result.notes == ()
    assert (config / "skills/notes/SKILL.md").read_text() == "how to use notes\n"
    assert sorted(each.name for each in (config / "skills").iterdir()) == ["mail", "notes"]
    assert sorted(each.name for each in (config / "skills/notes").iterdir()) == [".env", "SKILL.md", "notes"]
    assert (Path(skill_scope.root) / "src/made").exists(), "the workspace is still writable"
    without_skill = run_in_sandbox(skill_scope.with_skills([]), f"cat {folder}/SKILL.md; {folder}/notes")
    assert (without_skill.exit_code != 0, "how to use" in without_skill.output) == (True, False)


def test_file_tools_can_read_a_skill_but_not_change_it(skill_scope: Scope, config: Path):
    files, folder = GuardedFiles(skill_scope), f"{config}/skills/notes"
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
        GuardedFiles(skill_scope.with_skills([])).read(f"{folder}/SKILL.md")


def test_a_skill_folder_is_a_readable_tree_for_landlock(skill_scope: Scope, config: Path):
    assert f"{config}/skills/notes" in allowed_trees(skill_scope, "read")
    assert f"{config}/skills/notes" not in allowed_trees(skill_scope, "write")
    assert f"{config}/skills/notes" not in allowed_trees(skill_scope.with_skills([]), "read")
