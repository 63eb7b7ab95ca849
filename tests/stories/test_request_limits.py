"""The limits `max_concurrent` and `requests_per_minute` of a provider, with real runs."""

import asyncio
from typing import Any

from user_machine import UserMachine, wait_until

from retinue import Event
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

CHILDREN = 6
DELEGATION = tool_call_reply(
    *[("agent", {"agent_name": "helper", "task_prompt": f"Part {number}."}) for number in range(CHILDREN)]
)


class GatedModel:
    """A model that answers when its gate is open, and counts the requests that it works on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.max_running = 0

    async def __call__(self, request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 0 and "Delegate." in str(request.messages):
            return DELEGATION
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await self.gate.wait()
        self.running -= 1
        return text_reply("Done.")


def configure(machine: UserMachine, server: FakeModelServer, **limits: Any) -> None:
    house = {"kind": "openai-chat", "base_url": server.url} | limits
    machine.write_config(model="house:m", approvals="auto", providers={"house": house})
    machine.write_agent("helper", "description: Helps.\n")


async def test_sub_agents_share_the_limit_of_their_server(machine: UserMachine):
    model = GatedModel()
    async with FakeModelServer(model) as server:
        configure(machine, server, max_concurrent=2)
        process = await machine.start("run", "--json", "Delegate.")
        await wait_until(lambda: model.running == 2)
        model.gate.set()
        out, _ = await process.communicate()
    assert process.returncode == 0, out
    assert (model.max_running, len(server.requests)) == (2, CHILDREN + 2)


async def test_a_run_in_the_queue_is_shown_can_be_cancelled_and_its_deadline_stands_still(
    machine: UserMachine,
):
    model = GatedModel()
    async with FakeModelServer(model) as server:
        configure(machine, server, max_concurrent=1)
        notes: list[str] = []

        def record_note(event: Event) -> None:
            notes.append(str(event.data.get("note") or ""))

        async with machine.open() as app:
            with app.listen(record_note):
                first = asyncio.create_task(app.run("First.", workspace=machine.folder))
                await wait_until(lambda: model.running == 1)
                patient = asyncio.create_task(app.run("Patient.", workspace=machine.folder, timeout=3))
                cancelled = asyncio.create_task(app.run("Cancelled.", workspace=machine.folder))
                await wait_until(lambda: sum("(max_concurrent = 1)" in note for note in notes) == 2)
            await asyncio.sleep(3.5)  # longer than the deadline of the run in the queue
            (waiting,) = [run for run in await app.runs.list(live=True) if run.request.task == "Cancelled."]
            await app.runs.cancel(waiting.id)
            model.gate.set()
            assert (await first).text == "Done."
            ended = await patient
            assert (ended.status, ended.error) == ("done", "")
            assert (await cancelled).status == "cancelled"
    assert (model.max_running, len(server.requests)) == (1, 2)


async def test_requests_per_minute_delay_the_next_request(machine: UserMachine):
    """One request every half minute: the second turn waits, and the run can be cancelled meanwhile."""
    script = [tool_call_reply(("ls", {})), tool_call_reply(("ls", {})), text_reply("Done.")]
    async with FakeModelServer(script) as server:
        configure(machine, server, requests_per_minute=1.9)
        process = await machine.start("run", "Look.")
        await wait_until(lambda: len(server.requests) == 1)
        (run,) = await machine.wait_for_live_runs("running")
        cancelled = await machine("runs", "cancel", run["run_id"])
        assert cancelled.code == 0
        await process.communicate()
        assert process.returncode == 5
    assert len(server.requests) == 1
