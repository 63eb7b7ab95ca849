"""Commands on active runs: sending messages, interrupting, detaching and cancelling."""

import asyncio
import signal
from pathlib import Path

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, stalled_stream, text_reply, tool_call_reply

DELEGATE_CALL = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})
SLOW_TO_STOP_TOOL = '''
import asyncio, pathlib, time
from retinue import tool

@tool(effect="read")
async def drag() -> str:
    """Takes a second to stop."""
    pathlib.Path("dragging").touch()
    try:
        await asyncio.Event().wait()
    finally:
        time.sleep(1)
'''
LONG_TEXT = "These words are sent, and then no more of them. " * 20


def is_from_helper(request: CapturedRequest) -> bool:
    return "You help." in request.body["messages"][0]["content"]


async def wait_for_live_runs(machine: UserMachine, count: int) -> list[str]:
    """Wait until this many runs are live, and return their ids, oldest first."""
    async with machine.open() as app:
        while len(runs := await app.runs.list(live=True)) != count:  # noqa: ASYNC110  (other processes create them)
            await asyncio.sleep(0.01)
    return sorted(run.id for run in runs)


async def test_a_run_without_an_exit_call_waits_for_a_person_and_continues_with_a_message(
    machine: UserMachine,
):
    """Shows: D050, D052, T16, M20."""
    machine.write_agent("coder", "exits: [submit_for_review, ask_for_help]\n", "You code.\n")
    exit_call = tool_call_reply(("submit_for_review", {"summary": "Built and tested."}))
    async with machine.serve_models([*[text_reply("All done.")] * 4, exit_call]) as server:
        ran = await machine("run", "--json", "--agent", "coder", "Build it.")
        assert (ran.code, ran.json["status"], ran.json["waiting_for"]) == (6, "waiting", "person")
        assert ran.json["reason"] is None
        assert f"retinue send {ran.json['slug']} TEXT" in ran.err
        assert {"submit_for_review", "ask_for_help"} <= set(machine.tool_names(server.requests[0]))
        assert "approve" not in machine.tool_names(server.requests[0])
        text = (await machine("runs", "show", ran.json["run_id"])).out
        assert "coder is waiting for your message" in text
        again = await machine("send", ran.json["slug"], "Submit it, then.")
        assert again.code == 0
        assert again.out == "Built and tested.\n"
        shown = (await machine("runs", "show", "--json", ran.json["run_id"])).json
        assert (shown["status"], shown["exit"], shown["text"]) == (
            "done",
            "submit_for_review",
            "Built and tested.",
        )
        assert shown["evidence"] == {"tool_calls": 1, "no_work": True}
        assert "Ended by submit_for_review" in (await machine("runs", "show", ran.json["run_id"])).out
        assert len((await machine("runs", "history", "--json")).json) == 1
    assert machine.request_texts(server.requests[4])[-1] == "Submit it, then."
    transcript = Path(ran.json["path"]).read_text()
    assert transcript.count("Your run has not ended") == 3


async def test_a_waiting_run_continues_with_text_typed_into_its_file(machine: UserMachine):
    """Shows: D052."""
    machine.write_agent("coder", "exits: [ask_for_help]\nmax_turns: 1\n", "You code.\n")
    exit_call = tool_call_reply(("ask_for_help", {"message": "Which port?"}))
    async with machine.serve_models([text_reply("Done."), exit_call]) as server:
        ran = await machine("run", "--json", "--agent", "coder", "Build it.")
        assert (ran.code, ran.json["waiting_for"], ran.json["turns"]) == (6, "person", 1)
        empty = await machine("run", "--session", ran.json["slug"])
        assert (empty.code, "Give a text" in empty.err) == (2, True)
        file = Path(ran.json["path"])
        file.write_text(file.read_text() + "Ask if you must.\n")
        again = await machine("run", "--json", "--session", ran.json["slug"])
        assert (again.code, again.json["run_id"], again.json["text"]) == (
            0,
            ran.json["run_id"],
            "Which port?",
        )
    assert machine.request_texts(server.requests[1])[-1] == "Ask if you must."


