"""The public fake model server, as users run it to test their own agents."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from model_providers import http_provider
from model_request import make_model_request

from retinue.domain.model_turn import Model, ModelReply
from retinue.domain.transcript import Entry, Message
from retinue.errors import BadConfig, ModelFailed
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.model_script_file import load_script_file
from retinue.testing.replies import FakeResponse, response_from_json, text_reply, tool_call_reply


async def request_reply(url: str, text: str = "hi", *, turns: int = 0) -> ModelReply:
    entries: list[Entry] = [Message(id="u", role="user", text=text)]
    for number in range(turns):
        entries += [
            Message(id=f"a{number}", role="agent", text="x"),
            Message(id=f"u{number}", role="user", text="y"),
        ]
    client = http_provider("openai", url)
    request = make_model_request(Model(provider="openai", name="m"), entries)
    try:
        return await client.request_reply(request, lambda delta: None)
    finally:
        await client.close()


async def test_a_list_of_replies_is_served_in_order_and_reported_when_used_up():
    async with FakeModelServer([text_reply("one"), tool_call_reply(("ls", {"path": "."}))]) as server:
        assert (await request_reply(server.url)).text == "one"
        assert (await request_reply(server.url)).tool_calls[0].tool == "ls"
        with pytest.raises(ModelFailed, match="the script has 2 responses and all were used"):
            await request_reply(server.url)
        assert [request.messages[-1]["content"] for request in server.requests] == ["hi"] * 3


async def test_an_async_function_may_choose_the_reply():
    async def choose(request: CapturedRequest) -> FakeResponse:
        await asyncio.sleep(0)
        return text_reply(f"turn {request.reply_count}")

    async with FakeModelServer(choose) as server:
        assert [(await request_reply(server.url, turns=turns)).text for turns in (0, 2)] == [
            "turn 0",
            "turn 2",
        ]


def write_script(tmp_path: Path, script: bytes) -> str:
    path = tmp_path / "script.json"
    path.write_bytes(script)
    return str(path)


def test_a_script_file_may_choose_replies_by_order_by_history_or_by_request_text(tmp_path: Path):
    parts = [
        {"when": "child", "replies": ["c0", "c1"], "by": "history"},
        {"replies": ["p0", "p1"], "loop": True},
    ]
    choose_response = load_script_file(write_script(tmp_path, msgspec.json.encode({"parts": parts})))
    assert [choose_response(b"a child", turns).text for turns in (1, 0, 1)] == ["c1", "c0", "c1"]
    assert [choose_response(b"a parent", 0).text for _ in range(3)] == ["p0", "p1", "p0"]
    assert choose_response(b"a child", 2).status == 400


def test_a_reply_in_a_script_file_has_the_fields_of_a_response():
    response = response_from_json(
        {"text": "x", "tools": [{"name": "ls", "args": {"path": "."}}], "status": 200, "delay": 1}
    )
    assert (response.text, response.calls, response.delay) == ("x", (("ls", {"path": "."}),), 1)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (b"nothing", "is invalid"),
        (b"[1]", "a reply is a text or an object"),
        (b'[{"txt": "x"}]', "no field 'txt'"),
        (b'{"parts": [{"repls": []}]}', "repls"),
    ],
)
def test_an_invalid_script_file_is_refused_with_the_cause(tmp_path: Path, script: bytes, problem: str):
    with pytest.raises(BadConfig, match=problem):
        load_script_file(write_script(tmp_path, script))


def test_a_missing_script_file_is_refused(tmp_path: Path):
    with pytest.raises(BadConfig, match="cannot read the script"):
        load_script_file(str(tmp_path / "none.json"))


async def test_the_server_process_prints_its_url_and_ends_on_a_signal(tmp_path: Path):
    script = write_script(tmp_path, b'["from afar"]')
    command = ["-m", "retinue.testing.fake_model_server", "--script", script]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None:
            raise AssertionError("stdout is a pipe")
        url = (await process.stdout.readline()).decode().strip()
        assert (await request_reply(url)).text == "from afar"
    finally:
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


def test_the_server_process_reports_an_invalid_script_in_one_line(tmp_path: Path):
    script = write_script(tmp_path, b"nothing")
    command = [sys.executable, "-m", "retinue.testing.fake_model_server", "--script", script]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "is invalid" in process.stderr


def test_without_aiohttp_the_crash_test_says_what_to_install():
    """aiohttp is not installed with the package."""
    code = (
        "import sys; sys.modules['aiohttp'] = None; sys.argv = ['retinue', 'torture']; "
        "import retinue.__main__; retinue.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "retinue: The fake model server needs aiohttp, which is not installed. Run: pip install 'retinue[testing]'\n"
    )
