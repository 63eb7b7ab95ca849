"""Agents at work as a person sees them on a terminal: the command as it is, with a scripted model that takes its time."""

import fcntl
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture
from commands import RETINUE

DEAF = (
    "-c",
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from retinue.__main__ import main; main()",
)
LONG = 60
"""Seconds that no test waits for."""
PLAIN = {"NO_COLOR": "1", "COLUMNS": "70"}
RULE = "─" * 69
CARD = "Researcher Task: analyze patterns"
HANDED_ON = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}


def hands_on(*wishes: dict[str, Any]) -> dict[str, Any]:
    calls = [{"tool": "PersistentAgent", "args": wish} for wish in wishes]
    return {"text": "I ask others.", "tools": calls}


def holds(*names: str) -> dict[str, Any]:
    return {"tools": [{"tool": "hold", "args": {"name": name}} for name in names]}


def has(*wanted: str) -> Callable[[list[str]], bool]:
    """Whether each of these begins a line of the screen."""

    def so(lines: list[str]) -> bool:
        return all(any(line.startswith(want) for line in lines) for want in wanted)

    return so


def ready(lines: list[str]) -> bool:
    """Whether the prompt waits below the answer."""
    return "They know." in lines and lines[-1] == ">"


def narrow(lines: list[str]) -> bool:
    return "─" * 39 in lines


def full(lines: list[str]) -> bool:
    """Whether everybody for whom there is a line is at work."""
    at_work = all(line.endswith("s · hold gate") for line in lines[-14:-2])
    return at_work and has("… and 18 more", "general#1 waiting")(lines)


def without(lines: Sequence[str], mark: str) -> list[str]:
    """Lines without what stands at their right edge: it changes by the second."""
    return [line.split(mark)[0].rstrip() for line in lines]


def cards(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("─") or " Task: " in line]


def test_a_card_stands_below_the_call_follows_its_agent_and_goes_when_it_is_done(gated_cli: CliFixture):
    """Shows: A041, A042, A043, A044, A047, A050, A051, A052, A054."""
    (gated_cli.folder / "again").touch()
    gated_cli.script_model(
        {
            "general": [hands_on(HANDED_ON), "They know."],
            "researcher": [holds("gate", "gate"), holds("again"), {"text": "Found.", "delay": 4}],
        }
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(has("Calling Tools... (+2)"))
    assert without(lines, "researcher#2 running")[-9:-1] == [
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
    (gated_cli.folder / "gate").unlink()
    lines = screen.wait_for_screen(has("Calling Tools... (+3)"))
    assert without(lines, "researcher#2")[-5:-1] == [CARD, "Calling Tools... (+3)", "  hold again", RULE]
    (gated_cli.folder / "again").unlink()
    lines = screen.wait_for_screen(has("Waiting..."))
    assert without(lines, "researcher#2")[-4:-1] == [CARD, "Waiting...", RULE]
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert cards(lines) == []
    assert not [line for line in lines if line.startswith(("Waiting", "Calling", "general#"))]
    assert lines[2].startswith("· researcher#2 done in ")
    assert lines[3] == "They know."


@pytest.mark.parametrize(
    ("reply", "became"), [({"error": "the server is on fire"}, "failed"), ("Found.", "done")]
)
def test_no_card_is_left_when_its_agent_ended(
    gated_cli: CliFixture, reply: str | dict[str, str], became: str
):
    """Shows: A054, A072."""
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "So be it."], "researcher": [holds("gate"), reply]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has(CARD, "Calling Tools..."))
    (gated_cli.folder / "gate").unlink()
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert cards(lines) == []
    assert f"· researcher#2 {became}" in "\n".join(lines)
    assert gated_cli("runs", "list", "--json").json == []


def test_no_card_is_left_when_the_person_stops_everything(gated_cli: CliFixture):
    """Shows: A054, A072."""
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "Never."], "researcher": [{"text": "Never.", "delay": LONG}]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has(CARD, "Waiting..."))
    screen.press("c")
    assert screen.wait_for_exit()[0] == 5
    lines = screen.screen_lines()
    assert cards(lines) == []
    assert not [line for line in lines if line.startswith(("Waiting", "general#"))]
    assert gated_cli("runs", "list", "--json").json == []


def test_no_card_outlives_a_process_that_was_killed(gated_cli: CliFixture):
    """Shows: A072."""
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [holds("gate"), "Found."]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has(CARD))
    screen.process.kill()
    screen.wait_for_exit()
    (gated_cli.folder / "gate").unlink()
    again = gated_cli.open_terminal("runs", "resume", **PLAIN)
    assert again.wait_for_exit()[0] == 0
    assert cards(again.screen_lines()) == []
    assert gated_cli("runs", "list", "--json").json == []


