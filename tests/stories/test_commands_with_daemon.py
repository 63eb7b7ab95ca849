"""Commands beside a daemon and without one: they do the same, say the same, and leave with the same code."""

import asyncio
import json
import signal
import socket
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from commands import require_pipe
from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest, Script
from retinue.testing.replies import FakeResponse, http_error, stalled_stream, text_reply, tool_call_reply

TOOLS = '''
import asyncio, os
from retinue import tool

@tool(effect="read")
async def whoami() -> str:
    """Says which process works."""
    return str(os.getpid())

@tool(effect="read")
async def hold(name: str) -> str:
    """Holds until the file of this name is gone."""
    while os.path.exists(name):
        await asyncio.sleep(0.01)
    return "held"
'''

WORKER = ("sessions_spawn", {"task": "Find the year.", "label": "year"})
WRITE = ("write", {"path": "a.txt", "content": "x"})
OWN = ("run_id", "session_id", "slug", "key", "path", "started_at", "ended_at", "duration_ms", "children")
"""What differs between any two runs."""

OpenNearby = Callable[[], AbstractAsyncContextManager[object]]


@pytest.fixture(params=["alone", "beside"])
def near(request: pytest.FixtureRequest, machine: UserMachine) -> OpenNearby:
    """Around a command: nothing, or a daemon at work in its home."""

    @asynccontextmanager
    async def nobody() -> AsyncGenerator[None]:
        yield

    return nobody if request.param == "alone" else machine.daemon


def tooled(machine: UserMachine, **settings: Any) -> None:
    (machine.folder / "ours.py").write_text(TOOLS)
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(tools=["ours:whoami", "ours:hold"], **settings)


def by_turn(*replies: FakeResponse) -> Script:
    """The same conversation for whoever asks, as far as it has come."""

    def script(asked: CapturedRequest) -> FakeResponse:
        return replies[min(asked.reply_count, len(replies) - 1)]

    return script


def worked(main: list[FakeResponse], worker: FakeResponse) -> Script:
    """The main agent's replies as far as it has come, and a worker's, who is done when the main agent speaks again and
    not before: else that would hear of it a turn earlier."""
    spoken = asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "You are a worker agent" in asked.body["messages"][0]["content"]:
            await spoken.wait()
            return worker
        if asked.reply_count:
            spoken.set()
        else:
            spoken.clear()
        return main[min(asked.reply_count, len(main) - 1)]

    return script


def alike(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in OWN}


