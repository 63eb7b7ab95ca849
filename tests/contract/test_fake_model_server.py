"""The scripted model server, as those use it who test their own agents."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from retinue.domain.model_turn import Model, Reply, Request
from retinue.domain.transcript import Entry, Message
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.openai_chat import OpenAIChatProvider
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.model_script_file import load_script_file
from retinue.testing.replies import FakeResponse, response_from_json, text_reply, tool_call_reply


async def ask(url: str, text: str = "hi", *, turns: int = 0) -> Reply:
    entries: list[Entry] = [Message(id="u", role="user", text=text)]
    for number in range(turns):
        entries += [
            Message(id=f"a{number}", role="agent", text="x"),
            Message(id=f"u{number}", role="user", text="y"),
        ]
    driver = OpenAIChatProvider(url, "")
    request = Request(
        model=Model(provider="openai", name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=entries,
        provider_cache={},
    )
    try:
        return await driver.request_reply(request, lambda delta: None)
    finally:
        await driver.close()


async def test_a_list_is_played_in_order_and_then_said_to_be_used_up():
    async with FakeModelServer([text_reply("one"), tool_call_reply(("ls", {"path": "."}))]) as server:
        assert (await ask(server.url)).text == "one"
        assert (await ask(server.url)).tool_calls[0].tool == "ls"
        with pytest.raises(ModelFailed, match="the script holds 2 answers, and all are used"):
            await ask(server.url)
        assert [asked.messages[-1]["content"] for asked in server.requests] == ["hi"] * 3


async def test_a_function_may_choose_and_may_take_its_time():
    async def choose(asked: CapturedRequest) -> FakeResponse:
        await asyncio.sleep(0)
        return text_reply(f"turn {asked.reply_count}")

    async with FakeModelServer(choose) as server:
        assert [(await ask(server.url, turns=turns)).text for turns in (0, 2)] == ["turn 0", "turn 2"]


def file(tmp_path: Path, script: bytes) -> str:
    path = tmp_path / "script.json"
    path.write_bytes(script)
    return str(path)


def test_a_file_may_choose_by_order_by_history_or_by_what_is_asked(tmp_path: Path):
    parts = [
        {"when": "child", "replies": ["c0", "c1"], "by": "history"},
        {"replies": ["p0", "p1"], "loop": True},
    ]
    chosen = load_script_file(file(tmp_path, msgspec.json.encode({"parts": parts})))
    assert [chosen(b"a child", turns).text for turns in (1, 0, 1)] == ["c1", "c0", "c1"]
    assert [chosen(b"a parent", 0).text for _ in range(3)] == ["p0", "p1", "p0"]
    assert chosen(b"a child", 2).status == 400


def test_an_answer_in_a_file_has_the_fields_of_an_answer():
    answer = response_from_json(
        {"text": "x", "tools": [{"name": "ls", "args": {"path": "."}}], "status": 200, "delay": 1}
    )
    assert (answer.text, answer.calls, answer.delay) == ("x", (("ls", {"path": "."}),), 1)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (b"nothing", "is wrong"),
        (b"[1]", "a reply is a text or an object"),
        (b'[{"txt": "x"}]', "no field 'txt'"),
        (b'{"parts": [{"repls": []}]}', "repls"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, script: bytes, problem: str):
    with pytest.raises(BadConfig, match=problem):
        load_script_file(file(tmp_path, script))


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(BadConfig, match="cannot read the script"):
        load_script_file(str(tmp_path / "none.json"))


async def test_as_a_process_of_its_own_it_prints_its_url_and_ends_on_a_signal(tmp_path: Path):
    script = file(tmp_path, b'["from afar"]')
    command = ["-m", "retinue.testing.fake_model_server", "--script", script]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None:
            raise AssertionError("a pipe was asked for")
        url = (await process.stdout.readline()).decode().strip()
        assert (await ask(url)).text == "from afar"
    finally:
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


def test_as_a_process_with_a_wrong_script_it_says_so_in_one_line(tmp_path: Path):
    script = file(tmp_path, b"nothing")
    command = [sys.executable, "-m", "retinue.testing.fake_model_server", "--script", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is wrong" in done.stderr
