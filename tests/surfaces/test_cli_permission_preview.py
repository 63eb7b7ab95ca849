"""Permission previews match the actual decisions."""

from pathlib import Path

import pytest
from cli_fixture import CliFixture


@pytest.fixture
def session(cli: CliFixture) -> str:
    cli.script_model(["Good morning."])
    return cli("run", "--json", "Greet me.").json["slug"]


def write_config(cli: CliFixture, text: str) -> None:
    folder = Path(cli.env["RETINUE_CONFIG"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text, encoding="utf-8")


def test_scope_test_reports_when_a_write_requires_approval(cli: CliFixture, session: str):
    result = cli("scope", "test", session, "write", "a.txt")
    assert (result.code, result.out.startswith("allowed, requires approval: write ")) == (0, True)
    assert cli("scope", "test", session, "write", "/tmp/a.txt").out == "allowed: write /tmp/**\n"
    assert cli("scope", "test", session, "read", "a.txt").code == 0


def test_scope_test_denies_where_the_configuration_denies_every_approval(cli: CliFixture, session: str):
    write_config(cli, 'approvals = "deny"\n')
    for kind, value in (("write", "a.txt"), ("run", "make test")):
        result = cli("scope", "test", session, kind, value)
        assert (result.code, result.out) == (3, "denied: approvals = deny\n")
    assert cli("scope", "test", session, "write", "/tmp/a.txt").code == 0


def test_scope_test_denies_commands_below_the_minimum_sandbox_level(cli: CliFixture, session: str):
    write_config(cli, '[sandbox]\nminimum = "strict"\n')
    result = cli("scope", "test", session, "run", "ls", RETINUE_SANDBOX="none", TERM="dumb")
    assert (result.code, result.out) == (3, "denied: sandbox level none is below sandbox.minimum (strict)\n")


def test_the_tool_list_reports_which_tools_require_approval(cli: CliFixture):
    approval_by_tool = {row["name"]: row["approval"] for row in cli("tools", "list", "--json").json}
    assert (approval_by_tool["read"], approval_by_tool["write"], approval_by_tool["bash"]) == (
        "never",
        "unless granted",
        "unless granted",
    )
    assert approval_by_tool["request_scope_expansion"] == "always"


def test_the_approval_of_a_write_names_the_tool(cli: CliFixture):
    (cli.folder / "a.txt").write_text("one\n")
    call = {"name": "edit", "args": {"path": "a.txt", "old": "one", "new": "two"}}
    cli.script_model([{"tools": [call]}, "Done."])
    result = cli("run", "Edit it.")
    (approval,) = cli("approvals", "list", "--json").json
    assert f"then answer: retinue approvals answer {approval['id']} allow (or deny)" in result.err
    assert "  requests: write, with edit\n" in cli("approvals", "show", approval["id"]).out


def test_an_empty_list_of_permissions_is_shown_as_nothing(cli: CliFixture, session: str):
    write_config(cli, "[ceiling]\ntools = []\nwritable = false\n\n[ceiling.paths]\nwrite = []\n")
    output = cli("scope", "show", session).out
    _, ceiling = output.split("\nceiling of the configuration:\n")
    lines = {tuple(line.split(None, 1)) for line in ceiling.splitlines()}
    assert lines >= {("tools", "nothing"), ("writable", "no"), ("paths.write", "nothing")}
    assert "paths.deny" not in output
    scope = cli("scope", "show", session, "--json").json
    assert "**/.github/workflows/**" in scope["guarded_paths"]
    assert scope["ceilings"][0]["tools"] == []


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("make", "  add allows make with any arguments in this session from now on"),
        (
            "ls; make",
            "  add has no effect for this command: only one program with literal arguments (no quotes, variables or pipes) can be added",
        ),
    ],
)
def test_the_card_of_a_scope_request_reports_what_adding_it_would_grant(
    cli: CliFixture, command: str, line: str
):
    request = {"tool": "bash", "resource": command, "reason": "Often."}
    cli.script_model([{"tools": [{"name": "request_scope_expansion", "args": request}]}, "Done."])
    assert cli("run", "Ask for it.").code == 6
    (approval,) = cli("approvals", "list", "--json").json
    card = cli("approvals", "show", approval["id"]).out.splitlines()
    assert [card_line for card_line in card if card_line.startswith("  add ")] == [line]


def test_below_the_minimum_sandbox_level_bash_is_not_available_and_lists_report_why(
    cli: CliFixture, session: str
):
    """Shows: S16, S17."""
    reason = "sandbox level none is below sandbox.minimum (strict)"
    write_config(cli, '[sandbox]\nminimum = "strict"\n')
    env = {"RETINUE_SANDBOX": "none"}
    for options in ((), ("--session", session), ("--agent", "builder")):
        rows = {row["name"]: row for row in cli("tools", "list", "--json", *options, **env).json}
        assert (rows["bash"]["available"], rows["bash"]["rule"]) == (False, reason)
        assert rows["read"]["available"]
    scope = cli("scope", "show", session, "--json", **env).json
    assert scope["sandbox"] == {"level": "none", "minimum": "strict", "blocked_reason": reason}
    assert reason in cli("scope", "show", session, **env).out
    default_scope = cli("scope", "show", session, "--json").json
    assert (default_scope["sandbox"]["blocked_reason"], default_scope["hash"] != scope["hash"]) == (
        None,
        True,
    )


def test_the_description_of_bash_lists_what_each_sandbox_level_does(cli: CliFixture):
    rows = {row["name"]: row for row in cli("tools", "list", "--json", RETINUE_SANDBOX="none").json}
    description = " ".join(rows["bash"]["description"].split())
    assert "If the sandbox is strict, the command sees only the files of your scope" in description
    assert "If the sandbox is none, the command is unrestricted and needs" in description
    assert "the sandbox level" in description