async def test_a_message_to_a_child_that_waits_for_a_person_continues_it_and_its_parent(
    machine: UserMachine,
):
    """Shows: D050."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "exits: [submit_for_review]\n", "You help.\n")
    exit_call = tool_call_reply(("submit_for_review", {"summary": "x is in a."}))
    helper_replies = [*[text_reply("All done.")] * 4, exit_call]
    main_replies = [tool_call_reply(DELEGATE_CALL), text_reply("It is here.")]

    def script(request: CapturedRequest) -> FakeResponse:
        return (helper_replies if is_from_helper(request) else main_replies).pop(0)

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Where is x?")
        assert (ran.code, ran.json["waiting_for"], len(ran.json["children"])) == (6, "child", 1)
        child = (await machine("runs", "show", "--json", ran.json["children"][0])).json
        assert f"retinue send {child['slug']} TEXT" in ran.err
        again = await machine("send", "--json", child["slug"], "Then submit it.")
        assert (again.code, again.json["run_id"], again.json["text"]) == (0, child["run_id"], "x is in a.")
        top = (await machine("runs", "show", "--json", ran.json["run_id"])).json
        assert (top["status"], top["text"]) == ("done", "It is here.")


async def test_an_unknown_exit_tool_is_refused_by_name(machine: UserMachine):
    machine.write_agent("coder", "exits: [submit]\n", "You code.\n")
    async with machine.serve_models([]) as server:
        ran = await machine("run", "--agent", "coder", "Build it.")
        assert (ran.code, len(server.requests), list(machine.sessions.glob("*"))) == (2, 0, [])
        assert "coder: unknown exit tool 'submit'" in ran.err


async def test_a_run_interrupted_by_another_command_ends_with_a_summary(machine: UserMachine):
    """Shows: L009."""
    script = [
        stalled_stream(after_bytes=600, response=text_reply(LONG_TEXT)),
        text_reply("In short: nothing yet."),
    ]
    async with machine.serve_models(script) as server:
        process = await machine.start("run", "--json", "Talk.")
        await machine.wait_for_requests(1)
        (run,) = await wait_for_live_runs(machine, 1)
        ended = await machine("runs", "interrupt", "--json", run)
        assert (ended.code, ended.json["status"], ended.json["reason"]) == (0, "cancelled", "interrupted")
        assert ended.json["text"] == "In short: nothing yet."
        out, _ = await process.communicate()
        assert (process.returncode, b"In short: nothing yet." in out) == (5, True)
        await asyncio.wait_for(server.client_disconnected.wait(), 10)
    transcript = Path(ended.json["path"]).read_text()
    assert "These wo" in transcript
    assert "A person interrupted you" in transcript


async def test_interrupting_a_run_interrupts_the_child_it_waits_for(machine: UserMachine):
    """Shows: L009, B023."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "", "You help.\n")

    def script(request: CapturedRequest) -> FakeResponse:
        interrupted = "A person interrupted you" in str(request.body["messages"][-1]["content"])
        if is_from_helper(request):
            return (
                text_reply("I had looked at a.")
                if interrupted
                else stalled_stream(after_bytes=600, response=text_reply(LONG_TEXT))
            )
        return text_reply("The helper had looked at a.") if interrupted else tool_call_reply(DELEGATE_CALL)

    async with machine.serve_models(script):
        process = await machine.start("run", "Where is x?")
        top, child = await wait_for_live_runs(machine, 2)
        ended = await machine("runs", "interrupt", "--json", top)
        assert (ended.json["reason"], ended.json["text"]) == ("interrupted", "The helper had looked at a.")
        shown = (await machine("runs", "show", "--json", child)).json
        assert (shown["status"], shown["reason"], shown["text"]) == (
            "cancelled",
            "interrupted",
            "I had looked at a.",
        )
        await process.communicate()
        assert process.returncode == 5


