"""The scripted provider: its script file, and that only the conversation decides the next reply."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_request import make_model_request

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason
from retinue.domain.run import Usage
from retinue.domain.transcript import Entry, Message, ToolCall, ToolResult
from retinue.errors import BadConfig, ModelFailed
from retinue.providers.retry import RetryingProvider
from retinue.providers.scripted import ScriptedProvider
from retinue.testing.fixed_clock import fixed_clock


def write_script(tmp_path: Path, script: object) -> Path:
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode(script))
    return path


def make_request(agent: str = "general", *, reply_count: int = 0, path: str = "s") -> ModelRequest:
    """Build a request of a conversation with this many earlier replies."""
    entries: list[Entry] = [Message(id="u", role="user", text="hello")]
    for number in range(reply_count):
        entries += [
            Message(id=f"a{number}", role="agent", text="x", tool_call_count=1),
            ToolCall(id=f"c{number}", tool="ls", args="{}"),
            ToolResult(call_id=f"c{number}", text="y"),
        ]
    model = Model(provider="scripted", name=path)
    return make_model_request(model, entries, agent_name=agent)


async def request_reply(path: Path, agent: str = "general", *, reply_count: int = 0) -> ModelReply:
    request = make_request(agent, reply_count=reply_count)
    return await ScriptedProvider(path).request_reply(request, lambda delta: None)


async def test_only_the_conversation_decides_the_next_reply(tmp_path: Path):
    path = write_script(tmp_path, ["one", {"text": "two"}, {"text": "three"}])
    assert [(await request_reply(path, reply_count=count)).text for count in (2, 0, 1, 0)] == [
        "three",
        "one",
        "two",
        "one",
    ]


async def test_each_agent_has_its_own_replies_and_a_star_serves_the_others(tmp_path: Path):
    path = write_script(tmp_path, {"main": ["for main"], "*": ["for any"]})
    assert (await request_reply(path, "main")).text == "for main"
    assert (await request_reply(path, "scout")).text == "for any"


async def test_tool_calls_may_be_written_with_name_and_args_or_tool_and_arguments(tmp_path: Path):
    tools: list[Any] = [
        {"name": "read", "args": {"path": "a"}},
        {"tool": "ls", "arguments": {}},
        {"name": "ls"},
        {"name": "x", "args": "{bad"},
    ]
    reply = await request_reply(write_script(tmp_path, [{"text": "I look.", "tools": tools}]))
    assert [(call.tool, call.arguments, bool(call.invalid_reason)) for call in reply.tool_calls] == [
        ("read", '{"path":"a"}', False),
        ("ls", "{}", False),
        ("ls", "{}", False),
        ("x", "{bad", True),
    ]
    assert reply.stop_reason is StopReason.TOOLS


async def test_a_reply_may_set_its_usage_stop_reason_and_model(tmp_path: Path):
    script = [{"text": "cut", "stop": "length", "usage": {"input": 7, "output": 8}, "model": "m"}]
    reply = await request_reply(write_script(tmp_path, script))
    assert (reply.stop_reason, reply.usage, reply.model) == (
        StopReason.LENGTH,
        Usage(input=7, output=8),
        "m",
    )


async def test_the_text_is_streamed_in_pieces(tmp_path: Path):
    deltas: list[ReplyDelta] = []
    await ScriptedProvider(write_script(tmp_path, ["a text of some length"])).request_reply(
        make_request(), deltas.append
    )
    assert "".join(delta.text for delta in deltas) == "a text of some length"
    assert len(deltas) > 1


async def test_a_scripted_error_is_raised_with_its_reason_after_its_delay(tmp_path: Path):
    script = [{"error": "the model is out", "reason": "rate_limited", "delay": 0.01}]
    with pytest.raises(ModelFailed, match="the model is out") as error_info:
        await request_reply(write_script(tmp_path, script))
    assert error_info.value.reason == "rate_limited"


async def test_the_error_of_a_used_up_script_names_the_agent_and_the_number_of_replies(tmp_path: Path):
    path = write_script(tmp_path, {"main": ["one", "two"]})
    with pytest.raises(ModelFailed, match="has 2 replies for main, and all were used") as error_info:
        await request_reply(path, "main", reply_count=2)
    assert error_info.value.reason == "config"


async def test_a_looping_script_starts_over(tmp_path: Path):
    path = write_script(tmp_path, {"replies": ["one", "two"], "loop": True})
    assert [(await request_reply(path, reply_count=count)).text for count in range(4)] == [
        "one",
        "two",
        "one",
        "two",
    ]


async def test_the_error_for_an_agent_without_replies_lists_the_known_agents(tmp_path: Path):
    with pytest.raises(ModelFailed, match="no replies for scout, only for main"):
        await request_reply(write_script(tmp_path, {"main": ["x"]}), "scout")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (b"{not json", "is not valid JSON"),
        (b'"text"', "must be a list"),
        (b"[1]", "invalid reply"),
        (b'[{"txt": "x"}]', "txt"),
        (b'{"main": "x"}', "invalid reply for main"),
        (b'{"main": [{"tools": [{"args": {}}]}]}', "for main, reply 1: a call needs either name or tool"),
        (b'[{"tools": [{"name": "a", "tool": "b"}]}]', "either name or tool"),
        (b'[{"tools": [{"name": "a", "args": {}, "arguments": {}}]}]', "not both"),
        (b'[{"stop": "maybe"}]', "maybe"),
    ],
)
def test_an_invalid_script_is_refused_with_the_cause(tmp_path: Path, script: bytes, problem: str):
    path = tmp_path / "script.json"
    path.write_bytes(script)
    with pytest.raises(BadConfig) as error_info:
        ScriptedProvider(path)
    assert str(path) in str(error_info.value)
    assert problem in str(error_info.value)


async def test_a_missing_script_is_a_configuration_error(tmp_path: Path):
    retrying = RetryingProvider({"scripted": lambda model: ScriptedProvider(model.name)}, fixed_clock())
    with pytest.raises(ModelFailed, match=r"cannot read the script .*: No such file") as error_info:
        await retrying.request_reply(make_request(path=str(tmp_path / "none.json")), lambda delta: None)
    assert error_info.value.reason == "config"


async def test_one_retrying_provider_serves_two_scripts(tmp_path: Path):
    retrying = RetryingProvider({"scripted": lambda model: ScriptedProvider(model.name)}, fixed_clock())
    for name in ("a", "b"):
        (tmp_path / name).write_text(f'["from {name}"]')
        reply = await retrying.request_reply(make_request(path=str(tmp_path / name)), lambda delta: None)
        assert reply.text == f"from {name}"
    await retrying.close()
