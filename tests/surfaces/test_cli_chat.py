"""`retinue chat`, on a terminal and with a script on standard input."""

import json
import termios
from pathlib import Path

from cli_fixture import CliFixture, WaitUntil


def test_a_chat_on_a_terminal_ends_with_ctrl_d(cli: CliFixture):
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
    rows = cli("sessions", "list", "--json").json
    assert [row["last_snippet"] for row in rows] == ["Still here."]


def test_ctrl_c_cancels_the_reply_and_keeps_the_conversation(cli: CliFixture, wait_until: WaitUntil):
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


def test_a_chat_creates_no_session_before_the_first_message(cli: CliFixture):
    cli.script_model(["Hi."])
    result = cli("chat", stdin="/path\n/agents\n/help\n/nothing\n/quit\nnever read\n")
    assert "general" in result.out
    assert "/clear" in result.out
    assert "No session yet." in result.err
    assert "Unknown command /nothing." in result.err
    assert cli("sessions", "list", "--json").json == []


def test_a_script_chats_over_standard_input(cli: CliFixture):
    cli.script_model(["One.", "Two.", "Three."])
    first = cli("chat", stdin="a\n\nb\n")
    assert (first.code, first.out) == (0, "One.\nTwo.\n")
    session = cli("sessions", "list", "--json").json[0]
    second = cli("chat", session["slug"], "--json", stdin="c\n/rename Alphabet\n/clear\n")
    assert [run["text"] for run in json.loads(second.out)] == ["Three."]
    session_row = cli("sessions", "show", session["slug"], "--json").json
    assert (session_row["name"], session_row["entries"]) == ("Alphabet", 0)


def test_switching_to_an_agent_continues_its_latest_session(cli: CliFixture):
    """Shows: C024."""
    cli.script_model({"general": ["I am general."], "explorer": ["I explore.", "I explore on."]})
    explorer = cli("run", "--agent", "explorer", "look", "--json").json
    result = cli("chat", stdin="who?\n/agent explorer\nand now?\n/agent\n/tools\n/new\n")
    assert result.out.startswith("I am general.\nI explore on.\nexplorer\n")
    assert "grep" in result.out
    assert cli("sessions", "show", explorer["slug"], "--json").json["entries"] == 4


def test_the_slash_command_of_an_agent_starts_a_child_run(cli: CliFixture, tmp_path: Path):
    folder = tmp_path / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "critic.md").write_text(
        "---\nname: critic\ndescription: Finds fault\ntriggers: {slash: [/critic]}\n---\nYou find fault.\n"
    )
    cli.script_model({"general": ["Here is a plan."], "critic": ["It will not work."]})
    result = cli("chat", stdin="plan\n/critic\n/critic look at it\n")
    assert result.out == "Here is a plan.\nIt will not work.\n"
    assert "with the task for critic" in result.err
    children = [row for row in cli("sessions", "list", "--json").json if row["type"] == "agent"]
    assert [row["agent"] for row in children] == ["critic"]


def test_control_sequences_in_a_reply_are_made_visible(cli: CliFixture):
    """Shows: U01."""
    cli.script_model(["\x1b]0;owned\x07done"])
    screen = cli.open_terminal("chat", NO_COLOR="1", TERM="dumb")
    screen.wait_for_text("> ")
    screen.type("hello\n")
    output = screen.wait_for_text("done")
    assert "\x1b]0" not in output
    assert "␛]0;owned␇done" in output
    screen.wait_for_text("> ")
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0


def test_chat_refuses_a_session_with_an_agent_and_unknown_references(cli: CliFixture):
    assert cli("chat", "some-session", "--agent", "general").code == 2
    assert cli("chat", "some-session").code == 7
    assert cli("chat", "--agent", "nobody").code == 7


def test_the_slash_command_of_a_watcher_toggles_it_and_with_a_task_starts_a_run(cli: CliFixture):
    """Shows: D041."""
    comment = {"severity": "info", "reason": "It drifts.", "suggestion": "Stay."}
    cli.script_model(
        {
            "general": ["One.", "Two.", "Three."],
            "pair": [
                {"tools": [{"name": "interject", "args": comment}]},
                "ok",
                "ok",
                "It ends at the river.",
            ],
        }
    )
    script = "hello\n/pair\nmore\n/pair explore the street\n/pair\nlast\n/help\n/quit\n"
    result = cli("chat", "--json", stdin=script)
    assert result.code == 0
    assert [(run["agent"], run["status"]) for run in result.json] == [
        ("general", "done"),
        ("general", "done"),
        ("pair", "done"),
        ("general", "done"),
    ]
    for line in (
        "Pair programmer#1 watching",
        "Pair programmer#1 info: It drifts. → Stay.",
        "Pair programmer stopped watching",
    ):
        assert result.err.count(line) == 1
    child = cli("runs", "show", result.json[2]["run_id"], "--json").json
    assert (child["trigger"], child["role"], child["slug"] == result.json[0]["slug"]) == (
        "slash",
        "subtask",
        False,
    )
    inbox = cli("inbox", "--json").json
    assert [(row["kind"], row["recipient"]) for row in inbox] == [
        ("result", result.json[0]["slug"]),
        ("interjection", result.json[0]["slug"]),
    ]
    assert inbox[0]["runId"] == child["run_id"]
