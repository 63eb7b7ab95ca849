"""The log file: successes, failures with their reason, redaction and rotation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_scripts import is_from_helper
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

DELEGATE = ("PersistentAgent", {"preset": "helper", "description": "find it", "prompt": "Find x."})
DELEGATE_IN_BACKGROUND = (
    "spawn_subagent",
    {"agentId": "helper", "prompt": "Find x.", "returnMode": "background"},
)


def read_log(home: Path, level: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (home / "logs" / LOG_NAME).read_text().splitlines()]
    return [record for record in records if record["level"] == level]


def script_with_delegation(
    call: tuple[str, dict[str, Any]],
) -> Callable[[CapturedRequest], FakeResponse]:
    def script(asked: CapturedRequest) -> FakeResponse:
        if is_from_helper(asked):
            return text_reply("Here: x.")
        return text_reply("It is here.") if asked.reply_count else tool_call_reply(call)

    return script


async def test_successful_runs_are_logged_at_level_info_only(machine: UserMachine):
    """Shows: A071."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    async with machine.serve_models(script_with_delegation(DELEGATE_IN_BACKGROUND)):
        ran = await machine("run", "--json", "Where is x?")
        assert ran.code == 0, ran.err
    info = read_log(machine.home, "info")
    folders = [line["path"] for line in info if line["event"] == "session.created"]
    assert [Path(path).is_dir() for path in folders] == [True, True]
    assert str(Path(ran.json["path"]).parent) == folders[0]
    events = [line["event"] for line in info if line.get("run") == ran.json["run_id"]]
    assert (events[:2], events[-1]) == (["run.queued", "run.started"], "run.ended")
    (delivered,) = [line for line in info if line["event"] == "announcement.delivered"]
    assert (delivered["agent"], delivered["to"]) == ("helper", ran.json["session_id"])
    assert read_log(machine.home, "error") == []


async def test_a_failed_run_is_logged_at_level_error(machine: UserMachine):
    """Shows: A071."""

    def script(_: CapturedRequest) -> FakeResponse:
        return text_reply(status=401)

    async with machine.serve_models(script):
        ran = await machine("run", "--json", "Go.")
        assert ran.code != 0
    (line,) = read_log(machine.home, "error")
    assert (line["event"], line["run"]) == ("run.ended", ran.json["run_id"])
    assert (line["status"], line["reason"]) == ("failed", "auth")


async def test_a_session_folder_that_cannot_be_created_is_reported_to_the_caller_and_logged(
    machine: UserMachine,
):
    """Shows: A068, A071."""
    machine.write_config(approvals="auto")
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")
    blocked: list[Path] = []

    def script(asked: CapturedRequest) -> FakeResponse:
        if not asked.reply_count:
            (session,) = machine.sessions.glob("*/branches/main")
            blocked.append(session / "agents")
            blocked[0].write_text("A file in place of the children's folder.")
        return script_with_delegation(DELEGATE)(asked)

    async with machine.serve_models(script) as server:
        ran = await machine("run", "--json", "Where is x?")
        assert (ran.code, ran.json["text"]) == (0, "It is here."), ran.err
        (result,) = machine.tool_results(server.requests[-1])
    assert "Not a directory" in result
    (line,) = read_log(machine.home, "error")
    assert (line["event"], line["agent"]) == ("session.created", "helper")
    assert "Not a directory" in line["error"]
    assert str(blocked[0]) in line["error"]


def test_secrets_are_redacted_in_the_log(tmp_path: Path):
    """Shows: A071."""
    key = "a-key-of-somebody-0123456789"
    log = EventLog(tmp_path, Redactor([key]), system_clock())
    log.log_failure("session.created", Failed(f"{key}/agents: Not a directory"), path=f"{key}/agents")
    (line,) = read_log(tmp_path, "error")
    assert "/agents: Not a directory" in line["error"]
    assert key not in (tmp_path / "logs" / LOG_NAME).read_text()


def test_a_log_file_that_was_moved_or_deleted_is_created_again(tmp_path: Path):
    """The log keeps its file open, and notices when the file of that name is another one."""
    log = EventLog(tmp_path, Redactor([]), system_clock())
    log.log_success("first")
    (tmp_path / "logs" / LOG_NAME).rename(tmp_path / "logs" / "elsewhere")
    log.log_success("second")
    (tmp_path / "logs" / LOG_NAME).unlink()
    log.log_success("third")
    log.close()
    assert [line["event"] for line in read_log(tmp_path, "info")] == ["third"]
    assert json.loads((tmp_path / "logs" / "elsewhere").read_text())["event"] == "first"


def test_two_writers_of_one_log_both_continue_after_its_rotation(tmp_path: Path):
    logs = [EventLog(tmp_path, Redactor([]), system_clock()) for _ in range(2)]
    for n in range(5):
        logs[n % 2].log_success("said", n=n, text="x" * (MAX_LOG_BYTES // 2))
    for log in logs:
        log.close()
    older = (tmp_path / "logs" / ROTATED_LOG_NAME).read_text().splitlines()
    assert [json.loads(line)["n"] for line in older] == [2, 3]
    assert [line["n"] for line in read_log(tmp_path, "info")] == [4]


def test_a_full_log_is_rotated(tmp_path: Path):
    for n in range(5):
        append_log_line(tmp_path, {"n": n, "text": "x" * (MAX_LOG_BYTES // 2)})
    older = (tmp_path / "logs" / ROTATED_LOG_NAME).read_text().splitlines()
    assert [json.loads(line)["n"] for line in older] == [2, 3]
    (newest,) = (tmp_path / "logs" / LOG_NAME).read_text().splitlines()
    assert json.loads(newest)["n"] == 4


def raise_unexpected_error(_raw: bytes) -> dict[str, Any]:
    raise ZeroDivisionError("nobody thought of this")


@retinue.tool(effect="read")
async def echo(text: str) -> str:
    """Return the text."""
    return text


async def test_an_unexpected_error_ends_only_its_own_run_and_is_reported_to_the_parent(
    machine: UserMachine,
):
    """The log has a traceback, the parent gets an error result, and further runs succeed.

    Shows: A069.
    """
    machine.write_agent("helper", "model: openai:x\n", "You help.\n")

    def script(asked: CapturedRequest) -> FakeResponse:
        if is_from_helper(asked):
            return tool_call_reply(("echo", {"text": "x"}), text="Looking.")
        return text_reply("It could not be found.") if asked.reply_count else tool_call_reply(DELEGATE)

    broken = replace(echo, parse_arguments=raise_unexpected_error)
    async with machine.serve_models(script) as server, machine.open(approvals="auto", tools=[broken]) as app:
        run = await app.run("Where is x?", workspace=machine.folder)
        assert (run.status, run.text) == ("done", "It could not be found.")
        (child,) = [each for each in await app.runs.list(live=False) if each.id != run.id]
        assert (child.status, child.reason) == ("failed", "crashed")
        again = await app.run("And now?", session=run.slug)
        assert again.status == "done"
    assert machine.request_texts(server.requests[2])[-1].startswith(
        "Error: ZeroDivisionError: nobody thought of this\n\n"
    )
    (line,) = [line for line in read_log(machine.home, "error") if "Traceback" in line.get("error", "")]
    assert line["run"] == child.id
    assert "nobody thought of this" in line["error"]
