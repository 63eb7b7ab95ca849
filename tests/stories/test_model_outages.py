"""Outages of a model's server: runs wait for it without a slot, and continue when it answers again."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from user_machine import TIMEOUT_S, UserMachine, wait_until

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import (
    FakeResponse,
    http_error,
    stalled_stream,
    stream_error,
    text_reply,
    tool_call_reply,
)

CHILDREN = 12
DELEGATION = tool_call_reply(
    *[("agent", {"agent_name": "helper", "task_prompt": f"Part {number}."}) for number in range(CHILDREN)]
)


class Outage:
    """A script of two servers: OpenAI's may be down, Anthropic's always answers."""

    def __init__(self, *, status: int = 503, down: bool = True) -> None:
        self.down = down
        self.status = status
        self.refused = 0

    def __call__(self, request: CapturedRequest) -> FakeResponse:
        if request.path.endswith("/messages"):
            return text_reply("Still here.")
        if self.down:
            self.refused += 1
            return http_error(self.status, "down for maintenance", kind="insufficient_quota")
        if request.reply_count == 0 and "Delegate." in str(request.messages):
            return DELEGATION
        return text_reply("All is well.")


def configure(machine: UserMachine, **limits: Any) -> None:
    server = {"retry_seconds": 0.2}
    machine.write_config(
        approvals="auto", providers={"openai": server, "anthropic": server}, limits={"max_live": 1} | limits
    )


async def wait_for_outage(machine: UserMachine) -> dict[str, Any]:
    """Wait until the only live run waits for its model, between two probes, and return it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            await machine.wait_for_live_runs("waiting")
            (run,) = (await machine("runs", "list", "--json")).json
            if run["status"] == "waiting":
                assert run["waiting_for"] == "model"
                return run


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_a_command_waits_for_a_server_that_is_down_and_continues_by_itself(
    machine: UserMachine, status: int
):
    """Shows: M02."""
    configure(machine)
    outage = Outage(status=status)
    async with machine.serve_models(outage):
        process = await machine.start("run", "Hello.")
        run = await wait_for_outage(machine)
        assert "down for maintenance" in run["error"]
        listed = await machine("runs", "list")
        assert "waiting for model" in listed.out
        assert "down for maintenance" in listed.out
        await wait_until(lambda: outage.refused > 3)
        outage.down = False
        out, err = await process.communicate()
        assert (process.returncode, out.decode()) == (0, "All is well.\n")
        waits = [line for line in err.decode().splitlines() if "waiting for its model" in line]
        assert len(waits) == 1
        assert "down for maintenance" in waits[0]
    ended = (await machine("runs", "show", run["run_id"], "--json")).json
    assert (ended["status"], ended["error"], ended["reason"], ended["attempts"]) == ("done", None, None, 1)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_replies_that_keep_breaking_off_leave_no_trace_in_the_conversation(
    machine: UserMachine, provider: str
):
    configure(machine)
    broken = True
    async with machine.serve_models(
        lambda _: stream_error(text="I thi") if broken else text_reply("I think so.")
    ) as server:
        process = await machine.start("run", "--json", "--model", f"{provider}:model", "Do you?")
        await machine.wait_for_live_runs("waiting")
        count = len(server.requests)
        await wait_until(lambda: len(server.requests) > count + 1)
        broken = False
        out, _ = await process.communicate()
    ended = json.loads(out)
    assert (process.returncode, ended["status"], ended["text"], ended["turns"]) == (
        0,
        "done",
        "I think so.",
        1,
    )
    first, *others = [request.messages for request in server.requests]
    assert others == [first] * len(others)


async def test_a_refused_connection_is_waited_for(machine: UserMachine):
    configure(machine)
    async with machine.serve_models([text_reply("Never.")]) as gone:
        port = int(gone.url.rpartition(":")[2])
    process = await machine.start("run", "Hello.")
    await wait_for_outage(machine)
    async with FakeModelServer([text_reply("Here.")], port=port):
        out, _ = await process.communicate()
        assert (process.returncode, out.decode()) == (0, "Here.\n")


