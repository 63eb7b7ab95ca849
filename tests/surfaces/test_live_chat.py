"""`retinue chat` on a terminal: the prompt stays live while agents work."""

import fcntl
import json
import os
import re
import struct
import termios
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil
from terminal import TIMEOUT_S, TerminalProcess

HOLD = {"tools": [{"name": "hold", "args": {"name": "gate"}}]}
WRITE = {"tools": [{"name": "write", "args": {"path": "a.txt", "content": "hello"}}]}
BEGIN_PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"


def open_chat(cli: CliFixture, *args: str, **env: str) -> TerminalProcess:
    screen = cli.open_terminal("chat", *args, **env)
    screen.wait_for_screen(lambda lines: lines[-1:] == [">"])
    return screen


def runs(cli: CliFixture, status: str = "") -> list[dict[str, Any]]:
    rows = cli("runs", "history", "--json").json
    return [row for row in rows if status in ("", row["status"])]


def user_messages(cli: CliFixture) -> list[str]:
    """The messages in the only top-level session."""
    (row,) = [each for each in cli("sessions", "list", "--json").json if each["type"] == "branch"]
    text = Path(row["path"]).read_text()
    return re.findall(r"<!-- user [^\n]*-->\n(.*?)\n\n(?=<!--)", text, re.DOTALL)


def start_worker(cli: CliFixture, *replies: Any) -> dict[str, Any]:
    """A reply that starts a worker in the background, which holds until the gate opens."""
    script = cli.folder.parent / "worker.json"
    script.write_text(json.dumps({"*": replies or [HOLD, "Found it."]}))
    arguments = {"task": "look around", "label": "worker", "model": f"scripted:{script}"}
    return {"tools": [{"name": "sessions_spawn", "args": arguments}]}


def agents(cli: CliFixture, status: str) -> list[str]:
    """Who the runs with this status are, newest first."""
    return ["worker" if ":subagent:" in row["key"] else "front" for row in runs(cli, status)]


def leave(screen: TerminalProcess) -> str:
    screen.press("d")
    code, output = screen.wait_for_exit()
    assert code == 0
    return output


@pytest.fixture
def general(gated_cli: CliFixture) -> CliFixture:
    """A command line whose general agent can hold and start a worker."""
    agents = Path(gated_cli.env["RETINUE_CONFIG"]) / "agents"
    (agents / "general.md").write_text(
        "---\nname: general\ntools: [hold, sessions_spawn, ask_user, write]\n---\nYou help.\n"
    )
    return gated_cli


def test_a_background_worker_does_not_block_the_prompt(general: CliFixture, wait_until: WaitUntil):
    general.script_model([start_worker(general), "It is on its way.", "Still here.", "The worker found it."])
    screen = open_chat(general)
    screen.type("start a worker\r")
    screen.wait_for_screen(lambda lines: "It is on its way." in lines and lines[-1] == ">")
    wait_until(lambda: agents(general, "running") == ["worker"])
    screen.type("are you there?\r")
    lines = screen.wait_for_screen(lambda lines: "Still here." in lines and lines[-1] == ">")
    assert any("general#2 running" in line for line in lines)
    general.open_gate()
    lines = screen.wait_for_screen(lambda lines: "The worker found it." in lines and lines[-1] == ">")
    assert any(line.startswith("· general#2 done") for line in lines)
    leave(screen)
    assert {row["status"] for row in runs(general)} == {"done"}


def test_a_pasted_stack_trace_is_one_message(cli: CliFixture):
    cli.script_model(["I see an error."])
    pasted = "\n".join(f'  File "a.py", line {number}, in f{number}' for number in range(30))
    screen = open_chat(cli)
    screen.type(BEGIN_PASTE + pasted.replace("\n", "\r") + END_PASTE)
    screen.wait_for_screen(lambda lines: lines[-1].endswith("in f29"))
    assert cli("sessions", "list", "--json").json == []
    screen.type("\r")
    screen.wait_for_screen(lambda lines: "I see an error." in lines and lines[-1] == ">")
    leave(screen)
    assert user_messages(cli) == [pasted]


