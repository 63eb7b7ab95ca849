"""What a parent receives of its sub-agents: bounded text that it can read whole, a short summary, and files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

LIMIT = 60_000
LINES = [f"line {number:05} of the long report" for number in range(8_000)]
LONG_TEXT = "\n".join(LINES)
DELEGATION_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "PersistentAgent": (
        "PersistentAgent",
        {"preset": "helper", "description": "look", "prompt": "Find x."},
    ),
    "agent": ("agent", {"agent_name": "helper", "task_prompt": "Find x."}),
    "agents_message": ("agents_message", {"agentId": "helper", "content": "Find x."}),
    "spawn_subagent": ("spawn_subagent", {"agentId": "helper", "prompt": "Find x."}),
    "spawn_subagent in the background": (
        "spawn_subagent",
        {"agentId": "helper", "prompt": "Find x.", "returnMode": "background"},
    ),
    "sessions_spawn": ("sessions_spawn", {"task": "Find x."}),
}


def request_text(request: CapturedRequest) -> str:
    """Return everything in a request that is not the system prompt or the tools."""
    return "\n".join(str(message.get("content") or "") for message in request.messages[1:])


def find_run_id(request: CapturedRequest) -> str:
    """Return the run that the parent was told to read."""
    found = re.search(r"result:([0-9A-Z]+)", request_text(request).replace("\\", ""))
    assert found is not None, request_text(request)[-2_000:]
    return found.group(1)


class Script:
    """The child gives one report; the parent delegates, then follows its own steps."""

    def __init__(
        self,
        call: tuple[str, dict[str, Any]],
        *steps: Callable[[CapturedRequest], FakeResponse],
        child: tuple[FakeResponse, ...],
    ) -> None:
        self.call = call
        self.steps = steps
        self.child = child
        self.parent_requests: list[CapturedRequest] = []
        self.child_requests: list[CapturedRequest] = []

    def __call__(self, request: CapturedRequest) -> FakeResponse:
        if self.parent_requests and request.messages[1] != self.parent_requests[0].messages[1]:
            self.child_requests.append(request)
            return self.child[min(request.reply_count, len(self.child) - 1)]
        self.parent_requests.append(request)
        if request.reply_count == 0:
            return tool_call_reply(self.call)
        return self.steps[min(request.reply_count, len(self.steps)) - 1](request)


def reply_done(_: CapturedRequest) -> FakeResponse:
    return text_reply("Received.")


def read_whole(request: CapturedRequest) -> FakeResponse:
    """Read the whole result once its name has arrived; wait for it until then."""
    if "result:" not in request_text(request):
        return text_reply("Waiting.")
    if LINES[4_000] in request_text(request):
        return text_reply("Received.")
    run = find_run_id(request)
    return tool_call_reply(
        ("read", {"path": f"result:{run}", "offset": 4_000, "limit": 3}),
        ("read", {"path": f"result:{run}", "offset": 7_999}),
    )


@pytest.mark.parametrize("name", DELEGATION_CALLS)
async def test_a_long_result_reaches_the_parent_shortened_and_can_be_read_whole(
    machine: UserMachine, name: str
):
    machine.write_config(approvals="auto")
    machine.write_agent("general", "", "You delegate.\n")
    machine.write_agent("helper", "paths: {read: []}\n", "You help.\n")
    script = Script(DELEGATION_CALLS[name], read_whole, child=(text_reply(LONG_TEXT, piece=50_000),))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Where is x?")
    assert (ran.code, ran.json["text"]) == (0, "Received."), ran.err
    received = [m for m in script.parent_requests[-1].messages if "line 00000" in str(m.get("content"))]
    (whole,) = [str(m["content"]) for m in received if "characters omitted" in str(m["content"])]
    assert len(whole) < LIMIT * 1.3
    assert "line 00000" in whole
    assert "line 07999" in whole
    assert LINES[4_000] not in whole
    assert f"of {len(LONG_TEXT):,} characters omitted" in whole
    assert "truncated" in whole
    parts = [str(m["content"]) for m in script.parent_requests[-1].messages if m["role"] == "tool"][-2:]
    assert parts[0].splitlines()[:3] == LINES[3_999:4_002]
    assert LINES[7_999] in parts[1]


async def test_the_limit_of_a_result_is_a_setting(machine: UserMachine):
    machine.write_config(approvals="auto", limits={"child_result_chars": 2_000})
    machine.write_agent("helper", "", "You help.\n")
    script = Script(DELEGATION_CALLS["spawn_subagent"], reply_done, child=(text_reply(LONG_TEXT),))
    async with machine.serve_models(script):
        await machine("run", "--json", "Where is x?")
    (result,) = [str(m["content"]) for m in script.parent_requests[-1].messages if m["role"] == "tool"]
    assert len(result) < 3_000


async def test_an_agent_without_paths_reads_entries_of_its_own_session_only(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("reader", "tools: [read]\npaths: {read: [], write: []}\n", "You read.\n")
    async with machine.serve_models([text_reply("The first secret word is heron.")]):
        first = (await machine("run", "--json", "--agent", "reader", "Tell me a word.")).json
    entry = first["run_id"]
    calls = [("read", {"path": f"entry:{entry}"}), ("read", {"path": f"result:{entry}"})]
    async with machine.serve_models([tool_call_reply(*calls), text_reply("ok then")]) as server:
        await machine("send", "--json", first["slug"], "Read it.")
        own = [str(m["content"]) for m in server.requests[-1].messages if m["role"] == "tool"]
    assert own[0] == "Tell me a word."
    assert "has no sub-agent with the run" in own[1]
    async with machine.serve_models([tool_call_reply(*calls), text_reply("ok then")]) as server:
        await machine("run", "--json", "--agent", "reader", "Read it.")
        others = [str(m["content"]) for m in server.requests[-1].messages if m["role"] == "tool"]
    assert "has no entry" in others[0]
    assert "has no sub-agent with the run" in others[1]


async def test_the_inbox_shows_the_first_paragraph_of_a_long_result(machine: UserMachine):
    """Shows: D004, D017."""
    machine.write_agent("helper", "", "You help.\n")
    report = f"The cause is a missing lock.\n\n{LONG_TEXT}"
    script = Script(DELEGATION_CALLS["spawn_subagent"], reply_done, child=(text_reply(report),))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Where is x?")
    (row,) = (await machine("inbox", "--json")).json
    assert row["summary"] == "The cause is a missing lock.…"
    (announcement,) = (await machine("sessions", "show", "--json", ran.json["slug"])).json["announcements"]
    assert announcement["summary"] == "The cause is a missing lock.…"
    assert (await machine("runs", "show", "--json", row["runId"])).json["text"] == report


async def test_the_summary_of_an_exit_tool_is_the_summary_in_the_inbox(machine: UserMachine):
    machine.write_agent("helper", "exits: [submit_for_review]\n", "You help.\n")
    exit_call = tool_call_reply(
        ("submit_for_review", {"summary": "Fixed.\n\nTwo tests were added."}), text="Long text."
    )
    script = Script(DELEGATION_CALLS["spawn_subagent"], reply_done, child=(exit_call,))
    async with machine.serve_models(script):
        await machine("run", "--json", "Where is x?")
    (row,) = (await machine("inbox", "--json")).json
    assert row["summary"] == "Fixed.…"


async def test_a_parent_reads_the_files_in_the_private_tmp_of_its_child_and_of_no_other(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "", "You help.\n")
    writes = (
        tool_call_reply(("write", {"path": "/tmp/report/notes.md", "content": "The note of the child.\n"})),
        text_reply("My notes are in /tmp/report/notes.md."),
    )
    paths: list[str] = []

    def read_file(request: CapturedRequest) -> FakeResponse:
        found = re.search(r"- (\S+/notes\.md) \(23 bytes\)", request_text(request))
        assert found is not None, request_text(request)
        paths.append(found.group(1))
        folder = str(Path(found.group(1)).parent)
        return tool_call_reply(
            ("read", {"path": found.group(1)}),
            ("ls", {"path": folder}),
            ("write", {"path": found.group(1), "content": "changed"}),
            ("bash", {"command": f"cat {found.group(1)}; echo x >> {found.group(1)}"}),
        )

    script = Script(DELEGATION_CALLS["spawn_subagent"], read_file, reply_done, child=writes)
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Where is x?")
    read, listed, written, command = [
        str(m["content"]) for m in script.parent_requests[-1].messages if m["role"] == "tool"
    ][-4:]
    assert read == "The note of the child.\n"
    assert "notes.md" in listed
    assert json.loads(written)["error"] == "out_of_scope"
    assert "The note of the child." in command
    assert Path(paths[0]).read_text() == "The note of the child.\n"
    async with machine.serve_models(
        [tool_call_reply(("read", {"path": paths[0]})), text_reply("ok then")]
    ) as server:
        await machine("run", "--json", "Read it.")
        stranger = str(server.requests[-1].messages[-1]["content"])
    assert json.loads(stranger)["error"] == "out_of_scope"
    (child,) = ran.json["children"]
    session = (await machine("runs", "show", "--json", child)).json["session_id"]
    assert (await machine("sessions", "delete", session)).code == 0
    async with machine.serve_models(
        [tool_call_reply(("read", {"path": paths[0]})), text_reply("ok then")]
    ) as server:
        await machine("send", ran.json["slug"], "Read it.")
        deleted = str(server.requests[-1].messages[-1]["content"])
    assert json.loads(deleted)["error"] == "out_of_scope"


@pytest.mark.parametrize("name", ["agent", "spawn_subagent", "PersistentAgent"])
async def test_a_failed_sub_agent_lists_the_files_that_it_wrote(machine: UserMachine, name: str):
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "", "You help.\n")
    replies = (
        tool_call_reply(("write", {"path": "/tmp/report/notes.md", "content": "The note of the child.\n"})),
        http_error(400, "the model refuses the request"),
    )
    script = Script(DELEGATION_CALLS[name], reply_done, child=replies)
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Where is x?")
    (child,) = ran.json["children"]
    assert (await machine("runs", "show", "--json", child)).json["status"] == "failed"
    found = re.search(
        r"[^\s\"]+/report/notes\.md", request_text(script.parent_requests[-1]).replace("\\", "")
    )
    assert found is not None, request_text(script.parent_requests[-1])
    assert Path(found.group()).read_text() == "The note of the child.\n"


async def test_reading_a_reply_without_text_shows_its_tool_calls(machine: UserMachine):
    machine.write_config(approvals="auto")
    machine.write_agent("reader", "tools: [read, ls]\n", "You read.\n")
    calls = tool_call_reply(("ls", {"path": "."}), ("read", {"path": "missing.txt"}))
    async with machine.serve_models([calls, text_reply("ok then")]):
        ran = (await machine("run", "--json", "--agent", "reader", "Look.")).json
    shown = (await machine("sessions", "export", "--json", ran["slug"])).json
    (reply,) = [each for each in shown if each.get("role") == "agent" and not each["text"]]
    read = tool_call_reply(("read", {"path": f"entry:{reply['id']}"}))
    async with machine.serve_models([read, text_reply("ok then")]) as server:
        await machine("send", "--json", ran["slug"], "Read it.")
        text = str(server.requests[-1].messages[-1]["content"])
    assert "no text, only these tool calls" in text
    assert re.search(r'entry:\S+ ls \{"path": ?"\."\}', text), text
    assert re.search(r'entry:\S+ read \{"path": ?"missing.txt"\}', text), text


async def test_a_branch_reads_the_results_that_its_copied_entries_mention(machine: UserMachine):
    machine.write_config(approvals="auto", limits={"child_result_chars": 2_000})
    machine.write_agent("helper", "", "You help.\n")
    script = Script(DELEGATION_CALLS["spawn_subagent"], reply_done, child=(text_reply(LONG_TEXT),))
    async with machine.serve_models(script):
        first = (await machine("run", "--json", "Where is x?")).json
    run = find_run_id(script.parent_requests[-1])
    branch = (await machine("sessions", "branch", first["slug"], "--json")).json
    other_script = Script(
        DELEGATION_CALLS["spawn_subagent"], reply_done, child=(text_reply("The heron's report."),)
    )
    async with machine.serve_models(other_script):
        other = (await machine("run", "--json", "Where is y?")).json
    calls = [("read", {"path": f"result:{each}", "limit": 1}) for each in (run, other["children"][0])]
    async with machine.serve_models([tool_call_reply(*calls), text_reply("ok then")]) as server:
        await machine("send", "--json", branch["session_id"], "Read it.")
        own, foreign = [m["content"] for m in server.requests[-1].messages if m["role"] == "tool"][-2:]
    assert own.startswith(LINES[0])
    assert "has no sub-agent" in foreign


async def test_a_secret_in_a_line_that_is_split_for_reading_is_redacted(machine: UserMachine):
    machine.write_agent("reader", "tools: [read]\n", "You read.\n")
    secret = "sk-test-openai-0123456789"
    async with machine.serve_models([text_reply("Fine.")]):
        ran = (await machine("run", "--json", "--agent", "reader", "Begin.")).json
        transcript = Path(ran["path"])
        transcript.write_text(f"{transcript.read_text()}{'z' * 19_990} {secret} end\n")
        await machine("run", "--json", "--session", ran["slug"])
    shown = (await machine("sessions", "export", "--json", ran["slug"])).json
    (typed,) = [each["id"] for each in shown if str(each.get("text")).startswith("zzz")]
    call = tool_call_reply(("read", {"path": f"entry:{typed}"}))
    async with machine.serve_models([call, text_reply("ok then")]) as server:
        await machine("send", "--json", ran["slug"], "Read it.")
        text = str(server.requests[-1].messages[-1]["content"])
    assert "end" in text
    assert secret[:9] not in text