async def soon(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(45):
        while not true():  # noqa: ASYNC110  (another process does it: nothing to wait on)
            await asyncio.sleep(0.02)


def _standing(machine: UserMachine) -> list[str]:
    found = "SELECT status FROM runs WHERE status IN ('queued', 'running', 'waiting') ORDER BY id DESC"
    try:
        with closing(sqlite3.connect(f"file:{machine.home}/ledger.db?mode=ro", uri=True)) as ledger:
            return [each for (each,) in ledger.execute(found)]
    except sqlite3.OperationalError:
        return []  # nobody has begun it yet


async def live(machine: UserMachine, *states: str) -> list[dict[str, Any]]:
    """The runs that are going on, once they stand so, the newest first."""
    await soon(lambda: _standing(machine) == list(states))
    return (await machine("runs", "list", "--json")).json


def spoken(machine: UserMachine) -> str:
    """All conversations; one that is still being made has a name with a dot, and is not there yet."""
    return "".join(path.read_text() for path in machine.sessions.glob("[!.]*/branches/main/session.md"))


async def test_what_a_command_begins_is_worked_by_the_daemon_beside_it(machine: UserMachine):
    tooled(machine)
    async with (
        machine.serve_models(by_turn(tool_call_reply(("whoami", {})), text_reply("I know."))),
        machine.daemon() as process,
    ):
        ran = await machine("run", "--json", "Who?")
        assert f"\n{process.pid}\n" in Path(ran.json["path"]).read_text()


async def test_a_run_says_and_tells_the_same(machine: UserMachine, near: OpenNearby):
    """Shows: A005."""
    script = by_turn(tool_call_reply(("ls", {}), text="I look."), text_reply("Nothing there."))
    async with machine.serve_models(script), near():
        plain = await machine("run", "Look.")
        assert (plain.code, plain.out) == (0, "I look.\nNothing there.\n")
        ran = await machine("run", "--json", "Look.")
    assert ran.code == 0
    assert alike(ran.json) == {
        "agent": "general",
        "status": "done",
        "waiting_for": None,
        "reason": None,
        "approvals": [],
        "text": "Nothing there.",
        "error": None,
        "turns": 2,
        "tool_calls": 1,
        "usage": {"input": 20, "output": 10},
        "sandbox": None,
    }


async def test_every_end_of_a_run_has_the_same_code(machine: UserMachine, near: OpenNearby):
    def script(asked: CapturedRequest) -> FakeResponse:
        task = next(each["content"] for each in asked.messages if each["role"] == "user")
        answers = {
            "fail": http_error(400, "no such thing"),
            "write": tool_call_reply(WRITE),
            "sleep": text_reply("late", delay=60),
        }
        return answers[task]

    async with machine.serve_models(script), near():
        ran = [
            await machine("run", "--json", *words)
            for words in (["fail"], ["write"], ["--timeout", "1", "sleep"])
        ]
        told = [(each.code, each.json["status"], each.json["reason"]) for each in ran]
        assert told == [(1, "failed", "provider"), (6, "waiting", None), (4, "timed_out", "deadline")]
        assert "no such thing" in ran[0].err
        assert (await machine("send", "nobody-there", "Hi.")).code == 7
        assert (await machine("run", "--agent", "nobody", "Hi.")).code == 7
        assert (await machine("run", "--session", ran[0].json["slug"], "--agent", "oracle", "Hi.")).code == 3


async def test_a_conversation_goes_on_by_send_spawn_and_chat(machine: UserMachine, near: OpenNearby):
    machine.write_config(approvals="auto")

    def script(asked: CapturedRequest) -> FakeResponse:
        return text_reply(f"Reply {asked.reply_count + 1} to {asked.messages[-1]['content']}")

    async with machine.serve_models(script), near():
        first = (await machine("run", "--json", "one")).json
        sent = await machine("send", first["slug"], "two")
        assert (sent.code, sent.out) == (0, "Reply 2 to two\n")
        born = await machine("spawn", "--parent", first["slug"], "--agent", "researcher", "three")
        assert (born.code, born.out) == (0, "Reply 1 to three\n")
        said = await machine("chat", first["slug"], stdin=b"four\n/path\nfive\n/rename Talk\n/quit\n")
        assert (said.code, said.out.splitlines()) == (
            0,
            ["Reply 3 to four", first["path"], "Reply 4 to five"],
        )
        told = await machine("chat", "--json", first["slug"], stdin=b"six\nseven\n")
        assert [run["text"] for run in told.json] == ["Reply 5 to six", "Reply 6 to seven"]
        assert (await machine("sessions", "show", first["slug"], "--json")).json["name"] == "Talk"


async def test_an_answer_from_elsewhere_lets_the_run_go_on_and_shows_it(
    machine: UserMachine, near: OpenNearby
):
    script = by_turn(
        tool_call_reply(WRITE),
        tool_call_reply(("write", {"path": "b.txt", "content": "y"})),
        text_reply("Both."),
    )
    async with machine.serve_models(script), near():
        asked = await machine("run", "--json", "Write.")
        codes: list[int] = [asked.code]
        outs: list[str] = []
        for _ in range(2):
            (waiting,) = (await machine("approvals", "list", "--json")).json
            given = await machine("approvals", "answer", waiting["id"], "allow")
            codes.append(given.code)
            outs.append(given.out)
        assert (codes, outs) == ([6, 6, 0], ["", "Both.\n"])
        assert [(machine.folder / f"{name}.txt").read_text() for name in "ab"] == ["x", "y"]


async def test_a_no_is_heard_and_told_with_the_run_it_was_said_to(machine: UserMachine, near: OpenNearby):
    script = by_turn(tool_call_reply(WRITE), text_reply("Then not."))
    async with machine.serve_models(script), near():
        asked = await machine("run", "--json", "Write.")
        (waiting,) = asked.json["approvals"]
        busy = await machine("send", asked.json["slug"], "And?")
        assert (busy.code, waiting in busy.err) == (6, True)
        given = await machine("approvals", "answer", "--json", waiting, "deny")
        assert (given.code, given.json["run"]["status"], given.json["run"]["text"]) == (
            0,
            "done",
            "Then not.",
        )
        assert (await machine("approvals", "answer", waiting, "allow")).code == 3
        assert not (machine.folder / "a.txt").exists()


async def test_a_tree_is_waited_for_with_its_workers(machine: UserMachine, near: OpenNearby):
    """Shows: E006."""
    script = worked(
        [tool_call_reply(WORKER, text="I send."), text_reply("Sent."), text_reply("1993, it says.")],
        text_reply("1993."),
    )
    async with machine.serve_models(script), near():
        ran = await machine("run", "When?")
        assert (ran.code, ran.out) == (0, "I send.\nSent.\n1993, it says.\n")
        ran = await machine("run", "--json", "When?")
        (child,) = ran.json["children"]
        shown = (await machine("runs", "show", child, "--json")).json
    assert (ran.json["text"], shown["status"], shown["delivery"]["state"]) == (
        "1993, it says.",
        "done",
        "delivered",
    )


async def test_whoever_attaches_elsewhere_hears_every_word_from_then_on_once(
    machine: UserMachine, near: OpenNearby
):
    tooled(machine)
    gate = machine.folder / "gate"
    gate.touch()

    def script(asked: CapturedRequest) -> FakeResponse:
        if not gate.exists():
            return text_reply("Held.")
        return tool_call_reply(
            ("hold", {"name": f"no-{asked.reply_count}"}), text=f"Tick {asked.reply_count}.", delay=0.1
        )

    async with machine.serve_models(script), near():
        running = await machine.start("run", "Go.")
        (run,) = await live(machine, "running")
        attached = await machine.start("attach", run["slug"])
        waiting = await machine.start("wait", "--json", run["run_id"])
        first = await require_pipe(attached.stdout).readline()
        gate.unlink()
        lines = (first + (await attached.communicate())[0]).decode().splitlines()
        whole = (await running.communicate())[0].decode().splitlines()
        (told,) = json.loads((await waiting.communicate())[0])
    assert whole == [*(f"Tick {at}." for at in range(len(whole) - 1)), "Held."]
    assert lines == whole[-len(lines) :]
    assert (told["text"], told["turns"]) == ("Held.", len(whole))
    assert [each.returncode for each in (running, attached, waiting)] == [0, 0, 0]


async def test_a_run_is_cancelled_interrupted_or_detached_from_elsewhere(
    machine: UserMachine, near: OpenNearby
):
    """Shows: E033."""
    tooled(machine)

    def script(asked: CapturedRequest) -> FakeResponse:
        if any("interrupted you" in str(each["content"]) for each in asked.messages):
            return text_reply("So far nothing.")
        return stalled_stream(after_bytes=600, response=text_reply("Long " * 500))

    async with machine.serve_models(script), near():
        running = await machine.start("run", "--json", "Talk.")
        await machine.wait_for_requests(1)
        (run,) = await live(machine, "running")
        stopped = await machine("runs", "cancel", "--json", run["run_id"])
        assert (stopped.code, stopped.json["status"]) == (0, "cancelled")
        out, _ = await running.communicate()
        assert (running.returncode, json.loads(out)["reason"]) == (5, "user_cancel")

        running = await machine.start("run", "--json", "Talk.")
        await machine.wait_for_requests(2)
        (run,) = await live(machine, "running")
        stopped = await machine("runs", "interrupt", "--json", run["run_id"])
        assert (stopped.json["status"], stopped.json["text"]) == ("cancelled", "So far nothing.")
        out, _ = await running.communicate()
        assert (running.returncode, json.loads(out)["reason"]) == (5, "interrupted")
        assert (await machine("runs", "detach", run["run_id"])).code == 3


async def test_a_child_that_is_waited_for_is_sent_into_the_background(machine: UserMachine, near: OpenNearby):
    tooled(machine, approvals="auto")
    machine.write_agent("holder", "tools: [hold]\n", "You hold.")
    (machine.folder / "gate").touch()
    boss: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "holder", "task_prompt": "Hold."})),
        text_reply("It goes on."),
        text_reply("It has ended."),
    ]
    holder: list[Any] = [tool_call_reply(("hold", {"name": "gate"})), text_reply("Held.")]

    def script(asked: CapturedRequest) -> FakeResponse:
        mine = holder if "You hold." in asked.body["messages"][0]["content"] else boss
        return mine[min(asked.reply_count, len(mine) - 1)]

    async with machine.serve_models(script), near():
        running = await machine.start("run", "Go.")
        child, _ = await live(machine, "running", "waiting")
        assert (await machine("runs", "detach", "--json", child["run_id"])).code == 0
        await machine.wait_for_requests(3)
        (machine.folder / "gate").unlink()
        out, _ = await running.communicate()
    assert (running.returncode, out.decode()) == (0, "It goes on.\nIt has ended.\n")


