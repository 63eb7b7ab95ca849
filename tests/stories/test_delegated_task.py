"""A task delegated with PersistentAgent: the result, and the transcripts of parent and child."""

from pathlib import Path

from model_scripts import is_from_helper
from user_machine import UserMachine

from retinue.domain.run import Status
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

DELEGATE = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})


def reply_by_agent(request: CapturedRequest) -> FakeResponse:
    """Answer as the agent that sent the request."""
    if is_from_helper(request):
        return text_reply("Here: x.") if request.reply_count else tool_call_reply(("ls", {}), text="Looking.")
    return text_reply("It is here.") if request.reply_count else tool_call_reply(DELEGATE, text="I hand on.")


async def test_an_agent_delegates_a_task_and_uses_its_result(machine: UserMachine):
    """Shows: A001, A004, A005, A008, A046, A048."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    async with machine.serve_models(reply_by_agent) as server, machine.open(approvals="auto") as app:
        run = await app.run("Where is x?", workspace=machine.folder)
        assert (run.status, run.text) == (Status.DONE, "It is here.")
        (child,) = [each for each in await app.runs.list(live=False) if each.id != run.id]
        assert (child.status, child.agent, child.request.parent_run) == (Status.DONE, "helper", run.id)
    transcript = Path(run.transcript_path).read_text()
    assert "Looking.\n\nHere: x." in transcript
    assert "Find x." in Path(child.transcript_path).read_text()
    first = server.requests[0].body
    (tool,) = [each["function"] for each in first["tools"] if each["function"]["name"] == "PersistentAgent"]
    assert "helper" in tool["parameters"]["properties"]["preset"]["enum"]
    assert tool["parameters"]["required"] == ["preset", "description", "prompt"]
