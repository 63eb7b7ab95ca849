"""The progress display of running agents on a terminal."""

import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture
from commands import RETINUE

RETINUE_IGNORING_SIGHUP = (
    "-c",
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from retinue.__main__ import main; main()",
)
LONG_DELAY_S = 60
"""Longer than any test takes."""
PLAIN = {"NO_COLOR": "1", "COLUMNS": "70"}
RULE = "─" * 69
CARD = "Researcher Task: analyze patterns"
DELEGATE_ARGS = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}


def delegate_calls(*arguments: dict[str, Any]) -> dict[str, Any]:
    calls = [{"tool": "PersistentAgent", "args": args} for args in arguments]
    return {"text": "I ask others.", "tools": calls}


def hold_calls(*names: str) -> dict[str, Any]:
    return {"tools": [{"tool": "hold", "args": {"name": name}} for name in names]}


def has_lines(*beginnings: str) -> Callable[[list[str]], bool]:
    """Whether each of these strings begins a line of the screen."""

    def check(lines: list[str]) -> bool:
        return all(any(line.startswith(beginning) for line in lines) for beginning in beginnings)

    return check


def shows_prompt(lines: list[str]) -> bool:
    """Whether the prompt has returned below the reply."""
    return "They know." in lines and lines[-1] == ">"


def is_redrawn_narrow(lines: list[str]) -> bool:
    return "─" * 39 in lines


def shows_all_running(lines: list[str]) -> bool:
    """Whether every agent that has a line is running its tool."""
    all_hold = all(line.endswith("s · hold gate") for line in lines[-14:-2])
    return all_hold and has_lines("… and 18 more", "general#1 waiting")(lines)


def cut_right_edge(lines: Sequence[str], mark: str) -> list[str]:
    """The lines without the text at the right edge, which changes every second."""
    return [line.split(mark)[0].rstrip() for line in lines]


def card_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("─") or " Task: " in line]


def test_the_card_of_a_child_shows_its_progress_and_disappears_when_the_child_ends(gated_cli: CliFixture):
    """Shows: A041, A042, A043, A044, A047, A050, A051, A052, A054."""
    (gated_cli.folder / "again").touch()
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("gate", "gate"), hold_calls("again"), {"text": "Found.", "delay": 4}],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(has_lines("Calling Tools... (+2)"))
    assert cut_right_edge(lines, "researcher#2 running")[-9:-1] == [
        "I ask others.",
        "· PersistentAgent researcher description=analyze patterns prompt=Look.",
        RULE,
        CARD,
        "Calling Tools... (+2)",
        "  hold gate",
        "  hold gate",
        RULE,
    ]
    assert lines[-1].startswith("general#1 waiting ")
    gated_cli.open_gate()
    lines = screen.wait_for_screen(has_lines("Calling Tools... (+3)"))
    assert cut_right_edge(lines, "researcher#2")[-5:-1] == [
        CARD,
        "Calling Tools... (+3)",
        "  hold again",
        RULE,
    ]
    (gated_cli.folder / "again").unlink()
    lines = screen.wait_for_screen(has_lines("Waiting..."))
    assert cut_right_edge(lines, "researcher#2")[-4:-1] == [CARD, "Waiting...", RULE]
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert card_lines(lines) == []
    assert not [line for line in lines if line.startswith(("Waiting", "Calling", "general#"))]
    assert lines[2].startswith("· researcher#2 done in ")
    assert lines[3] == "They know."


@pytest.mark.parametrize(
    ("reply", "status"), [({"error": "the server is on fire"}, "failed"), ("Found.", "done")]
)
def test_the_card_disappears_when_its_agent_is_done_or_failed(
    gated_cli: CliFixture, reply: str | dict[str, str], status: str
):
    """Shows: A054, A072."""
    gated_cli.script_model(
        {"general": [delegate_calls(DELEGATE_ARGS), "So be it."], "researcher": [hold_calls("gate"), reply]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has_lines(CARD, "Calling Tools..."))
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert card_lines(lines) == []
    assert f"· researcher#2 {status}" in "\n".join(lines)
    assert gated_cli("runs", "list", "--json").json == []


def test_the_card_disappears_when_the_person_cancels_the_run(gated_cli: CliFixture):
    """Shows: A054, A072."""
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "Never."],
            "researcher": [{"text": "Never.", "delay": LONG_DELAY_S}],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has_lines(CARD, "Waiting..."))
    screen.press("c")
    assert screen.wait_for_exit()[0] == 5
    lines = screen.screen_lines()
    assert card_lines(lines) == []
    assert not [line for line in lines if line.startswith(("Waiting", "general#"))]
    assert gated_cli("runs", "list", "--json").json == []


