"""Subtasks and reviews through commands: summaries in the parent, the inbox, and promoted results."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from user_machine import UserMachine

from retinue import App
from retinue.app.run_options import RunOptions
from retinue.domain.event import Event
from retinue.domain.run import Status
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

SUBTASK = {"agentId": "helper", "prompt": "Find x.", "label": "find"}
BACKGROUND_CALL = ("spawn_subagent", SUBTASK | {"returnMode": "background"})
BLOCKING_CALL = ("spawn_subagent", SUBTASK)


def script_by_agent(
    *main: FakeResponse, helper: tuple[FakeResponse, ...]
) -> Callable[[CapturedRequest], FakeResponse]:
    """Reply as main or helper, depending on the prompt; the last reply repeats."""

    def script(request: CapturedRequest) -> FakeResponse:
        replies = helper if "You help." in request.messages[0]["content"] else main
        return replies[min(request.reply_count, len(replies) - 1)]

    return script


class GatedScript:
    """A script that holds the second reply of the parent until opened, and the replies of the helper until that request."""

    def __init__(self, script: Callable[[CapturedRequest], FakeResponse]) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self._script = script

    def __call__(self, request: CapturedRequest) -> Awaitable[FakeResponse]:
        return self._answer(request)

    async def _answer(self, request: CapturedRequest) -> FakeResponse:
        if "You help." in request.messages[0]["content"]:
            await self.reached.wait()
        elif request.reply_count == 1:
            self.reached.set()
            await self.open.wait()
        return self._script(request)


def create_repository(folder: Path) -> None:
    """Create a repository with one file and one commit."""
    (folder / "a.py").write_text("WIDTH = 40\n")
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for arguments in (("init",), ("add", "--all"), ("commit", "--message", "Begin")):
        subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


async def wait_for_pending_result(app: App) -> None:
    """Wait until a result is pending."""
    while not any(row["delivery"] == "pending" for row in await app.inbox.list()):  # noqa: ASYNC110  (a change of a row wakes nobody)
        await asyncio.sleep(0.01)


async def test_the_requests_of_the_parent_contain_only_the_summary_of_its_child(machine: UserMachine):
    """Shows: D001, D004, D016, D017, D018, D019, D025."""
    machine.write_agent("helper", "model: openai:x\ntools: [ls]\n", "You help.\n")
    tool_reply = tool_call_reply(("ls", {}), text="Text of the child.")
    script = script_by_agent(
        tool_call_reply(BLOCKING_CALL), text_reply("It is here."), helper=(tool_reply, text_reply("Here: x."))
    )
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Where is x?")
    assert (ran.code, ran.json["text"]) == (0, "It is here.")
    parent_requests = [
        request for request in server.requests if "You help." not in request.messages[0]["content"]
    ]
    sent_texts = json.dumps([request.messages for request in parent_requests])
    assert "Here: x." in sent_texts
    assert "Text of the child." not in sent_texts
    assert "Text of the child." not in Path(ran.json["path"]).read_text()
    shown = (await machine("sessions", "show", "--json", ran.json["slug"])).json
    (announcement,) = shown["announcements"]
    assert (announcement["type"], announcement["summary"]) == ("subtask", "Here: x.")
    assert (announcement["metadata"]["agent"], announcement["metadata"]["status"]) == ("helper", "complete")
    assert (announcement["metadata"]["label"], announcement["metadata"]["delivery"]) == ("find", "delivered")
    child = (await machine("sessions", "show", "--json", announcement["childSessionId"])).json
    assert child["path"] == announcement["metadata"]["transcript"]
    assert "Text of the child." in Path(child["path"]).read_text()
    output = (await machine("sessions", "show", ran.json["slug"])).out
    assert f"{child['slug']} complete: Here: x.\n" in output


async def test_the_trigger_workspace_and_permissions_of_a_child_are_stored_with_its_session(
    machine: UserMachine,
):
    """Shows: D015, D019."""
    machine.write_agent(
        "helper", "model: openai:x\nworkspace: {writable: false}\ntools: [read]\n", "You help.\n"
    )
    script = script_by_agent(
        tool_call_reply(BLOCKING_CALL), text_reply("Done."), helper=(text_reply("Here."),)
    )
    async with machine.serve_models(script):
        parent = (await machine("run", "--json", "Go.")).json
        await machine("spawn", "--parent", parent["slug"], "--agent", "helper", "Look again.")
    shown = (await machine("sessions", "show", "--json", parent["slug"])).json
    by_tool, by_command = shown["announcements"]
    assert [each["metadata"]["trigger"] for each in (by_tool, by_command)] == ["tool", "command"]
    child = (await machine("sessions", "show", "--json", by_tool["childSessionId"])).json
    assert (child["agent"], child["parent"]) == ("helper", parent["session_id"])
    assert (child["attributes"]["role"], child["attributes"]["trigger"]) == ("subtask", "tool")
    assert (child["workspace"]["root"], child["workspace"]["writable"]) == (str(machine.folder), False)
    assert child["permissions"]["tools"] == {"allow": ["read"], "deny": None}
    assert child["permissions"]["writable"] is False
    assert child["created_at"] <= child["updated_at"]
    assert {"startedAt", "endedAt"} <= set(by_tool["metadata"])


async def test_a_person_can_read_the_inbox_without_interrupting_the_parent(machine: UserMachine):
    """Shows: D020, D023, D024, L013, L023."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = GatedScript(
        script_by_agent(
            tool_call_reply(BACKGROUND_CALL),
            text_reply("Sent."),
            text_reply("Received."),
            helper=(text_reply("Here: x."),),
        )
    )
    async with machine.serve_models(script), machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        await asyncio.wait_for(wait_for_pending_result(app), 30)
        (row,) = (await machine("inbox", "--json")).json
        assert (row["status"], row["summary"], row["delivery"]) == ("complete", "Here: x.", "pending")
        assert (row["agentId"], row["capability"], row["recipient"]) == ("helper", "subtask", run.slug)
        assert Path(row["transcript"]).read_text().count("Here: x.") == 1
        (same,) = (await machine("inbox", "--json", run.slug)).json
        assert same == row
        child = (await machine("runs", "show", "--json", row["runId"])).json
        assert (child["status"], child["text"], child["delivery"]["state"]) == ("done", "Here: x.", "pending")
        refused = await machine("sessions", "delete", row["sessionId"])
        assert (refused.code, "are not delivered. Show them with `retinue inbox`" in refused.err) == (3, True)
        script.open.set()
        ended = await app.runs.wait(run.id)
    assert (ended.status, ended.text) == (Status.DONE, "Received.")
    (row,) = (await machine("inbox", "--json")).json
    assert row["delivery"] == "delivered"
    assert (await machine("sessions", "delete", row["sessionId"])).code == 0


