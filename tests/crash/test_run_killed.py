"""A real `retinue run` is killed at the worst moments; the next process finishes what it left, and asks nothing twice."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import RETINUE, start_process

from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

PATIENCE = 45.0
TOOLS = '''
import os, pathlib, time
from retinue import tool

@tool(effect="{effect}")
def act() -> str:
    """Acts, and leaves a mark."""
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

    def has_tool(self, effect: str) -> None:
        (self.folder / "own_tools.py").write_text(TOOLS.format(effect=effect))
        (Path(self.env["RETINUE_CONFIG"]) / "config.json").write_text(
            json.dumps({"tools": ["own_tools:act"], "approvals": "auto"})
        )

    async def started(self, *args: str) -> asyncio.subprocess.Process:
        return await start_process(
            [*RETINUE, *args],
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self.env | {"PYTHONPATH": str(self.folder)}, cwd=self.folder,
        )  # fmt: skip

    async def __call__(self, *args: str) -> tuple[int, Any, str]:
        process = await self.started(*args)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        return process.returncode or 0, json.loads(out or b"null"), err.decode()

    def serves(self, server: FakeModelServer) -> None:
        self.env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", "RETINUE_MODEL": "openai:m"}

    @property
    def transcript(self) -> str:
        """The sessions that are there; one that is still being made has a name with a dot, and is not there yet."""
        home = Path(self.env["RETINUE_HOME"])
        return "".join(path.read_text() for path in home.glob("sessions/[!.]*/branches/*/session.md"))

    async def killed(self, process: asyncio.subprocess.Process, when: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not when():
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.002)
        with suppress(ProcessLookupError):  # it may have come to its end by itself
            process.send_signal(signal.SIGKILL)
        await process.communicate()


@pytest.fixture
def machine(isolated_env: dict[str, str], tmp_path: Path) -> Machine:
    folder = tmp_path / "work"
    folder.mkdir()
    return Machine(isolated_env, folder)


def by_history(*answers: FakeResponse) -> Callable[[CapturedRequest], FakeResponse]:
    """The answer that fits what the conversation holds already: whoever asks the same hears the same."""
    return lambda asked: answers[asked.reply_count]


async def resumed(machine: Machine) -> Any:
    """What people see of an interrupted run, and what comes of resuming it."""
    code, listed, err = await machine("runs", "list", "--json")
    assert (code, len(listed), listed[0]["status"]) == (0, 1, "running")
    assert '1 run was interrupted. Continue with "retinue runs resume".' in err
    code, done, err = await machine("runs", "resume", "--json")
    assert code == 0, err
    assert [run["status"] for run in done] == ["done"]
    assert (await machine("runs", "list", "--json"))[1] == []
    return done[0]


async def test_killed_while_the_model_speaks_only_that_turn_is_asked_again(machine: Machine):
    """Shows: P03, A049."""
    slow = text_reply("Here it is, at length.", pace=0.2, piece=2)
    first: list[CapturedRequest] = []

    def script(asked: CapturedRequest) -> FakeResponse:
        if asked.reply_count == 0:
            return tool_call_reply(("ls", {}), text="I look first.")
        first.append(asked)
        return slow if len(first) == 1 else text_reply("Here it is.")

    async with FakeModelServer(script) as server:
        machine.serves(server)
        process = await machine.started("run", "Find it")
        await machine.killed(process, lambda: len(server.requests) == 2)
        assert "I look first." in machine.transcript
        assert "result of=" in machine.transcript
        run = await resumed(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Here it is.", 2, 1)
        assert [request.reply_count for request in server.requests] == [0, 1, 1]
        assert server.requests[1].messages == server.requests[2].messages


@pytest.mark.parametrize(("effect", "marks"), [("read", 2), ("once", 1)])
async def test_killed_during_a_tool_the_call_is_repeated_only_where_that_is_harmless(
    machine: Machine, effect: str, marks: int
):
    machine.has_tool(effect)
    (machine.folder / "hold").touch()
    async with FakeModelServer(
        by_history(tool_call_reply(("act", {}), text="I act."), text_reply("Done."))
    ) as server:
        machine.serves(server)
        process = await machine.started("run", "Act")
        marked = machine.folder / "marks.txt"
        await machine.killed(process, lambda: marked.exists() and "acted" in marked.read_text())
        (machine.folder / "hold").unlink()
        run = await resumed(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Done.", 2, 1)
        assert marked.read_text().count("acted") == marks
        assert ("Outcome unknown" in machine.transcript) == (effect == "once")
        assert [request.reply_count for request in server.requests] == [0, 1]


async def test_killed_right_after_a_reply_was_saved_nothing_is_asked_again(machine: Machine):
    machine.has_tool("read")
    (machine.folder / "hold").touch()
    answers = by_history(tool_call_reply(("act", {}), ("act", {}), text="Both at once."), text_reply("Done."))
    async with FakeModelServer(answers) as server:
        machine.serves(server)
        process = await machine.started("run", "Act")
        await machine.killed(process, lambda: "Both at once." in machine.transcript)
        (machine.folder / "hold").unlink()
        run = await resumed(machine)
        assert (run["text"], run["turns"], run["tool_calls"]) == ("Done.", 2, 2)
        assert [request.reply_count for request in server.requests] == [0, 1]
        assert machine.transcript.count("result of=") == 2


async def test_killed_at_the_last_word_the_word_is_the_answer(machine: Machine):
    """Killed between the reply in the file and the end in the ledger, or just after it: either way it was answered."""
    async with FakeModelServer([text_reply("The very last word."), text_reply("A second one.")]) as server:
        machine.serves(server)
        process = await machine.started("run", "Speak")
        await machine.killed(process, lambda: "The very last word." in machine.transcript)
        await machine("runs", "resume", "--json")
        history = (await machine("runs", "history", "--json"))[1]
        assert [(run["status"], run["text"]) for run in history] == [("done", "The very last word.")]
        assert len(server.requests) == 1


async def test_killed_before_the_first_word_the_task_is_not_lost(machine: Machine):
    """Shows: A039."""
    async with FakeModelServer([text_reply("late", delay=60), text_reply("In time.")]) as server:
        machine.serves(server)
        process = await machine.started("run", "Do not forget me")
        await machine.killed(process, lambda: len(server.requests) == 1)
        assert "Do not forget me" in machine.transcript
        run = await resumed(machine)
        assert run["text"] == "In time."
        assert server.requests[0].messages == server.requests[1].messages


async def test_killed_anywhere_the_session_goes_on_and_no_answer_is_asked_for_twice(machine: Machine):
    """The moment is chosen by what the server has seen; between two requests anything may be going on."""
    turns = [tool_call_reply(("ls", {}), text=f"Step {n}.") for n in range(4)]
    async with FakeModelServer(by_history(*turns, text_reply("Arrived."))) as server:
        machine.serves(server)

        def after(count: int) -> Callable[[], bool]:
            return lambda: len(server.requests) >= count

        process = await machine.started("run", "Walk")
        await machine.killed(process, after(2))
        begun = len(server.requests)
        again: Awaitable[Any] = machine.started("runs", "resume")
        await machine.killed(await again, after(begun + 1))
        await machine("runs", "resume", "--json")
        history = (await machine("runs", "history", "--json"))[1]
        assert [(run["status"], run["text"], run["turns"]) for run in history] == [("done", "Arrived.", 5)]
        asked = [request.reply_count for request in server.requests]
        assert asked == sorted(asked)
        # A turn is asked a second time only if its reply was on its way at one of the two kills.
        assert len(asked) <= len(set(asked)) + 2
        assert machine.transcript.count("result of=") == 4


async def test_a_slot_is_counted_across_processes_and_freed_by_a_death(machine: Machine):
    (Path(machine.env["RETINUE_CONFIG"]) / "config.json").write_text(json.dumps({"limits": {"max_live": 1}}))
    open_now: list[int] = [0, 0]

    async def script(asked: CapturedRequest) -> FakeResponse:
        if "Hold" in str(asked.messages):
            return text_reply("never", delay=60)
        open_now[0] += 1
        open_now[1] = max(open_now)
        await asyncio.sleep(0.1)
        open_now[0] -= 1
        return text_reply("Mine.")

    async with FakeModelServer(script) as server:
        machine.serves(server)
        holder = await machine.started("run", "Hold the only slot")
        async with asyncio.timeout(PATIENCE):
            while not server.requests:  # noqa: ASYNC110  (another process asks: nothing to wait on)
                await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(machine("run", "--json", f"Wait {n}")) for n in range(3)]
        queued: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while len(queued) < 3:
                listed = (await machine("runs", "list", "--json"))[1]
                queued = [run for run in listed if run["status"] == "queued"]
        assert len(server.requests) == 1
        await machine.killed(holder, lambda: True)
        done = [await each for each in waiting]
        assert [(code, run["text"]) for code, run, _ in done] == [(0, "Mine.")] * 3
        assert open_now == [0, 1]
        listed = (await machine("runs", "list", "--json"))[1]
        assert [(run["status"], run["text"]) for run in listed] == [("queued", "")]


async def test_a_conversation_whose_run_was_killed_is_not_cleared_away_before_that_goes_on_or_is_given_up(
    machine: Machine,
):
    """Without its file the run would begin anew, and do again what it has done."""
    machine.has_tool("once")
    script = by_history(tool_call_reply(("act", {}), text="I act."), text_reply("Done.", delay=1.5))
    async with FakeModelServer(script) as server:
        machine.serves(server)
        process = await machine.started("run", "Act")
        await machine.killed(process, lambda: len(server.requests) == 2)
        before = machine.transcript
        [run] = (await machine("runs", "list", "--json"))[1]
        for deed in ("clear", "delete"):
            code, _, err = await machine("sessions", deed, run["slug"], "--json")
            told = f"`retinue runs resume {run['run_id']}` or `retinue runs cancel {run['run_id']}`."
            assert (code, told in err) == (3, True), err
        assert machine.transcript == before
        assert (await resumed(machine))["text"] == "Done."
        assert (machine.folder / "marks.txt").read_text().count("acted") == 1
        assert (await machine("sessions", "clear", run["slug"], "--json"))[0] == 0


async def test_a_killed_run_that_is_given_up_lets_its_conversation_go(machine: Machine):
    async with FakeModelServer([text_reply("One.", delay=600)]) as server:
        machine.serves(server)
        process = await machine.started("run", "Act")
        await machine.killed(process, lambda: len(server.requests) == 1)
        [run] = (await machine("runs", "list", "--json"))[1]
        assert (await machine("sessions", "delete", run["slug"], "--json"))[0] == 3
        assert (await machine("runs", "cancel", run["run_id"], "--json"))[0] == 0
        assert (await machine("sessions", "delete", run["slug"], "--json"))[0] == 0


async def test_what_a_killed_command_was_to_forget_is_forgotten_at_the_next_start(machine: Machine):
    """What a process that lives is to forget stays, and so does what only has such a name."""
    places = machine.folder.parent / "tmp"
    (places / "retinue-forget-mine").mkdir(parents=True)
    (places / "retinue-forget-mine" / "diary.txt").touch()
    machine.env["TMPDIR"] = str(places)

    def script(asked: CapturedRequest) -> FakeResponse:
        return text_reply("Hello.") if "Again" in str(asked.messages) else text_reply("Never.", delay=600)

    def homes() -> list[Path]:
        return [path for path in places.iterdir() if (path / "ledger.db").exists()]

    async with FakeModelServer(script) as server:
        machine.serves(server)
        dead = await machine.started("run", "--forget", "My secret")
        await machine.killed(dead, lambda: len(server.requests) == 1)
        [left] = homes()
        assert "My secret" in "".join(path.read_text() for path in left.rglob("session.md"))
        living = await machine.started("run", "--forget", "My other secret")
        async with asyncio.timeout(PATIENCE):
            while len(server.requests) < 2:  # noqa: ASYNC110  (another process asks)
                await asyncio.sleep(0.01)
        [other] = homes()
        assert other != left
        assert (await machine("run", "Again", "--json"))[0] == 0
        assert homes() == [other]
        assert (places / "retinue-forget-mine" / "diary.txt").exists()
        await machine.killed(living, lambda: True)


async def test_a_run_in_a_home_that_was_moved_goes_on_and_tells_where_its_conversation_is(machine: Machine):
    script = by_history(tool_call_reply(("ls", {}), text="I look."), text_reply("Done.", delay=1))
    async with FakeModelServer(script) as server:
        machine.serves(server)
        process = await machine.started("run", "Look")
        await machine.killed(process, lambda: len(server.requests) == 2)
        before, now = Path(machine.env["RETINUE_HOME"]), machine.folder.parent / "moved"
        before.rename(now)
        machine.env["RETINUE_HOME"] = str(now)
        [listed] = (await machine("runs", "list", "--json"))[1]
        done = await resumed(machine)
        [remembered] = (await machine("runs", "history", "--json"))[1]
        shown = (await machine("runs", "show", done["run_id"], "--json"))[1]
        assert "Done." in Path(done["path"]).read_text()
        assert {each["path"] for each in (listed, done, remembered, shown)} == {
            str(now / Path(done["path"]).relative_to(now))
        }
        assert not before.exists()
