"""Checking and importing agent definitions of other tools on the command line."""

import json
from pathlib import Path

import pytest
from cli_fixture import CliFixture

MODES = {
    "customModes": [
        {"slug": "asker", "name": "Asker", "roleDefinition": "You ask.", "groups": ["read"]},
        {"slug": "maker", "name": "Maker", "roleDefinition": "You make.", "groups": ["read", "edit"]},
    ]
}


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    return folder


def test_a_readme_among_definitions_is_skipped_and_named(cli: CliFixture, foreign_folder: Path):
    (foreign_folder / "README.md").write_text("# Agents\n\nAll of them.\n")
    (foreign_folder / "package.json").write_text('{"name": "pack", "version": "1.0.0"}')
    (foreign_folder / "scout.md").write_text("---\nname: scout\ndescription: Looks.\n---\nYou look.\n")
    checked = cli("agents", "check", str(foreign_folder), "--json")
    assert checked.code == 0
    assert {Path(row["path"]).name: (row["ok"], row["skipped"]) for row in checked.json} == {
        "README.md": (False, True),
        "package.json": (False, True),
        "scout.md": (True, False),
    }
    assert "skipped: has no front matter" in cli("agents", "check", str(foreign_folder)).out
    assert cli("agents", "import", str(foreign_folder)).code == 0
    assert cli("agents", "show", "scout").code == 0


def test_an_import_says_how_many_files_it_left_alone(cli: CliFixture, foreign_folder: Path):
    for name in (
        "skills/a/SKILL.md",
        "skills/a/more/notes.md",
        "skills/b/SKILL.md",
        "commands/c.md",
        "agents/scout.md",
    ):
        (foreign_folder / name).parent.mkdir(parents=True)
        (foreign_folder / name).write_text("---\nname: scout\ndescription: Looks.\n---\nYou look.\n")
    imported = cli("agents", "import", str(foreign_folder))
    assert imported.code == 0
    assert "skipped, because they are not agents: 1 command, 2 skills" in imported.err
    assert imported.out.count("→") == 1
    rows = cli("agents", "check", str(foreign_folder), "--json").json
    assert sorted(row["kind"] or "agent" for row in rows) == ["agent", "command", "skill", "skill", "skill"]


def test_a_page_given_by_name_or_a_folder_without_definitions_is_a_failure(
    cli: CliFixture, foreign_folder: Path
):
    (foreign_folder / "README.md").write_text("# Agents\n")
    assert cli("agents", "check", str(foreign_folder)).code == 1
    result = cli("agents", "import", str(foreign_folder / "README.md"))
    assert result.code == 1
    assert "problem: has no front matter; start the file with a line `---`" in result.out


def test_a_broken_definition_in_a_folder_is_not_skipped(cli: CliFixture, foreign_folder: Path):
    (foreign_folder / "scout.md").write_text("---\nname: scout\n---\nYou look.\n")
    (foreign_folder / "torn.md").write_text("---\nname: torn\ntools: [read]\n")
    checked = cli("agents", "check", str(foreign_folder), "--json")
    assert checked.code == 1
    assert [row["skipped"] for row in checked.json] == [False, False]


@pytest.mark.parametrize("yaml", [False, True])
def test_a_modes_file_without_a_suffix_is_imported(cli: CliFixture, foreign_folder: Path, yaml: bool):
    text = (
        "customModes:\n"
        "  - {slug: asker, name: Asker, roleDefinition: You ask., groups: [read]}\n"
        "  - {slug: maker, name: Maker, roleDefinition: You make., groups: [read, edit]}\n"
    )
    (foreign_folder / ".roomodes").write_text(text if yaml else json.dumps(MODES))
    for path in (foreign_folder, foreign_folder / ".roomodes"):
        checked = cli("agents", "check", str(path), "--json")
        assert (checked.code, [row["name"] for row in checked.json]) == (0, ["asker", "maker"])
    assert cli("agents", "import", str(foreign_folder)).code == 0
    assert "edit" not in cli("agents", "show", "asker", "--json").json["tool_allow"]


def test_an_imported_agent_runs_with_its_own_prompt(cli: CliFixture, foreign_folder: Path):
    (foreign_folder / "scout.md").write_text(
        "---\r\nname: Code Scout\r\ndescription: Use it: often\r\ntools: Read\r\n---\r\n\r\nLook.\r\n\r\n  Then tell.\r\n"
    )
    assert cli("agents", "import", str(foreign_folder)).code == 0
    assert cli("agents", "show", "code-scout", "--json").json["prompt"] == "Look.\n\n  Then tell."
    cli.script_model(["I looked."])
    result = cli("run", "--agent", "code-scout", "Look around")
    assert (result.code, "I looked." in result.out) == (0, True)
