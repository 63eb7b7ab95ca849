"""`retinue scope show` and `retinue scope test`."""

import pytest
from cli_fixture import CliFixture


@pytest.fixture
def session(cli: CliFixture) -> str:
    (cli.folder / "a.txt").write_text("one\n")
    cli.script_model(["Good morning."])
    return cli("run", "--json", "Greet me.").json["slug"]


@pytest.mark.parametrize(
    ("kind", "value", "code", "rule"),
    [
        ("read", "a.txt", 0, "allowed: read "),
        ("read", "/etc/passwd", 3, "denied: nothing allows read"),
        ("read", ".ssh/id_ed25519", 3, "denied: always closed **/.ssh/**"),
        ("read", "../../../../etc/passwd", 3, "denied: "),
        ("write", "a.txt", 0, "allowed, requires approval: write "),
        ("write", "/tmp/a.txt", 0, "allowed: write /tmp/**"),
        ("write", ".git/hooks/post-commit", 3, "denied: always closed **/.git/hooks/**"),
        ("run", "make test", 0, "allowed, requires approval: nothing denies it"),
        ("tool", "bash", 0, "allowed: in scope"),
        ("tool", "bsh", 3, "denied: unknown tool 'bsh'"),
        ("agent", "explorer", 0, "allowed: in scope"),
    ],
)
def test_scope_test_prints_a_verdict_with_its_rule_and_exit_code(
    cli: CliFixture, session: str, kind: str, value: str, code: int, rule: str
):
    result = cli("scope", "test", session, kind, value)
    assert (result.code, result.out.startswith(rule)) == (code, True), result
    json_result = cli("scope", "test", session, kind, value, "--json")
    assert (json_result.code, json_result.json["ok"], json_result.json["kind"]) == (code, code == 0, kind)
    assert (json_result.json["requires_approval"], json_result.json["rule"] in result.out) == (
        "requires approval" in result.out,
        True,
    )


def test_the_folders_of_retinue_are_protected_and_shown_as_protected(cli: CliFixture, session: str):
    home = cli.env["RETINUE_HOME"]
    for value in (f"{home}/ledger.db", f"{home}/sessions/{session}/branches/main/preset.md"):
        assert cli("scope", "test", session, "write", value).code == 3
        assert "always closed" in cli("scope", "test", session, "read", value).out
    assert f"{home}/**" in cli("scope", "show", session, "--json").json["protected_paths"]


def test_the_scope_of_a_session_is_shown_with_the_ceilings_above_it(cli: CliFixture, session: str):
    scope = cli("scope", "show", session, "--json").json
    assert scope["workspace"] == str(cli.folder)
    assert scope["paths"]["read"] == [f"{cli.folder}/**", "/tmp/**"]
    assert (scope["preapproved"]["write"], scope["approvals"]) == (["/tmp/**"], "ask")
    assert scope["ceilings"] == []
    child = cli("spawn", "--json", "--parent", session, "--agent", "explorer", "Look.").json["slug"]
    child_scope = cli("scope", "show", child, "--json").json
    assert [ceiling["by"] for ceiling in child_scope["ceilings"]] == [session]
    assert child_scope["hash"] != scope["hash"]
    assert f"ceiling of {session}:" in cli("scope", "show", child).out


def test_invalid_arguments_have_their_own_exit_codes(cli: CliFixture, session: str):
    assert cli("scope", "show", session[:9], "--json").code == 0
    assert cli("scope", "show", "nobody").code == 7
    assert cli("scope", "test", "nobody", "read", "a.txt").code == 7
    assert cli("scope", "test", session, "eat", "a.txt").code == 2
    assert cli("scope", "test", session, "read").code == 2
