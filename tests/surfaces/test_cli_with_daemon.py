"""At a terminal beside a daemon: words, cards, trees, questions and keys are as they are without one."""

import asyncio
import json
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
HANDED_ON = {"preset": "researcher", "description": "analyze patterns", "prompt": "Look."}

StartDaemon = Callable[[CliFixture], subprocess.Popen[bytes]]
StartNearby = Callable[[CliFixture], None]
PlayReplies = Callable[[CliFixture, list[Any] | dict[str, Any]], None]


@pytest.fixture
def daemon(wait_until: WaitUntil) -> StartDaemon:
    def start(command: CliFixture) -> subprocess.Popen[bytes]:
        process = command.start("serve", "--port", "0")
        wait_until(lambda: asyncio.run(daemon_client.ping_daemon(Path(command.env["RETINUE_HOME"]))))
        return process

    return start


@pytest.fixture(params=["alone", "beside"])
def near(request: pytest.FixtureRequest, daemon: StartDaemon) -> StartNearby:
    """Once the configuration stands: nothing, or a daemon."""

    def start(command: CliFixture) -> None:
        if request.param == "beside":
            daemon(command)

    return start


@pytest.fixture
def spoken(tmp_path: Path) -> Generator[PlayReplies]:
    """Models that speak as slowly as a test wants."""
    servers: list[subprocess.Popen[bytes]] = []

    def plays(command: CliFixture, replies: list[Any] | dict[str, Any]) -> None:
        script = tmp_path / "spoken.json"
        script.write_text(json.dumps(replies))
        words = ["-m", "retinue.testing.fake_model_server", "--script", str(script)]
        server = WarmProcess(words, stdout=subprocess.PIPE)
        servers.append(server)
        assert server.stdout is not None
        url = server.stdout.readline().decode().split()[-1]
        command.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-test", "RETINUE_MODEL": "openai:m"}

    yield plays
    for server in servers:
        server.kill()
        server.communicate()


def said(command: CliFixture) -> str:
    home = Path(command.env["RETINUE_HOME"])
    return "".join(path.read_text() for path in home.rglob("session.md"))


def shown(words: str) -> Callable[[list[str]], bool]:
    return lambda lines: any(words in line for line in lines)


def opened(cli: CliFixture) -> None:
    (cli.folder / "gate").unlink()


def test_words_are_shown_as_they_come_and_ctrl_c_keeps_them(
    cli: CliFixture, near: StartNearby, spoken: PlayReplies
):
    """The reply never ends: what is seen of it was shown before it was complete."""
    spoken(cli, [{"text": "Word after word after word.", "silent_after": 700}])
    near(cli)
    screen = cli.open_terminal("run", "Talk.", **PLAIN)
    screen.wait_for_text("Word ")
    screen.press("c")
    assert screen.wait_for_exit()[0] == 5
    assert "stop=cancelled" in said(cli)
    assert cli("runs", "history", "--json").json[0]["reason"] == "user_cancel"


def test_a_second_ctrl_c_leaves_whatever_the_daemon_is_at(
    gated_cli: CliFixture, daemon: StartDaemon, wait_until: WaitUntil
):
    gated_cli.script_model([HOLD, "Held."])
    process = daemon(gated_cli)
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
    opened(gated_cli)


def test_what_an_agent_may_not_do_unasked_is_asked_at_the_terminal(cli: CliFixture, near: StartNearby):
    cli.script_model([WRITE, WRITE, "Written."])
    near(cli)
    screen = cli.open_terminal("run", "write", **PLAIN)
    screen.wait_for_text("[y]es")
    screen.type("y\n")
    screen.wait_for_text("[y]es")
    screen.type("n\n")
    screen.wait_for_text("Written.")
    assert screen.wait_for_exit()[0] == 0
    assert (cli.folder / "a.txt").read_text() == "words"
    assert [each["state"] for each in cli("approvals", "list", "--all", "--json").json] == [
        "used",
        "denied",
    ]


