"""What can be wrong is said in one sentence with the documented exit code, and every file stays as it was."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply


def without_key(machine: UserMachine) -> list[str]:
    machine.env.pop("OPENAI_BASE_URL")
    machine.env.pop("OPENAI_API_KEY")
    return ["run", "Hi"]


def without_any_model(machine: UserMachine) -> list[str]:
    machine.env.pop("RETINUE_MODEL")
    machine.env.pop("ANTHROPIC_API_KEY")
    return without_key(machine)


def with_an_address_that_is_none(machine: UserMachine) -> list[str]:
    machine.env["OPENAI_BASE_URL"] = "localhost"
    return ["run", "Hi"]


def with_a_broken_configuration(machine: UserMachine) -> list[str]:
    machine.write_config(limits={"max_live": "many"})
    return ["run", "Hi"]


def with_a_folder_for_a_configuration(machine: UserMachine) -> list[str]:
    (Path(machine.env["RETINUE_CONFIG"]) / "config.json").mkdir()
    return ["run", "Hi"]


def with_a_broken_definition(machine: UserMachine) -> list[str]:
    machine.write_agent("brief", "tools: [read\n")
    return ["run", "--agent", "brief", "Hi"]


def with_a_folder_for_a_definition(machine: UserMachine) -> list[str]:
    (machine.agents / "brief.md").mkdir(parents=True)
    return ["run", "--agent", "brief", "Hi"]


def with_a_file_for_a_home(machine: UserMachine) -> list[str]:
    (machine.folder / "home").write_text("a file")
    machine.env["RETINUE_HOME"] = str(machine.folder / "home")
    return ["run", "Hi"]


def with_a_folder_for_a_ledger(machine: UserMachine) -> list[str]:
    (machine.home / "ledger.db").mkdir()
    return ["run", "Hi"]


def with_a_file_for_a_workspace(machine: UserMachine) -> list[str]:
    (machine.folder / "file").write_text("a file")
    return ["run", "--workspace", "file", "Hi"]


def with_a_script_that_is_not_there(machine: UserMachine) -> list[str]:
    return ["run", "--model", "scripted:nowhere.json", "Hi"]


def with_a_model_that_names_nobody(machine: UserMachine) -> list[str]:
    machine.env.pop("RETINUE_MODEL")
    machine.env.pop("OPENAI_API_KEY")
    machine.env.pop("ANTHROPIC_API_KEY")
    return ["run", "--model", "clever-one", "Hi"]


CASES: dict[Callable[[Any], list[str]], tuple[int, str]] = {
    without_key: (2, "Set OPENAI_API_KEY."),
    without_any_model: (2, "no model is configured"),
    with_an_address_that_is_none: (2, "OPENAI_BASE_URL"),
    with_a_broken_configuration: (2, "max_live"),
    with_a_folder_for_a_configuration: (2, "config.json"),
    with_a_broken_definition: (7, "brief.md"),
    with_a_folder_for_a_definition: (7, "brief.md"),
    with_a_file_for_a_home: (2, "home"),
    with_a_folder_for_a_ledger: (1, "ledger.db"),
    with_a_file_for_a_workspace: (2, "file"),
    with_a_script_that_is_not_there: (2, "nowhere.json"),
    with_a_model_that_names_nobody: (2, "clever-one"),
}


def one_sentence(err: str) -> str:
    """Standard error, which holds one line and no traceback."""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert "defect" not in err
    return lines[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_start_that_cannot_be_made_says_why_and_leaves_nothing(
    machine: UserMachine, case: Callable[[Any], list[str]]
):
    code, words = CASES[case]
    async with machine.serve_models([text_reply("never")]) as server:
        args = case(machine)
        before = machine.read_files()
        ran = await machine(*args)
        assert (ran.code, ran.out) == (code, ""), ran.err
        assert words in one_sentence(ran.err)
        assert {
            path: data for path, data in machine.read_files().items() if not path.endswith("general.md")
        } == before
        assert not list(machine.home.glob("sessions/*/branches"))
        assert server.requests == []


async def test_a_session_that_cannot_be_gone_on_with_says_why_and_stays_as_it_was(machine: UserMachine):
    """Shows: A038, A081."""
    async with (
        machine.serve_models([text_reply("Hi."), text_reply("Hello.")]) as server,
        machine.open() as app,
    ):
        run = await app.run("Hi", workspace=machine.folder)
        broken = await app.run("Hi", workspace=machine.folder)
        file, preset = Path(broken.transcript_path), Path(broken.transcript_path).parent / "preset.md"
        (machine.folder / "notes.md").write_text("Nothing of ours.")
        whole = file.read_text()

        async def told(code: int, words: str, *args: str) -> None:
            before = machine.read_files()
            ran = await machine(*args)
            assert (ran.code, ran.out) == (code, ""), ran.err
            assert words in ran.err
            assert "Traceback" not in ran.err
            assert machine.read_files() == before

        await asyncio.gather(
            told(2, f"No text at the end of {run.transcript_path}", "run", "--session", run.slug),
            told(7, "There is no session 'nobody'", "run", "--session", "nobody", "Hi"),
            told(7, "There is no file or folder", "run", "--session", "/nowhere/session.md", "Hi"),
            told(2, "is not a session", "run", "--session", "notes.md", "Hi"),
            told(2, "The text is empty", "send", run.slug, "  "),
            told(3, "Session does not belong", "run", "--session", run.slug, "--agent", "explorer", "Hi"),
        )
        file.write_text(f"junk\n{whole}")
        await told(1, "session.md:2: a head line stands only at the start", "send", broken.slug, "Hi")
        file.write_text(whole)
        definition = preset.read_text()
        preset.write_text("---\nname: general\n")
        await told(1, f"Failed to load preset from {preset.parent}", "send", broken.slug, "Hi")
        preset.write_text(definition)
        file.unlink()
        file.mkdir()
        await told(1, "Is a directory", "run", "--session", f"{broken.slug}/main", "Hi")
        listed = await machine("sessions", "list", "--json")
        assert (listed.code, len(listed.json)) == (0, 2)
        assert len(server.requests) == 2


async def test_a_server_that_says_no_is_quoted_and_the_task_is_kept(machine: UserMachine):
    answers = {
        "wrong": (http_error(404, "The model wrong does not exist"), "model or URL not found"),
        "denied": (http_error(401, "bad key"), "check OPENAI_API_KEY"),
    }

    def script(asked: CapturedRequest) -> FakeResponse:
        return answers[asked.body["model"]][0]

    async with machine.serve_models(script) as server:
        for model, (_, words) in answers.items():
            ran = await machine("run", "--json", "--model", f"openai:{model}", "Keep me")
            assert (ran.code, ran.json["status"]) == (1, "failed")
            assert words in one_sentence(ran.err)
            assert "Keep me" in Path(ran.json["path"]).read_text()
        assert len(server.requests) == 2


async def test_a_server_that_is_not_there_is_tried_again_and_named(machine: UserMachine):
    """Shows: M04."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        machine.env |= {"OPENAI_BASE_URL": address, "RETINUE_MODEL": "openai:m", "OPENAI_API_KEY": "sk-x"}
        ran = await machine("run", "--json", "Anyone?")
    assert (ran.code, ran.json["reason"]) == (1, "unreachable")
    assert address.removeprefix("http://") in one_sentence(ran.err)
    assert "Anyone?" in Path(ran.json["path"]).read_text()