async def test_a_result_drained_by_a_person_is_not_sent_to_the_model(machine: UserMachine):
    """Shows: D024."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = GatedScript(
        script_by_agent(
            tool_call_reply(BACKGROUND_CALL), text_reply("Sent."), helper=(text_reply("Here: x."),)
        )
    )
    async with machine.serve_models(script) as server, machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        await asyncio.wait_for(wait_for_pending_result(app), 30)
        (drained,) = (await machine("inbox", run.slug, "--drain", "--json")).json
        assert (drained["summary"], drained["delivery"]) == ("Here: x.", "delivered")
        assert (await machine("inbox", "--drain", "--json")).json == []
        script.open.set()
        ended = await app.runs.wait(run.id)
    assert (ended.status, ended.text) == (Status.DONE, "Sent.")
    parent_requests = [
        request for request in server.requests if "You help." not in request.messages[0]["content"]
    ]
    assert "Here: x." not in json.dumps([request.messages for request in parent_requests])


async def test_events_report_that_an_announcement_was_posted_and_delivered(machine: UserMachine):
    """Shows: D021, D024."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    events: list[tuple[str, str]] = []

    def record_event(event: Event) -> None:
        events.append((event.kind, event.agent))

    script = script_by_agent(
        tool_call_reply(BACKGROUND_CALL),
        text_reply("Sent."),
        text_reply("Received."),
        helper=(text_reply("Here: x."),),
    )
    async with machine.serve_models(script), machine.open() as app:
        with app.listen(record_event):
            await app.run("Where is x?", workspace=machine.folder)
    child_events = [kind for kind, agent in events if agent == "helper"]
    assert [kind for kind in child_events if not kind.startswith(("run.state", "entry."))] == [
        "run.queued",
        "run.started",
        *["text.delta"] * child_events.count("text.delta"),
        "run.ended",
        "announcement.posted",
        "announcement.delivered",
    ]
    assert child_events.count("text.delta") > 0