def test_alt_enter_adds_a_line_and_the_up_arrow_brings_a_message_back(cli: CliFixture):
    cli.script_model(["One.", "Two."])
    screen = open_chat(cli)
    screen.type("first\x1b\rsecond\r")
    screen.wait_for_screen(lambda lines: "One." in lines and lines[-1] == ">")
    screen.type("\x1b[A")
    screen.wait_for_screen(lambda lines: lines[-2:] == ["> first", "  second"])
    screen.type("\r")
    screen.wait_for_screen(lambda lines: "Two." in lines and lines[-1] == ">")
    leave(screen)
    assert user_messages(cli) == ["first\nsecond"] * 2


def test_ctrl_c_stops_only_the_answer_in_front(general: CliFixture, wait_until: WaitUntil):
    general.script_model([start_worker(general), "It is on its way.", HOLD, "All is well."])
    screen = open_chat(general)
    screen.type("start a worker\r")
    screen.wait_for_screen(lambda lines: "It is on its way." in lines and lines[-1] == ">")
    screen.type("think\r")
    wait_until(lambda: len(runs(general, "running")) == 2)
    screen.press("c")
    screen.wait_for_screen(lambda lines: any("cancelled" in line for line in lines) and lines[-1] == ">")
    wait_until(lambda: agents(general, "running") == ["worker"])
    general.open_gate()
    screen.wait_for_screen(lambda lines: "All is well." in lines)
    screen.press("c")
    screen.wait_for_screen(lambda lines: "(press Ctrl-C again, or Ctrl-D, to exit)" in lines)
    screen.press("c")
    assert screen.wait_for_exit()[0] == 0
    assert [row["status"] for row in runs(general)] == ["cancelled", "done", "done"]


def test_ctrl_c_keeps_the_workers_that_the_stopped_answer_started(general: CliFixture, wait_until: WaitUntil):
    general.script_model([start_worker(general), HOLD, "The worker is done."])
    screen = open_chat(general)
    screen.type("start a worker\r")
    wait_until(lambda: len(runs(general, "running")) == 2)
    screen.press("c")
    screen.wait_for_screen(lambda lines: any("cancelled" in line for line in lines))
    general.open_gate()
    wait_until(lambda: "worker" in agents(general, "done"))
    leave(screen)


