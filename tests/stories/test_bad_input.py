"""Invalid input: one error message, the documented exit code, and no changed file."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from user_machine import UserMachine

from retinue.errors import BUG_MESSAGE
from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply


def unset_key(machine: UserMachine) -> list[str]:
    machine.env.pop("OPENAI_BASE_URL")
    machine.env.pop("OPENAI_API_KEY")
    return ["run", "Hi"]


def unset_model(machine: UserMachine) -> list[str]:
    machine.env.pop("RETINUE_MODEL")
    machine.env.pop("ANTHROPIC_API_KEY")
    return unset_key(machine)


def set_invalid_address(machine: UserMachine) -> list[str]:
    machine.env["OPENAI_BASE_URL"] = "localhost"
    return ["run", "Hi"]


def write_broken_configuration(machine: UserMachine) -> list[str]:
    machine.write_config(limits={"max_live": "many"})
    return ["run", "Hi"]


def make_folder_instead_of_configuration(machine: UserMachine) -> list[str]:
    (Path(machine.env["RETINUE_CONFIG"]) / "config.json").mkdir()
    return ["run", "Hi"]


def write_broken_definition(machine: UserMachine) -> list[str]:
    machine.write_agent("brief", "tools: [read\n")
    return ["run", "--agent", "brief", "Hi"]


def make_folder_instead_of_definition(machine: UserMachine) -> list[str]:
    (machine.agents / "brief.md").mkdir(parents=True)
    return ["run", "--agent", "brief", "Hi"]


def write_file_instead_of_home(machine: UserMachine) -> list[str]:
    (machine.folder / "home").write_text("a file")
    machine.env["RETINUE_HOME"] = str(machine.folder / "home")
    return ["run", "Hi"]


def make_folder_instead_of_ledger(machine: UserMachine) -> list[str]:
    (machine.home / "ledger.db").mkdir()
    return ["run", "Hi"]


def write_file_instead_of_workspace(machine: UserMachine) -> list[str]:
    (machine.folder / "file").write_text("a file")
    return ["run", "--workspace", "file", "Hi"]


def name_missing_script(machine: UserMachine) -> list[str]:
    return ["run", "--model", "scripted:nowhere.json", "Hi"]


def name_model_without_provider(machine: UserMachine) -> list[str]:
    machine.env.pop("RETINUE_MODEL")
    machine.env.pop("OPENAI_API_KEY")
    machine.env.pop("ANTHROPIC_API_KEY")
    return ["run", "--model", "clever-one", "Hi"]


CASES: dict[Callable[[UserMachine], list[str]], tuple[int, str]] = {
    unset_key: (2, "Set OPENAI_API_KEY."),
    unset_model: (2, "No model configured"),
    set_invalid_address: (2, "OPENAI_BASE_URL"),
    write_broken_configuration: (2, "max_live"),
    make_folder_instead_of_configuration: (2, "config.json"),
    write_broken_definition: (2, "brief.md"),
    make_folder_instead_of_definition: (2, "brief.md"),
    write_file_instead_of_home: (2, "home"),
    make_folder_instead_of_ledger: (1, "ledger.db"),
    write_file_instead_of_workspace: (2, "file"),
    name_missing_script: (2, "nowhere.json"),
    name_model_without_provider: (2, "clever-one"),
}


def only_line(err: str) -> str:
    """Return the only line of standard error, which must not be a traceback."""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert BUG_MESSAGE not in err
    return lines[0]


@pytest.mark.parametrize("prepare", CASES, ids=lambda prepare: prepare.__name__)
async def test_a_command_that_cannot_start_prints_the_reason_and_changes_no_file(
    machine: UserMachine, prepare: Callable[[UserMachine], list[str]]
):
    code, message = CASES[prepare]
    async with machine.serve_models([text_reply("never")]) as server:
        args = prepare(machine)
        before = machine.read_files()
        ran = await machine(*args)
        assert (ran.code, ran.out) == (code, ""), ran.err
        assert message in only_line(ran.err)
        assert {
            path: data for path, data in machine.read_files().items() if not path.endswith("general.md")
        } == before
        assert not list(machine.home.glob("sessions/*/branches"))
        assert server.requests == []


async def test_a_session_that_cannot_be_continued_is_reported_and_stays_unchanged(machine: UserMachine):
    """Shows: A038, A081."""
    async with (
        machine.serve_models([text_reply("Hi."), text_reply("Hello.")]) as server,
        machine.open() as app,
    ):
        run = await app.run("Hi", workspace=machine.folder)
        broken = await app.run("Hi", workspace=machine.folder)
        file, preset = Path(broken.transcript_path), Path(broken.transcript_path).parent / "preset.md"
        (machine.folder / "notes.md").write_text("Nothing of ours.")
        text = file.read_text()

        async def expect_error(code: int, message: str, *args: str) -> None:
            before = machine.read_files()
            ran = await machine(*args)
            assert (ran.code, ran.out) == (code, ""), ran.err
            assert message in ran.err
            assert "Traceback" not in ran.err
            assert machine.read_files() == before

        await asyncio.gather(
            expect_error(2, f"No text at the end of {run.transcript_path}", "run", "--session", run.slug),
            expect_error(7, "Session 'nobody' not found", "run", "--session", "nobody", "Hi"),
            expect_error(7, "There is no file or folder", "run", "--session", "/nowhere/session.md", "Hi"),
            expect_error(2, "is not a session", "run", "--session", "notes.md", "Hi"),
            expect_error(2, "The text is empty", "send", run.slug, "  "),
            expect_error(
                3, "Session does not belong", "run", "--session", run.slug, "--agent", "explorer", "Hi"
            ),
        )
        file.write_text(f"junk\n{text}")
        await expect_error(
            1, "session.md:2: a head line is only allowed at the start", "send", broken.slug, "Hi"
        )
        file.write_text(text)
        definition = preset.read_text()
        preset.write_text("---\nname: general\n")
        await expect_error(1, f"Failed to load preset from {preset.parent}", "send", broken.slug, "Hi")
        preset.write_text(definition)
        file.unlink()
        file.mkdir()
        await expect_error(1, "Is a directory", "run", "--session", f"{broken.slug}/main", "Hi")
        listed = await machine("sessions", "list", "--json")
        assert (listed.code, len(listed.json)) == (0, 2)
        assert len(server.requests) == 2


async def test_an_http_error_of_the_model_server_is_reported_and_the_task_is_saved(machine: UserMachine):
    answers = {
        "wrong": (http_error(404, "The model wrong does not exist"), "model or URL not found"),
        "denied": (http_error(401, "bad key"), "Check OPENAI_API_KEY"),
    }

    def script(asked: CapturedRequest) -> FakeResponse:
        return answers[asked.body["model"]][0]

    async with machine.serve_models(script) as server:
        for model, (_, message) in answers.items():
            ran = await machine("run", "--json", "--model", f"openai:{model}", "Keep me")
            assert (ran.code, ran.json["status"]) == (1, "failed")
            assert message in only_line(ran.err)
            assert "Keep me" in Path(ran.json["path"]).read_text()
        assert len(server.requests) == 2


async def test_an_unreachable_model_server_is_named_and_the_task_is_saved(machine: UserMachine):
    """Shows: M04."""
    machine.write_config(providers={"openai": {"retry_seconds": 1.5}}, limits={"model_wait_seconds": 0.01})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        machine.env |= {"OPENAI_BASE_URL": address, "RETINUE_MODEL": "openai:m", "OPENAI_API_KEY": "sk-x"}
        ran = await machine("run", "--json", "Anyone?")
    assert (ran.code, ran.json["waiting_for"], ran.json["reason"]) == (6, "person", "model")
    assert f"cannot reach {address}" in ran.json["error"]
    assert f"cannot reach {address}" in ran.err.splitlines()[0]
    assert "Anyone?" in Path(ran.json["path"]).read_text()
