"""sessions_spawn from the command line: accepted at once, announced once, with the specified texts and fields."""

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from model_scripts import is_from_worker, script_with_worker
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply


def spawn_call(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return "sessions_spawn", {"task": "Find the year."} | arguments


async def test_a_worker_is_accepted_at_once_and_its_result_is_announced_later(machine: UserMachine):
    """Shows: E001, E002, E003, E004, E005, E007, E008, E010, E011, E013, E015, E046, L005."""
    call = spawn_call(label="xfs", model="gpt-cheap", thinking="low", timeoutSeconds=120)
    main = [tool_call_reply(call, text="I send someone."), text_reply("Sent."), text_reply("It was 1993.")]
    script = script_with_worker(main, text_reply("1993."))
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "When did XFS come?")
        assert (ran.code, ran.json["text"]) == (0, "It was 1993.")
        (child,) = ran.json["children"]
        shown = (await machine("subagent", "show", child, "--json")).json
    (worker,) = [each for each in server.requests if is_from_worker(each)]
    system = worker.body["messages"][0]["content"]
    for part in (
        f"**Requester:** {ran.json['key']}",
        f"**Session:** {shown['key']}",
        "**Label:** xfs",
        "**Your task:**\nFind the year.",
        "**Instructions:**",
        "You are a worker agent spawned to complete a specific task.",
    ):
        assert part in system
    assert [each["content"] for each in worker.body["messages"][1:]] == ["Find the year."]
    assert worker.body["model"] == "gpt-cheap"
    assert re.fullmatch(r"agent:general:subagent:[0-9a-f-]{36}", shown["key"])
    assert (shown["label"], shown["task"], shown["thinking"]) == ("xfs", "Find the year.", "low")
    assert (shown["source"], shown["requester"]) == ("subagent", ran.json["key"])
    assert shown["delivery"] == {"state": "delivered", "attempts": 1}
    transcript = Path(ran.json["path"]).read_text()
    assert transcript.count("[Subagent: xfs] Complete.\n\n1993.") == 1
    accepted = {"status": "accepted", "runId": child, "sessionKey": shown["key"]}
    assert json.dumps(accepted, separators=(",", ":")) in transcript


async def test_a_worker_without_a_label_is_called_after_its_agent(machine: UserMachine):
    """The announcement adds the end of the run's id, which does not exist yet when the prompt is built.

    Shows: E008, E014."""
    main = [tool_call_reply(spawn_call()), text_reply("Sent."), text_reply("It was 1993.")]
    script = script_with_worker(main, text_reply("1993."))
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "When did XFS come?")
    (worker,) = [each for each in server.requests if is_from_worker(each)]
    assert "\n**Label:** general\n" in worker.body["messages"][0]["content"]
    (child,) = ran.json["children"]
    assert f"[Subagent: general-{child[-6:].lower()}] Complete." in Path(ran.json["path"]).read_text()


async def test_runs_show_gives_the_current_path_of_a_deleted_session(machine: UserMachine):
    """The path follows the session into the trash, alone or with its requester, until it is removed there.

    Shows: E016."""
    main = [
        tool_call_reply(spawn_call(label="xfs", cleanup="delete")),
        text_reply("Sent."),
        text_reply("1993."),
    ]
    script = script_with_worker(main, text_reply("It was 1993."))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "When did XFS come?")
        (child,) = ran.json["children"]
        path = Path((await machine("runs", "show", child, "--json")).json["path"])
        assert ".deleted." in path.parent.name
        assert "It was 1993." in path.read_text()
        deleted = (await machine("sessions", "delete", ran.json["slug"], "--json")).json
        paths = [
            Path((await machine("runs", "show", each, "--json")).json["path"])
            for each in (child, ran.json["run_id"])
        ]
        assert all(each.is_relative_to(deleted["path"]) and each.exists() for each in paths)
        shutil.rmtree(deleted["path"])
        assert (await machine("runs", "show", ran.json["run_id"], "--json")).json["path"] == ran.json["path"]