def test_no_card_is_left_after_a_killed_run_was_resumed(gated_cli: CliFixture):
    """Shows: A072."""
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("gate"), "Found."],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has_lines(CARD))
    screen.process.kill()
    screen.wait_for_exit()
    gated_cli.open_gate()
    resumed = gated_cli.open_terminal("runs", "resume", **PLAIN)
    assert resumed.wait_for_exit()[0] == 0
    assert card_lines(resumed.screen_lines()) == []
    assert gated_cli("runs", "list", "--json").json == []


@pytest.mark.parametrize("command", [RETINUE, RETINUE_IGNORING_SIGHUP])
def test_closing_the_terminal_does_not_stop_the_agents(gated_cli: CliFixture, command: Sequence[str]):
    """Also with SIGHUP ignored, as under nohup.

    Shows: A053.
    """
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("gate"), "Found it."],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", command=command, **PLAIN)
    screen.wait_for_screen(has_lines(CARD, "Calling Tools..."))
    screen.close()
    gated_cli.open_gate()
    assert screen.process.wait(30) == 0
    runs = gated_cli("runs", "history", "--json").json
    assert [(run["agent"], run["status"], run["text"]) for run in runs] == [
        ("researcher", "done", "Found it."),
        ("general", "done", "They know."),
    ]
    assert "Found it." in Path(runs[0]["path"]).read_text()
    logs = Path(gated_cli.env["RETINUE_HOME"]) / "logs"
    assert not logs.exists() or not any("Traceback" in log.read_text() for log in logs.iterdir())


def test_many_agents_are_shown_in_a_few_lines_that_change_in_place(gated_cli: CliFixture):
    """Shows: D033."""
    many = [DELEGATE_ARGS | {"description": f"part {number}"} for number in range(30)]
    gated_cli.script_model(
        {"general": [delegate_calls(*many), "They know."], "researcher": [hold_calls("gate"), "Found."]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN, LINES="60")
    lines = screen.wait_for_screen(shows_all_running)
    assert all(line.endswith("s · hold gate") for line in lines[-14:-2])
    assert lines[-14].startswith("researcher#2 running ")
    assert lines[-3].startswith("researcher#13 running ")
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert not [line for line in lines if line.startswith(("researcher#", "general#", "…"))]
    assert len([line for line in lines if line.startswith("· researcher#")]) == 30


def test_a_single_run_is_one_line_below_its_text(gated_cli: CliFixture):
    """Shows: A041."""
    hold_call = hold_calls("gate") | {"text": "I hold."}
    gated_cli.script_model([hold_call, {"text": "Held.", "delay": 0.5}])
    screen = gated_cli.open_terminal("run", "hold", **PLAIN)
    lines = screen.wait_for_screen(has_lines("general#1 running"))
    assert lines[:2] == ["I hold.", "· hold gate"]
    assert lines[2].endswith("s · hold gate")
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines()[:3] == ["I hold.", "· hold gate", "Held."]


def test_progress_is_hidden_while_an_approval_is_asked_and_returns_after_it(cli: CliFixture):
    cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [{"text": "Found.", "delay": 1}],
        }
    )
    screen = cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(has_lines("? [y]es, once, [n]o"))
    assert not [line for line in lines if line.startswith("general#")]
    screen.type("y\n")
    screen.wait_for_screen(has_lines(CARD))
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert card_lines(lines) == []
    assert "They know." in lines


def test_no_progress_is_drawn_if_standard_error_is_not_a_terminal(gated_cli: CliFixture):
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [{"text": "Found.", "delay": 0.6}],
        }
    )
    result = gated_cli("run", "ask")
    assert (result.code, result.out) == (0, "I ask others.\nThey know.\n")
    assert result.err.count("\n") == 1
    assert "\x1b" not in result.err


def test_a_dumb_terminal_gets_plain_lines(gated_cli: CliFixture):
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("none"), "Found."],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", TERM="dumb")
    code, output = screen.wait_for_exit()
    assert code == 0
    assert "\x1b" not in output
    assert output.count("PersistentAgent") == 1
    assert "· researcher#2: hold none" in output


def test_progress_is_redrawn_when_the_window_becomes_narrower(gated_cli: CliFixture):
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("gate"), "Found."],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has_lines(CARD, "Calling Tools..."))
    fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    screen.wait_for_screen(is_redrawn_narrow)
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    assert "They know." in screen.screen_lines()


def test_in_a_chat_progress_disappears_before_the_prompt_returns(gated_cli: CliFixture):
    """Shows: A055."""
    gated_cli.script_model(
        {
            "general": [delegate_calls(DELEGATE_ARGS), "They know."],
            "researcher": [hold_calls("gate"), "Found."],
        }
    )
    screen = gated_cli.open_terminal("chat", **PLAIN)
    screen.wait_for_text("> ")
    screen.type("ask\n")
    screen.wait_for_screen(has_lines(CARD))
    gated_cli.open_gate()
    lines = screen.wait_for_screen(shows_prompt)
    assert card_lines(lines) == []
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0
