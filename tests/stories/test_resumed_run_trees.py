"""Run trees after a kill: resuming, deadlines and detaching; and reviewers without write access."""

import asyncio
import json
import subprocess
from pathlib import Path

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

EXPLORE_CALL = ("explore", {"task_prompt": "Look around."})


class WaitingChild:
    """A model script whose child replies only after its first process was killed."""

    def __init__(self, text: str) -> None:
        self.killed = asyncio.Event()
        self.text = text

    async def script(self, request: CapturedRequest) -> FakeResponse:
        if "Execute this task" not in json.dumps(request.messages[1:2]):
            return text_reply("Root done.") if request.reply_count else tool_call_reply(EXPLORE_CALL)
        await self.killed.wait()
        return text_reply(self.text)


async def start_and_kill_waiting_run(machine: UserMachine, *options: str) -> str:
    """Start a run, kill its process when it waits for its child, and return its id."""
    process = await machine.start("run", *options, "--json", "Go.")
    while True:
        live = (await machine("runs", "list", "--json")).json
        waiting_ids = [run["run_id"] for run in live if run["waiting_for"] == "child"]
        if waiting_ids:
            break
        await asyncio.sleep(0.05)
    await machine.kill(process)
    return waiting_ids[0]


async def test_resuming_the_root_of_a_killed_run_tree_resumes_its_children(machine: UserMachine):
    """Shows: L014, L015."""
    child = WaitingChild("The child has looked around.")
    async with machine.serve_models(child.script):
        root = await start_and_kill_waiting_run(machine)
        child.killed.set()
        resumed = await machine("runs", "resume", root, "--json")
        assert resumed.code == 0, resumed.err
        shown = (await machine("runs", "show", root, "--json")).json
    assert (shown["status"], shown["text"], len(shown["children"])) == ("done", "Root done.", 1)


async def test_a_message_to_a_session_with_an_interrupted_run_is_queued_behind_it(machine: UserMachine):
    """Shows: C044, L015."""
    child = WaitingChild("Looked.")
    async with machine.serve_models(child.script):
        root = await start_and_kill_waiting_run(machine)
        child.killed.set()
        sent = await machine("send", "general", "And now?", "--json")
        assert (sent.code, sent.json["status"]) == (0, "done"), sent.err
        first = (await machine("runs", "show", root, "--json")).json
    assert (first["status"], first["text"]) == ("done", "Root done.")
    assert first["ended_at"] <= sent.json["ended_at"]


async def test_a_child_whose_process_died_can_be_detached_and_continues(machine: UserMachine):
    """Shows: L011."""
    child = WaitingChild("Looked.")
    async with machine.serve_models(child.script):
        await start_and_kill_waiting_run(machine)
        child.killed.set()
        live = (await machine("runs", "list", "--json")).json
        (explorer,) = [run["run_id"] for run in live if run["agent"] == "explorer"]
        detached = await machine("runs", "detach", explorer, "--json")
        assert detached.code == 0, detached.err
        ended = (await machine("runs", "history", "--json")).json
    assert {(run["agent"], run["status"]) for run in ended} == {("general", "done"), ("explorer", "done")}


async def test_the_deadline_of_a_waiting_run_applies_after_its_process_died(machine: UserMachine):
    """Shows: L009, L014."""
    async with machine.serve_models(WaitingChild("Never.").script):
        root = await start_and_kill_waiting_run(machine, "--timeout", "6")
        assert (await machine("runs", "resume")).code == 4
        ended = {run["agent"]: run for run in (await machine("runs", "history", "--json")).json}
    assert (ended["general"]["run_id"], ended["general"]["status"]) == (root, "timed_out")
    assert (ended["explorer"]["status"], ended["explorer"]["reason"]) == ("cancelled", "deserted")


async def test_time_in_which_no_process_works_on_a_run_does_not_count_against_its_deadline(
    machine: UserMachine,
):
    """Shows: L014."""
    child = WaitingChild("Looked.")
    async with machine.serve_models(child.script):
        root = await start_and_kill_waiting_run(machine, "--timeout", "4")
        await asyncio.sleep(5)
        child.killed.set()
        resumed = await machine("runs", "resume", root, "--json")
    ended = {run["agent"]: (run["status"], run["text"]) for run in resumed.json}
    assert ended == {"general": ("done", "Root done."), "explorer": ("done", "Looked.")}
    assert resumed.code == 0


async def test_resuming_a_failing_worker_of_an_ended_run_exits_with_code_1(machine: UserMachine):
    """The parent has already ended with an exit tool."""
    machine.write_agent("coder", "tools: [sessions_spawn]\nexits: [submit_for_review]\n", "You code.")
    spawn_call = ("sessions_spawn", {"task": "Look around."})
    exit_call = ("submit_for_review", {"summary": "Sent."})
    resuming = asyncio.Event()

    def script(request: CapturedRequest) -> FakeResponse:
        if "Look around." in json.dumps(request.messages[1]):
            return http_error(400, "no") if resuming.is_set() else text_reply("Never.", delay=600)
        return tool_call_reply(exit_call) if request.reply_count else tool_call_reply(spawn_call, exit_call)

    async with machine.serve_models(script):
        process = await machine.start("run", "--agent", "coder", "--json", "Go.")
        await machine.wait_for_requests(2)
        while len((await machine("runs", "list", "--json")).json) != 1:  # noqa: ASYNC110  (another process ends the run)
            await asyncio.sleep(0.05)
        await machine.kill(process)
        resuming.set()
        resumed = await machine("runs", "resume", "--json")
    assert sorted(run["status"] for run in resumed.json) == ["done", "failed"]
    assert resumed.code == 1


def create_changed_repository(folder: Path) -> None:
    """Create a repository with one uncommitted change."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "."], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    (folder / "a.txt").write_text("a\n")
    subprocess.run([*git, "add", "a.txt"], cwd=folder, check=True)


async def test_a_reviewer_cannot_change_files(machine: UserMachine):
    """Shows: D037."""
    machine.write_config(approvals="auto")
    machine.write_agent("beta", body="You would write.")
    create_changed_repository(machine.folder)
    review = tool_call_reply(("request_review", {"agentId": "beta", "returnMode": "blocking"}))
    write_calls = tool_call_reply(
        ("write", {"path": "w.txt", "content": "x"}), ("bash", {"command": "touch y.txt; echo z > a.txt"})
    )

    def script(request: CapturedRequest) -> FakeResponse:
        if "You would write." in request.messages[0]["content"]:
            return text_reply("I could change nothing.") if request.reply_count else write_calls
        return text_reply("Reviewed.") if request.reply_count else review

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
    assert (ran.json["text"], len(ran.json["children"])) == ("Reviewed.", 1)
    files = {path.name: path.read_text() for path in machine.folder.iterdir() if path.is_file()}
    assert files == {"a.txt": "a\n"}