def test_bg_moves_the_answer_to_the_background_and_shows_it_when_it_is_done(general: CliFixture):
    general.script_model([HOLD, "The long answer."])
    screen = open_chat(general)
    screen.type("work\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.type("/bg\r")
    screen.wait_for_screen(lambda lines: any("continues in the background" in line for line in lines))
    screen.type("/path\r")
    screen.wait_for_screen(lambda lines: any("session.md" in line for line in lines))
    general.open_gate()
    lines = screen.wait_for_screen(lambda lines: "The long answer." in lines and lines[-1] == ">")
    assert any(line.startswith("· general#1 done") for line in lines)
    leave(screen)


def test_a_message_typed_during_an_answer_is_queued_and_sent_next(general: CliFixture):
    general.script_model([HOLD, "First answer.", "Second answer."])
    screen = open_chat(general)
    screen.type("one\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.type("two\r")
    screen.wait_for_screen(lambda lines: "queued: two" in lines)
    screen.type("/path\r")
    screen.wait_for_screen(lambda lines: any("session.md" in line for line in lines))
    general.open_gate()
    lines = screen.wait_for_screen(lambda lines: "Second answer." in lines and lines[-1] == ">")
    assert [line for line in lines if line.endswith("answer.") or line in ("> one", "> two")] == [
        "> one",
        "First answer.",
        "> two",
        "Second answer.",
    ]
    assert "queued: two" not in lines
    leave(screen)
    assert user_messages(general) == ["one", "two"]


def test_leaving_says_what_becomes_of_the_background(general: CliFixture):
    general.script_model([HOLD, "Done after all."])
    screen = open_chat(general)
    screen.type("work\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.type("/bg\r")
    screen.wait_for_screen(lambda lines: any("continues in the background" in line for line in lines))
    output = leave(screen)
    assert 'Continue with "retinue runs resume"' in output
    general.open_gate()
    assert general("runs", "resume").code == 0
    assert runs(general, "done")[0]["text"] == "Done after all."


def test_a_question_and_an_approval_are_answered_at_the_prompt(general: CliFixture):
    question = {"tools": [{"name": "ask_user", "args": {"question": "Which colour?"}}]}
    (Path(general.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"tools": ["held:hold"]}))
    general.script_model([question, "Blue it is.", WRITE, "Written."])
    screen = open_chat(general)
    screen.type("paint\r")
    screen.wait_for_screen(lambda lines: "? Which colour?" in lines and lines[-1] == "answer>")
    screen.type("blue\r")
    screen.wait_for_screen(lambda lines: "Blue it is." in lines and lines[-1] == ">")
    screen.type("write\r")
    screen.wait_for_screen(lambda lines: any("[y]es" in line for line in lines) and lines[-1] == "answer>")
    screen.type("y\r")
    screen.wait_for_screen(lambda lines: "Written." in lines and lines[-1] == ">")
    leave(screen)
    assert (general.folder / "a.txt").read_text() == "hello"


def test_a_background_worker_asks_at_the_prompt(general: CliFixture):
    (Path(general.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"tools": ["held:hold"]}))
    general.script_model([start_worker(general, HOLD, WRITE, "Found it."), "It works.", "It wrote."])
    screen = open_chat(general)
    screen.type("start a worker\r")
    screen.wait_for_screen(lambda lines: "It works." in lines and lines[-1] == ">")
    screen.type("half a mess")
    general.open_gate()
    screen.wait_for_screen(lambda lines: any("[y]es" in line for line in lines) and lines[-1] == "answer>")
    screen.type("y\r")
    screen.wait_for_screen(lambda lines: "It wrote." in lines and lines[-1] == "> half a mess")
    assert (general.folder / "a.txt").read_text() == "hello"


def test_runs_continue_when_the_terminal_is_closed(general: CliFixture):
    general.script_model([HOLD, "Done after all."])
    screen = open_chat(general)
    screen.type("work\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.close()
    general.open_gate()
    screen.process.wait(TIMEOUT_S)
    assert [(row["status"], row["text"]) for row in runs(general)] == [("done", "Done after all.")]


def test_ctrl_c_at_an_approval_stops_the_answer_and_ctrl_d_denies_it(general: CliFixture):
    (Path(general.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"tools": ["held:hold"]}))
    general.script_model([WRITE, WRITE, "Not written."])
    screen = open_chat(general)
    screen.type("write\r")
    screen.wait_for_screen(lambda lines: any("[y]es" in line for line in lines) and lines[-1] == "answer>")
    screen.press("c")
    screen.wait_for_screen(lambda lines: any("cancelled" in line for line in lines) and lines[-1] == ">")
    screen.type("write\r")
    screen.wait_for_screen(lambda lines: lines[-1] == "answer>")
    screen.press("d")
    screen.wait_for_screen(lambda lines: "Not written." in lines and lines[-1] == ">")
    leave(screen)
    assert not (general.folder / "a.txt").exists()


def test_a_pasted_text_that_begins_with_a_path_is_a_message(cli: CliFixture):
    cli.script_model(["I see."])
    screen = open_chat(cli)
    screen.type(f"{BEGIN_PASTE}/usr/bin/x: not found\rexit 1{END_PASTE}\r")
    screen.wait_for_screen(lambda lines: "I see." in lines and lines[-1] == ">")
    leave(screen)
    assert user_messages(cli) == ["/usr/bin/x: not found\nexit 1"]


def test_what_was_typed_before_an_approval_is_no_answer(general: CliFixture):
    (Path(general.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"tools": ["held:hold"]}))
    general.script_model([HOLD, WRITE, "Not written."])
    screen = open_chat(general)
    screen.type("write\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.type("y")
    screen.wait_for_screen(lambda lines: lines[-1] == "> y")
    general.open_gate()
    screen.wait_for_screen(lambda lines: lines[-1] == "answer>")
    screen.type("\r")
    assert not (general.folder / "a.txt").exists()
    screen.type("n\r")
    screen.wait_for_screen(lambda lines: "Not written." in lines and lines[-1] == "> y")


def test_a_slash_is_completed_and_hidden_agents_are_not_offered(cli: CliFixture):
    agents = Path(cli.env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir()
    fields = {"critic": "displayName: Old Critic", "secret": "uiVisible: false", "remote": "type: external"}
    for name, field in fields.items():
        (agents / f"{name}.md").write_text(
            f"---\nname: {name}\ndescription: Finds fault\n{field}\ntriggers: {{slash: [/{name}]}}\n---\nYou look.\n"
        )
    cli.script_model(["One."])
    screen = open_chat(cli)
    screen.type("/cri\t")
    screen.wait_for_screen(lambda lines: any(line == "> /critic" for line in lines))
    screen.press("u")
    screen.type("/help\r")
    lines = screen.wait_for_screen(
        lambda lines: any("start Old Critic as a sub-agent" in line for line in lines) and lines[-1] == ">"
    )
    assert not any("secret" in line for line in lines)
    screen.type("/agents\r")
    lines = screen.wait_for_screen(
        lambda lines: "  critic        Old Critic: Finds fault" in lines and lines[-1] == ">"
    )
    assert not any("secret" in line or "remote" in line for line in lines)
    screen.type("/agent secret\r")
    screen.wait_for_screen(lambda lines: any("Agent not accessible: secret." in line for line in lines))
    screen.type("/secret do\r")
    screen.wait_for_screen(lambda lines: any("Unknown command /secret." in line for line in lines))
    leave(screen)
    assert cli("chat", "--agent", "secret").code == 3


def test_the_prompt_survives_a_change_of_the_window(general: CliFixture):
    general.script_model([HOLD, "word " * 40 + "end", "Second."])
    screen = open_chat(general)
    screen.type("one\r")
    screen.wait_for_screen(lambda lines: "· hold gate" in lines)
    screen.type("draft")
    screen.wait_for_screen(lambda lines: lines[-1] == "> draft")
    screen.emulator.width, screen.emulator.height = 40, 12
    fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 40, 0, 0))
    general.open_gate()
    screen.wait_for_screen(
        lambda lines: any(line.endswith("end") for line in lines) and lines[-1] == "> draft"
    )
    screen.type("ed\r")
    screen.wait_for_screen(lambda lines: "Second." in lines and lines[-1] == ">")
    leave(screen)
    assert user_messages(general) == ["one", "drafted"]


