"""Subtasks and reviews, seen from outside: what the parent says of them, what lies in the inbox, and what a person does."""

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
LATER = ("spawn_subagent", SUBTASK | {"returnMode": "background"})
NOW = ("spawn_subagent", SUBTASK)


def by_prompt(
    *main: FakeResponse, helper: tuple[FakeResponse, ...]
) -> Callable[[CapturedRequest], FakeResponse]:
    """Two agents on one server, told apart by what their definitions say; the last reply is said again."""

    def answer(asked: CapturedRequest) -> FakeResponse:
        said = helper if "You help." in asked.messages[0]["content"] else main
        return said[min(asked.reply_count, len(said) - 1)]

    return answer


class Gate:
    """Holds the parent's second reply back, so that others see it in the middle of a turn, and the helper's until then."""

    def __init__(self, script: Callable[[CapturedRequest], FakeResponse]) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self._script = script

    def __call__(self, asked: CapturedRequest) -> Awaitable[FakeResponse]:
        return self._answer(asked)

    async def _answer(self, asked: CapturedRequest) -> FakeResponse:
        if "You help." in asked.messages[0]["content"]:
            await self.reached.wait()
        elif asked.reply_count == 1:
            self.reached.set()
            await self.open.wait()
        return self._script(asked)


def committed(folder: Path) -> None:
    """One file, in a repository with one commit."""
    (folder / "a.py").write_text("WIDTH = 40\n")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for words in (("init",), ("add", "--all"), ("commit", "--message", "Begin")):
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


async def posted(app: App) -> None:
    """Until a result waits for its requester."""
    while not any(row["delivery"] == "pending" for row in await app.inbox.list()):  # noqa: ASYNC110  (a row does not call)
        await asyncio.sleep(0.01)


async def test_the_parents_own_requests_hold_the_summary_and_nothing_else_of_the_childs(machine: UserMachine):
    """Shows: D001, D004, D016, D017, D018, D019, D025."""
    machine.write_agent("helper", "model: openai:x\ntools: [ls]\n", "You help.\n")
    working = tool_call_reply(("ls", {}), text="Inner thoughts.")
    script = by_prompt(
        tool_call_reply(NOW), text_reply("It is here."), helper=(working, text_reply("Here: x."))
    )
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Where is x?")
    assert (ran.code, ran.json["text"]) == (0, "It is here.")
    mine = [asked for asked in server.requests if "You help." not in asked.messages[0]["content"]]
    told = json.dumps([asked.messages for asked in mine])
    assert "Here: x." in told
    assert "Inner thoughts." not in told
    assert "Inner thoughts." not in Path(ran.json["path"]).read_text()
    shown = (await machine("sessions", "show", "--json", ran.json["slug"])).json
    (crumb,) = shown["announcements"]
    assert (crumb["type"], crumb["summary"]) == ("subtask", "Here: x.")
    assert (crumb["metadata"]["agent"], crumb["metadata"]["status"]) == ("helper", "complete")
    assert (crumb["metadata"]["label"], crumb["metadata"]["delivery"]) == ("find", "delivered")
    child = (await machine("sessions", "show", "--json", crumb["childSessionId"])).json
    assert child["path"] == crumb["metadata"]["transcript"]
    assert "Inner thoughts." in Path(child["path"]).read_text()
    words = (await machine("sessions", "show", ran.json["slug"])).out
    assert f"{child['slug']} complete: Here: x.\n" in words


async def test_what_tracks_a_child_is_kept_with_it(machine: UserMachine):
    """Shows: D015, D019."""
    machine.write_agent(
        "helper", "model: openai:x\nworkspace: {writable: false}\ntools: [read]\n", "You help.\n"
    )
    script = by_prompt(tool_call_reply(NOW), text_reply("Done."), helper=(text_reply("Here."),))
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