async def test_a_run_that_waits_for_its_model_holds_no_slot_and_no_deadline(machine: UserMachine):
    configure(machine)
    outage = Outage()
    async with machine.serve_models(outage), machine.daemon():
        run = (await machine("run", "--background", "--json", "--timeout", "2", "Hello.")).json
        await wait_for_outage(machine)
        other = await machine("run", "--model", "anthropic:claude", "And you?")
        assert (other.code, other.out) == (0, "Still here.\n")
        shown = (await machine("runs", "show", run["run_id"], "--json")).json
        assert (shown["waiting_for"], shown["deadline_at"]) == ("model", None)
        outage.down = False
        assert (await machine.wait_for_end(run["run_id"]))["status"] == "done"


async def test_an_attempt_that_fails_slowly_does_not_count_against_any_deadline(machine: UserMachine):
    machine.write_agent("helper", "model: anthropic:model\n")
    server = {"retry_seconds": 0.2, "idle_seconds": 4}
    machine.write_config(
        approvals="auto",
        providers={"openai": server, "anthropic": server},
        limits={"deadline_seconds": 3},
    )
    attempts = 0
    down = True

    def respond(request: CapturedRequest) -> FakeResponse:
        nonlocal attempts
        if not request.path.endswith("/messages"):
            call = tool_call_reply(("agent", {"agent_name": "helper", "task_prompt": "Help."}))
            return call if request.reply_count == 0 else text_reply("All is well.")
        if not down:
            return text_reply("Helped.")
        attempts += 1
        return http_error(503) if attempts == 1 else stalled_stream()

    async with machine.serve_models(respond), machine.daemon():
        run = (await machine("run", "--background", "--json", "Delegate.")).json
        await machine.wait_for_live_runs("waiting", "waiting")
        await machine.wait_for_live_runs("waiting", "running")
        shown = (await machine("runs", "show", run["run_id"], "--json")).json
        assert (shown["waiting_for"], shown["deadline_at"]) == ("child", None)
        await machine.wait_for_live_runs("waiting", "waiting")
        down = False
        ended = await machine.wait_for_end(run["run_id"])
        (child,) = ended["children"]
        assert (await machine.wait_for_end(child))["status"] == "done"
        assert (ended["status"], ended["text"]) == ("done", "All is well.")


