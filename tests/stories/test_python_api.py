"""The Python API: custom tools, events, cancelling and resuming runs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from transcript_entries import entry_texts
from user_machine import UserMachine

import retinue
from retinue.app.run_options import RunOptions
from retinue.errors import BadConfig, NotFound, Refused, UsageError
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import (
    FakeResponse,
    stalled_stream,
    text_reply,
    tool_call_reply,
    unfinished_stream,
)

SENT_MAILS: list[tuple[str, str, str]] = []


@retinue.tool(effect="once", capabilities=["mail.write"])
async def send_mail(call: retinue.Call, to: str, body: str) -> str:
    """Sends a mail."""
    SENT_MAILS.append((call.run.agent, to, body))
    return "sent"


async def test_a_program_can_add_its_own_tools(machine: UserMachine):
    SENT_MAILS.clear()
    machine.write_agent("quiet", "model: openai:x\ncapability_deny: ['mail.*']\n")
    mail_call = tool_call_reply(("send_mail", {"to": "ada", "body": "hello"}))
    script = [mail_call, text_reply("Sent."), mail_call, text_reply("I may not.")]
    async with (
        machine.serve_models(script) as server,
        machine.open(tools=[send_mail], approvals="auto") as app,
    ):
        run = await app.run("Greet Ada", workspace=machine.folder)
        await app.run("Greet Ada", agent="quiet", workspace=machine.folder)
        assert (run.status, run.text, run.tool_calls) == (retinue.Status.DONE, "Sent.", 1)
    assert SENT_MAILS == [("general", "ada", "hello")]
    offered_tools = [each["function"] for each in server.requests[0].body["tools"]]
    schema = next(each["parameters"] for each in offered_tools if each["name"] == "send_mail")
    assert schema["required"] == ["to", "body"]
    assert "send_mail" not in machine.tool_names(server.requests[2])


async def test_duplicate_tool_names_and_invalid_tools_are_refused_by_open(machine: UserMachine):
    """Shows: T02."""
    with pytest.raises(UsageError, match="A tool named 'send_mail' already exists"):
        async with machine.open(tools=[send_mail, send_mail]):
            pass
    with pytest.raises(UsageError, match="system_"):
        retinue.tool(name="system_x")(lambda: "x")
    for reference, message in (
        ("json:dumps", "is not a tool"),
        ("nowhere:x", "cannot be loaded"),
        ("json", "module:name"),
    ):
        machine.write_config(tools=[reference])
        with pytest.raises(BadConfig, match=message):
            async with machine.open():
                pass


async def test_tools_named_in_the_configuration_are_loaded(machine: UserMachine, tmp_path: Path):
    (tmp_path / "my_tools_of_this_test.py").write_text(
        "import retinue\n\n@retinue.tool(effect='read')\ndef dice() -> str:\n    '''Rolls.'''\n    return 'four'\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        machine.write_config(tools=["my_tools_of_this_test:dice"])
        async with (
            machine.serve_models([tool_call_reply(("dice", {})), text_reply("Four.")]) as server,
            machine.open() as app,
        ):
            await app.run("Roll", workspace=machine.folder)
    finally:
        sys.path.remove(str(tmp_path))
    assert "four" in machine.request_texts(server.requests[1])


async def test_a_listener_receives_all_events_of_a_run(machine: UserMachine):
    events: list[retinue.Event] = []
    async with (
        machine.serve_models([tool_call_reply(("ls", {}), text="Look."), text_reply("Done.")]),
        machine.open() as app,
    ):
        with app.listen(events.append):
            run = await app.run("Go", workspace=machine.folder)
        await app.run("Without a listener", session=run.slug)
    kinds = [event.kind for event in events]
    assert kinds[:2] == ["run.queued", "run.started"]
    assert kinds[-1] == "run.ended"
    assert kinds.index("tool.started") < kinds.index("tool.ended")
    assert "".join(event.data["text"] for event in events if event.kind == "text.delta") == "Look.Done."
    assert {event.run for event in events} == {run.id}
    sequence_numbers = [
        event.seq for event in events if event.kind.startswith(("run.queued", "run.started", "run.ended"))
    ]
    assert sequence_numbers == sorted(set(sequence_numbers))


async def test_cancelling_a_run_closes_the_model_connection_and_keeps_the_partial_text(machine: UserMachine):
    """Shows: K01."""
    text_received = asyncio.Event()

    def listen(event: retinue.Event) -> None:
        if event.kind == "text.delta":
            text_received.set()

    script = [
        stalled_stream(
            after_bytes=600, response=text_reply("These words are sent, and then no more of them. " * 20)
        )
    ]
    async with machine.serve_models(script) as server, machine.open() as app:
        with app.listen(listen):
            run = await app.runs.start("Talk", RunOptions(workspace=machine.folder))
            await text_received.wait()
            cancelled = await app.runs.cancel(run.id)
        assert (cancelled.status, cancelled.reason) == ("cancelled", "user_cancel")
        await asyncio.wait_for(server.client_disconnected.wait(), 10)
        last = (await app.sessions.entries(run.slug))[-1]
        assert isinstance(last, retinue.Message)
        assert last.text.startswith("These wo")
        assert last.stop_reason == "cancelled"
        assert (await app.runs.cancel(run.id)).status == "cancelled"


async def test_a_truncated_stream_is_requested_again(machine: UserMachine):
    """Shows: M07."""
    async with (
        machine.serve_models([unfinished_stream("par"), text_reply("whole")]) as server,
        machine.open() as app,
    ):
        run = await app.run("Answer", workspace=machine.folder)
        assert (run.text, len(server.requests)) == ("whole", 2)
        assert entry_texts(await app.sessions.entries(run.slug)) == ["Answer", "whole"]


async def test_an_interrupted_run_is_found_and_resumed_by_the_next_program(machine: UserMachine):
    async with machine.serve_models(
        [text_reply("late", delay=60), text_reply("other", delay=60), text_reply("In time.")]
    ):
        async with machine.open() as app:
            run = await app.runs.start("Wait for me", RunOptions(workspace=machine.folder))
            await machine.wait_for_requests(1)
            with pytest.raises(Refused, match="is executed by another process"):
                await app.runs.resume(run.id)
        async with machine.open() as app:
            assert [each.id for each in await app.runs.interrupted()] == [run.id]
            findings = await app.repair.diagnose()
            assert [(each.message, each.advice) for each in findings if each.status == "warn"] == [
                ("1 run interrupted", "retinue runs resume")
            ]
            await app.runs.resume()
            await machine.wait_for_requests(2)
            assert await app.runs.interrupted() == []
        async with machine.open() as app:
            resumed = await app.runs.resume(run.id[:20])
            ended = await app.runs.wait(resumed[0].id)
            assert (ended.status, ended.text, ended.attempts) == ("done", "In time.", 1)
            with pytest.raises(Refused, match="has ended"):
                await app.runs.resume(run.id)


async def test_runs_are_found_by_any_unambiguous_prefix_of_their_id(machine: UserMachine):
    async with machine.serve_models([text_reply("a"), text_reply("b")]), machine.open() as app:
        first = await app.run("One", workspace=machine.folder)
        await app.run("Two", workspace=machine.folder)
        assert (await app.runs.find(first.id)).id == first.id
        with pytest.raises(UsageError, match="matches several runs"):
            await app.runs.find(first.id[:4])
        with pytest.raises(NotFound, match="retinue runs history"):
            await app.runs.find("zzz")
        assert [run.request.task for run in await app.runs.list(live=False, limit=1)] == ["Two"]


async def test_a_session_with_an_active_run_queues_messages_and_cannot_be_cleared_or_deleted(
    machine: UserMachine,
):
    """Shows: C044."""
    more_queued = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        await more_queued.wait()
        return text_reply("Two." if request.reply_count else "One.")

    async with machine.serve_models(script) as server, machine.open() as app:
        first = await app.runs.start("First", RunOptions(workspace=machine.folder))
        await machine.wait_for_requests(1)
        for action in (app.sessions.clear, app.sessions.delete):
            with pytest.raises(
                Refused, match=r"has an active run. Cancel it first with `retinue runs cancel"
            ):
                await action(first.slug)
        with pytest.raises(UsageError, match="Give a text to queue a message behind it"):
            await app.runs.start(None, RunOptions(session=first.slug))
        second = await app.runs.start("Second", RunOptions(session=first.slug))
        more_queued.set()
        assert (await app.runs.wait(second.id)).text == "Two."
        assert machine.request_texts(server.requests[1]) == ["First", "One.", "Second"]


async def test_an_unexpected_error_is_reported_in_one_line_and_logged_with_its_traceback(
    machine: UserMachine,
):
    key = "sk-test-openai-0123456789"

    def raise_defect(_arguments: bytes) -> dict[str, Any]:
        raise ZeroDivisionError(f"a defect beside {key}")

    tools = [replace(send_mail, parse_arguments=raise_defect)]
    async with machine.serve_models([tool_call_reply(("send_mail", {}))]), machine.open(tools=tools) as app:
        run = await app.run("Go", workspace=machine.folder)
        assert (run.status, run.reason) == ("failed", "crashed")
        assert run.error == "ZeroDivisionError: a defect beside [secret of 25 characters]"
        lines = (machine.home / "logs" / "retinue.jsonl").read_text().splitlines()
        assert key not in "".join(lines)
        (logged,) = [json.loads(line) for line in lines if "Traceback" in line]
        assert (logged["run"], logged["level"]) == (run.id, "error")


def test_a_script_runs_an_agent_without_asyncio(machine: UserMachine, tmp_path: Path):
    """retinue.run() blocks like the command, and inside an event loop its error names retinue.open()."""
    script = tmp_path / "replies.json"
    script.write_text(json.dumps({"general": [{"text": "Hello from a script."}]}))
    program = (
        "import asyncio, retinue\n"
        f"run = retinue.run('Say hello.', model='scripted:{script}')\n"
        "print(run.status, run.text)\n"
        "async def inside():\n"
        "    try:\n"
        "        retinue.run('Say hello.')\n"
        "    except retinue.RetinueError as error:\n"
        "        print(error)\n"
        "asyncio.run(inside())\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=machine.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    ran, refused = process.stdout.splitlines()
    assert ran == "done Hello from a script."
    assert "retinue.open()" in refused