async def test_what_a_dead_command_left_goes_on_by_resume(machine: UserMachine, near: OpenNearby):
    """With a daemon somebody goes on with it already: then it is followed."""
    tooled(machine)
    (machine.folder / "gate").touch()
    script = by_turn(tool_call_reply(("hold", {"name": "gate"})), text_reply("Held."))
    async with machine.serve_models(script) as server:
        running = await machine.start("run", "Hold.")
        (run,) = await live(machine, "running")
        await soon(lambda: "<!-- call" in spoken(machine))
        await machine.kill(running)
        async with near():
            resuming = await machine.start("runs", "resume", "--json", run["run_id"])
            assert b"resumed in" in await require_pipe(resuming.stderr).readline()
            await live(machine, "running")
            (machine.folder / "gate").unlink()
            out, err = await resuming.communicate()
            assert resuming.returncode == 0, err
            assert [(each["status"], each["text"]) for each in json.loads(out)] == [("done", "Held.")]
        assert len(server.requests) == 2


async def test_a_result_is_passed_on_to_whoever_asked(machine: UserMachine, near: OpenNearby):
    script = worked(
        [tool_call_reply(WORKER), text_reply("Sent."), text_reply("1993, it says.")], text_reply("1993.")
    )
    async with machine.serve_models(script), near():
        ran = (await machine("run", "--json", "When?")).json
        passed = await machine("inbox", "--json", "--promote", ran["children"][0])
        assert (passed.code, passed.json["recipient"], passed.json["already_promoted"]) == (
            0,
            ran["slug"],
            False,
        )
        sent = await machine("send", ran["slug"], "Again?")
        assert (sent.code, sent.out) == (0, "1993, it says.\n")
        assert (await machine("inbox", "--json", "--drain")).json == []


