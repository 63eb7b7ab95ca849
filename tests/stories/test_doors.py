"""Work handed on, seen from outside: one answer, and files that tell the whole story."""

from pathlib import Path

from user_machine import UserMachine

from retinue.domain.run import Status
from retinue.testing.fake_model_server import Captured
from retinue.testing.replies import Answer, calls, reply

HAND_ON = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})


def by_prompt(asked: Captured) -> Answer:
    """Two agents on one server, told apart by what their definitions say."""
    body = asked.body
    said = [each for each in body["messages"] if each["role"] in ("assistant", "tool")]
    if "You help." in body["messages"][0]["content"]:
        return reply("Here: x.") if said else calls(("ls", {}), text="Looking.")
    return reply("It is here.") if said else calls(HAND_ON, text="I hand on.")


async def test_an_agent_hands_work_on_and_answers_with_what_came_back(machine: UserMachine):
    """Shows: A001, A004, A005, A008, A046, A048."""
    machine.agent("helper", "model: openai:x\n", "You help.\n")
    async with machine.serving(by_prompt) as server, machine.open(approvals="auto") as app:
        run = await app.run("Where is x?", workspace=machine.folder)
        assert (run.status, run.text) == (Status.DONE, "It is here.")
        (child,) = [each for each in await app.runs(live=False) if each.id != run.id]
        assert (child.status, child.agent, child.ask.parent_run) == (Status.DONE, "helper", run.id)
    told = Path(run.path).read_text()
    assert "Looking.\n\nHere: x." in told
    assert "Find x." in Path(child.path).read_text()
    first = server.requests[0].body
    (door,) = [each["function"] for each in first["tools"] if each["function"]["name"] == "PersistentAgent"]
    assert "helper" in door["parameters"]["properties"]["preset"]["enum"]
    assert door["parameters"]["required"] == ["preset", "description", "prompt"]