async def test_the_clock_of_a_parent_stops_while_a_request_of_its_sub_agent_is_tried_again(
    machine: UserMachine,
):
    machine.write_agent("helper")
    machine.write_config(approvals="auto")
    down = True

    def respond(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 0 and "Delegate." in str(request.messages):
            return DELEGATION
        return http_error(503) if down else text_reply("All is well.")

    async with machine.serve_models(respond), machine.daemon():
        run = (await machine("run", "--background", "--json", "Delegate.")).json["run_id"]
        async with asyncio.timeout(TIMEOUT_S):
            while (await machine("runs", "show", run, "--json")).json["deadline_at"] is not None:
                pass
        live = (await machine("runs", "list", "--json")).json
        assert [each["waiting_for"] for each in live if each["run_id"] == run] == ["child"]
        assert {each["status"] for each in live if each["run_id"] != run} == {"running"}
        down = False
        assert (await machine.wait_for_end(run))["status"] == "done"


async def test_a_tree_survives_an_outage_with_one_run_that_asks_again(machine: UserMachine):
    """Shows: M02."""
    machine.write_agent("helper")
    configure(machine, max_live=16)
    outage = Outage(down=False)
    async with machine.serve_models(outage) as server, machine.daemon():
        run = (await machine("run", "--background", "--json", "Delegate.")).json
        await machine.wait_for_requests(1)
        outage.down = True
        waiting = ["waiting"] * (CHILDREN + 1)
        await machine.wait_for_live_runs(*waiting)
        while outage.refused < CHILDREN:  # noqa: ASYNC110  (another process sends them: nothing to wait on)
            await asyncio.sleep(0.01)
        outage.down = False
        ended = await machine.wait_for_end(run["run_id"])
        assert (ended["status"], ended["text"]) == ("done", "All is well.")
        children = [(await machine("runs", "show", each, "--json")).json for each in ended["children"]]
        assert [child["status"] for child in children] == ["done"] * CHILDREN
        assert len(server.requests) - outage.refused == CHILDREN + 2


async def test_a_run_that_waits_for_its_model_survives_the_kill_of_its_daemon(machine: UserMachine):
    configure(machine)
    outage = Outage()
    async with machine.serve_models(outage):
        async with machine.daemon():
            run = (await machine("run", "--background", "--json", "Hello.")).json
            await wait_for_outage(machine)
        refused = outage.refused
        async with machine.daemon():
            await wait_until(lambda: outage.refused > refused)
            outage.down = False
            ended = await machine.wait_for_end(run["run_id"])
    assert (ended["status"], ended["text"], ended["error"]) == ("done", "All is well.", None)


async def test_kills_while_a_request_is_tried_again_do_not_count_as_crashes_of_its_run(machine: UserMachine):
    machine.write_config(approvals="auto")
    outage = Outage()
    async with machine.serve_models(outage):
        async with machine.daemon():
            run = (await machine("run", "--background", "--json", "Hello.")).json["run_id"]
            await wait_for_pause(machine, run, lambda: outage.refused > 0)
        for _ in range(3):
            refused = outage.refused
            async with machine.daemon():
                await wait_for_pause(machine, run, lambda: outage.refused > refused)  # noqa: B023  (awaited here)
        async with machine.daemon():
            outage.down = False
            ended = await machine.wait_for_end(run)
    assert (ended["status"], ended["text"]) == ("done", "All is well.")


async def wait_for_pause(machine: UserMachine, run: str, has_failed: Callable[[], bool]) -> None:
    """Wait until a run pauses after a failed attempt of a request."""
    await wait_until(has_failed)
    async with asyncio.timeout(TIMEOUT_S):
        while (await machine("runs", "show", run, "--json")).json["deadline_at"] is not None:
            pass


async def test_a_person_can_cancel_a_run_that_waits_for_its_model_or_switch_its_model(machine: UserMachine):
    configure(machine)
    outage = Outage()
    async with machine.serve_models(outage), machine.daemon():
        first = (await machine("run", "--background", "--json", "Hello.")).json
        await wait_for_outage(machine)
        assert (await machine("runs", "cancel", first["run_id"])).code == 0
        second = (await machine("run", "--background", "--json", "Hello.")).json
        await wait_for_outage(machine)
        resumed = await machine("runs", "resume", second["run_id"], "--model", "anthropic:claude")
        assert (resumed.code, "Still here." in resumed.out) == (0, True)
        shown = (await machine("runs", "show", second["run_id"], "--json")).json
    assert (shown["status"], shown["model"]) == ("done", "anthropic:claude")


async def test_resuming_a_sub_agent_does_not_wait_for_the_tree_of_another_process(machine: UserMachine):
    machine.write_agent("helper")
    configure(machine, max_live=16)
    outage = Outage(down=False)
    async with machine.serve_models(outage), machine.daemon():
        run = (await machine("run", "--background", "--json", "Delegate.")).json
        await machine.wait_for_requests(1)
        outage.down = True
        await machine.wait_for_live_runs(*["waiting"] * (CHILDREN + 1))
        live = (await machine("runs", "list", "--json")).json
        child = next(each["run_id"] for each in live if each["agent"] == "helper")
        resumed = await machine("runs", "resume", child, "--model", "anthropic:claude", "--json")
        assert [(each["run_id"], each["status"]) for each in resumed.json] == [(child, "done")]
        assert (await machine("wait", child)).code == 0
        assert (await machine("runs", "show", run["run_id"], "--json")).json["status"] == "waiting"
        outage.down = False
        assert (await machine.wait_for_end(run["run_id"]))["status"] == "done"


async def test_a_run_that_waited_too_long_is_suspended_until_a_person_resumes_it(machine: UserMachine):
    configure(machine, model_wait_seconds=0.5)
    outage = Outage()
    async with machine.serve_models(outage):
        suspended = await machine("run", "Hello.")
        assert suspended.code == 6
        (run,) = (await machine("runs", "list", "--json")).json
        assert (run["status"], run["waiting_for"], run["reason"]) == ("waiting", "person", "model")
        assert f"retinue runs resume {run['run_id']}" in suspended.err
        assert f"retinue runs resume {run['run_id']}" in (await machine("runs", "show", run["run_id"])).out
        outage.down = False
        resumed = await machine("runs", "resume", run["run_id"])
        assert (resumed.code, "All is well." in resumed.out) == (0, True)