async def test_a_conversation_that_is_busy_in_the_daemon_takes_more_words_behind(machine: UserMachine):
    """Shows: C044."""
    tooled(machine)
    (machine.folder / "gate").touch()
    script = by_turn(
        tool_call_reply(("hold", {"name": "gate"})), text_reply("Held."), text_reply("And more.")
    )
    async with machine.serve_models(script), machine.daemon():
        running = await machine.start("run", "Hold.")
        (run,) = await live(machine, "running")
        behind = await machine.start("send", run["slug"], "More.")
        await live(machine, "queued", "running")
        (machine.folder / "gate").unlink()
        outs = [(await each.communicate())[0].decode() for each in (running, behind)]
    assert outs == ["Held.\n", "And more.\n"]


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2, 0.6])
async def test_a_daemon_that_is_killed_takes_no_word_with_it(machine: UserMachine, moment: float):
    """Whatever it was at: the command goes on alone, says everything once, and asks nothing that was answered.
    Shows: P21."""
    replies = [
        tool_call_reply(("ls", {}), text="I look. "),
        tool_call_reply(("ls", {}), text="Again, " * 20, pace=0.01),
    ]
    replies.append(text_reply("At last. " * 60, pace=0.01))
    async with machine.serve_models(by_turn(*replies)) as server, machine.daemon() as process:
        running = await machine.start("run", "Go.")
        await machine.wait_for_requests(1)
        await asyncio.sleep(moment)
        await machine.kill(process)
        out, err = await running.communicate()
        assert (running.returncode, out.decode()) == (
            0,
            "".join(f"{each.text}\n" for each in replies),
        ), err
        asked = [each.reply_count for each in server.requests]
    assert asked == sorted(asked)
    assert set(asked) == {0, 1, 2}
    assert len(asked) <= 4


