"""Definitions from elsewhere, by command: folders as they are found, and runs with what was brought home."""

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
def theirs(tmp_path: Path) -> Path:
    found = tmp_path / "theirs"
    found.mkdir()
    return found


def test_a_readme_beside_definitions_is_named_and_is_no_failure(cli: CliFixture, theirs: Path):
    (theirs / "README.md").write_text("# Agents\n\nAll of them.\n")
    (theirs / "package.json").write_text('{"name": "pack", "version": "1.0.0"}')
    (theirs / "scout.md").write_text("---\nname: scout\ndescription: Looks.\n---\nYou look.\n")
    checked = cli("agents", "check", str(theirs), "--json")
    assert checked.code == 0
    assert {Path(one["path"]).name: (one["ok"], one["skipped"]) for one in checked.json} == {
        "README.md": (False, True),
        "package.json": (False, True),
        "scout.md": (True, False),
    }
    assert "skipped: has no front matter" in cli("agents", "check", str(theirs)).out
    assert cli("agents", "import", str(theirs)).code == 0
    assert cli("agents", "show", "scout").code == 0


def test_a_page_named_itself_and_a_folder_of_pages_are_failures(cli: CliFixture, theirs: Path):
    (theirs / "README.md").write_text("# Agents\n")
    assert cli("agents", "check", str(theirs)).code == 1
    named = cli("agents", "import", str(theirs / "README.md"))
    assert named.code == 1
    assert "problem: has no front matter; start the file with a line `---`" in named.out


def test_half_a_definition_in_a_folder_is_never_passed_over(cli: CliFixture, theirs: Path):
    (theirs / "scout.md").write_text("---\nname: scout\n---\nYou look.\n")
    (theirs / "torn.md").write_text("---\nname: torn\ntools: [read]\n")
    checked = cli("agents", "check", str(theirs), "--json")
    assert checked.code == 1
    assert [one["skipped"] for one in checked.json] == [False, False]


@pytest.mark.parametrize("yaml", [False, True])
def test_a_file_of_modes_without_a_suffix_is_read(cli: CliFixture, theirs: Path, yaml: bool):
    text = (
        "customModes:\n"
        "  - {slug: asker, name: Asker, roleDefinition: You ask., groups: [read]}\n"
        "  - {slug: maker, name: Maker, roleDefinition: You make., groups: [read, edit]}\n"
    )
    (theirs / ".roomodes").write_text(text if yaml else json.dumps(MODES))
    for path in (theirs, theirs / ".roomodes"):
        checked = cli("agents", "check", str(path), "--json")
        assert (checked.code, [one["name"] for one in checked.json]) == (0, ["asker", "maker"])
    assert cli("agents", "import", str(theirs)).code == 0
    assert "edit" not in cli("agents", "show", "asker", "--json").json["tool_allow"]


def test_what_was_brought_home_runs_with_its_own_words(cli: CliFixture, theirs: Path):
    (theirs / "scout.md").write_text(
        "---\r\nname: Code Scout\r\ndescription: Use it: often\r\ntools: Read\r\n---\r\n\r\nLook.\r\n\r\n  Then tell.\r\n"
    )
    assert cli("agents", "import", str(theirs)).code == 0
    assert cli("agents", "show", "code-scout", "--json").json["prompt"] == "Look.\n\n  Then tell."
    cli.script_model(["I looked."])
    ran = cli("run", "--agent", "code-scout", "Look around")
    assert (ran.code, "I looked." in ran.out) == (0, True)