async def test_a_person_looks_into_the_inbox_and_the_parent_is_not_interrupted(machine: UserMachine):
    """Shows: D020, D023, D024, L013, L023."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = Gate(
        by_prompt(
            tool_call_reply(LATER),
            text_reply("Sent."),
            text_reply("Heard."),
            helper=(text_reply("Here: x."),),
        )
    )
    async with machine.serve_models(script), machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        await asyncio.wait_for(posted(app), 30)
        (row,) = (await machine("inbox", "--json")).json
        assert (row["status"], row["summary"], row["delivery"]) == ("complete", "Here: x.", "pending")
        assert (row["agentId"], row["capability"], row["recipient"]) == ("helper", "subtask", run.slug)
        assert Path(row["transcript"]).read_text().count("Here: x.") == 1
        (same,) = (await machine("inbox", "--json", run.slug)).json
        assert same == row
        kept = (await machine("runs", "show", "--json", row["runId"])).json
        assert (kept["status"], kept["text"], kept["delivery"]["state"]) == ("done", "Here: x.", "pending")
        refused = await machine("sessions", "delete", row["sessionId"])
        assert (refused.code, "are not delivered. Show them with `retinue inbox`" in refused.err) == (3, True)
        script.open.set()
        ended = await app.runs.wait(run.id)
    assert (ended.status, ended.text) == (Status.DONE, "Heard.")
    (row,) = (await machine("inbox", "--json")).json
    assert row["delivery"] == "delivered"
    assert (await machine("sessions", "delete", row["sessionId"])).code == 0


async def test_what_a_person_drained_no_model_is_told(machine: UserMachine):
    """Shows: D024."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = Gate(by_prompt(tool_call_reply(LATER), text_reply("Sent."), helper=(text_reply("Here: x."),)))
    async with machine.serve_models(script) as server, machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        await asyncio.wait_for(posted(app), 30)
        (drained,) = (await machine("inbox", run.slug, "--drain", "--json")).json
        assert (drained["summary"], drained["delivery"]) == ("Here: x.", "delivered")
        assert (await machine("inbox", "--drain", "--json")).json == []
        script.open.set()
        ended = await app.runs.wait(run.id)
    assert (ended.status, ended.text) == (Status.DONE, "Sent.")
    mine = [asked for asked in server.requests if "You help." not in asked.messages[0]["content"]]
    assert "Here: x." not in json.dumps([asked.messages for asked in mine])


async def test_whoever_listens_hears_that_a_result_waits_and_that_it_arrived(machine: UserMachine):
    """Shows: D021, D024."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    heard: list[tuple[str, str]] = []

    def hear(event: Event) -> None:
        heard.append((event.kind, event.agent))

    script = by_prompt(
        tool_call_reply(LATER), text_reply("Sent."), text_reply("Heard."), helper=(text_reply("Here: x."),)
    )
    async with machine.serve_models(script), machine.open() as app:
        with app.listen(hear):
            await app.run("Where is x?", workspace=machine.folder)
    of_child = [kind for kind, agent in heard if agent == "helper"]
    assert [kind for kind in of_child if not kind.startswith(("run.state", "entry."))] == [
        "run.queued",
        "run.started",
        *["text.delta"] * of_child.count("text.delta"),
        "run.ended",
        "announcement.posted",
        "announcement.delivered",
    ]
    assert of_child.count("text.delta") > 0


async def test_a_parent_is_not_deleted_while_somebody_below_is_at_work(machine: UserMachine):
    """Shows: D019, D022, L023."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    gate = asyncio.Event()
    played = by_prompt(
        tool_call_reply(LATER), text_reply("Sent."), text_reply("Heard."), helper=(text_reply("Here: x."),)
    )

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "You help." in asked.messages[0]["content"]:
            await gate.wait()
        return played(asked)

    async with machine.serve_models(script), machine.open() as app:
        run = await app.runs.start("Where is x?", RunOptions(workspace=machine.folder))
        while (await app.runs.find(run.id)).status is not Status.WAITING:  # noqa: ASYNC110  (a row does not call)
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