async def test_an_answer_that_was_given_is_not_asked_for_again_when_the_daemon_dies(machine: UserMachine):
    tooled(machine)
    (machine.folder / "gate").touch()
    script = by_turn(tool_call_reply(("hold", {"name": "gate"}), text="I hold."), text_reply("Held."))
    async with machine.serve_models(script) as server, machine.daemon() as process:
        running = await machine.start("run", "--json", "Hold.")
        await soon(lambda: "tool=hold" in "".join(each.read_text() for each in transcripts(machine)))
        await machine.kill(process)
        (machine.folder / "gate").unlink()
        out, _ = await running.communicate()
        told = json.loads(out)
        assert (running.returncode, told["text"], told["turns"]) == (0, "Held.", 2)
        assert [each.reply_count for each in server.requests] == [0, 1]


def transcripts(machine: UserMachine) -> list[Path]:
    """Of sessions that have their names: while one is being made its folder may go from under whoever looks."""
    return list(machine.sessions.glob("[!.]*/branches/main/session.md"))


async def test_a_daemon_that_is_stopped_hands_back_what_it_was_at(machine: UserMachine):
    """Shows: K11."""
    first = [True]

    def script(_asked: CapturedRequest) -> FakeResponse:
        return text_reply("At last.", delay=90 if first.pop() else 0)

    async with machine.serve_models(script), machine.daemon() as process:
        first.insert(0, False)
        running = await machine.start("run", "--json", "Go.")
        await machine.wait_for_requests(1)
        process.send_signal(signal.SIGTERM)
        out, err = await running.communicate()
        assert (running.returncode, json.loads(out)["text"]) == (0, "At last."), err
        shown = (await machine("runs", "show", json.loads(out)["run_id"], "--json")).json
    assert (shown["status"], shown["attempts"]) == ("done", 1)


async def test_leaving_in_good_order_counts_for_nothing_however_often(machine: UserMachine):
    done = asyncio.Event()

    def script(_asked: CapturedRequest) -> FakeResponse:
        return text_reply("At last.", delay=0 if done.is_set() else 90)

    async with machine.serve_models(script):
        run, deadlines = "", set[Any]()
        for time in range(1, 6):
            async with machine.open() as app:
                run = (await app.runs.start("Go.")).id if not run else (await app.runs.resume(run))[0].id
                await machine.wait_for_requests(time)
                deadlines.add((await app.runs.find(run)).deadline_at)
        done.set()
        async with machine.open() as app:
            await app.runs.resume(run)
            ended = await app.runs.wait(run)
    assert (ended.status, ended.text, ended.attempts) == ("done", "At last.", 1)
    assert deadlines == {ended.deadline_at}


async def test_beside_a_daemon_with_other_settings_a_command_works_by_itself_and_says_so(
    machine: UserMachine,
):
    tooled(machine)
    script = by_turn(tool_call_reply(("whoami", {})), text_reply("I know."))
    async with machine.serve_models(script), machine.daemon() as process:
        ran = await machine("run", "Who?", RETINUE_MODEL="openai:another")
        assert (ran.code, ran.out) == (0, "I know.\n")
        assert "The daemon was started with different settings" in ran.err
        assert f"\n{process.pid}\n" not in transcripts(machine)[0].read_text()
        assert "different settings" not in (await machine("runs", "list", RETINUE_MODEL="openai:another")).err


