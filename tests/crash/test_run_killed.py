"""`retinue run` is killed at the worst moments; the next process finishes the run and repeats no model request."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import RETINUE, start_process

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

TIMEOUT_S = 45.0
TOOLS = '''
import os, pathlib, time
from retinue import tool

@tool(effect="{effect}")
def act() -> str:
    """Act and leave a mark."""
    with open("marks.txt", "a") as file:
        file.write("acted\\n")
    while os.path.exists("hold"):
        time.sleep(0.01)
    return "acted"
'''


@dataclass(slots=True)
class Machine:
    env: dict[str, str]
    folder: Path

    def configure_tool(self, effect: str) -> None:
        (self.folder / "own_tools.py").write_text(TOOLS.format(effect=effect))
        (Path(self.env["RETINUE_CONFIG"]) / "config.json").write_text(
            json.dumps({"tools": ["own_tools:act"], "approvals": "auto"})
        )

    async def start(self, *args: str) -> asyncio.subprocess.Process:
        return await start_process(
            [*RETINUE, *args],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.env | {"PYTHONPATH": str(self.folder)}, cwd=self.folder,
        )  # fmt: skip

    async def __call__(self, *args: str) -> tuple[int, Any, str]:
        process = await self.start(*args)
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        return process.returncode or 0, json.loads(out or b"null"), err.decode()

    def use_model_server(self, server: FakeModelServer) -> None:
        self.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", "RETINUE_MODEL": "openai:m"}

    @property
    def transcript(self) -> str:
        """The text of all sessions, except those that are still being created, whose names begin with a dot."""
        home = Path(self.env["RETINUE_HOME"])
        return "".join(path.read_text() for path in home.glob("sessions/[!.]*/branches/*/session.md"))

    async def kill_when(self, process: asyncio.subprocess.Process, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.002)
        with suppress(ProcessLookupError):  # it may have exited already
            process.send_signal(signal.SIGKILL)
        await process.communicate()


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> Machine:
    folder = tmp_path / "work"
    folder.mkdir()
    return Machine(isolated_env, folder)


def reply_by_history(*replies: FakeResponse) -> Callable[[CapturedRequest], FakeResponse]:
    """Reply according to the number of replies in the conversation, so that a repeated request gets the same reply."""
    return lambda request: replies[request.reply_count]


async def resume_run(machine: Machine) -> Any:
    """Check how an interrupted run is listed, resume it, and return the finished run."""
    code, listed, err = await machine("runs", "list", "--json")
    assert (code, len(listed), listed[0]["status"]) == (0, 1, "running")
    assert '1 run was interrupted. Continue with "retinue runs resume".' in err
    code, runs, err = await machine("runs", "resume", "--json")
    assert code == 0, err
    assert [run["status"] for run in runs] == ["done"]
    assert (await machine("runs", "list", "--json"))[1] == []
    return runs[0]


async def test_a_run_killed_during_a_reply_repeats_only_that_request(machine: Machine):
    """Shows: P03, A049."""
    slow_reply = text_reply("Here it is, at length.", pace=0.2, piece=2)
    first: list[CapturedRequest] = []

    def script(request: CapturedRequest) -> FakeResponse:
        if request.reply_count == 0:
            return tool_call_reply(("ls", {}), text="I look first.")
        first.append(request)
        return slow_reply if len(first) == 1 else text_reply("Here it is.")

    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Find it")
        await machine.kill_when(process, lambda: len(server.requests) == 2)
        assert "I look first." in machine.transcript
        assert "result of=" in machine.transcript
        run = await resume_run(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Here it is.", 2, 1)
        assert [request.reply_count for request in server.requests] == [0, 1, 1]
        assert server.requests[1].messages == server.requests[2].messages


@pytest.mark.parametrize(("effect", "marks"), [("read", 2), ("once", 1)])
async def test_a_run_killed_during_a_tool_call_repeats_it_only_if_it_has_no_side_effect(
    machine: Machine, effect: str, marks: int
):
    machine.configure_tool(effect)
    (machine.folder / "hold").touch()
    async with FakeModelServer(
        reply_by_history(tool_call_reply(("act", {}), text="I act."), text_reply("Done."))
    ) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Act")
        marked = machine.folder / "marks.txt"
        await machine.kill_when(process, lambda: marked.exists() and "acted" in marked.read_text())
        (machine.folder / "hold").unlink()
        run = await resume_run(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Done.", 2, 1)
        assert marked.read_text().count("acted") == marks
        assert ("Outcome unknown" in machine.transcript) == (effect == "once")
        assert [request.reply_count for request in server.requests] == [0, 1]


async def test_a_run_killed_after_a_saved_reply_repeats_no_request(machine: Machine):
    machine.configure_tool("read")
    (machine.folder / "hold").touch()
    replies = reply_by_history(
        tool_call_reply(("act", {}), ("act", {}), text="Both at once."), text_reply("Done.")
    )
    async with FakeModelServer(replies) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Act")
        await machine.kill_when(process, lambda: "Both at once." in machine.transcript)
        (machine.folder / "hold").unlink()
        run = await resume_run(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Done.", 2, 2)
        assert [request.reply_count for request in server.requests] == [0, 1]
        assert machine.transcript.count("result of=") == 2


async def test_a_run_killed_after_its_last_reply_ends_with_that_reply(machine: Machine):
    """The kill comes between saving the reply and finishing the run in the ledger, or just after."""
    async with FakeModelServer([text_reply("The very last word."), text_reply("A second one.")]) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Speak")
        await machine.kill_when(process, lambda: "The very last word." in machine.transcript)
        await machine("runs", "resume", "--json")
        history = (await machine("runs", "history", "--json"))[1]
        assert [(run["status"], run["text"]) for run in history] == [("done", "The very last word.")]
        assert len(server.requests) == 1


async def test_a_run_killed_before_the_first_reply_keeps_its_task(machine: Machine):
    """Shows: A039."""
    async with FakeModelServer([text_reply("late", delay=60), text_reply("In time.")]) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Do not forget me")
        await machine.kill_when(process, lambda: len(server.requests) == 1)
        assert "Do not forget me" in machine.transcript
        run = await resume_run(machine)
        assert run["text"] == "In time."
        assert server.requests[0].messages == server.requests[1].messages


async def test_a_run_killed_twice_continues_and_repeats_only_requests_in_transit(machine: Machine):
    """The kill comes after a number of requests, at a random moment between two requests."""
    turns = [tool_call_reply(("ls", {}), text=f"Step {n}.") for n in range(4)]
    async with FakeModelServer(reply_by_history(*turns, text_reply("Arrived."))) as server:
        machine.use_model_server(server)

        def after(count: int) -> Callable[[], bool]:
            return lambda: len(server.requests) >= count

        process = await machine.start("run", "Walk")
        await machine.kill_when(process, after(2))
        request_count = len(server.requests)
        process = await machine.start("runs", "resume")
        await machine.kill_when(process, after(request_count + 1))
        await machine("runs", "resume", "--json")
        history = (await machine("runs", "history", "--json"))[1]
        assert [(run["status"], run["text"], run["turns"]) for run in history] == [("done", "Arrived.", 5)]
        reply_counts = [request.reply_count for request in server.requests]
        assert reply_counts == sorted(reply_counts)
        # A request is repeated only if its reply was in transit at one of the two kills.
        assert len(reply_counts) <= len(set(reply_counts)) + 2
        assert machine.transcript.count("result of=") == 4


async def test_a_run_slot_is_counted_across_processes_and_freed_when_its_process_is_killed(machine: Machine):
    (Path(machine.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"limits": {"max_live": 1}}))
    active_requests: list[int] = [0, 0]

    async def script(request: CapturedRequest) -> FakeResponse:
        if "Hold" in str(request.messages):
            return text_reply("never", delay=60)
        active_requests[0] += 1
        active_requests[1] = max(active_requests)
        await asyncio.sleep(0.1)
        active_requests[0] -= 1
        return text_reply("Mine.")

    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        slot_holder = await machine.start("run", "Hold the only slot")
        async with asyncio.timeout(TIMEOUT_S):
            while not server.requests:  # noqa: ASYNC110  (another process sends the request)
                await asyncio.sleep(0.01)
        waiting_runs = [asyncio.create_task(machine("run", "--json", f"Wait {n}")) for n in range(3)]
        queued: list[Any] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(queued) < 3:
                listed = (await machine("runs", "list", "--json"))[1]
                queued = [run for run in listed if run["status"] == "queued"]
        assert len(server.requests) == 1
        await machine.kill_when(slot_holder, lambda: True)
        results = [await each for each in waiting_runs]
        assert [(code, run["text"]) for code, run, _ in results] == [(0, "Mine.")] * 3
        assert active_requests == [0, 1]
        listed = (await machine("runs", "list", "--json"))[1]
        assert [(run["status"], run["text"]) for run in listed] == [("queued", "")]


async def test_a_session_with_an_interrupted_run_cannot_be_cleared_or_deleted(
    machine: Machine,
):
    """Without its file the run would start again and repeat its side effects."""
    machine.configure_tool("once")
    script = reply_by_history(tool_call_reply(("act", {}), text="I act."), text_reply("Done.", delay=1.5))
    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Act")
        await machine.kill_when(process, lambda: len(server.requests) == 2)
        before = machine.transcript
        [run] = (await machine("runs", "list", "--json"))[1]
        for command in ("clear", "delete"):
            code, _, err = await machine("sessions", command, run["slug"], "--json")
            hint = f"`retinue runs resume {run['run_id']}` or `retinue runs cancel {run['run_id']}`."
            assert (code, hint in err) == (3, True), err
        assert machine.transcript == before
        assert (await resume_run(machine))["text"] == "Done."
        assert (machine.folder / "marks.txt").read_text().count("acted") == 1
        assert (await machine("sessions", "clear", run["slug"], "--json"))[0] == 0


async def test_a_session_can_be_deleted_after_its_interrupted_run_is_cancelled(machine: Machine):
    async with FakeModelServer([text_reply("One.", delay=600)]) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Act")
        await machine.kill_when(process, lambda: len(server.requests) == 1)
        [run] = (await machine("runs", "list", "--json"))[1]
        assert (await machine("sessions", "delete", run["slug"], "--json"))[0] == 3
        assert (await machine("runs", "cancel", run["run_id"], "--json"))[0] == 0
        assert (await machine("sessions", "delete", run["slug"], "--json"))[0] == 0


async def test_the_next_start_removes_the_ephemeral_home_of_a_killed_command(machine: Machine):
    """The ephemeral home of a live process stays, and so does a folder that only has a similar name."""
    tmp_dir = machine.folder.parent / "tmp"
    (tmp_dir / "retinue-forget-mine").mkdir(parents=True)
    (tmp_dir / "retinue-forget-mine" / "diary.txt").touch()
    machine.env["TMPDIR"] = str(tmp_dir)

    def script(request: CapturedRequest) -> FakeResponse:
        return text_reply("Hello.") if "Again" in str(request.messages) else text_reply("Never.", delay=600)

    def ephemeral_homes() -> list[Path]:
        return [path for path in tmp_dir.iterdir() if (path / "ledger.db").exists()]

    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        killed_process = await machine.start("run", "--forget", "My secret")
        await machine.kill_when(killed_process, lambda: len(server.requests) == 1)
        [killed_home] = ephemeral_homes()
        assert "My secret" in "".join(path.read_text() for path in killed_home.rglob("session.md"))
        live_process = await machine.start("run", "--forget", "My other secret")
        async with asyncio.timeout(TIMEOUT_S):
            while len(server.requests) < 2:  # noqa: ASYNC110  (another process sends the request)
                await asyncio.sleep(0.01)
        [live_home] = ephemeral_homes()
        assert live_home != killed_home
        assert (await machine("run", "Again", "--json"))[0] == 0
        assert ephemeral_homes() == [live_home]
        assert (tmp_dir / "retinue-forget-mine" / "diary.txt").exists()
        await machine.kill_when(live_process, lambda: True)


async def test_a_run_continues_in_a_moved_home_and_reports_the_new_path(machine: Machine):
    script = reply_by_history(tool_call_reply(("ls", {}), text="I look."), text_reply("Done.", delay=1))
    async with FakeModelServer(script) as server:
        machine.use_model_server(server)
        process = await machine.start("run", "Look")
        await machine.kill_when(process, lambda: len(server.requests) == 2)
        before, now = Path(machine.env["RETINUE_HOME"]), machine.folder.parent / "moved"
        before.rename(now)
        machine.env["RETINUE_HOME"] = str(now)
        [listed] = (await machine("runs", "list", "--json"))[1]
        resumed = await resume_run(machine)
        [history_row] = (await machine("runs", "history", "--json"))[1]
        details = (await machine("runs", "show", resumed["run_id"], "--json"))[1]
        assert "Done." in Path(resumed["path"]).read_text()
        assert {each["path"] for each in (listed, resumed, history_row, details)} == {
            str(now / Path(resumed["path"]).relative_to(now))
        }
        assert not before.exists()