async def test_three_concurrent_workers_cause_three_announcements(machine: UserMachine):
    """Shows: E020, E021, E025, E036, E037."""
    calls = [spawn_call(label=name) for name in ("a", "b", "c")]
    script = script_with_worker([tool_call_reply(*calls), *[text_reply("On.")] * 4], text_reply("1993."))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
        history = (await machine("subagent", "history", "--limit", "10", "--json")).json
    assert (ran.code, len(ran.json["children"]), len(history)) == (0, 3, 4)
    transcript = Path(ran.json["path"]).read_text()
    assert sorted(re.findall(r"\[Subagent: (\w)\] Complete\.", transcript)) == ["a", "b", "c"]
    with sqlite3.connect(machine.home / "ledger.db") as ledger:
        rows = ledger.execute("SELECT status, result FROM subagent_runs WHERE label != ''").fetchall()
    assert rows == [("completed", "1993.")] * 3


async def test_the_configuration_limits_which_agents_are_spawned_and_sets_their_model(machine: UserMachine):
    """Shows: E018, E019, E036."""
    machine.write_config(
        agents={"defaults": {"subagents": {"allowAgents": ["general"], "model": "openai:small"}}}
    )
    machine.write_agent("poet", "model: openai:large\n", "You rhyme.\n")
    main = [tool_call_reply(spawn_call()), text_reply("Sent."), text_reply("Heard.")]
    async with machine.serve_models(script_with_worker(main, text_reply("1993."))) as server:
        ran = await machine("run", "--json", "Go.")
        assert ran.code == 0
        (worker,) = [each for each in server.requests if is_from_worker(each)]
        assert worker.body["model"] == "small"
    refused = [tool_call_reply(spawn_call()), text_reply("Alone, then.")]
    async with machine.serve_models(script_with_worker(refused, text_reply("never"))):
        ran = await machine("run", "--json", "--agent", "poet", "Go.")
        assert (ran.json["text"], ran.json["children"]) == ("Alone, then.", [])
    transcript = Path(ran.json["path"]).read_text()
    assert '{"status":"forbidden","error":"poet may not be started' in transcript


async def test_invalid_arguments_get_an_error_result_and_create_no_session(machine: UserMachine):
    """Shows: E002, C10."""
    invalid = [
        {"label": "x"},
        {"task": "a", "timeoutSeconds": -1},
        {"task": "a", "timeoutSeconds": "5"},
        {"task": "a", "cleanup": "burn"},
        {"task": "a", "thinking": "deep"},
        {"task": "a", "to": "b"},
    ]
    calls = tool_call_reply(*[("sessions_spawn", arguments) for arguments in invalid])
    async with machine.serve_models([calls, text_reply("I see.")]):
        ran = await machine("run", "--json", "Go.")
    assert (ran.json["text"], ran.json["children"]) == ("I see.", [])
    transcript = Path(ran.json["path"]).read_text()
    assert transcript.count('{"status":"error","error":"') == len(invalid)
    assert not (Path(ran.json["path"]).parent / "agents").exists()


async def test_a_run_with_forget_and_without_a_terminal_is_refused_what_needs_an_approval(
    machine: UserMachine,
):
    write = ("write", {"path": "a.txt", "content": "x"})
    agent = ("PersistentAgent", {"preset": "general", "description": "look", "prompt": "Look."})
    script = [tool_call_reply(write, agent), text_reply("I could not.")]
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--forget", "--json", "Go.")
        assert (ran.code, ran.json["status"], ran.json["text"]) == (0, "done", "I could not.")
        assert (ran.json["path"], ran.json["approvals"]) == (None, [])
        assert "/session.md" not in ran.err
        refused, no_parent = machine.tool_results(server.requests[1])
    assert json.loads(refused)["error"] == "approval_denied"
    assert "nobody can give it in this temporary session" in json.loads(refused)["message"]
    assert no_parent == "PersistentAgent requires parent persistent session"
    assert not (machine.folder / "a.txt").exists()