def test_a_card_that_is_answered_elsewhere_says_so(cli: CliFixture, near: StartNearby):
    cli.script_model([WRITE, "Written."])
    near(cli)
    screen = cli.open_terminal("run", "write", **PLAIN)
    screen.wait_for_text("[y]es")
    (waiting,) = cli("approvals", "list", "--json").json
    assert cli("approvals", "answer", waiting["id"], "allow").code == 0
    seen = screen.wait_for_text("answered elsewhere: allow")
    code, rest = screen.wait_for_exit()
    assert (code, (seen + rest).count("Written.")) == (0, 1)


def test_a_question_is_put_to_whoever_is_at_the_terminal(cli: CliFixture, near: StartNearby):
    cli.script_model([ASK, "So be it."])
    near(cli)
    screen = cli.open_terminal("run", "paint", **PLAIN)
    screen.wait_for_text("Which colour?")
    screen.wait_for_text("2. blue")
    screen.type("2\n")
    screen.wait_for_text("So be it.")
    assert screen.wait_for_exit()[0] == 0
    assert "\nblue\n" in said(cli)


def test_a_question_that_is_answered_elsewhere_or_left_open(cli: CliFixture, daemon: StartDaemon):
    cli.script_model([ASK, "So be it."])
    daemon(cli)
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


def test_a_tree_is_shown_while_it_works(gated_cli: CliFixture, near: StartNearby):
    """Shows: D033."""
    gated_cli.script_model(
        {
            "general": [
                {"text": "I ask others.", "tools": [{"tool": "PersistentAgent", "args": HANDED_ON}]},
                "They know.",
            ],
            "researcher": [HOLD, "Found."],
        }
    )
    near(gated_cli)
    screen = gated_cli.open_terminal("run", "ask", **PLAIN)
    lines = screen.wait_for_screen(shown("researcher#2 running"))
    assert "Researcher Task: analyze patterns" in "\n".join(lines)
    screen.wait_for_screen(shown("hold"))
    opened(gated_cli)
    assert screen.wait_for_exit()[0] == 0
    assert [line for line in screen.screen_lines() if line in ("I ask others.", "They know.")] == [
        "I ask others.",
        "They know.",
    ]


def test_a_chat_goes_on_turn_by_turn(cli: CliFixture, near: StartNearby):
    cli.script_model(["Hello.", "Again.", "Bye."])
    near(cli)
    screen = cli.open_terminal("chat", **PLAIN)
    screen.wait_for_text("Ctrl-D exits")
    for words, answer in (("hi", "Hello."), ("more", "Again."), ("/path", "session.md"), ("enough", "Bye.")):
        screen.type(f"{words}\n")
        screen.wait_for_text(answer)
    screen.press_until("d", lambda: screen.process.poll() is not None)
    assert screen.wait_for_exit()[0] == 0
    (session,) = cli("sessions", "list", "--json").json
    assert len(cli("sessions", "export", session["slug"], "--json").json) == 6


def test_whoever_attaches_hears_words_as_they_come(
    gated_cli: CliFixture, daemon: StartDaemon, spoken: PlayReplies
):
    spoken(gated_cli, [HOLD, {"text": "Word after word after word.", "silent_after": 700}])
    daemon(gated_cli)
    first = gated_cli.open_terminal("run", "Hold.", **PLAIN)
    first.wait_for_text("I hold.")
    slug = gated_cli("runs", "list", "--json").json[0]["slug"]
    second = gated_cli.open_terminal("attach", slug, **PLAIN)
    second.wait_for_screen(shown("general#1 running"))
    opened(gated_cli)
    for screen in (second, first):
        screen.wait_for_text("Word ")
    second.press("c")
    assert second.wait_for_exit()[0] == 0
    first.press("c")
    assert first.wait_for_exit()[0] == 5


def test_a_daemon_that_dies_in_the_midst_of_a_reply_is_not_missed(
    cli: CliFixture, daemon: StartDaemon, spoken: PlayReplies
):
    whole = " ".join(f"Word {at}." for at in range(40))
    spoken(cli, [{"text": whole, "silent_after": 1500}, whole])
    process = daemon(cli)
    screen = cli.open_terminal("run", "Talk.", **PLAIN)
    screen.wait_for_text("Word 0.")
    process.kill()
    screen.wait_for_text("(requested again)")
    screen.wait_for_text("Word 0. Word 1.")
    screen.wait_for_text("Word 39.")
    assert screen.wait_for_exit()[0] == 0
    assert cli("runs", "history", "--json").json[0]["status"] == "done"