async def test_a_session_cannot_be_deleted_while_a_child_is_running(machine: UserMachine):
    """Shows: D019, D022, L023."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    gate = asyncio.Event()
    replies = script_by_agent(
        tool_call_reply(BACKGROUND_CALL),
        text_reply("Sent."),
        text_reply("Received."),
        helper=(text_reply("Here: x."),),
    )

    async def script(request: CapturedRequest) -> FakeResponse:
        if "You help." in request.messages[0]["content"]:
            await gate.wait()
        return replies(request)

    async with machine.serve_models(script), machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        while (await app.runs.find(run.id)).status is not Status.WAITING:  # noqa: ASYNC110  (a change of a row wakes nobody)
            await asyncio.sleep(0.01)
        (child,) = [each for each in await app.runs.list(live=True) if each.id != run.id]
        shown = (await machine("sessions", "show", "--json", run.slug)).json["announcements"]
        assert [each["summary"] for each in shown] == ["Started helper via tool"]
        assert (await machine("sessions", "delete", run.slug)).code == 3
        assert (await machine("runs", "show", "--json", child.id)).json["status"] == "running"
        assert (await machine("runs", "cancel", "--json", child.id)).json["status"] == "cancelled"
        gate.set()
        await app.runs.wait(run.id)
    (row,) = (await machine("inbox", "--json")).json
    assert (row["status"], row["error"], row["summary"]) == ("error", "cancelled", None)


def script_with_background_result() -> Callable[[CapturedRequest], FakeResponse]:
    """Return a script with which an agent starts `helper` in the background and receives its result."""
    return script_by_agent(
        tool_call_reply(BACKGROUND_CALL),
        text_reply("Sent."),
        text_reply("Received."),
        helper=(text_reply("Blocking: x."),),
    )


async def test_a_promoted_result_is_added_to_the_session_with_the_name_of_its_author(machine: UserMachine):
    """Shows: D038, D039."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = script_with_background_result()
    async with machine.serve_models(script) as server:
        ran = (await machine("run", "--json", "Go.")).json
        (row,) = (await machine("inbox", "--json")).json
        promoted = await machine("inbox", "--promote", row["runId"], "--json")
        assert (promoted.code, promoted.json["agentId"]) == (0, "helper")
        transcript = Path(ran["path"]).read_text()
        assert f"<!-- user id={promoted.json['entry']}" in transcript
        assert "from=agent:helper" in transcript
        assert "The user forwarded this result from helper:" in transcript
        assert (await machine("send", ran["slug"], "What now?")).code == 0
        texts = machine.request_texts(server.requests[-1])
    index = next(index for index, text in enumerate(texts) if "The user forwarded this result" in text)
    assert "Blocking: x." in texts[index]
    assert "What now?" in texts[index] or "What now?" in texts[index + 1]
    missing = await machine("inbox", "--promote", "nothing")
    assert (missing.code, "Result nothing not found" in missing.err) == (7, True)