async def test_a_run_with_forget_leaves_no_file_and_cannot_create_a_child_session(
    machine: UserMachine,
):
    """Shows: A011, A012, A065."""
    arguments = {"preset": "general", "description": "look", "prompt": "Look."}
    script = [tool_call_reply(("PersistentAgent", arguments)), text_reply("Alone, then.")]
    machine.write_config(approvals="auto")
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--forget", "--json", "Go.")
        assert (ran.code, ran.json["text"], ran.json["children"]) == (0, "Alone, then.", [])
        (result,) = machine.tool_results(server.requests[1])
        assert result == "PersistentAgent requires parent persistent session"
        assert ran.json["path"] is None
        assert (await machine("sessions", "list", "--json")).json == []
        assert (await machine("runs", "history", "--json")).json == []


async def test_a_worker_has_no_exit_tools_and_is_not_offered_ask_user_or_agents_list(machine: UserMachine):
    machine.write_agent("coder", "exits: [submit_for_review]\n", "You code.\n")
    submit = tool_call_reply(("submit_for_review", {"summary": "It was 1993."}))
    script = script_with_worker([tool_call_reply(spawn_call()), submit], text_reply("The year is 1993."))
    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "--agent", "coder", "When did XFS come?")
    (worker,) = [each for each in server.requests if is_from_worker(each)]
    assert "submit_for_review" not in json.dumps(worker.body)
    names = {each["function"]["name"] for each in worker.body["tools"]}
    assert "read" in names
    assert not {"ask_user", "agents_list", "sessions_spawn"} & names
    (child,) = ran.json["children"]
    shown = (await machine("runs", "show", "--json", child)).json
    assert (shown["status"], shown["text"], shown["turns"]) == ("done", "The year is 1993.", 1)


async def test_the_transcript_path_in_an_announcement_is_valid_after_the_cleanup(machine: UserMachine):
    call = spawn_call(cleanup="delete")
    main = [tool_call_reply(call), text_reply("Sent."), text_reply("It was 1993.")]
    script = script_with_worker(main, text_reply("The year is 1993."))
    async with machine.serve_models(script):
        ran = await machine("run", "--json", "When did XFS come?")
    (path,) = re.findall(r"transcript=(\S+)", Path(ran.json["path"]).read_text())
    assert ".deleted." in path
    assert "The year is 1993." in Path(path).read_text()
    (row,) = (await machine("inbox", "--json")).json
    (announced,) = (await machine("sessions", "show", "--json", ran.json["slug"])).json["announcements"]
    runs = (await machine("runs", "history", "--json")).json
    (listed,) = [each["path"] for each in runs if each["run_id"] in ran.json["children"]]
    assert [row["transcript"], announced["metadata"]["transcript"], listed] == [path] * 3


async def test_an_agent_that_can_only_read_is_not_said_to_have_done_no_work(machine: UserMachine):
    """Shows: X05."""
    machine.write_agent("thinker", "tools: [read, grep]\n", "You think.\n")
    machine.write_agent("doer", "tools: [read, write]\n", "You act.\n")
    calls = [("spawn_subagent", {"agentId": each, "prompt": "Is it right?"}) for each in ("thinker", "doer")]

    def script(request: CapturedRequest) -> FakeResponse:
        if "You think." in request.messages[0]["content"] or "You act." in request.messages[0]["content"]:
            return text_reply("Yes, it is right because of the lock.")
        return text_reply("Good.") if request.reply_count else tool_call_reply(*calls)

    async with machine.serve_models(script) as server:
        await machine("run", "--json", "Ask.")
    thinker, doer = [str(each["content"]) for each in server.requests[-1].messages if each["role"] == "tool"]
    assert "No work done" not in thinker
    assert "No work done: it called no tools." in doer
