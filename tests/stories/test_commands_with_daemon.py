"""Commands with and without a running daemon: same effects, same output, same exit code."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import require_pipe
from model_scripts import reply_by_turn, script_with_worker
from user_machine import UserMachine, wait_until

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, stalled_stream, text_reply, tool_call_reply

TOOLS = '''
import asyncio, os
from retinue import tool

@tool(effect="read")
async def whoami() -> str:
    """Returns the process id of the worker."""
    return str(os.getpid())

@tool(effect="read")
async def hold(name: str) -> str:
    """Waits until the file of this name is removed."""
    while os.path.exists(name):
        await asyncio.sleep(0.01)
    return "held"
'''

WORKER = ("sessions_spawn", {"task": "Find the year.", "label": "year"})
WRITE = ("write", {"path": "a.txt", "content": "x"})
UNIQUE_FIELDS = (
    "run_id",
    "session_id",
    "slug",
    "key",
    "path",
    "started_at",
    "ended_at",
    "duration_ms",
    "children",
)
"""The fields that differ between any two runs."""

StartDaemon = Callable[[], AbstractAsyncContextManager[object]]


@pytest.fixture(params=["without daemon", "with daemon"])
def start_daemon(request: pytest.FixtureRequest, machine: UserMachine) -> StartDaemon:
    """Start a daemon in the home of the machine, or none."""

    @asynccontextmanager
    async def start_none() -> AsyncGenerator[None]:
        yield

    return start_none if request.param == "without daemon" else machine.daemon


def configure_tools(machine: UserMachine, **settings: Any) -> None:
    (machine.folder / "ours.py").write_text(TOOLS)
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(tools=["ours:whoami", "ours:hold"], **settings)


def common_fields(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in UNIQUE_FIELDS}


def transcripts(machine: UserMachine) -> list[Path]:
    """Return all transcripts, except of sessions that are being created: their folders begin with a dot."""
    return list(machine.sessions.glob("[!.]*/branches/main/session.md"))


def all_transcript_text(machine: UserMachine) -> str:
    return "".join(path.read_text() for path in transcripts(machine))


async def test_a_run_started_by_a_command_is_executed_by_the_running_daemon(machine: UserMachine):
    configure_tools(machine)
    async with (
        machine.serve_models(reply_by_turn(tool_call_reply(("whoami", {})), text_reply("I know."))),
        machine.daemon() as process,
    ):
        ran = await machine("run", "--json", "Who?")
        assert f"\n{process.pid}\n" in Path(ran.json["path"]).read_text()


async def test_a_run_has_the_same_output_and_json_with_and_without_a_daemon(
    machine: UserMachine, start_daemon: StartDaemon
):
    """Shows: A005."""
    script = reply_by_turn(tool_call_reply(("ls", {}), text="I look."), text_reply("Nothing there."))
    async with machine.serve_models(script), start_daemon():
        plain = await machine("run", "Look.")
        assert (plain.code, plain.out) == (0, "I look.\nNothing there.\n")
        ran = await machine("run", "--json", "Look.")
    assert ran.code == 0
    assert common_fields(ran.json) == {
        "agent": "general",
        "status": "done",
        "waiting_for": None,
        "reason": None,
        "approvals": [],
        "text": "Nothing there.",
        "output": None,
        "error": None,
        "turns": 2,
        "tool_calls": 1,
        "usage": {"input": 20, "output": 10},
        "cost": None,
        "sandbox": None,
    }


async def test_each_end_of_a_run_has_the_same_exit_code_with_and_without_a_daemon(
    machine: UserMachine, start_daemon: StartDaemon
):
    def script(asked: CapturedRequest) -> FakeResponse:
        task = next(each["content"] for each in asked.messages if each["role"] == "user")
        answers = {
            "fail": http_error(400, "no such thing"),
            "write": tool_call_reply(WRITE),
            "sleep": text_reply("late", delay=60),
        }
        return answers[task]

    async with machine.serve_models(script), start_daemon():
        results = [
            await machine("run", "--json", *arguments)
            for arguments in (["fail"], ["write"], ["--timeout", "1", "sleep"])
        ]
        ends = [(each.code, each.json["status"], each.json["reason"]) for each in results]
        assert ends == [(1, "failed", "provider"), (6, "waiting", None), (4, "timed_out", "deadline")]
        assert "no such thing" in results[0].err
        assert (await machine("send", "nobody-there", "Hi.")).code == 7
        assert (await machine("run", "--agent", "nobody", "Hi.")).code == 7
        assert (
            await machine("run", "--session", results[0].json["slug"], "--agent", "oracle", "Hi.")
        ).code == 3


async def test_send_spawn_and_chat_continue_a_session(machine: UserMachine, start_daemon: StartDaemon):
    machine.write_config(approvals="auto")

    def script(asked: CapturedRequest) -> FakeResponse:
        return text_reply(f"Reply {asked.reply_count + 1} to {asked.messages[-1]['content']}")

    async with machine.serve_models(script), start_daemon():
        first = (await machine("run", "--json", "one")).json
        sent = await machine("send", first["slug"], "two")
        assert (sent.code, sent.out) == (0, "Reply 2 to two\n")
        spawned = await machine("spawn", "--parent", first["slug"], "--agent", "researcher", "three")
        assert (spawned.code, spawned.out) == (0, "Reply 1 to three\n")
        chat = await machine("chat", first["slug"], stdin=b"four\n/path\nfive\n/rename Talk\n/quit\n")
        assert (chat.code, chat.out.splitlines()) == (
            0,
            ["Reply 3 to four", first["path"], "Reply 4 to five"],
        )
        chat = await machine("chat", "--json", first["slug"], stdin=b"six\nseven\n")
        assert [run["text"] for run in chat.json] == ["Reply 5 to six", "Reply 6 to seven"]
        assert (await machine("sessions", "show", first["slug"], "--json")).json["name"] == "Talk"


async def test_answering_an_approval_continues_the_run_and_prints_its_reply(
    machine: UserMachine, start_daemon: StartDaemon
):
    script = reply_by_turn(
        tool_call_reply(WRITE),
        tool_call_reply(("write", {"path": "b.txt", "content": "y"})),
        text_reply("Both."),
    )
    async with machine.serve_models(script), start_daemon():
        asked = await machine("run", "--json", "Write.")
        codes: list[int] = [asked.code]
        outs: list[str] = []
        for _ in range(2):
            (waiting,) = (await machine("approvals", "list", "--json")).json
            answered = await machine("approvals", "answer", waiting["id"], "allow")
            codes.append(answered.code)
            outs.append(answered.out)
        assert (codes, outs) == ([6, 6, 0], ["", "Both.\n"])
        assert [(machine.folder / f"{name}.txt").read_text() for name in "ab"] == ["x", "y"]


async def test_denying_an_approval_continues_the_run_and_returns_it_as_json(
    machine: UserMachine, start_daemon: StartDaemon
):
    script = reply_by_turn(tool_call_reply(WRITE), text_reply("Then not."))
    async with machine.serve_models(script), start_daemon():
        asked = await machine("run", "--json", "Write.")
        (approval,) = asked.json["approvals"]
        busy = await machine("send", asked.json["slug"], "And?")
        assert (busy.code, approval in busy.err) == (6, True)
        answered = await machine("approvals", "answer", "--json", approval, "deny")
        assert (answered.code, answered.json["run"]["status"], answered.json["run"]["text"]) == (
            0,
            "done",
            "Then not.",
        )
        assert (await machine("approvals", "answer", approval, "allow")).code == 3
        assert not (machine.folder / "a.txt").exists()


async def test_a_run_waits_for_the_workers_that_it_started(machine: UserMachine, start_daemon: StartDaemon):
    """Shows: E006."""
    script = script_with_worker(
        [tool_call_reply(WORKER, text="I send."), text_reply("Sent."), text_reply("1993, it says.")],
        text_reply("1993."),
    )
    async with machine.serve_models(script), start_daemon():
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


async def test_attach_and_wait_follow_a_run_of_another_process_to_its_end(
    machine: UserMachine, start_daemon: StartDaemon
):
    configure_tools(machine)
    gate = machine.folder / "gate"
    gate.touch()

    def script(asked: CapturedRequest) -> FakeResponse:
        if not gate.exists():
            return text_reply("Held.")
        return tool_call_reply(
            ("hold", {"name": f"no-{asked.reply_count}"}), text=f"Tick {asked.reply_count}.", delay=0.1
        )

    async with machine.serve_models(script), start_daemon():
        running = await machine.start("run", "Go.")
        (run,) = await machine.wait_for_live_runs("running")
        attached = await machine.start("attach", run["slug"])
        waiting = await machine.start("wait", "--json", run["run_id"])
        first = await require_pipe(attached.stdout).readline()
        gate.unlink()
        lines = (first + (await attached.communicate())[0]).decode().splitlines()
        all_lines = (await running.communicate())[0].decode().splitlines()
        (ended,) = json.loads((await waiting.communicate())[0])
    assert all_lines == [*(f"Tick {at}." for at in range(len(all_lines) - 1)), "Held."]
    assert lines == all_lines[-len(lines) :]
    assert (ended["text"], ended["turns"]) == ("Held.", len(all_lines))
    assert [each.returncode for each in (running, attached, waiting)] == [0, 0, 0]


async def test_a_run_of_another_process_can_be_cancelled_or_interrupted(
    machine: UserMachine, start_daemon: StartDaemon
):
    """Shows: E033."""
    configure_tools(machine)

    def script(asked: CapturedRequest) -> FakeResponse:
        if any("interrupted you" in str(each["content"]) for each in asked.messages):
            return text_reply("So far nothing.")
        return stalled_stream(after_bytes=600, response=text_reply("Long " * 500))

    async with machine.serve_models(script), start_daemon():
        running = await machine.start("run", "--json", "Talk.")
        await machine.wait_for_requests(1)
        (run,) = await machine.wait_for_live_runs("running")
        stopped = await machine("runs", "cancel", "--json", run["run_id"])
        assert (stopped.code, stopped.json["status"]) == (0, "cancelled")
        out, _ = await running.communicate()
        assert (running.returncode, json.loads(out)["reason"]) == (5, "user_cancel")

        running = await machine.start("run", "--json", "Talk.")
        await machine.wait_for_requests(2)
        (run,) = await machine.wait_for_live_runs("running")
        stopped = await machine("runs", "interrupt", "--json", run["run_id"])
        assert (stopped.json["status"], stopped.json["text"]) == ("cancelled", "So far nothing.")
        out, _ = await running.communicate()
        assert (running.returncode, json.loads(out)["reason"]) == (5, "interrupted")
        assert (await machine("runs", "detach", run["run_id"])).code == 3


async def test_a_child_that_its_parent_waits_for_can_be_detached(
    machine: UserMachine, start_daemon: StartDaemon
):
    configure_tools(machine, approvals="auto")
    machine.write_agent("holder", "tools: [hold]\n", "You hold.")
    (machine.folder / "gate").touch()
    boss: list[Any] = [
        tool_call_reply(("agent", {"agent_name": "holder", "task_prompt": "Hold."})),
        text_reply("It goes on."),
        text_reply("It has ended."),
    ]
    holder: list[Any] = [tool_call_reply(("hold", {"name": "gate"})), text_reply("Held.")]

    def script(asked: CapturedRequest) -> FakeResponse:
        replies = holder if "You hold." in asked.body["messages"][0]["content"] else boss
        return replies[min(asked.reply_count, len(replies) - 1)]

    async with machine.serve_models(script), start_daemon():
        running = await machine.start("run", "Go.")
        _, child = await machine.wait_for_live_runs("waiting", "running")
        assert (await machine("runs", "detach", "--json", child["run_id"])).code == 0
        await machine.wait_for_requests(3)
        (machine.folder / "gate").unlink()
        out, _ = await running.communicate()
    assert (running.returncode, out.decode()) == (0, "It goes on.\nIt has ended.\n")


async def test_the_run_of_a_killed_command_is_resumed(machine: UserMachine, start_daemon: StartDaemon):
    """A daemon resumes it by itself; the command then follows the run."""
    configure_tools(machine)
    (machine.folder / "gate").touch()
    script = reply_by_turn(tool_call_reply(("hold", {"name": "gate"})), text_reply("Held."))
    async with machine.serve_models(script) as server:
        running = await machine.start("run", "Hold.")
        (run,) = await machine.wait_for_live_runs("running")
        await wait_until(lambda: "<!-- call" in all_transcript_text(machine))
        await machine.kill(running)
        async with start_daemon():
            resuming = await machine.start("runs", "resume", "--json", run["run_id"])
            assert b"resumed in" in await require_pipe(resuming.stderr).readline()
            await machine.wait_for_live_runs("running")
            (machine.folder / "gate").unlink()
            out, err = await resuming.communicate()
            assert resuming.returncode == 0, err
            assert [(each["status"], each["text"]) for each in json.loads(out)] == [("done", "Held.")]
        assert len(server.requests) == 2


async def test_inbox_promote_adds_a_result_to_the_requesters_session(
    machine: UserMachine, start_daemon: StartDaemon
):
    script = script_with_worker(
        [tool_call_reply(WORKER), text_reply("Sent."), text_reply("1993, it says.")], text_reply("1993.")
    )
    async with machine.serve_models(script), start_daemon():
        ran = (await machine("run", "--json", "When?")).json
        promoted = await machine("inbox", "--json", "--promote", ran["children"][0])
        assert (promoted.code, promoted.json["recipient"], promoted.json["already_promoted"]) == (
            0,
            ran["slug"],
            False,
        )
        sent = await machine("send", ran["slug"], "Again?")
        assert (sent.code, sent.out) == (0, "1993, it says.\n")
        assert (await machine("inbox", "--json", "--drain")).json == []


async def test_a_message_to_a_busy_session_of_the_daemon_is_queued(machine: UserMachine):
    """Shows: C044."""
    configure_tools(machine)
    (machine.folder / "gate").touch()
    script = reply_by_turn(
        tool_call_reply(("hold", {"name": "gate"})), text_reply("Held."), text_reply("And more.")
    )
    async with machine.serve_models(script), machine.daemon():
        running = await machine.start("run", "Hold.")
        (run,) = await machine.wait_for_live_runs("running")
        queued = await machine.start("send", run["slug"], "More.")
        await machine.wait_for_live_runs("running", "queued")
        (machine.folder / "gate").unlink()
        outs = [(await each.communicate())[0].decode() for each in (running, queued)]
    assert outs == ["Held.\n", "And more.\n"]


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2, 0.6])
async def test_a_command_loses_no_text_when_its_daemon_is_killed(machine: UserMachine, moment: float):
    """The command continues alone, prints everything once, and repeats no answered request.

    Shows: P21."""
    replies = [
        tool_call_reply(("ls", {}), text="I look. "),
        tool_call_reply(("ls", {}), text="Again, " * 20, pace=0.01),
    ]
    replies.append(text_reply("At last. " * 60, pace=0.01))
    async with machine.serve_models(reply_by_turn(*replies)) as server, machine.daemon() as process:
        running = await machine.start("run", "Go.")
        await machine.wait_for_requests(1)
        await asyncio.sleep(moment)
        await machine.kill(process)
        out, err = await running.communicate()
        assert (running.returncode, out.decode()) == (
            0,
            "".join(f"{each.text}\n" for each in replies),
        ), err
        turns = [each.reply_count for each in server.requests]
    assert turns == sorted(turns)
    assert set(turns) == {0, 1, 2}
    assert len(turns) <= 4


async def test_a_saved_reply_is_not_requested_again_when_the_daemon_is_killed(machine: UserMachine):
    configure_tools(machine)
    (machine.folder / "gate").touch()
    script = reply_by_turn(tool_call_reply(("hold", {"name": "gate"}), text="I hold."), text_reply("Held."))
    async with machine.serve_models(script) as server, machine.daemon() as process:
        running = await machine.start("run", "--json", "Hold.")
        await wait_until(lambda: "tool=hold" in all_transcript_text(machine))
        await machine.kill(process)
        (machine.folder / "gate").unlink()
        out, _ = await running.communicate()
        ended = json.loads(out)
        assert (running.returncode, ended["text"], ended["turns"]) == (0, "Held.", 2)
        assert [each.reply_count for each in server.requests] == [0, 1]


async def test_a_command_continues_its_run_when_the_daemon_is_stopped(machine: UserMachine):
    """Shows: K11."""
    replies = [text_reply("At last.", delay=90), text_reply("At last.")]
    async with machine.serve_models(replies), machine.daemon() as process:
        running = await machine.start("run", "--json", "Go.")
        await machine.wait_for_requests(1)
        process.send_signal(signal.SIGTERM)
        out, err = await running.communicate()
        assert (running.returncode, json.loads(out)["text"]) == (0, "At last."), err
        shown = (await machine("runs", "show", json.loads(out)["run_id"], "--json")).json
    assert (shown["status"], shown["attempts"]) == ("done", 1)


async def test_closing_the_application_never_counts_as_a_crash_of_its_runs(machine: UserMachine):
    done = asyncio.Event()

    def script(_asked: CapturedRequest) -> FakeResponse:
        return text_reply("At last.", delay=0 if done.is_set() else 90)

    async with machine.serve_models(script):
        run = ""
        for count in range(1, 6):
            async with machine.open() as app:
                run = (await app.runs.start("Go.")).id if not run else (await app.runs.resume(run))[0].id
                await machine.wait_for_requests(count)
        done.set()
        async with machine.open() as app:
            await app.runs.resume(run)
            ended = await app.runs.wait(run)
    assert (ended.status, ended.text, ended.attempts) == ("done", "At last.", 1)
    assert ended.recovery.crash_marks == ()


async def test_a_command_with_other_settings_than_the_daemon_executes_its_run_itself_and_warns(
    machine: UserMachine,
):
    configure_tools(machine)
    script = reply_by_turn(tool_call_reply(("whoami", {})), text_reply("I know."))
    async with machine.serve_models(script), machine.daemon() as process:
        ran = await machine("run", "Who?", RETINUE_MODEL="openai:another")
        assert (ran.code, ran.out) == (0, "I know.\n")
        assert "The daemon was started with different settings" in ran.err
        assert f"\n{process.pid}\n" not in transcripts(machine)[0].read_text()
        assert "different settings" not in (await machine("runs", "list", RETINUE_MODEL="openai:another")).err


async def test_a_slow_reader_of_a_commands_output_misses_nothing(machine: UserMachine):
    """The daemon does not wait for the command: it closes the connection, and the rest is read from the file."""
    first, second = ("".join(f"{name} {at}\n" for at in range(80_000)) for name in "ab")
    script = reply_by_turn(tool_call_reply(("ls", {}), text=first, piece=4096), text_reply(second, piece=256))
    async with machine.serve_models(script), machine.daemon():
        running = await machine.start("run", "Go.")
        await machine.wait_for_requests(2)
        run = (await machine("runs", "history", "--json")).json[0]["run_id"]
        while (await machine("runs", "show", run, "--json")).json["status"] != "done":
            pass
        out, err = await running.communicate()
        assert (running.returncode, len(out)) == (0, len(first) + len(second)), err
        assert out.decode() == first + second


async def test_one_daemon_executes_the_runs_of_twenty_concurrent_commands(machine: UserMachine):
    def script(asked: CapturedRequest) -> FakeResponse:
        return text_reply(f"Said: {asked.messages[-1]['content']}", pace=0.01)

    async with machine.serve_models(script) as server, machine.daemon():
        running = [await machine.start("run", f"number {at}") for at in range(20)]
        outs = [(await each.communicate())[0].decode() for each in running]
        assert outs == [f"Said: number {at}\n" for at in range(20)]
        assert len(server.requests) == 20
        assert server.connection_count < 20


async def test_read_only_commands_and_runs_with_forget_do_not_connect_to_a_daemon(machine: UserMachine):
    connections = 0

    async def close_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    read_commands = [
        "runs list",
        "runs history",
        "sessions list",
        "agents list",
        "approvals list",
        "inbox",
        "tools list",
    ]
    async with machine.serve_models(reply_by_turn(text_reply("Hi."))):
        with daemon_client.socket_path(machine.home) as path:
            server = await asyncio.start_unix_server(close_at_once, path)
        async with server:
            for command in read_commands:
                assert (await machine(*command.split())).code == 0
            assert (await machine("run", "--forget", "Go.")).out == "Hi.\n"
            assert connections == 0
            ran = await machine("run", "Go.")
            assert (ran.code, ran.out, connections > 0) == (0, "Hi.\n", True)


async def test_a_stale_daemon_socket_is_ignored(machine: UserMachine):
    with socket.socket(socket.AF_UNIX) as stale, daemon_client.socket_path(machine.home) as path:
        stale.bind(path)
    async with machine.serve_models(reply_by_turn(text_reply("Hi."))):
        ran = await machine("run", "Go.")
        assert (ran.code, ran.out) == (0, "Hi.\n")
        async with machine.daemon():
            assert (await machine("run", "Go.")).out == "Hi.\n"


async def test_a_daemon_that_is_stopping_accepts_no_runs(machine: UserMachine):
    """It waits for its own runs; meanwhile other commands execute their runs themselves."""
    configure_tools(machine)
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
        await machine.wait_for_live_runs("running")
        process.send_signal(signal.SIGTERM)
        status = await daemon_client.ping_daemon(machine.home)
        while status and status["accepts_runs"]:
            status = await daemon_client.ping_daemon(machine.home)
        assert (await machine("run", "Quick.")).out == "Done.\n"
        (machine.folder / "gate").unlink()
        assert (await slow.communicate())[0] == b"Done.\n"


async def test_a_background_run_uses_the_settings_of_the_daemon_and_the_command_warns(machine: UserMachine):
    async with machine.serve_models(reply_by_turn(text_reply("Hi."))) as server, machine.daemon():
        submitted = await machine("run", "--background", "--json", "Go.", RETINUE_MODEL="openai:another")
        assert (submitted.code, "which apply to this run" in submitted.err) == (0, True)
        assert (await machine("wait", submitted.json["run_id"])).out == "Hi.\n"
        assert server.requests[0].body["model"] == "test-model"
