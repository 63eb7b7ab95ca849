"""`retinue scope` as a person and a program have it: what applies to a session, and the verdict on one thing."""

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
def test_a_verdict_has_a_word_a_rule_and_an_exit_code(
    cli: CliFixture, session: str, kind: str, value: str, code: int, rule: str
):
    said = cli("scope", "test", session, kind, value)
    assert (said.code, said.out.startswith(rule)) == (code, True), said
    facts = cli("scope", "test", session, kind, value, "--json")
    assert (facts.code, facts.json["ok"], facts.json["kind"]) == (code, code == 0, kind)
    assert (facts.json["requires_approval"], facts.json["rule"] in said.out) == (
        "requires approval" in said.out,
        True,
    )


def test_retinues_own_folders_are_closed_and_shown_so(cli: CliFixture, session: str):
    home = cli.env["RETINUE_HOME"]
    for value in (f"{home}/ledger.db", f"{home}/sessions/{session}/branches/main/preset.md"):
        assert cli("scope", "test", session, "write", value).code == 3
        assert "always closed" in cli("scope", "test", session, "read", value).out
    assert f"{home}/**" in cli("scope", "show", session, "--json").json["protected_paths"]


def test_the_scope_of_a_session_is_shown_with_whose_word_it_is(cli: CliFixture, session: str):
    facts = cli("scope", "show", session, "--json").json
    assert facts["workspace"] == str(cli.folder)
    assert facts["paths"]["read"] == [f"{cli.folder}/**", "/tmp/**"]
    assert (facts["preapproved"]["write"], facts["approvals"]) == (["/tmp/**"], "ask")
    assert facts["ceilings"] == []
    child = cli("spawn", "--json", "--parent", session, "--agent", "explorer", "Look.").json["slug"]
    below = cli("scope", "show", child, "--json").json
    assert [each["by"] for each in below["ceilings"]] == [session]
    assert below["hash"] != facts["hash"]
    assert f"ceiling of {session}:" in cli("scope", "show", child).out


def test_what_is_asked_wrongly_is_told_with_its_own_exit_code(cli: CliFixture, session: str):
    assert cli("scope", "show", session[:9], "--json").code == 0
    assert cli("scope", "show", "nobody").code == 7
    assert cli("scope", "test", "nobody", "read", "a.txt").code == 7
    assert cli("scope", "test", session, "eat", "a.txt").code == 2
    assert cli("scope", "test", session, "read").code == 2
