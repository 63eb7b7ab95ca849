"""Trees of runs from outside: taken up by the name of their top, held to a deadline across a death, and reviewed by those
who can change nothing."""

import asyncio
import json
import subprocess
from pathlib import Path

from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply, tool_call_reply

EXPLORE = ("explore", {"task_prompt": "Look around."})


class Below:
    """What a child says, but not before its first process is gone."""

    def __init__(self, text: str) -> None:
        self.gone = asyncio.Event()
        self.text = text

    async def script(self, asked: CapturedRequest) -> FakeResponse:
        if "Execute this task" not in json.dumps(asked.messages[1:2]):
            return text_reply("Root done.") if asked.reply_count else tool_call_reply(EXPLORE)
        await self.gone.wait()
        return text_reply(self.text)


async def killed_while_waiting(machine: UserMachine, *wishes: str) -> str:
    """A run that waits for its child, whose process is gone."""
    process = await machine.start("run", *wishes, "--json", "Go.")
    while True:
        live = (await machine("runs", "list", "--json")).json
        waiting = [run["run_id"] for run in live if run["waiting_for"] == "child"]
        if waiting:
            break
        await asyncio.sleep(0.05)
    await machine.kill(process)
    return waiting[0]


async def test_the_top_of_a_killed_tree_is_taken_up_by_its_name_with_all_below_it(machine: UserMachine):
    """Shows: L014, L015."""
    child = Below("The child has looked around.")
    async with machine.serve_models(child.script):
        root = await killed_while_waiting(machine)
        child.gone.set()
        resumed = await machine("runs", "resume", root, "--json")
        assert resumed.code == 0, resumed.err
        shown = (await machine("runs", "show", root, "--json")).json
    assert (shown["status"], shown["text"], len(shown["children"])) == ("done", "Root done.", 1)


async def test_words_to_a_conversation_whose_run_was_interrupted_come_after_that_run(machine: UserMachine):
    """Shows: C044, L015."""
    child = Below("Looked.")
    async with machine.serve_models(child.script):
        root = await killed_while_waiting(machine)
        child.gone.set()
        sent = await machine("send", "general", "And now?", "--json")
        assert (sent.code, sent.json["status"]) == (0, "done"), sent.err
        first = (await machine("runs", "show", root, "--json")).json
    assert (first["status"], first["text"]) == ("done", "Root done.")
    assert first["ended_at"] <= sent.json["ended_at"]


async def test_a_child_whose_process_died_can_be_sent_into_the_background_and_goes_on(machine: UserMachine):
    """Shows: L011."""
    child = Below("Looked.")
    async with machine.serve_models(child.script):
        await killed_while_waiting(machine)
        child.gone.set()
        live = (await machine("runs", "list", "--json")).json
        (child,) = [run["run_id"] for run in live if run["agent"] == "explorer"]
        detached = await machine("runs", "detach", child, "--json")
        assert detached.code == 0, detached.err
        ended = (await machine("runs", "history", "--json")).json
    assert {(run["agent"], run["status"]) for run in ended} == {("general", "done"), ("explorer", "done")}


async def test_a_deadline_holds_though_the_process_died_while_its_run_waited(machine: UserMachine):
    """Shows: L009, L014."""
    async with machine.serve_models(Below("Never.").script):
        root = await killed_while_waiting(machine, "--timeout", "6")
        assert (await machine("runs", "resume")).code == 4
        ended = {run["agent"]: run for run in (await machine("runs", "history", "--json")).json}
    assert (ended["general"]["run_id"], ended["general"]["status"]) == (root, "timed_out")
    assert (ended["explorer"]["status"], ended["explorer"]["reason"]) == ("cancelled", "deserted")


async def test_a_deadline_that_passed_while_everything_was_dead_is_what_resuming_the_run_ends_with(
    machine: UserMachine,
):
    """Shows: L014."""
    async with machine.serve_models(Below("Never.").script):
        root = await killed_while_waiting(machine, "--timeout", "6")
        await asyncio.sleep(6)
        resumed = await machine("runs", "resume", root, "--json")
    ended = {run["agent"]: (run["status"], run["reason"]) for run in resumed.json}
    assert ended == {"general": ("timed_out", "deadline"), "explorer": ("cancelled", "deserted")}
    assert resumed.code == 4


async def test_resuming_what_nobody_waits_for_any_more_ends_with_its_own_code(machine: UserMachine):
    """Whoever asked for it has left by an exit, and is done."""
    machine.write_agent("coder", "tools: [sessions_spawn]\nexits: [submit_for_review]\n", "You code.")
    spawns = ("sessions_spawn", {"task": "Look around."})
    leaves = ("submit_for_review", {"summary": "Sent."})
    resuming = asyncio.Event()

    def script(asked: CapturedRequest) -> FakeResponse:
        if "Look around." in json.dumps(asked.messages[1]):
            return http_error(400, "no") if resuming.is_set() else text_reply("Never.", delay=600)
        return tool_call_reply(leaves) if asked.reply_count else tool_call_reply(spawns, leaves)

    async with machine.serve_models(script):
        process = await machine.start("run", "--agent", "coder", "--json", "Go.")
        await machine.wait_for_requests(2)
        while len((await machine("runs", "list", "--json")).json) != 1:  # noqa: ASYNC110  (another process leaves)
            await asyncio.sleep(0.05)
        await machine.kill(process)
        resuming.set()
        resumed = await machine("runs", "resume", "--json")
    assert sorted(run["status"] for run in resumed.json) == ["done", "failed"]
    assert resumed.code == 1


def changed(folder: Path) -> None:
    """A repository with one change that is not committed."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    (folder / "a.txt").write_text("a\n")
    subprocess.run([*git, "add", "a.txt"], cwd=folder, check=True)


async def test_whoever_reviews_a_change_can_change_nothing(machine: UserMachine):
    """Shows: D037."""
    machine.write_config(approvals="auto")
    machine.write_agent("beta", body="You would write.")
    changed(machine.folder)
    review = tool_call_reply(("request_review", {"agentId": "beta", "returnMode": "blocking"}))
    writes = tool_call_reply(
        ("write", {"path": "w.txt", "content": "x"}), ("bash", {"command": "touch y.txt; echo z > a.txt"})
    )

    def script(asked: CapturedRequest) -> FakeResponse:
        if "You would write." in asked.messages[0]["content"]:
            return text_reply("I could change nothing.") if asked.reply_count else writes
        return text_reply("Reviewed.") if asked.reply_count else review

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
    assert (ran.json["text"], len(ran.json["children"])) == ("Reviewed.", 1)
    files = {path.name: path.read_text() for path in machine.folder.iterdir() if path.is_file()}
    assert files == {"a.txt": "a\n"}
