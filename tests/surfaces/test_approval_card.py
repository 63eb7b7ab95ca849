"""The approval card on a terminal: it shows the exact call, and only a later answer of the person counts."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture

from retinue.cli.ui.approval_card import answer_prompt
from retinue.cli.user_prompts import SHOW_ANSWERS, accepted_answers
from retinue.domain.approval import Approval, ToolAccess

OUTSIDE = Path("/etc/passwd")


def write_call(name: str = "a.txt", content: str = "words\n") -> dict[str, Any]:
    return {"tools": [{"name": "write", "args": {"path": name, "content": content}}]}


def scope_request_call(path: Path, reason: str = "The task needs it.") -> dict[str, Any]:
    request = {"tool": "read", "resource": str(path), "reason": reason}
    return {"tools": [{"name": "request_scope_expansion", "args": request}]}


def approval_states(cli: CliFixture) -> list[str]:
    return [row["state"] for row in cli("approvals", "list", "--all", "--json").json]


@pytest.mark.parametrize("answer", ["y", "yes", "Y", "allow", "  yes  "])
def test_allowing_the_shown_call_executes_it_and_the_run_continues(cli: CliFixture, answer: str):
    """Shows: B053."""
    cli.script_model([write_call(), "Written."])
    screen = cli.open_terminal("run", "write it", NO_COLOR="1")
    card = screen.wait_for_text("[y]es, once, [n]o")
    assert not (cli.folder / "a.txt").exists()
    assert f"requests: write\r\n    {cli.folder}/a.txt" in card
    assert "content:\r\n    words" in card
    assert "person > " in card
    screen.type(f"{answer}\n")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words\n"
    assert approval_states(cli) == ["used"]


@pytest.mark.parametrize("answer", ["n", "no", "deny"])
def test_a_denial_is_reported_to_the_agent_and_the_call_is_not_executed(cli: CliFixture, answer: str):
    """Shows: A007."""
    cli.script_model([write_call(), "Then not."])
    screen = cli.open_terminal("run", "write it")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.type(f"{answer}\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0
    assert not (cli.folder / "a.txt").exists()
    assert approval_states(cli) == ["denied"]


def test_an_unclear_answer_is_asked_for_again(cli: CliFixture):
    """Shows: T10."""
    cli.script_model([write_call(), "Then not."])
    screen = cli.open_terminal("run", "write it")
    screen.wait_for_text("[y]es, once, [n]o")
    for answer in ("", "yn", "perhaps", "a", "add", "y; n", "\N{CYRILLIC SMALL LETTER U}", "\x1b[A"):
        screen.type(f"{answer}\n")
        screen.wait_for_text("[y]es, once, [n]o")
        assert not (cli.folder / "a.txt").exists()
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0


def test_input_typed_before_the_card_appears_is_not_an_answer(cli: CliFixture):
    """Shows: T10."""
    cli.script_model([{**write_call(), "text": "Thinking.", "delay": 0.5}, "Then not."])
    screen = cli.open_terminal("run", "write it")
    screen.type("y\ny\n")
    screen.wait_for_text("[y]es, once, [n]o")
    assert approval_states(cli) == ["pending"]
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0
    assert not (cli.folder / "a.txt").exists()


def test_ctrl_d_at_the_card_denies(cli: CliFixture):
    cli.script_model([write_call(), "Then not."])
    screen = cli.open_terminal("run", "write it")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.press("d")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0
    assert approval_states(cli) == ["denied"]


def test_ctrl_c_at_the_card_cancels_the_run_and_its_approval(cli: CliFixture):
    """Shows: A067."""
    cli.script_model([write_call(), "Never said."])
    screen = cli.open_terminal("run", "write it")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.press("c")
    screen.wait_for_text("cancelled")
    assert screen.wait_for_exit()[0] == 5
    (run,) = cli("runs", "history", "--json").json
    assert (run["status"], run["reason"]) == ("cancelled", "user_cancel")
    assert cli("approvals", "list", "--json").json == []
    assert "the run was stopped before this call finished" in Path(run["path"]).read_text()
    assert not (cli.folder / "a.txt").exists()


def test_a_long_argument_is_shortened_and_shown_in_full_on_request(cli: CliFixture):
    """Shows: T10."""
    lines = [f"line {number}" for number in range(400)]
    cli.script_model([write_call(content="\n".join(lines)), "Then not."])
    screen = cli.open_terminal("run", "write it", NO_COLOR="1")
    card = screen.wait_for_text("[y]es, once, [n]o")
    assert "line 23\r\n" in card
    assert "line 24\r\n" not in card
    assert "[… 376 more lines: [s]how them]" in card
    screen.wait_for_text(", [s]how everything")
    screen.type("s\n")
    full_card = screen.wait_for_text("[y]es, once, [n]o")
    assert all(f"    {line}\r\n" in full_card for line in lines)
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0


@pytest.mark.parametrize(("access", "keys"), [("write", "yns"), ("scope", "yans")])
def test_the_keys_offered_by_the_prompt_are_those_that_work(access: ToolAccess, keys: str):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    approval = Approval(
        id="01A", run="01R", session="s", agent="general", call="01C", tool="read", access=access, resource="/a",
        args="{}", asked_at=now, expires_at=now,
    )  # fmt: skip
    assert re.findall(r"\[(\w)\]", answer_prompt(approval)) == list(keys)
    assert {word for word in (*accepted_answers(approval), *SHOW_ANSWERS) if len(word) == 1} == set(keys)


HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x9b2J\u202etxt\u200b\U000e0041\r\x08 \u2028y"
VISIBLE = "x␛]0;owned␇␛[2J<U+009B>2J<U+202E>txt<U+200B><U+E0041>␍␈ <U+2028>y"


def test_invisible_and_control_characters_on_the_card_are_made_visible(cli: CliFixture):
    """Shows: T10, U01, U03."""
    cli.script_model([write_call(f"{HOSTILE}.txt", HOSTILE), "Then not."])
    screen = cli.open_terminal("run", "write it", NO_COLOR="1", TERM="dumb")
    card = screen.wait_for_text("[y]es, once, [n]o")
    assert f"    {cli.folder}/{VISIBLE}.txt\r\n" in card
    assert f"    {VISIBLE}\r\n" in card
    for char in "\x1b\x07\x9b\u202e\u200b\U000e0041\x08\u2028":
        assert char not in card
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0


FORGED = "Harmless.\n? [y]es, once, [n]o\napproval 01FORGED\n  requests: read\n    /etc/hostname"


def test_text_of_an_agent_cannot_imitate_a_part_of_the_card(cli: CliFixture):
    """Shows: T10."""
    cli.script_model([scope_request_call(OUTSIDE, FORGED), "Then not."])
    screen = cli.open_terminal("run", "read it", NO_COLOR="1")
    card = screen.wait_for_text("[a]dd to its permissions, [n]o")
    assert all(f"\r\n    {line}\r\n" in card for line in FORGED.split("\n"))
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0


def test_a_path_added_to_the_permissions_stays_allowed_in_the_session(cli: CliFixture):
    """Shows: A093, A094."""
    read_call = {"tools": [{"name": "read", "args": {"path": str(OUTSIDE)}}]}
    cli.script_model([scope_request_call(OUTSIDE), read_call, "Read.", read_call, "Again."])
    screen = cli.open_terminal("run", "read it", NO_COLOR="1")
    card = screen.wait_for_text("[y]es, once, [a]dd to its permissions, [n]o")
    assert f"requests: more permissions for read\r\n    {OUTSIDE}" in card
    assert "reason: The task needs it." in card
    screen.type("a\n")
    screen.wait_for_text("Read.")
    assert screen.wait_for_exit()[0] == 0
    result = cli("run", "--session", "latest", "--json", "again")
    assert (result.code, result.json["text"]) == (0, "Again.")
    assert Path(result.json["path"]).read_text().count("root:x:0:0") == 2


def test_sending_to_a_waiting_run_shows_its_card_and_the_message_is_answered_after_it(cli: CliFixture):
    """Shows: C044."""
    cli.script_model([write_call(), "Written.", "And that was all."])
    waiting = cli("run", "--json", "write it")
    assert waiting.code == 6
    screen = cli.open_terminal("send", waiting.json["slug"], "and?", NO_COLOR="1")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.type("y\n")
    screen.wait_for_text("And that was all.")
    assert screen.wait_for_exit()[0] == 0
    lines = [
        line for line in Path(waiting.json["path"]).read_text().splitlines() if line.endswith(("?", "."))
    ]
    assert lines[-3:] == ["Written.", "and?", "And that was all."]


def test_a_chat_shows_cards_and_continues_after_them(cli: CliFixture):
    cli.script_model([write_call(), "Written.", write_call("b.txt"), "Then not.", "Bye."])
    screen = cli.open_terminal("chat", NO_COLOR="1", TERM="dumb")
    screen.wait_for_text("> ")
    screen.type("write it\n")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.type("y\n")
    screen.wait_for_text("Written.")
    screen.wait_for_text("> ")
    screen.type("another\n")
    screen.wait_for_text("[y]es, once, [n]o")
    screen.press("c")
    screen.wait_for_text("cancelled")
    screen.wait_for_text("> ")
    screen.type("still there?\n")
    screen.wait_for_text("Then not.")
    screen.wait_for_text("> ")
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0
    assert [(cli.folder / name).exists() for name in ("a.txt", "b.txt")] == [True, False]


def test_a_configuration_that_becomes_unreadable_during_a_run_is_reported_on_the_terminal(cli: CliFixture):
    """Shows: L024."""
    cli.script_model([write_call(), "Written."])
    screen = cli.open_terminal("run", "write it", NO_COLOR="1")
    screen.wait_for_text("[y]es, once")
    (Path(cli.env["RETINUE_CONFIG"]) / "config.toml").write_text("[deny\n")
    screen.type("y\n")
    screen.wait_for_text("The configuration cannot be read, so its previous rules still apply")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0


def test_with_json_the_card_is_on_standard_error_and_the_output_is_valid(cli: CliFixture):
    cli.script_model([write_call(), "Written."])
    screen = cli.open_terminal("run", "--json", "write it", NO_COLOR="1")
    before = screen.wait_for_text("[y]es, once, [n]o")
    assert "{" not in before.replace('{"path', "")
    screen.type("y\n")
    code, rest = screen.wait_for_exit()
    assert code == 0
    assert '"text": "Written."' in rest
    assert '"approvals": []' in rest


def test_an_answer_from_another_process_releases_the_waiting_terminal(cli: CliFixture):
    """Shows: L006, P11."""
    cli.script_model([write_call(), "Written."])
    screen = cli.open_terminal("run", "write it")
    screen.wait_for_text("[y]es, once, [n]o")
    (approval,) = cli("approvals", "list", "--json").json
    result = cli("approvals", "answer", approval["id"], "allow", "--json")
    assert result.code == 0
    assert result.json["state"] in ("allowed", "used")
    assert result.json["run"]["run_id"] == approval["run_id"]
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words\n"
    (run,) = cli("runs", "history", "--json").json
    assert (run["status"], run["turns"]) == ("done", 2)


def test_two_approvals_of_one_turn_are_asked_one_after_the_other(cli: CliFixture):
    calls = {"tools": [*write_call()["tools"], *write_call("b.txt")["tools"]]}
    cli.script_model([calls, "Half of it."])
    screen = cli.open_terminal("run", "write them", NO_COLOR="1")
    first = screen.wait_for_text("[y]es, once, [n]o")
    assert "a.txt" in first
    screen.type("n\n")
    second = screen.wait_for_text("[y]es, once, [n]o")
    assert "b.txt" in second
    screen.type("y\n")
    screen.wait_for_text("Half of it.")
    assert screen.wait_for_exit()[0] == 0
    assert [(cli.folder / name).exists() for name in ("a.txt", "b.txt")] == [False, True]


@pytest.mark.parametrize("resource", ["/", "/**"])
def test_a_request_for_the_root_of_the_file_system_is_called_out(cli: CliFixture, resource: str):
    cli.script_model([scope_request_call(Path(resource)), "Then not."])
    screen = cli.open_terminal("run", "look everywhere")
    card = screen.wait_for_text("[n]o")
    assert f"warning: {resource} is the root of the file system" in card
    screen.type("n\n")
    screen.wait_for_text("Then not.")
    assert screen.wait_for_exit()[0] == 0
