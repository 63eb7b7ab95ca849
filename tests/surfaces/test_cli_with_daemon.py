"""Commands on a terminal behave the same with a daemon as without one."""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import CliFixture, WaitUntil
from commands import WarmProcess

from retinue import daemon_client

PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
WRITE = {"tools": [{"tool": "write", "args": {"path": "a.txt", "content": "words"}}]}
HOLD = {"text": "I hold.", "tools": [{"tool": "hold", "args": {"name": "gate"}}]}
ASK = {"tools": [{"tool": "ask_user", "args": {"question": "Which colour?", "options": ["red", "blue"]}}]}
DELEGATE_ARGS = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}

StartDaemon = Callable[[CliFixture], subprocess.Popen[bytes]]
StartOptionalDaemon = Callable[[CliFixture], None]
ServeReplies = Callable[[CliFixture, list[Any] | dict[str, Any]], None]


@pytest.fixture
def start_daemon(wait_until: WaitUntil) -> StartDaemon:
    def start(cli: CliFixture) -> subprocess.Popen[bytes]:
        process = cli.start("serve", "--port", "0")
        wait_until(lambda: asyncio.run(daemon_client.ping_daemon(Path(cli.env["RETINUE_HOME"]))))
        return process

    return start


@pytest.fixture(params=["without daemon", "with daemon"])
def start_optional_daemon(request: pytest.FixtureRequest, start_daemon: StartDaemon) -> StartOptionalDaemon:
    """Start a daemon, or nothing; called once the configuration is written."""

    def start_optional(cli: CliFixture) -> None:
        if request.param == "with daemon":
            start_daemon(cli)

    return start_optional


@pytest.fixture
def serve_replies(tmp_path: Path) -> Generator[ServeReplies]:
    """Start a model server that streams as slowly as a test wants."""
    servers: list[subprocess.Popen[bytes]] = []

    def serve(cli: CliFixture, replies: list[Any] | dict[str, Any]) -> None:
        script = tmp_path / "replies.json"
        script.write_text(json.dumps(replies))
        arguments = ["-m", "retinue.testing.fake_model_server", "--script", str(script)]
        server = WarmProcess(arguments, stdout=subprocess.PIPE)
        servers.append(server)
        assert server.stdout is not None
        url = server.stdout.readline().decode().split()[-1]
        cli.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-test", "RETINUE_MODEL": "openai:m"}

    yield serve
    for server in servers:
        server.kill()
        server.communicate()


def session_texts(cli: CliFixture) -> str:
    home = Path(cli.env["RETINUE_HOME"])
    return "".join(path.read_text() for path in home.rglob("session.md"))