async def test_a_reader_who_is_slow_misses_nothing(machine: UserMachine):
    """The daemon does not wait for the command: it cuts the line, and the rest is read from the file."""
    first, second = ("".join(f"{name} {at}\n" for at in range(80_000)) for name in "ab")
    script = by_turn(tool_call_reply(("ls", {}), text=first, piece=4096), text_reply(second, piece=256))
    async with machine.serve_models(script), machine.daemon():
        running = await machine.start("run", "Go.")
        await machine.wait_for_requests(2)
        run = (await machine("runs", "history", "--json")).json[0]["run_id"]
        while (await machine("runs", "show", run, "--json")).json["status"] != "done":
            pass
        out, err = await running.communicate()
        assert (running.returncode, len(out)) == (0, len(first) + len(second)), err
        assert out.decode() == first + second


async def test_twenty_commands_at_once_are_worked_by_one_daemon(machine: UserMachine):
    def script(asked: CapturedRequest) -> FakeResponse:
        return text_reply(f"Said: {asked.messages[-1]['content']}", pace=0.01)

    async with machine.serve_models(script) as server, machine.daemon():
        running = [await machine.start("run", f"number {at}") for at in range(20)]
        outs = [(await each.communicate())[0].decode() for each in running]
        assert outs == [f"Said: number {at}\n" for at in range(20)]
        assert len(server.requests) == 20
        assert server.connection_count < 20


async def test_commands_that_only_look_and_those_that_keep_nothing_ask_for_no_daemon(machine: UserMachine):
    came: list[bool] = []

    async def hung_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(True)
        writer.close()

    looks = [
        "runs list",
        "runs history",
        "sessions list",
        "agents list",
        "approvals list",
        "inbox",
        "tools list",
    ]
    async with machine.serve_models(by_turn(text_reply("Hi."))):
        with daemon_client.socket_path(machine.home) as place:
            server = await asyncio.start_unix_server(hung_up, place)
        async with server:
            for words in looks:
                assert (await machine(*words.split())).code == 0
            assert (await machine("run", "--forget", "Go.")).out == "Hi.\n"
            assert came == []
            ran = await machine("run", "Go.")
            assert (ran.code, ran.out, bool(came)) == (0, "Hi.\n", True)


async def test_a_socket_that_nobody_listens_on_is_nobodys(machine: UserMachine):
    with socket.socket(socket.AF_UNIX) as left, daemon_client.socket_path(machine.home) as place:
        left.bind(place)
    async with machine.serve_models(by_turn(text_reply("Hi."))):
        ran = await machine("run", "Go.")
        assert (ran.code, ran.out) == (0, "Hi.\n")
        async with machine.daemon():
            assert (await machine("run", "Go.")).out == "Hi.\n"


async def test_a_daemon_that_is_about_to_leave_is_handed_nothing(machine: UserMachine):
    """It gives what runs a moment to end: meanwhile others work by themselves."""
    tooled(machine)
    (machine.folder / "gate").touch()

    def script(asked: CapturedRequest) -> FakeResponse:
        slow = any(each["content"] == "Slow." for each in asked.messages)
        return (
            tool_call_reply(("hold", {"name": "gate"}))
            if slow and not asked.reply_count
            else text_reply("Done.")
        )

    async with machine.serve_models(script), machine.daemon() as process:
        slow = await machine.start("run", "Slow.")
        await live(machine, "running")
        process.send_signal(signal.SIGTERM)
        facts = await daemon_client.ping_daemon(machine.home)
        while facts and facts["accepts_runs"]:
            facts = await daemon_client.ping_daemon(machine.home)
        assert (await machine("run", "Quick.")).out == "Done.\n"
        (machine.folder / "gate").unlink()
        assert (await slow.communicate())[0] == b"Done.\n"


async def test_what_is_left_to_a_daemon_with_other_settings_obeys_those(machine: UserMachine):
    async with machine.serve_models(by_turn(text_reply("Hi."))) as server, machine.daemon():
        left = await machine("run", "--background", "--json", "Go.", RETINUE_MODEL="openai:another")
        assert (left.code, "which apply to this run" in left.err) == (0, True)
        assert (await machine("wait", left.json["run_id"])).out == "Hi.\n"
        assert server.requests[0].body["model"] == "test-model"