async def test_a_finding_is_passed_on_into_the_conversation_with_its_authors_name(machine: UserMachine):
    """Shows: D038, D039."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = by_prompt(
        tool_call_reply(LATER),
        text_reply("Sent."),
        text_reply("Heard."),
        helper=(text_reply("Blocking: x."),),
    )
    async with machine.serve_models(script) as server:
        ran = (await machine("run", "--json", "Go.")).json
        (row,) = (await machine("inbox", "--json")).json
        passed = await machine("inbox", "--promote", row["runId"], "--json")
        assert (passed.code, passed.json["agentId"]) == (0, "helper")
        told = Path(ran["path"]).read_text()
        assert f"<!-- user id={passed.json['entry']}" in told
        assert "from=agent:helper" in told
        assert "The user forwards this result of helper to you:" in told
        assert (await machine("send", ran["slug"], "What now?")).code == 0
        last = machine.request_texts(server.requests[-1])
    at = next(at for at, text in enumerate(last) if "The user forwards this result" in text)
    assert "Blocking: x." in last[at]
    assert "What now?" in last[at] or "What now?" in last[at + 1]
    missing = await machine("inbox", "--promote", "nothing")
    assert (missing.code, "Result nothing not found" in missing.err) == (7, True)


async def test_a_finding_that_was_passed_on_is_not_written_again(machine: UserMachine):
    """Shows: D039."""
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    script = by_prompt(
        tool_call_reply(LATER),
        text_reply("Sent."),
        text_reply("Heard."),
        helper=(text_reply("Blocking: x."),),
    )
    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
        (row,) = (await machine("inbox", "--json")).json
        first = (await machine("inbox", "--promote", row["runId"], "--json")).json
        told = Path(ran["path"]).read_text()
        again = await machine("inbox", "--promote", row["runId"], "--json")
    assert (first["already_promoted"], again.json["already_promoted"]) == (False, True)
    assert (again.code, again.json["entry"]) == (0, first["entry"])
    assert f"The result of helper is already in {ran['slug']}" in again.err
    assert Path(ran["path"]).read_text() == told


async def test_a_reviewer_reads_the_diff_and_its_findings_lie_in_the_inbox(machine: UserMachine):
    """Shows: D028, D037, D038."""
    committed(machine.folder)
    (machine.folder / "a.py").write_text("WIDTH = 41\n")

    sent = asyncio.Event()

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "You review changes." in asked.messages[0]["content"]:
            await sent.wait()
            return text_reply("Blocking: a.py:1.")
        if asked.reply_count:
            sent.set()
        return (tool_call_reply(("request_review", {})), text_reply("Sent."), text_reply("Heard."))[
            min(asked.reply_count, 2)
        ]

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Change the width.")
        assert (ran.code, ran.json["text"]) == (0, "Heard."), ran.err
    (asked,) = [each for each in server.requests if "You review changes." in each.messages[0]["content"]]
    assert "-WIDTH = 40\n+WIDTH = 41\n" in asked.messages[1]["content"]
    assert machine.tool_names(asked) == ["glob", "grep", "ls", "read"]
    (row,) = (await machine("inbox", "--json")).json
    assert (row["agentId"], row["summary"]) == ("reviewer", "Blocking: a.py:1.")
    assert "Blocking: a.py:1." in Path(row["transcript"]).read_text()


async def test_the_change_in_a_worktree_is_reviewed_though_its_agent_reaches_no_repository(
    machine: UserMachine,
):
    """Shows: D037."""
    committed(machine.folder)
    machine.write_agent("maker", "workspace: {isolation: sandbox, writable: true}\n", "You make.\n")
    write = ("write", {"path": "a.py", "content": "WIDTH = 42\n"})

    def script(asked: CapturedRequest) -> FakeResponse:
        if "You make." not in asked.messages[0]["content"]:
            return text_reply("Ready.")
        return (
            tool_call_reply(write),
            tool_call_reply(("request_review", {"returnMode": "blocking"})),
            text_reply("Done."),
        )[asked.reply_count]

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "--agent", "maker", "Change the width.")
        assert (ran.code, ran.json["text"]) == (0, "Done."), ran.err
    (asked,) = [each for each in server.requests if "You make." not in each.messages[0]["content"]]
    assert "-WIDTH = 40\n+WIDTH = 42\n" in asked.messages[1]["content"]
    assert (machine.folder / "a.py").read_text() == "WIDTH = 40\n"


async def test_a_call_gives_a_subtask_a_worktree_of_its_own(machine: UserMachine):
    """Shows: D003, D012."""
    committed(machine.folder)
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    place = {"workspace": {"mode": "sandbox", "allowWrites": True}}
    write = tool_call_reply(("write", {"path": "a.py", "content": "WIDTH = 43\n"}))
    script = by_prompt(
        tool_call_reply(("spawn_subagent", SUBTASK | place)),
        text_reply("Done."),
        helper=(write, text_reply("Written.")),
    )
    async with machine.serve_models(script):
        ran = (await machine("run", "--json", "Go.")).json
    (crumb,) = (await machine("sessions", "show", "--json", ran["slug"])).json["announcements"]
    child = (await machine("sessions", "show", "--json", crumb["childSessionId"])).json["workspace"]
    assert (child["isolation"], child["writable"], child["source"]) == ("sandbox", True, str(machine.folder))
    assert (Path(child["root"]) / "a.py").read_text() == "WIDTH = 43\n"
    assert (machine.folder / "a.py").read_text() == "WIDTH = 40\n"