def shows(text: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(text in line for line in lines)


def test_a_reply_streams_to_the_terminal_and_ctrl_c_keeps_it(
    cli: CliFixture, start_optional_daemon: StartOptionalDaemon, serve_replies: ServeReplies
):
    """The reply never ends, so its beginning is shown before it is complete."""
    serve_replies(cli, [{"text": "Word after word after word.", "silent_after": 700}])
    start_optional_daemon(cli)
    screen = cli.open_terminal("run", "Talk.", **PLAIN)
    screen.wait_for_text("Word ")
    screen.press("c")
    assert screen.wait_for_exit()[0] == 5
    assert "stop=cancelled" in session_texts(cli)
    assert cli("runs", "history", "--json").json[0]["reason"] == "user_cancel"


def test_a_command_in_a_chat_has_a_line_of_its_own_while_an_answer_streams(
    cli: CliFixture, serve_replies: ServeReplies
):
    serve_replies(cli, [{"text": "Word after word after word.", "silent_after": 700}])
    screen = cli.open_terminal("chat", **PLAIN)
    screen.wait_for_screen(lambda lines: lines[-1:] == [">"])
    screen.type("Talk.\r")
    screen.wait_for_screen(shows("Word "))
    screen.type("/path\r")
    screen.wait_for_screen(lambda lines: "> /path" in lines)
    screen.press("c")
    screen.wait_for_screen(shows("cancelled"))
    screen.press("d")
    assert screen.wait_for_exit()[0] == 0


def test_a_daemon_in_the_foreground_prints_one_json_value_when_it_is_ready(cli: CliFixture):
    process = cli.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    decoder, printed = json.JSONDecoder(), ""
    while not printed.rstrip().endswith("}"):
        line = process.stdout.readline().decode()
        assert line, "the daemon ended"
        printed += line
    facts, _ = decoder.raw_decode(printed)
    health = asyncio.run(daemon_client.ping_daemon(Path(cli.env["RETINUE_HOME"])))
    assert health is not None
    assert (facts["pid"], facts["owner"], facts["version"]) == (
        health["pid"],
        health["owner"],
        health["version"],
    )
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/enter/\S+", facts["url"])
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == b""


def test_a_second_ctrl_c_exits_even_if_the_daemon_hangs(
    gated_cli: CliFixture, start_daemon: StartDaemon, wait_until: WaitUntil
):
    gated_cli.script_model([HOLD, "Held."])
    process = start_daemon(gated_cli)
    screen = gated_cli.open_terminal("run", "Hold.", **PLAIN)
    screen.wait_for_text("I hold.")
    process.send_signal(signal.SIGSTOP)
    screen.press("c")
    wait_until(lambda: gated_cli("runs", "list", "--json").json[0]["reason"] == "user_cancel")
    assert screen.process.poll() is None
    screen.press_until("c", lambda: screen.process.poll() is not None)
    assert screen.wait_for_exit()[0] == 5
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: gated_cli("runs", "list", "--json").json == [])
    assert gated_cli("runs", "history", "--json").json[0]["status"] == "cancelled"
    gated_cli.open_gate()


def test_an_approval_is_asked_for_on_the_terminal(
    cli: CliFixture, start_optional_daemon: StartOptionalDaemon
):
    cli.script_model([WRITE, WRITE, "Written."])
    start_optional_daemon(cli)
    screen = cli.open_terminal("run", "write", **PLAIN)
    screen.wait_for_text("[y]es")
    screen.type("y\n")
    screen.wait_for_text("[y]es")
    screen.type("n\n")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words"
    assert [approval["state"] for approval in cli("approvals", "list", "--all", "--json").json] == [
        "used",
        "denied",
    ]


def test_a_card_answered_elsewhere_prints_a_notice(
    cli: CliFixture, start_optional_daemon: StartOptionalDaemon
):
    cli.script_model([WRITE, "Written."])
    start_optional_daemon(cli)
    screen = cli.open_terminal("run", "write", **PLAIN)
    screen.wait_for_text("[y]es")
    (approval,) = cli("approvals", "list", "--json").json
    assert cli("approvals", "answer", approval["id"], "allow").code == 0
    output = screen.wait_for_text("answered elsewhere: allow")
    code, rest = screen.wait_for_exit()
    assert (code, (output + rest).count("Written.")) == (0, 1)


def test_a_question_of_the_agent_is_asked_on_the_terminal(
    cli: CliFixture, start_optional_daemon: StartOptionalDaemon
):
    cli.script_model([ASK, "So be it."])
    start_optional_daemon(cli)
    screen = cli.open_terminal("run", "paint", **PLAIN)
    screen.wait_for_text("Which colour?")
    screen.wait_for_text("2. blue")
    screen.type("2\n")
    screen.wait_for_text("So be it.")
    assert screen.wait_for_exit()[0] == 0
    assert "\nblue\n" in session_texts(cli)


