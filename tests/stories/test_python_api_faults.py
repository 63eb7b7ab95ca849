"""Errors in programs that use the Python API, and two of them at once: no run is affected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from user_machine import UserMachine

import retinue
from retinue.app.log_file import append_log_line
from retinue.app.run_options import RunOptions, SpawnOptions
from retinue.domain.event import Event
from retinue.errors import UsageError
from retinue.testing.replies import stalled_stream, text_reply, tool_call_reply


@retinue.tool
def ls() -> str:
    """Uses the name of a built-in tool."""
    return ""


async def test_a_listener_that_fails_does_not_end_the_run(machine: UserMachine):
    def raise_key_error(event: Event) -> None:
        raise KeyError(event.kind)

    async with machine.serve_models([text_reply("Done.")]), machine.open() as app:
        with app.listen(raise_key_error):
            run = await app.run("Go", workspace=machine.folder)
        assert (run.status, run.text) == (retinue.Status.DONE, "Done.")
    assert "KeyError" in (machine.home / "logs" / "retinue.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": -1}, "timeout must be a number of seconds, not -1"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds, not nan"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds, not inf"),
        ({"thinking": "zz"}, "thinking must be one of off, low, medium, high, max, not 'zz'"),
    ],
)
async def test_an_option_with_an_invalid_value_is_refused_before_anything_is_written(
    machine: UserMachine, options: dict[str, Any], message: str
):
    async with machine.open() as app:
        with pytest.raises(UsageError, match=message):
            await app.run("Go", workspace=machine.folder, **options)
        if "timeout" in options:
            spawn_options = SpawnOptions(parent="nobody", agent="explorer", timeout_s=options["timeout"])
            with pytest.raises(UsageError, match=message):
                await app.runs.spawn("Go", spawn_options)
        assert await app.runs.list(live=False) == []
        assert await app.sessions.list() == []


def test_a_log_that_cannot_be_written_causes_no_error(tmp_path: Path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    append_log_line(tmp_path, {"error": "something"})
    assert (tmp_path / "logs").read_text() == "a file where the folder should be"


async def test_a_failed_open_leaves_no_owner_file(machine: UserMachine):
    with pytest.raises(UsageError, match="A tool named 'ls' already exists"):
        async with machine.open(tools=[ls]):
            pass
    assert not list((machine.home / "owners").glob("*"))


async def resume_runs(app: retinue.App) -> list[str]:
    return [run.id for run in await app.runs.resume()]


async def test_two_processes_resume_each_interrupted_run_once(machine: UserMachine):
    async with machine.serve_models([stalled_stream()] * 3 + [text_reply("Done.")] * 3):
        async with machine.open() as app:
            for task in ("One", "Two", "Three"):
                await app.runs.start(task, RunOptions(workspace=machine.folder))
            await machine.wait_for_requests(3)
        async with machine.open() as first, machine.open() as second:
            first_ids, second_ids = await asyncio.gather(resume_runs(first), resume_runs(second))
            ids = first_ids + second_ids
            assert len(set(ids)) == len(ids) == 3
            assert [(await first.runs.wait(each)).status for each in ids] == [retinue.Status.DONE] * 3


async def test_the_api_key_of_a_definitions_own_server_is_not_stored(machine: UserMachine):
    """Shows: X09."""
    key = "my-own-key-0123456789"
    machine.env["MY_OWN_KEY"] = key
    (machine.folder / "notes.txt").write_text(f"the key is {key}")
    script = [tool_call_reply(("read", {"path": "notes.txt"})), text_reply(f"It is {key}.")]
    async with machine.serve_models(script) as server, machine.open() as app:
        server_settings = f"{{base_url: {server.url}, api_key_env: MY_OWN_KEY}}"
        machine.write_agent(
            "own", f"model: openai:m\ndriver: openai-compatible\ndriver_settings: {server_settings}\n"
        )
        run = await app.run(f"Look for {key}", agent="own", workspace=machine.folder)
        assert run.text == "It is [secret of 21 characters]."
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    stored = {str(path): path.read_bytes() for path in machine.home.rglob("*") if path.is_file()}
    assert stored
    assert not [path for path, data in stored.items() if key.encode() in data]
