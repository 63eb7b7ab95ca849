"""Work handed on, seen from outside: one answer, and files that tell the whole story."""

from pathlib import Path

from user_machine import UserMachine

from retinue.domain.run import Status
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

HAND_ON = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})


def by_prompt(asked: CapturedRequest) -> FakeResponse:
    """Two agents on one server, told apart by what their definitions say."""
    body = asked.body
    said = [each for each in body["messages"] if each["role"] in ("assistant", "tool")]
    if "You help." in body["messages"][0]["content"]:
        return text_reply("Here: x.") if said else tool_call_reply(("ls", {}), text="Looking.")
    return text_reply("It is here.") if said else tool_call_reply(HAND_ON, text="I hand on.")


async def test_an_agent_hands_work_on_and_answers_with_what_came_back(machine: UserMachine):
    """Shows: A001, A004, A005, A008, A046, A048."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    async with machine.serve_models(by_prompt) as server, machine.open(approvals="auto") as app:
        run = await app.run("Where is x?", workspace=machine.folder)
        assert (run.status, run.text) == (Status.DONE, "It is here.")
        (child,) = [each for each in await app.runs.list(live=False) if each.id != run.id]
        assert (child.status, child.agent, child.request.parent_run) == (Status.DONE, "helper", run.id)
    told = Path(run.transcript_path).read_text()
    assert "Looking.\n\nHere: x." in told
    assert "Find x." in Path(child.transcript_path).read_text()
    first = server.requests[0].body
    (door,) = [each["function"] for each in first["tools"] if each["function"]["name"] == "PersistentAgent"]
    assert "helper" in door["parameters"]["properties"]["preset"]["enum"]
    assert door["parameters"]["required"] == ["preset", "description", "prompt"]