async def test_a_result_is_promoted_only_once(machine: UserMachine):
    """Shows: D039."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = script_with_background_result()
    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
        (row,) = (await machine("inbox", "--json")).json
        first = (await machine("inbox", "--promote", row["runId"], "--json")).json
        transcript = Path(ran["path"]).read_text()
        again = await machine("inbox", "--promote", row["runId"], "--json")
    assert (first["already_promoted"], again.json["already_promoted"]) == (False, True)
    assert (again.code, again.json["entry"]) == (0, first["entry"])
    assert f"The result of helper is already in {ran['slug']}" in again.err
    assert Path(ran["path"]).read_text() == transcript


async def test_a_reviewer_receives_the_diff_and_its_findings_are_in_the_inbox(machine: UserMachine):
    """Shows: D028, D037, D038."""
    create_repository(machine.folder)
    (machine.folder / "a.py").write_text("WIDTH = 41\n")

    parent_replied = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if "You review changes." in request.messages[0]["content"]:
            await parent_replied.wait()
            return text_reply("Blocking: a.py:1.")
        if request.reply_count:
            parent_replied.set()
        return (tool_call_reply(("request_review", {})), text_reply("Sent."), text_reply("Received."))[
            min(request.reply_count, 2)
        ]

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Change the width.")
        assert (ran.code, ran.json["text"]) == (0, "Received."), ran.err
    (review,) = [each for each in server.requests if "You review changes." in each.messages[0]["content"]]
    assert "-WIDTH = 40\n+WIDTH = 41\n" in review.messages[1]["content"]
    assert machine.tool_names(review) == ["glob", "grep", "ls", "read"]
    (row,) = (await machine("inbox", "--json")).json
    assert (row["agentId"], row["summary"]) == ("reviewer", "Blocking: a.py:1.")
    assert "Blocking: a.py:1." in Path(row["transcript"]).read_text()


async def test_a_change_in_a_worktree_is_reviewed_although_its_agent_has_no_access_to_the_repository(
    machine: UserMachine,
):
    """Shows: D037."""
    create_repository(machine.folder)
    machine.write_agent("maker", "workspace: {isolation: sandbox, writable: true}\n", "You make.\n")
    write = ("write", {"path": "a.py", "content": "WIDTH = 42\n"})

    def script(request: CapturedRequest) -> FakeResponse:
        if "You make." not in request.messages[0]["content"]:
            return text_reply("Ready.")
        return (
            tool_call_reply(write),
            tool_call_reply(("request_review", {"returnMode": "blocking"})),
            text_reply("Done."),
        )[request.reply_count]

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "--agent", "maker", "Change the width.")
        assert (ran.code, ran.json["text"]) == (0, "Done."), ran.err
    (review,) = [each for each in server.requests if "You make." not in each.messages[0]["content"]]
    assert "-WIDTH = 40\n+WIDTH = 42\n" in review.messages[1]["content"]
    assert (machine.folder / "a.py").read_text() == "WIDTH = 40\n"


async def test_a_call_can_give_a_subtask_its_own_worktree(machine: UserMachine):
    """Shows: D003, D012."""
    create_repository(machine.folder)
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    workspace = {"workspace": {"mode": "sandbox", "allowWrites": True}}
    write = tool_call_reply(("write", {"path": "a.py", "content": "WIDTH = 43\n"}))
    script = script_by_agent(
        tool_call_reply(("spawn_subagent", SUBTASK | workspace)),
        text_reply("Done."),
        helper=(write, text_reply("Written.")),
    )
    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
    (announcement,) = (await machine("sessions", "show", "--json", ran["slug"])).json["announcements"]
    child = (await machine("sessions", "show", "--json", announcement["childSessionId"])).json["workspace"]
    assert (child["isolation"], child["writable"], child["source"]) == ("sandbox", True, str(machine.folder))
    assert (Path(child["root"]) / "a.py").read_text() == "WIDTH = 43\n"
    assert (machine.folder / "a.py").read_text() == "WIDTH = 40\n"
