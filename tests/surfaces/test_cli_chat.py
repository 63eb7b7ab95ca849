"""Talking line by line, on a terminal and from a script."""

import json
import termios
from pathlib import Path

from cli_fixture import CliFixture, WaitUntil


def test_a_person_talks_and_leaves_with_ctrl_d(cli: CliFixture):
    """Shows: U10."""
    cli.script_model(["Hello to you.", "Still here."])
    screen = cli.open_terminal("chat")
    before = termios.tcgetattr(screen.fd)
    screen.wait_for_text("> ")
    screen.type("hello\n")
    screen.wait_for_text("Hello to you.")
    screen.wait_for_text("> ")
    screen.type("are you there?\n")
    screen.wait_for_text("Still here.")
    screen.wait_for_text("> ")
    screen.press("d")
    code, _ = screen.wait_for_exit()
    assert code == 0
    assert termios.tcgetattr(screen.fd) == before
    listed = cli("sessions", "list", "--json").json
    assert [row["last_snippet"] for row in listed] == ["Still here."]


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(cli: CliFixture, wait_until: WaitUntil):
    cli.script_model([{"text": "Never finished.", "delay": 60}, "Go on then.", "Go on then."])
    screen = cli.open_terminal("chat")
    screen.wait_for_text("> ")
    screen.type("think\n")
    wait_until(lambda: [run for run in cli("runs", "list", "--json").json if run["status"] == "running"])
    screen.press("c")
    screen.wait_for_text("cancelled")
    screen.wait_for_text("> ")
    screen.type("/path\n")
    path = Path(screen.wait_for_text("session.md").split()[-1])
    screen.wait_for_text("> ")
    screen.press_until("c", lambda: b"press Ctrl-C again" in screen.output)
    screen.press_until("c", lambda: screen.process.poll() is not None)
    assert screen.wait_for_exit()[0] == 0
    assert "think" in path.read_text()


def test_nothing_is_made_before_the_first_words(cli: CliFixture):
    cli.script_model(["Hi."])
    ran = cli("chat", stdin="/path\n/agents\n/help\n/nothing\n/quit\nnever heard\n")
    assert "general" in ran.out
    assert "/clear" in ran.out
    assert "No session yet." in ran.err
    assert "Unknown command /nothing." in ran.err
    assert cli("sessions", "list", "--json").json == []


def test_a_script_talks_on_standard_input(cli: CliFixture):
    cli.script_model(["One.", "Two.", "Three."])
    first = cli("chat", stdin="a\n\nb\n")
    assert (first.code, first.out) == (0, "One.\nTwo.\n")
    session = cli("sessions", "list", "--json").json[0]
    second = cli("chat", session["slug"], "--json", stdin="c\n/rename Alphabet\n/clear\n")
    assert [run["text"] for run in json.loads(second.out)] == ["Three."]
    shown = cli("sessions", "show", session["slug"], "--json").json
    assert (shown["name"], shown["entries"]) == ("Alphabet", 0)


def test_switching_to_an_agent_goes_on_in_its_latest_session(cli: CliFixture):
    """Shows: C024."""
    cli.script_model({"general": ["I am general."], "explorer": ["I explore.", "I explore on."]})
    explorer = cli("run", "--agent", "explorer", "look", "--json").json
    ran = cli("chat", stdin="who?\n/agent explorer\nand now?\n/agent\n/tools\n/new\n")
    assert ran.out.startswith("I am general.\nI explore on.\nexplorer\n")
    assert "grep" in ran.out
    assert cli("sessions", "show", explorer["slug"], "--json").json["entries"] == 4


def test_a_definition_brings_its_own_slash_command(cli: CliFixture, tmp_path: Path):
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "critic.md").write_text(
        "---\nname: critic\ndescription: Finds fault\ntriggers: {slash: [/critic]}\n---\nYou find fault.\n"
    )
    cli.script_model({"general": ["Here is a plan."], "critic": ["It will not work."]})
    ran = cli("chat", stdin="plan\n/critic\n/critic look at it\n")
    assert ran.out == "Here is a plan.\nIt will not work.\n"
    assert "with the task for critic" in ran.err
    children = [row for row in cli("sessions", "list", "--json").json if row["type"] == "agent"]
    assert [row["agent"] for row in children] == ["critic"]


def test_hostile_names_and_words_stay_harmless_at_the_prompt(cli: CliFixture):
    """Shows: U01."""
    cli.script_model(["\x1b]0;owned\x07done"])
    screen = cli.open_terminal("chat", NO_COLOR="1", TERM="dumb")
    screen.wait_for_text("> ")
    screen.type("hello\n")
    seen = screen.wait_for_text("done")
    assert "\x1b]0" not in seen
    assert "␛]0;owned␇done" in seen
    screen.wait_for_text("> ")
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0


def test_a_session_and_an_agent_exclude_each_other(cli: CliFixture):
    assert cli("chat", "some-session", "--agent", "general").code == 2
    assert cli("chat", "some-session").code == 7
    assert cli("chat", "--agent", "nobody").code == 7


def test_a_watchers_slash_command_alone_switches_it_and_with_words_sends_it_exploring(cli: CliFixture):
    """Shows: D041."""
    warns = {"severity": "info", "reason": "It drifts.", "suggestion": "Stay."}
    cli.script_model(
        {
            "general": ["One.", "Two.", "Three."],
            "pair": [{"tools": [{"name": "interject", "args": warns}]}, "ok", "ok", "It ends at the river."],
        }
    )
    said = "hello\n/pair\nmore\n/pair explore the street\n/pair\nlast\n/help\n/quit\n"
    ran = cli("chat", "--json", stdin=said)
    assert ran.code == 0
    assert [(run["agent"], run["status"]) for run in ran.json] == [
        ("general", "done"),
        ("general", "done"),
        ("pair", "done"),
        ("general", "done"),
    ]
    for words in ("pair#1 watching", "pair#1 info: It drifts. → Stay.", "pair stopped watching"):
        assert ran.err.count(words) == 1
    child = cli("runs", "show", ran.json[2]["run_id"], "--json").json
    assert (child["trigger"], child["role"], child["slug"] == ran.json[0]["slug"]) == (
        "slash",
        "subtask",
        False,
    )
    inbox = cli("inbox", "--json").json
    assert [(row["kind"], row["recipient"]) for row in inbox] == [
        ("result", ran.json[0]["slug"]),
        ("interjection", ran.json[0]["slug"]),
    ]
    assert inbox[0]["runId"] == child["run_id"]
