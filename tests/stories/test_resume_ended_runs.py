"""`runs resume` continues runs that failed, were lost or timed out, by a new run of the same session."""

import asyncio
import signal
from pathlib import Path
from typing import Any

from hold_tool import HOLD_TOOL
from user_machine import UserMachine

from retinue import daemon_client
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

READ_CALL = ("read", {"path": "notes.txt"})


def fail_until_resumed(request: CapturedRequest) -> FakeResponse:
    """Read a file; then refuse every request until a person continues the run."""
    if not request.reply_count:
        return tool_call_reply(READ_CALL)
    if "wants it continued" not in str(request.messages):
        return http_error(400, "no credit")
    return text_reply("All read.")


async def start_failing_run(machine: UserMachine) -> dict[str, Any]:
    (machine.folder / "notes.txt").write_text("seven bees")
    failed = await machine("run", "--json", "Read the notes.")
    assert (failed.code, failed.json["status"]) == (1, "failed")
    return failed.json


async def test_a_failed_run_is_continued_from_its_transcript_by_a_new_run(machine: UserMachine):
    async with machine.serve_models(fail_until_resumed) as server:
        failed = await start_failing_run(machine)
        resumed = await machine("runs", "resume", failed["run_id"], "--json")
        (successor,) = resumed.json
        assert (resumed.code, successor["status"], successor["text"]) == (0, "done", "All read.")
        assert (successor["session_id"], successor["path"]) == (failed["session_id"], failed["path"])
        assert f"continues {failed['run_id']}, which had ended" in resumed.err
        assert machine.tool_results(server.requests[-1]) == ["seven bees"]
        shown = (await machine("runs", "show", successor["run_id"], "--json")).json
        assert shown["continues"] == failed["run_id"]
        before = (await machine("runs", "show", failed["run_id"], "--json")).json
        assert (before["status"], before["continues"]) == ("failed", None)


async def test_a_failed_run_is_continued_in_the_daemon_over_http(machine: UserMachine):
    async with machine.serve_models(fail_until_resumed), machine.daemon():
        failed = await start_failing_run(machine)
        path = f"/api/runs/{failed['run_id']}/resume"
        resumed = await daemon_client.request_json(machine.home, "POST", path, {})
        assert resumed is not None
        assert (resumed["continues"], resumed["session_id"]) == (failed["run_id"], failed["session_id"])
        assert (await machine.wait_for_end(resumed["run_id"]))["text"] == "All read."


async def test_a_run_that_timed_out_is_continued_with_its_whole_deadline(machine: UserMachine):
    def script(request: CapturedRequest) -> FakeResponse:
        is_continued = "wants it continued" in str(request.messages)
        return text_reply("In time.") if is_continued else text_reply("Too late.", delay=60)

    async with machine.serve_models(script):
        timed_out = await machine("run", "--json", "--timeout", "1", "Hurry.")
        assert (timed_out.code, timed_out.json["status"]) == (4, "timed_out")
        resumed = await machine("runs", "resume", timed_out.json["run_id"], "--json")
        assert [(row["status"], row["text"]) for row in resumed.json] == [("done", "In time.")]


async def test_a_run_that_was_interrupted_for_too_long_is_lost_and_can_still_be_continued(
    machine: UserMachine,
):
    def script(request: CapturedRequest) -> FakeResponse:
        return text_reply("Found.", delay=0 if "wants it continued" in str(request.messages) else 60)

    machine.write_config(limits={"resume_window_seconds": 0.001})
    async with machine.serve_models(script):
        process = await machine.start("run", "Search.")
        await machine.wait_for_requests(1)
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        (lost,) = (await machine("runs", "resume", "--json")).json
        assert (lost["status"], lost["reason"]) == ("lost", "stale")
        resumed = await machine("runs", "resume", lost["run_id"], "--json")
        assert [(row["status"], row["text"]) for row in resumed.json] == [("done", "Found.")]