@pytest.mark.parametrize("words", [RETINUE, DEAF])
def test_a_terminal_that_is_closed_does_not_stop_the_agents(gated_cli: CliFixture, words: Sequence[str]):
    """Nor one whose closing is not heard of, as nohup has it.

    Shows: A053.
    """
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [holds("gate"), "Found it."]}
    )
    screen = gated_cli.open_terminal("run", "ask", words=words, **PLAIN)
    screen.wait_for_screen(has(CARD, "Calling Tools..."))
    screen.close()
    (gated_cli.folder / "gate").unlink()
    assert screen.process.wait(30) == 0
    runs = gated_cli("runs", "history", "--json").json
    assert [(run["agent"], run["status"], run["text"]) for run in runs] == [
        ("researcher", "done", "Found it."),
        ("general", "done", "They know."),
    ]
    assert "Found it." in Path(runs[0]["path"]).read_text()
    logs = Path(gated_cli.env["RETINUE_HOME"]) / "logs"
    assert not logs.exists() or not any("Traceback" in log.read_text() for log in logs.iterdir())


def test_many_agents_are_a_few_lines_that_change_in_place(gated_cli: CliFixture):
    """Shows: D033."""
    many = [HANDED_ON | {"description": f"part {number}"} for number in range(30)]
    gated_cli.script_model(
        {"general": [hands_on(*many), "They know."], "researcher": [holds("gate"), "Found."]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN, LINES="60")
    lines = screen.wait_for_screen(full)
    assert all(line.endswith("s · hold gate") for line in lines[-14:-2])
    assert lines[-14].startswith("researcher#2 running ")
    assert lines[-3].startswith("researcher#13 running ")
    (gated_cli.folder / "gate").unlink()
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert not [line for line in lines if line.startswith(("researcher#", "general#", "…"))]
    assert len([line for line in lines if line.startswith("· researcher#")]) == 30


def test_a_run_alone_is_a_line_below_its_words(gated_cli: CliFixture):
    """Shows: A041."""
    wish = holds("gate") | {"text": "I hold."}
    gated_cli.script_model([wish, {"text": "Held.", "delay": 0.5}])
    screen = gated_cli.open_terminal("run", "hold", **PLAIN)
    lines = screen.wait_for_screen(has("general#1 running"))
    assert lines[:2] == ["I hold.", "· hold gate"]
    assert lines[2].endswith("s · hold gate")
    (gated_cli.folder / "gate").unlink()
    assert screen.wait_for_exit()[0] == 0
    assert screen.screen_lines()[:3] == ["I hold.", "· hold gate", "Held."]


def test_a_question_stands_alone_and_progress_comes_back_after_it(cli: CliFixture):
    cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [{"text": "Found.", "delay": 1}]}
    )
    screen = cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(has("? [y]es, once, [n]o"))
    assert not [line for line in lines if line.startswith("general#")]
    screen.type("y\n")
    screen.wait_for_screen(has(CARD))
    assert screen.wait_for_exit()[0] == 0
    lines = screen.screen_lines()
    assert cards(lines) == []
    assert "They know." in lines


def test_where_standard_error_is_no_terminal_nothing_is_drawn(gated_cli: CliFixture):
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [{"text": "Found.", "delay": 0.6}]}
    )
    ran = gated_cli("run", "ask")
    assert (ran.code, ran.out) == (0, "I ask others.\nThey know.\n")
    assert ran.err.count("\n") == 1
    assert "\x1b" not in ran.err


def test_a_terminal_that_obeys_nothing_is_told_in_lines(gated_cli: CliFixture):
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [holds("none"), "Found."]}
    )
    screen = gated_cli.open_terminal("run", "ask", TERM="dumb")
    code, seen = screen.wait_for_exit()
    assert code == 0
    assert "\x1b" not in seen
    assert seen.count("PersistentAgent") == 1
    assert "· researcher#2: hold none" in seen


def test_a_window_that_becomes_smaller_is_drawn_anew(gated_cli: CliFixture):
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [holds("gate"), "Found."]}
    )
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    screen.wait_for_screen(has(CARD, "Calling Tools..."))
    fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    screen.wait_for_screen(narrow)
    (gated_cli.folder / "gate").unlink()
    assert screen.wait_for_exit()[0] == 0
    assert "They know." in screen.screen_lines()


def test_in_a_chat_progress_is_gone_before_the_prompt_returns(gated_cli: CliFixture):
    """Shows: A055."""
    gated_cli.script_model(
        {"general": [hands_on(HANDED_ON), "They know."], "researcher": [holds("gate"), "Found."]}
    )
    screen = gated_cli.open_terminal("chat", **PLAIN)
    screen.wait_for_text("> ")
    screen.type("ask\n")
    screen.wait_for_screen(has(CARD))
    (gated_cli.folder / "gate").unlink()
    lines = screen.wait_for_screen(ready)
    assert cards(lines) == []
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0
