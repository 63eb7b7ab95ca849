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
from commands import Started

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
def daemon(eventually: WaitUntil) -> StartDaemon:
    def start(command: CliFixture) -> subprocess.Popen[bytes]:
        process = command.started("serve", "--port", "0")
        eventually(lambda: asyncio.run(daemon_client.ping_daemon(Path(command.env["RETINUE_HOME"]))))
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
        server = Started(words, stdout=subprocess.PIPE)
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


def opened(house: CliFixture) -> None:
    (house.folder / "gate").unlink()


def test_words_are_shown_as_they_come_and_ctrl_c_keeps_them(
    retinue: CliFixture, near: StartNearby, spoken: PlayReplies
):
    """The reply never ends: what is seen of it was shown before it was whole."""
    spoken(retinue, [{"text": "Word after word after word.", "silent_after": 700}])
    near(retinue)
    screen = retinue.on_terminal("run", "Talk.", **PLAIN)
    screen.until("Word ")
    screen.press("c")
    assert screen.left()[0] == 5
    assert "stop=cancelled" in said(retinue)
    assert retinue("runs", "history", "--json").json[0]["reason"] == "user_cancel"


def test_a_second_ctrl_c_leaves_whatever_the_daemon_is_at(
    house: CliFixture, daemon: StartDaemon, eventually: WaitUntil
):
    house.plays([HOLD, "Held."])
    process = daemon(house)
    screen = house.on_terminal("run", "Hold.", **PLAIN)
    screen.until("I hold.")
    process.send_signal(signal.SIGSTOP)
    screen.press("c")
    eventually(lambda: house("runs", "list", "--json").json[0]["reason"] == "user_cancel")
    assert screen.process.poll() is None
    screen.press_until("c", lambda: screen.process.poll() is not None)
    assert screen.left()[0] == 5
    process.send_signal(signal.SIGCONT)
    eventually(lambda: house("runs", "list", "--json").json == [])
    assert house("runs", "history", "--json").json[0]["status"] == "cancelled"
    opened(house)


def test_what_an_agent_may_not_do_unasked_is_asked_at_the_terminal(retinue: CliFixture, near: StartNearby):
    retinue.plays([WRITE, WRITE, "Written."])
    near(retinue)
    screen = retinue.on_terminal("run", "write", **PLAIN)
    screen.until("[y]es")
    screen.type("y\n")
    screen.until("[y]es")
    screen.type("n\n")
    screen.until("Written.")
    assert screen.left()[0] == 0
    assert (retinue.folder / "a.txt").read_text() == "words"
    assert [each["state"] for each in retinue("approvals", "list", "--all", "--json").json] == [
        "used",
        "denied",
    ]


def test_a_card_that_is_answered_elsewhere_says_so(retinue: CliFixture, near: StartNearby):
    retinue.plays([WRITE, "Written."])
    near(retinue)
    screen = retinue.on_terminal("run", "write", **PLAIN)
    screen.until("[y]es")
    (waiting,) = retinue("approvals", "list", "--json").json
    assert retinue("approvals", "answer", waiting["id"], "allow").code == 0
    seen = screen.until("answered elsewhere: allow")
    code, rest = screen.left()
    assert (code, (seen + rest).count("Written.")) == (0, 1)


def test_a_question_is_put_to_whoever_is_at_the_terminal(retinue: CliFixture, near: StartNearby):
    retinue.plays([ASK, "So be it."])
    near(retinue)
    screen = retinue.on_terminal("run", "paint", **PLAIN)
    screen.until("Which colour?")
    screen.until("2. blue")
    screen.type("2\n")
    screen.until("So be it.")
    assert screen.left()[0] == 0
    assert "\nblue\n" in said(retinue)


def test_a_question_that_is_answered_elsewhere_or_left_open(retinue: CliFixture, daemon: StartDaemon):
    retinue.plays([ASK, "So be it."])
    daemon(retinue)
    screen = retinue.on_terminal("run", "paint", **PLAIN)
    screen.until("2. blue")
    slug = retinue("runs", "list", "--json").json[0]["slug"]
    assert retinue("send", slug, "green").out == "So be it.\n"
    screen.until("answered elsewhere")
    assert screen.left()[0] == 0
    screen = retinue.on_terminal("run", "paint", **PLAIN)
    screen.until("2. blue")
    screen.press("d")
    assert screen.left()[0] == 6
    slug = retinue("runs", "list", "--json").json[0]["slug"]
    screen = retinue.on_terminal("attach", slug, **PLAIN)
    screen.until("2. blue")
    screen.type("\nred\n")
    screen.until("So be it.")
    assert screen.left()[0] == 0


def test_a_tree_is_shown_while_it_works(house: CliFixture, near: StartNearby):
    """Shows: D033."""
    house.plays(
        {
            "general": [
                {"text": "I ask others.", "tools": [{"tool": "PersistentAgent", "args": HANDED_ON}]},
                "They know.",
            ],
            "researcher": [HOLD, "Found."],
        }
    )
    near(house)
    screen = house.on_terminal("run", "ask", **PLAIN)
    lines = screen.shows(shown("researcher#2 running"))
    assert "Researcher Task: analyze patterns" in "\n".join(lines)
    screen.shows(shown("hold"))
    opened(house)
    assert screen.left()[0] == 0
    assert [line for line in screen.look() if line in ("I ask others.", "They know.")] == [
        "I ask others.",
        "They know.",
    ]


def test_a_chat_goes_on_turn_by_turn(retinue: CliFixture, near: StartNearby):
    retinue.plays(["Hello.", "Again.", "Bye."])
    near(retinue)
    screen = retinue.on_terminal("chat", **PLAIN)
    screen.until("Ctrl-D exits")
    for words, answer in (("hi", "Hello."), ("more", "Again."), ("/path", "session.md"), ("enough", "Bye.")):
        screen.type(f"{words}\n")
        screen.until(answer)
    screen.press_until("d", lambda: screen.process.poll() is not None)
    assert screen.left()[0] == 0
    (session,) = retinue("sessions", "list", "--json").json
    assert len(retinue("sessions", "export", session["slug"], "--json").json) == 6


def test_whoever_attaches_hears_words_as_they_come(
    house: CliFixture, daemon: StartDaemon, spoken: PlayReplies
):
    spoken(house, [HOLD, {"text": "Word after word after word.", "silent_after": 700}])
    daemon(house)
    first = house.on_terminal("run", "Hold.", **PLAIN)
    first.until("I hold.")
    slug = house("runs", "list", "--json").json[0]["slug"]
    second = house.on_terminal("attach", slug, **PLAIN)
    second.shows(shown("general#1 running"))
    opened(house)
    for screen in (second, first):
        screen.until("Word ")
    second.press("c")
    assert second.left()[0] == 0
    first.press("c")
    assert first.left()[0] == 5


def test_a_daemon_that_dies_in_the_midst_of_a_reply_is_not_missed(
    retinue: CliFixture, daemon: StartDaemon, spoken: PlayReplies
):
    whole = " ".join(f"Word {at}." for at in range(40))
    spoken(retinue, [{"text": whole, "silent_after": 1500}, whole])
    process = daemon(retinue)
    screen = retinue.on_terminal("run", "Talk.", **PLAIN)
    screen.until("Word 0.")
    process.kill()
    screen.until("(requested again)")
    screen.until("Word 0. Word 1.")
    screen.until("Word 39.")
    assert screen.left()[0] == 0
    assert retinue("runs", "history", "--json").json[0]["status"] == "done"