def test_no_control_sequence_reaches_the_transcript_or_the_terminal(cli: CliFixture):
    cli.script_model(["\x1b]0;owned\x07fine"])
    screen = open_chat(cli)
    screen.type(f"{BEGIN_PASTE}a\x1b]0;mine\x07b\u202ec{END_PASTE}\x1b[C\x1b[D")
    screen.wait_for_screen(lambda lines: lines[-1] == "> a␛]0;mine␇b<U+202E>c")
    screen.type("\r")
    screen.wait_for_screen(lambda lines: "␛]0;owned␇fine" in lines and lines[-1] == ">")
    output = leave(screen)
    assert "\x1b]0" not in output
    assert screen.process.returncode == 0
    assert "\x1b" not in "".join(user_messages(cli))


def test_the_terminal_is_restored_when_the_chat_is_terminated(cli: CliFixture):
    """Shows: U10."""
    cli.script_model(["One."])
    screen = cli.open_terminal("chat")
    before = termios.tcgetattr(screen.fd)
    screen.wait_for_screen(lambda lines: lines[-1:] == [">"])
    os.kill(screen.process.pid, 15)
    code, output = screen.wait_for_exit()
    assert code == 143
    assert termios.tcgetattr(screen.fd) == before
    assert output.rstrip().rfind("\x1b[?2004l") > output.rfind("\x1b[?2004h")
