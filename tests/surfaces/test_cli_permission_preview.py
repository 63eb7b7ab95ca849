"""What a person is told of rights before anything happens is what would happen."""

from pathlib import Path

import pytest
from cli_fixture import CliFixture


@pytest.fixture
def session(cli: CliFixture) -> str:
    cli.script_model(["Good morning."])
    return cli("run", "--json", "Greet me.").json["slug"]


def configured(retinue: CliFixture, text: str) -> None:
    folder = Path(retinue.env["RETINUE_CONFIG"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text, encoding="utf-8")


def test_what_would_be_asked_is_said_to_be_asked(cli: CliFixture, session: str):
    asked = cli("scope", "test", session, "write", "a.txt")
    assert (asked.code, asked.out.startswith("allowed, requires approval: write ")) == (0, True)
    assert cli("scope", "test", session, "write", "/tmp/a.txt").out == "allowed: write /tmp/**\n"
    assert cli("scope", "test", session, "read", "a.txt").code == 0


def test_where_the_configuration_answers_no_the_verdict_is_no(cli: CliFixture, session: str):
    configured(cli, 'approvals = "deny"\n')
    for kind, value in (("write", "a.txt"), ("run", "make test")):
        said = cli("scope", "test", session, kind, value)
        assert (said.code, said.out) == (3, "denied: approvals = deny\n")
    assert cli("scope", "test", session, "write", "/tmp/a.txt").code == 0


def test_a_command_below_the_least_level_is_no_question(cli: CliFixture, session: str):
    configured(cli, '[sandbox]\nminimum = "strict"\n')
    said = cli("scope", "test", session, "run", "ls", RETINUE_SANDBOX="none", TERM="dumb")
    assert (said.code, said.out) == (3, "denied: sandbox level none is below sandbox.minimum (strict)\n")


def test_the_list_of_tools_says_which_of_them_ask(cli: CliFixture):
    asks = {row["name"]: row["approval"] for row in cli("tools", "list", "--json").json}
    assert (asks["read"], asks["write"], asks["bash"]) == ("never", "unless granted", "unless granted")
    assert asks["request_scope_expansion"] == "always"


def test_a_card_names_the_tool_that_wants_to_write(cli: CliFixture):
    (cli.folder / "a.txt").write_text("one\n")
    wish = {"name": "edit", "args": {"path": "a.txt", "old": "one", "new": "two"}}
    cli.script_model([{"tools": [wish]}, "Done."])
    ran = cli("run", "Edit it.")
    (asked,) = cli("approvals", "list", "--json").json
    assert f"then answer: retinue approvals answer {asked['id']} allow (or deny)" in ran.err
    assert "  wants: write, with edit\n" in cli("approvals", "show", asked["id"]).out


def test_for_people_a_list_that_allows_nothing_is_not_left_out(cli: CliFixture, session: str):
    configured(cli, "[ceiling]\ntools = []\nwritable = false\n\n[ceiling.paths]\nwrite = []\n")
    shown = cli("scope", "show", session).out
    _, most = shown.split("\nceiling of the configuration:\n")
    lines = {tuple(line.split(None, 1)) for line in most.splitlines()}
    assert lines >= {("tools", "nothing"), ("writable", "no"), ("paths.write", "nothing")}
    assert "paths.deny" not in shown
    facts = cli("scope", "show", session, "--json").json
    assert "**/.github/workflows/**" in facts["guarded_paths"]
    assert facts["ceilings"][0]["tools"] == []


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("make", "  add speaks for make with any arguments, from now on in this session"),
        ("ls; make", "  add spares no question: it is more than one program and plain words"),
    ],
)
def test_a_card_says_what_adding_a_command_would_mean(cli: CliFixture, command: str, line: str):
    wish = {"tool": "bash", "resource": command, "reason": "Often."}
    cli.script_model([{"tools": [{"name": "request_scope_expansion", "args": wish}]}, "Done."])
    assert cli("run", "Ask for it.").code == 6
    (asked,) = cli("approvals", "list", "--json").json
    shown = cli("approvals", "show", asked["id"]).out.splitlines()
    assert [each for each in shown if each.startswith("  add ")] == [line]


def test_where_no_command_is_run_none_is_offered_and_the_lists_say_why(cli: CliFixture, session: str):
    """Shows: S16, S17."""
    why = "sandbox level none is below sandbox.minimum (strict)"
    configured(cli, '[sandbox]\nminimum = "strict"\n')
    low = {"RETINUE_SANDBOX": "none"}
    for about in ((), ("--session", session), ("--agent", "builder")):
        rows = {row["name"]: row for row in cli("tools", "list", "--json", *about, **low).json}
        assert (rows["bash"]["available"], rows["bash"]["rule"]) == (False, why)
        assert rows["read"]["available"]
    facts = cli("scope", "show", session, "--json", **low).json
    assert facts["sandbox"] == {"level": "none", "minimum": "strict", "blocked_reason": why}
    assert why in cli("scope", "show", session, **low).out
    here = cli("scope", "show", session, "--json").json
    assert (here["sandbox"]["blocked_reason"], here["hash"] != facts["hash"]) == (None, True)


def test_the_model_is_not_told_that_something_holds_what_nothing_holds(cli: CliFixture):
    rows = {row["name"]: row for row in cli("tools", "list", "--json", RETINUE_SANDBOX="none").json}
    said = " ".join(rows["bash"]["description"].split())
    assert "where it is strict, there are only the files of your scope" in said
    assert "where it is none, nothing holds it but the person who allows it" in said
    assert "what the sandbox was" in said