async def test_a_child_that_its_parent_waits_for_is_detached_and_announced_later(machine: UserMachine):
    """Shows: L011."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "", "You help.\n")
    gate = asyncio.Event()
    main_replies = [
        tool_call_reply(DELEGATE_CALL),
        text_reply("It goes on without me."),
        text_reply("It is here."),
    ]

    async def script(request: CapturedRequest) -> FakeResponse:
        if not is_from_helper(request):
            return main_replies.pop(0)
        await gate.wait()
        return text_reply("x is in a.")

    async with machine.serve_models(script):
        process = await machine.start("run", "--json", "Where is x?")
        _, child = await wait_for_live_runs(machine, 2)
        await machine.wait_for_requests(2)
        detached = await machine("runs", "detach", "--json", child)
        assert (detached.code, detached.json["status"]) == (0, "running")
        await machine.wait_for_requests(3)
        again = await machine("runs", "detach", child)
        assert (again.code, "is already running in the background" in again.err) == (3, True)
        gate.set()
        out, _ = await process.communicate()
        assert (process.returncode, b'"It is here."' in out) == (0, True)
        shown = (await machine("runs", "show", "--json", child)).json
        assert (shown["status"], shown["delivery"]["state"]) == ("done", "delivered")


async def test_ctrl_c_cancels_a_run_with_its_children_and_closes_the_model_connections(machine: UserMachine):
    """Shows: B049, K01."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "", "You help.\n")

    def script(request: CapturedRequest) -> FakeResponse:
        return (
            stalled_stream(after_bytes=600, response=text_reply(LONG_TEXT))
            if is_from_helper(request)
            else tool_call_reply(DELEGATE_CALL, DELEGATE_CALL)
        )

    async with machine.serve_models(script) as server:
        process = await machine.start("run", "Where is x?")
        await machine.wait_for_requests(3)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 5
        ended = (await machine("runs", "history", "--json")).json
        assert [(run["status"], run["reason"]) for run in ended] == [("cancelled", "user_cancel")] * 3
        await asyncio.wait_for(server.client_disconnected.wait(), 10)


async def test_cancelling_a_sub_agent_returns_when_it_has_ended_while_its_parent_continues(
    machine: UserMachine,
):
    """Shows: E033."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    parent_may_answer = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if is_from_helper(request):
            return stalled_stream()
        if request.reply_count == 0:
            return tool_call_reply(DELEGATE_CALL)
        await parent_may_answer.wait()
        return text_reply("Without the helper, then.")

    async with machine.serve_models(script):
        process = await machine.start("run", "--json", "Go")
        parent, child = await wait_for_live_runs(machine, 2)
        await machine.wait_for_requests(2)
        cancelled = await machine("subagent", "cancel", child, "--json")
        assert (cancelled.code, cancelled.json["run_id"], cancelled.json["status"]) == (0, child, "cancelled")
        await machine.wait_for_requests(3)
        assert (await machine("runs", "show", "--json", parent)).json["status"] == "running"
        parent_may_answer.set()
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"Without the helper, then." in out


async def test_cancelling_a_run_returns_when_its_children_have_ended_too(machine: UserMachine):
    (machine.folder / "dragging_tool.py").write_text(SLOW_TO_STOP_TOOL)
    machine.env["PYTHONPATH"] = str(machine.folder)
    machine.write_config(approvals="auto", tools=["dragging_tool:drag"])
    machine.write_agent("helper", "", "You help.\n")

    def script(request: CapturedRequest) -> FakeResponse:
        return tool_call_reply(("drag", {}) if is_from_helper(request) else DELEGATE_CALL)

    async with machine.serve_models(script):
        process = await machine.start("run", "Go")
        while not (machine.folder / "dragging").exists():  # noqa: ASYNC110  (another process creates it)
            await asyncio.sleep(0.01)
        live = (await machine("runs", "list", "--json")).json
        parent = min(run["run_id"] for run in live)
        cancelled = await machine("subagent", "cancel", parent, "--json")
        assert cancelled.json["status"] == "cancelled"
        assert (await machine("runs", "list", "--json")).json == []
        await process.communicate()
    assert process.returncode == 5