class HeldParent:
    """A run that delegates and hangs in one reply, so that it ends before it can take the result of its child."""

    def __init__(self, machine: UserMachine, **limits: float) -> None:
        self.machine = machine
        (machine.folder / "holding.py").write_text(HOLD_TOOL)
        (machine.folder / "held").touch()
        machine.write_config(tools=["holding:hold"], limits=limits)
        machine.env["PYTHONPATH"] = str(machine.folder)

    def script(self, request: CapturedRequest) -> FakeResponse:
        if "Look around." in str(request.messages[1]):
            return text_reply("I counted seven bees.")
        if request.reply_count:
            return text_reply("All read.")
        return tool_call_reply(("explore", {"task_prompt": "Look around."}), ("hold", {"name": "held"}))

    async def wait_until_child_is_done(self) -> None:
        while not any(  # noqa: ASYNC110  (another process ends the run)
            row["agent"] == "explorer" and row["status"] == "done"
            for row in (await self.machine("runs", "history", "--json")).json
        ):
            await asyncio.sleep(0.05)

    async def check_continued_run_gets_result_once(self, ended_run_id: str) -> None:
        resumed = await self.machine("runs", "resume", ended_run_id, "--json")
        (successor,) = resumed.json
        assert (resumed.code, successor["text"]) == (0, "All read."), resumed.err
        assert self.machine.server is not None
        messages = str(self.machine.server.requests[-1].messages)
        assert messages.count("I counted seven bees.") == 1
        (row,) = (await self.machine("inbox", successor["session_id"], "--json")).json
        assert (row["status"], row["delivery"]) == ("complete", "delivered")


async def test_a_continued_run_learns_what_became_of_a_sub_agent_that_stopped_with_the_ended_run(
    machine: UserMachine,
):
    def script(request: CapturedRequest) -> FakeResponse:
        if "Look around." in str(request.messages[1]):
            return text_reply("Never.", delay=60)
        explore = tool_call_reply(("explore", {"task_prompt": "Look around."}))
        return text_reply("All read.") if request.reply_count else explore

    async with machine.serve_models(script) as server:
        timed_out = (await machine("run", "--json", "--timeout", "2", "Delegate.")).json
        assert timed_out["status"] == "timed_out"
        resumed = await machine("runs", "resume", timed_out["run_id"], "--json")
        assert (resumed.code, resumed.json[0]["text"]) == (0, "All read."), resumed.err
        messages = str(server.requests[-1].messages)
    assert messages.count("the parent run ended without waiting for the result") == 1
    assert f"report run={timed_out['children'][0]}" in messages


async def test_a_continued_run_gets_the_result_that_arrived_before_the_ended_run_was_lost(
    machine: UserMachine,
):
    parent = HeldParent(machine, resume_window_seconds=0.001)
    async with machine.serve_models(parent.script):
        process = await machine.start("run", "Delegate.")
        await machine.wait_for_requests(2)
        await parent.wait_until_child_is_done()
        await machine.kill(process)
        (lost,) = (await machine("runs", "resume", "--json")).json
        assert (lost["status"], lost["reason"]) == ("lost", "stale")
        await parent.check_continued_run_gets_result_once(lost["run_id"])


async def test_a_continued_sub_agent_reports_to_the_inbox_of_its_parent(machine: UserMachine):
    machine.write_agent("helper", "tools: [read]\n")
    machine.write_config(approvals="auto")
    delegation = ("agent", {"agent_name": "helper", "task_prompt": "Read the notes."})

    def script(request: CapturedRequest) -> FakeResponse:
        if "Read the notes." in str(request.messages[1:2]):
            return fail_until_resumed(request)
        return text_reply("It failed.") if request.reply_count else tool_call_reply(delegation)

    async with machine.serve_models(script):
        (machine.folder / "notes.txt").write_text("seven bees")
        parent = (await machine("run", "--json", "Delegate.")).json
        (child,) = parent["children"]
        resumed = await machine("runs", "resume", child, "--json")
        assert [row["text"] for row in resumed.json if row["agent"] == "helper"] == ["All read."]
        inbox = await machine("inbox", parent["session_id"], "--json")
        assert "All read." in str(inbox.json) + Path(parent["path"]).read_text()


async def test_only_a_run_that_is_done_or_cancelled_cannot_be_resumed(machine: UserMachine):
    async with machine.serve_models([text_reply("Done."), text_reply("Never.", delay=60)]), machine.daemon():
        done = (await machine("run", "--json", "Go.")).json
        refused = await machine("runs", "resume", done["run_id"])
        assert refused.code == 3
        assert (
            f"Run {done['run_id']} has ended (done). Send its session a new message instead." in refused.err
        )
        live = (await machine("run", "--background", "--json", "Go.")).json
        await machine("runs", "cancel", live["run_id"])
        assert (await machine("runs", "resume", live["run_id"])).code == 3
