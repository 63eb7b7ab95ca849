"""The scripted driver: what its file may say, and that nothing but the conversation decides what is next."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.domain.model_turn import Model, Reply, ReplyDelta, Request, StopReason
from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.retry import RetryingProvider
from retinue.providers.scripted import ScriptedProvider
from retinue.testing.fixed_clock import fixed_clock


def written(tmp_path: Path, script: Any) -> Path:
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    return path


def request(agent: str = "general", *, said: int = 0, path: str = "s") -> Request:
    entries: list[Entry] = [Message(id="u", role="user", text="hello")]
    for number in range(said):
        entries += [
            Message(id=f"a{number}", role="agent", text="x", tool_call_count=1),
            ToolCall(id=f"c{number}", tool="ls", args="{}"),
            ToolResult(call_id=f"c{number}", text="y"),
        ]
    model = Model(provider="scripted", name=path)
    return Request(model=model, agent_name=agent, system="", tools=(), entries=entries, provider_cache={})


async def play(path: Path, agent: str = "general", *, said: int = 0) -> Reply:
    return await ScriptedProvider(path).request_reply(request(agent, said=said), lambda delta: None)


async def test_the_next_reply_is_decided_by_the_conversation_alone(tmp_path: Path):
    path = written(tmp_path, ["one", {"text": "two"}, {"text": "three"}])
    assert [(await play(path, said=said)).text for said in (2, 0, 1, 0)] == ["three", "one", "two", "one"]


async def test_each_agent_has_its_own_list_and_a_star_serves_the_others(tmp_path: Path):
    path = written(tmp_path, {"main": ["for main"], "*": ["for any"]})
    assert (await play(path, "main")).text == "for main"
    assert (await play(path, "scout")).text == "for any"


async def test_calls_may_be_written_in_either_words(tmp_path: Path):
    tools: list[Any] = [
        {"name": "read", "args": {"path": "a"}},
        {"tool": "ls", "arguments": {}},
        {"name": "ls"},
        {"name": "x", "args": "{bad"},
    ]
    answer = await play(written(tmp_path, [{"text": "I look.", "tools": tools}]))
    assert [(wish.tool, wish.arguments, bool(wish.invalid_reason)) for wish in answer.tool_calls] == [
        ("read", '{"path":"a"}', False),
        ("ls", "{}", False),
        ("ls", "{}", False),
        ("x", "{bad", True),
    ]
    assert answer.stop_reason is StopReason.TOOLS


async def test_a_reply_may_set_its_counts_its_stop_and_its_model(tmp_path: Path):
    script = [{"text": "cut", "stop": "length", "usage": {"input": 7, "output": 8}, "model": "m"}]
    answer = await play(written(tmp_path, script))
    assert (answer.stop_reason, answer.usage, answer.model) == (
        StopReason.LENGTH,
        Usage(input=7, output=8),
        "m",
    )


async def test_the_text_is_heard_in_pieces(tmp_path: Path):
    heard: list[ReplyDelta] = []
    await ScriptedProvider(written(tmp_path, ["a text of some length"])).request_reply(
        request(), heard.append
    )
    assert "".join(delta.text for delta in heard) == "a text of some length"
    assert len(heard) > 1


async def test_a_delay_is_waited_and_an_error_is_raised_with_its_reason(tmp_path: Path):
    script = [{"error": "the model is out", "reason": "rate_limited", "delay": 0.01}]
    with pytest.raises(ModelFailed, match="the model is out") as caught:
        await play(written(tmp_path, script))
    assert caught.value.reason == "rate_limited"


async def test_a_used_up_script_says_whose_and_how_many(tmp_path: Path):
    path = written(tmp_path, {"main": ["one", "two"]})
    with pytest.raises(ModelFailed, match="holds 2 replies for main, and all are used") as caught:
        await play(path, "main", said=2)
    assert caught.value.reason == "config"


async def test_a_looping_script_begins_again(tmp_path: Path):
    path = written(tmp_path, {"replies": ["one", "two"], "loop": True})
    assert [(await play(path, said=said)).text for said in range(4)] == ["one", "two", "one", "two"]


async def test_an_agent_the_script_does_not_know_is_told_who_it_knows(tmp_path: Path):
    with pytest.raises(ModelFailed, match="no replies for scout: it knows main"):
        await play(written(tmp_path, {"main": ["x"]}), "scout")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (b"{not json", "is not JSON"),
        (b'"text"', "must be a list"),
        (b"[1]", "wrong reply"),
        (b'[{"txt": "x"}]', "txt"),
        (b'{"main": "x"}', "wrong reply for main"),
        (b'{"main": [{"tools": [{"args": {}}]}]}', "for main, reply 1: a call needs either name or tool"),
        (b'[{"tools": [{"name": "a", "tool": "b"}]}]', "either name or tool"),
        (b'[{"tools": [{"name": "a", "args": {}, "arguments": {}}]}]', "not both"),
        (b'[{"stop": "maybe"}]', "maybe"),
    ],
)
def test_a_wrong_script_is_refused_with_what_is_wrong(tmp_path: Path, script: bytes, problem: str):
    path = tmp_path / "script.json"
    path.write_bytes(script)
    with pytest.raises(BadConfig) as caught:
        ScriptedProvider(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


async def test_a_missing_script_fails_the_turn_through_the_gateway(tmp_path: Path):
    gateway = RetryingProvider({"scripted": lambda model: ScriptedProvider(model.name)}, fixed_clock())
    with pytest.raises(ModelFailed, match=r"cannot read the script .*: No such file") as caught:
        await gateway.request_reply(request(path=str(tmp_path / "none.json")), lambda delta: None)
    assert caught.value.reason == "config"


async def test_two_scripts_play_side_by_side_through_one_gateway(tmp_path: Path):
    gateway = RetryingProvider({"scripted": lambda model: ScriptedProvider(model.name)}, fixed_clock())
    for name in ("a", "b"):
        (tmp_path / name).write_text(f'["from {name}"]')
        answer = await gateway.request_reply(request(path=str(tmp_path / name)), lambda delta: None)
        assert answer.text == f"from {name}"
    await gateway.close()