def test_a_question_can_be_answered_elsewhere_or_left_open(cli: CliFixture, start_daemon: StartDaemon):
    cli.script_model([ASK, "So be it."])
    start_daemon(cli)
    screen = cli.open_terminal("run", "paint", **PLAIN)
    screen.wait_for_text("2. blue")
    slug = cli("runs", "list", "--json").json[0]["slug"]
    assert cli("send", slug, "green").out == "So be it.\n"
    screen.wait_for_text("answered elsewhere")
    assert screen.wait_for_exit()[0] == 0
    screen = cli.open_terminal("run", "paint", **PLAIN)
    screen.wait_for_text("2. blue")
    screen.press("d")
    assert screen.wait_for_exit()[0] == 6
    slug = cli("runs", "list", "--json").json[0]["slug"]
    screen = cli.open_terminal("attach", slug, **PLAIN)
    screen.wait_for_text("2. blue")
    screen.type("\nred\n")
    screen.wait_for_text("So be it.")
    assert screen.wait_for_exit()[0] == 0


def test_the_tree_of_runs_is_shown_during_the_run(
    gated_cli: CliFixture, start_optional_daemon: StartOptionalDaemon
):
    """Shows: D033."""
    gated_cli.script_model(
        {
            "general": [
                {"text": "I ask others.", "tools": [{"tool": "PersistentAgent", "args": DELEGATE_ARGS}]},
                "They know.",
            ],
            "researcher": [HOLD, "Found."],
        }
    )
    start_optional_daemon(gated_cli)
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(shows("researcher#2 running"))
    assert "Researcher Task: analyze patterns" in "\n".join(lines)
    screen.wait_for_screen(shows("hold"))
    gated_cli.open_gate()
    assert screen.wait_for_exit()[0] == 0
    assert [line for line in screen.screen_lines() if line in ("I ask others.", "They know.")] == [
        "I ask others.",
        "They know.",
    ]


def test_a_chat_continues_turn_by_turn(cli: CliFixture, start_optional_daemon: StartOptionalDaemon):
    cli.script_model(["Hello.", "Again.", "Bye."])
    start_optional_daemon(cli)
    screen = cli.open_terminal("chat", **PLAIN)
    screen.wait_for_text("Ctrl-D exits")
    for text, expected in (("hi", "Hello."), ("more", "Again."), ("/path", "session.md"), ("enough", "Bye.")):
        screen.type(f"{text}\n")
        screen.wait_for_text(expected)
    screen.press_until("d", lambda: screen.process.poll() is not None)
    assert screen.wait_for_exit()[0] == 0
    (session,) = cli("sessions", "list", "--json").json
    assert len(cli("sessions", "export", session["slug"], "--json").json) == 6


def test_attach_streams_the_reply_to_a_second_terminal(
    gated_cli: CliFixture, start_daemon: StartDaemon, serve_replies: ServeReplies
):
    serve_replies(gated_cli, [HOLD, {"text": "Word after word after word.", "silent_after": 700}])
    start_daemon(gated_cli)
    first = gated_cli.open_terminal("run", "Hold.", **PLAIN)
    first.wait_for_text("I hold.")
    slug = gated_cli("runs", "list", "--json").json[0]["slug"]
    second = gated_cli.open_terminal("attach", slug, **PLAIN)
    second.wait_for_screen(shows("general#1 running"))
    gated_cli.open_gate()
    for screen in (second, first):
        screen.wait_for_text("Word ")
    second.press("c")
    assert second.wait_for_exit()[0] == 0
    first.press("c")
    assert first.wait_for_exit()[0] == 5


def test_a_command_finishes_its_run_after_the_daemon_died_in_the_middle_of_a_reply(
    cli: CliFixture, start_daemon: StartDaemon, serve_replies: ServeReplies
):
    full_reply = " ".join(f"Word {number}." for number in range(40))
    serve_replies(cli, [{"text": full_reply, "silent_after": 1500}, full_reply])
    process = start_daemon(cli)
    screen = cli.open_terminal("run", "Talk.", **PLAIN)
    screen.wait_for_text("Word 0.")
    process.kill()
    screen.wait_for_text("(requested again)")
    screen.wait_for_text("Word 0. Word 1.")
    screen.wait_for_text("Word 39.")
    assert screen.wait_for_exit()[0] == 0
    assert cli("runs", "history", "--json").json[0]["status"] == "done"
