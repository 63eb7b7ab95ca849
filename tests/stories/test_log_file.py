"""The log, read afterwards: what succeeded, what failed and why, and no more than a few megabytes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from user_machine import UserMachine

import retinue
from retinue.app.event_log import EventLog
from retinue.app.log_file import LOG_NAME, MAX_LOG_BYTES, ROTATED_LOG_NAME, append_log_line
from retinue.domain.redaction import Redactor
from retinue.errors import Failed
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply
from retinue.worker.clock import system_clock

HAND_ON = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})
LATER = ("spawn_subagent", {"agentId": "helper", "prompt": "Find x.", "returnMode": "background"})


def lines(home: Path, level: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (home / "logs" / LOG_NAME).read_text().splitlines()]
    return [line for line in read if line["level"] == level]


def handing_on(wish: tuple[str, dict[str, Any]]) -> Callable[[CapturedRequest], FakeResponse]:
    def answer(asked: CapturedRequest) -> FakeResponse:
        if "You help." in asked.messages[0]["content"]:
            return text_reply("Here: x.")
        return text_reply("It is here.") if asked.reply_count else tool_call_reply(wish)

    return answer


async def test_what_succeeded_leaves_lines_at_level_info_and_none_at_level_error(machine: UserMachine):
    """Shows: A071."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    async with machine.serve_models(handing_on(LATER)):
        ran = await machine("run", "--json", "Where is x?")
        assert ran.code == 0, ran.err
    told = lines(machine.home, "info")
    made = [line["path"] for line in told if line["event"] == "session.created"]
    assert [Path(path).is_dir() for path in made] == [True, True]
    assert str(Path(ran.json["path"]).parent) == made[0]
    mine = [line["event"] for line in told if line.get("run") == ran.json["run_id"]]
    assert (mine[:2], mine[-1]) == (["run.queued", "run.started"], "run.ended")
    (helped,) = [line for line in told if line["event"] == "announcement.delivered"]
    assert (helped["agent"], helped["to"]) == ("helper", ran.json["session_id"])
    assert lines(machine.home, "error") == []


async def test_a_run_that_failed_leaves_a_line_at_level_error(machine: UserMachine):
    """Shows: A071."""

    def script(_: CapturedRequest) -> FakeResponse:
        return text_reply(status=401)

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
        assert ran.code != 0
    (line,) = lines(machine.home, "error")
    assert (line["event"], line["run"]) == ("run.ended", ran.json["run_id"])
    assert (line["status"], line["reason"]) == ("failed", "auth")


async def test_a_folder_that_cannot_be_made_is_told_to_the_caller_and_to_the_log(machine: UserMachine):
    """Shows: A068, A071."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    blocked: list[Path] = []

    def script(asked: CapturedRequest) -> FakeResponse:
        if not asked.reply_count:
            (session,) = machine.sessions.glob("*/branches/main")
            blocked.append(session / "agents")
            blocked[0].write_text("A file stands where the children's folders go.")
        return handing_on(HAND_ON)(asked)

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Where is x?")
        assert (ran.code, ran.json["text"]) == (0, "It is here."), ran.err
        (result,) = [each for each in server.requests[-1].messages if each["role"] == "tool"]
    assert "Not a directory" in result["content"]
    (line,) = lines(machine.home, "error")
    assert (line["event"], line["agent"]) == ("session.created", "helper")
    assert "Not a directory" in line["error"]
    assert str(blocked[0]) in line["error"]


def test_keys_do_not_stand_in_the_log(tmp_path: Path):
    """Shows: A071."""
    key = "a-key-of-somebody-0123456789"
    log = EventLog(tmp_path, Redactor([key]), system_clock())
    log.log_failure("session.created", Failed(f"{key}/agents: Not a directory"), path=f"{key}/agents")
    (line,) = lines(tmp_path, "error")
    assert "/agents: Not a directory" in line["error"]
    assert key not in (tmp_path / "logs" / LOG_NAME).read_text()


def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path):
    """It is held open, and what is said goes to the file that has the name."""
    log = EventLog(tmp_path, Redactor([]), system_clock())
    log.log_success("first")
    (tmp_path / "logs" / LOG_NAME).rename(tmp_path / "logs" / "elsewhere")
    log.log_success("second")
    (tmp_path / "logs" / LOG_NAME).unlink()
    log.log_success("third")
    log.close()
    assert [line["event"] for line in lines(tmp_path, "info")] == ["third"]
    assert json.loads((tmp_path / "logs" / "elsewhere").read_text())["event"] == "first"


def test_two_who_write_one_log_both_go_on_when_it_is_full(tmp_path: Path):
    logs = [EventLog(tmp_path, Redactor([]), system_clock()) for _ in range(2)]
    for n in range(5):
        logs[n % 2].log_success("said", n=n, text="x" * (MAX_LOG_BYTES // 2))
    for log in logs:
        log.close()
    older = (tmp_path / "logs" / ROTATED_LOG_NAME).read_text().splitlines()
    assert [json.loads(line)["n"] for line in older] == [2, 3]
    assert [line["n"] for line in lines(tmp_path, "info")] == [4]


def test_a_log_that_is_full_becomes_the_older_one(tmp_path: Path):
    for n in range(5):
        append_log_line(tmp_path, {"n": n, "text": "x" * (MAX_LOG_BYTES // 2)})
    older = (tmp_path / "logs" / ROTATED_LOG_NAME).read_text().splitlines()
    assert [json.loads(line)["n"] for line in older] == [2, 3]
    (newest,) = (tmp_path / "logs" / LOG_NAME).read_text().splitlines()
    assert json.loads(newest)["n"] == 4


def _explodes(_raw: bytes) -> dict[str, Any]:
    raise ZeroDivisionError("nobody thought of this")


@retinue.tool(effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return at


async def test_an_error_that_nobody_thought_of_ends_one_run_and_is_told_to_whoever_asked(
    machine: UserMachine,
):
    """What reads the model's reply breaks: the log says where, the parent hears of it, and everything goes on.

    Shows: A069.
    """
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")

    def script(asked: CapturedRequest) -> FakeResponse:
        if "You help." in asked.messages[0]["content"]:
            return tool_call_reply(("look", {"at": "x"}), text="Looking.")
        return text_reply("It could not be found.") if asked.reply_count else tool_call_reply(HAND_ON)

    broken = replace(look, parse_arguments=_explodes)
    async with machine.serve_models(script) as server, machine.open(approvals="auto", tools=[broken]) as app:
        run = await app.run("Where is x?", workspace=machine.folder)
        assert (run.status, run.text) == ("done", "It could not be found.")
        (child,) = [each for each in await app.runs.list(live=False) if each.id != run.id]
        assert (child.status, child.reason) == ("failed", "crashed")
        again = await app.run("And now?", session=run.slug)
        assert again.status == "done"
    assert machine.request_texts(server.requests[2])[-1] == "Error: ZeroDivisionError: nobody thought of this"
    (line,) = [line for line in lines(machine.home, "error") if "Traceback" in line.get("error", "")]
    assert line["run"] == child.id
    assert "nobody thought of this" in line["error"]
