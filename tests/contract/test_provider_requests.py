"""What the drivers send: exact settings, messages every provider takes, and bytes encoded once."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.model_turn import Model, Reply, Request
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.interfaces import Provider
from retinue.providers.anthropic import AnthropicProvider
from retinue.providers.message_order import split_exchanges
from retinue.providers.openai_chat import BASE_URL, OpenAIChatProvider, request_format
from retinue.providers.request_encoding import encode_request
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, raw_stream, text_reply

KEY = "sk-test-0123456789abcdef"
MAKERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIChatProvider(url, KEY),
    "anthropic": lambda url: AnthropicProvider(url, lambda: KEY),
}
READ = ToolSpec(
    name="read",
    description="Reads a file.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


@pytest.fixture(params=MAKERS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass(slots=True)
class Asker:
    server: FakeModelServer
    driver: Provider
    provider: str
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    async def ask(self, entries: Sequence[Entry], **settings: Any) -> CapturedRequest:
        await self.turn(entries, **settings)
        return self.server.requests[-1]

    async def turn(self, entries: Sequence[Entry], **settings: Any) -> Reply:
        given: dict[str, Any] = {"system": "Be brief.", "tools": (), "provider_cache": self.memo} | settings
        chosen: dict[str, Any] = {"name": "a-model", **given.pop("model", {})}
        model = Model(provider=self.provider, **chosen)
        return await self.driver.request_reply(
            Request(model=model, agent_name="general", entries=entries, **given), lambda delta: None
        )


@asynccontextmanager
async def asker(provider: str, answer: FakeResponse | None = None) -> AsyncGenerator[Asker]:
    async with FakeModelServer(lambda asked: answer or text_reply("ok")) as server:
        driver = MAKERS[provider](server.url)
        try:
            yield Asker(server=server, driver=driver, provider=provider)
        finally:
            await driver.close()


def user(text: str, at: str = "u1") -> Message:
    return Message(id=at, role="user", text=text)


def agent(text: str = "", *, calls: int = 0, at: str = "a1", thoughts: tuple[str, ...] = ()) -> Message:
    return Message(id=at, role="agent", text=text, tool_call_count=calls, thoughts=thoughts)


def call(at: str, args: str = "{}", tool: str = "read") -> ToolCall:
    return ToolCall(id=at, tool=tool, args=args)


def result(of: str, text: str = "found", *, ok: bool = True) -> ToolResult:
    return ToolResult(call_id=of, text=text, ok=ok)


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if not isinstance(content, list):
        return content or ""
    return "\n".join(
        block.get("text") or block.get("content") or "" for block in cast("list[dict[str, Any]]", content)
    )


def texts(asked: CapturedRequest) -> list[tuple[str, str]]:
    """Roles and words without the system message: the same for both providers where they agree."""
    return [(message["role"], text_of(message)) for message in asked.messages if message["role"] != "system"]


async def test_the_model_and_its_settings_are_sent_exactly(provider: str):
    """Shows: A032, C099, E010."""
    async with asker(provider) as it:
        settings = {"name": "claude-3-7-sonnet-20250219", "temperature": 0.3, "max_tokens": 1234}
        body = (await it.ask([user("hi")], model=settings)).body
        assert (body["model"], body["temperature"], body["max_tokens"]) == (
            "claude-3-7-sonnet-20250219",
            0.3,
            1234,
        )
        assert body["stream"] is True
        bare = (await it.ask([user("hi")], model={"name": "other"}, provider_cache={})).body
        assert bare["model"] == "other"
        assert "temperature" not in bare


@pytest.mark.parametrize("level", ["low", "medium", "high"])
async def test_thinking_levels_become_the_providers_own(level: str):
    """Shows: E010."""
    async with asker("openai") as it:
        body = (await it.ask([user("hi")], model={"thinking": level})).body
        assert body["reasoning_effort"] == level
    budget = {"low": 2048, "medium": 8192, "high": 24576}[level]
    async with asker("anthropic") as it:
        body = (await it.ask([user("hi")], model={"thinking": level, "temperature": 0.3})).body
        assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
        assert body["max_tokens"] == budget + 8192
        assert "temperature" not in body
        small = (await it.ask([user("hi")], model={"thinking": level, "max_tokens": 500})).body
        assert small["max_tokens"] == budget + 500


@pytest.mark.parametrize("level", ["off", None])
async def test_no_thinking_says_nothing_of_it(provider: str, level: str | None):
    """Shows: E010."""
    async with asker(provider) as it:
        body = (await it.ask([user("hi")], model={"thinking": level})).body
        assert not {"thinking", "reasoning_effort"} & body.keys()


def test_only_openai_itself_has_the_new_name_of_the_output_limit():
    """Shows: C099."""
    model = Model(provider="openai", name="m", max_tokens=77)
    request = Request(
        model=model, agent_name="a", system="", tools=(), entries=[user("hi")], provider_cache={}
    )
    theirs = msgspec.json.decode(b"".join(encode_request(request, request_format(BASE_URL))))
    ours = msgspec.json.decode(
        b"".join(encode_request(replace(request, provider_cache={}), request_format("http://127.0.0.1/v1")))
    )
    assert (theirs["max_completion_tokens"], ours["max_tokens"]) == (77, 77)
    assert "max_tokens" not in theirs


async def test_keys_and_versions_travel_in_the_headers():
    async with asker("openai") as it:
        headers = (await it.ask([user("hi")])).headers
        assert headers["authorization"] == f"Bearer {KEY}"
    async with asker("anthropic") as it:
        headers = (await it.ask([user("hi")])).headers
        assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
        assert "authorization" not in headers


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_a_base_url_may_end_as_people_write_it(end: str):
    async with FakeModelServer(lambda asked: text_reply("ok")) as server:
        drivers: list[Provider] = [
            OpenAIChatProvider(server.url + end, ""),
            AnthropicProvider(server.url + end, ""),
        ]
        request = Request(
            model=Model(provider="x", name="m"),
            agent_name="a",
            system="",
            tools=(),
            entries=[user("hi")],
            provider_cache={},
        )
        for driver in drivers:
            assert (await driver.request_reply(request, lambda delta: None)).text == "ok"
            await driver.close()
        assert [asked.path for asked in server.requests][1] == "/v1/messages"
        assert "authorization" not in server.requests[0].headers


async def test_messages_come_last_so_that_the_bytes_before_them_stay(provider: str):
    async with asker(provider) as it:
        body = (await it.ask([user("hi")], tools=(READ,))).body
        assert list(body)[-1] == "messages"
        assert list(body)[:2] == ["model", "stream"]


async def test_tools_are_described_in_the_providers_words():
    async with asker("openai") as it:
        body = (await it.ask([user("hi")], tools=(READ,))).body
        function = {"name": "read", "description": "Reads a file.", "parameters": READ.schema}
        assert body["tools"] == [{"type": "function", "function": function}]
        assert body["stream_options"] == {"include_usage": True}
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    async with asker("anthropic") as it:
        body = (await it.ask([user("hi")], tools=(READ,))).body
        assert body["tools"] == [
            {"name": "read", "description": "Reads a file.", "input_schema": READ.schema}
        ]
        assert body["system"] == [{"type": "text", "text": "Be brief."}]
        assert body["cache_control"] == {"type": "ephemeral"}
        assert body["max_tokens"] == 8192


CONVERSATION: list[Entry] = [
    user("find it"),
    agent("I look.", calls=2),
    call("c1", '{"path": "a"}'),
    call("c2", '{"path": "b"}'),
    result("c2", "no such file", ok=False),
    Notice(id="n1", topic="announcement", text="a child is done"),
    result("c1", "found"),
    user("and?", "u2"),
]


async def test_results_follow_their_calls_in_order_and_notices_come_after_in_chat_completions():
    async with asker("openai") as it:
        messages = (await it.ask(CONVERSATION)).messages
    assert messages[1:] == [
        {"role": "user", "content": "find it"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": '{"path": "b"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "tool", "tool_call_id": "c2", "content": "no such file"},
        {"role": "user", "content": "[notice: announcement]\na child is done"},
        {"role": "user", "content": "and?"},
    ]


async def test_results_and_words_after_a_reply_are_one_message_in_messages():
    async with asker("anthropic") as it:
        messages = (await it.ask(CONVERSATION)).messages
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "find it"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no such file", "is_error": True},
                {"type": "text", "text": "[notice: announcement]\na child is done"},
                {"type": "text", "text": "and?"},
            ],
        },
    ]


async def test_a_result_whose_call_was_deleted_is_told_as_words(provider: str):
    async with asker(provider) as it:
        asked = await it.ask([user("hi"), result("gone", "late news")])
    assert texts(asked)[-1][0] == "user"
    assert "[result of a call that is no longer here]\nlate news" in texts(asked)[-1][1]


async def test_a_call_whose_result_was_deleted_still_gets_an_answer(provider: str):
    async with asker(provider) as it:
        asked = await it.ask([user("hi"), agent(calls=1), call("c1"), user("go on", "u2")])
    said = "\n".join(words for _, words in texts(asked)[2:])
    assert "[no result of this call was kept]" in said


async def test_calls_whose_reply_was_deleted_are_a_message_of_calls_alone(provider: str):
    entries = [
        user("hi"),
        agent("one", calls=1),
        call("c1"),
        result("c1"),
        call("c2"),
        result("c2"),
        user("so?", "u2"),
    ]
    async with asker(provider) as it:
        asked = await it.ask(entries)
    assistants = [message for message in asked.messages if message["role"] == "assistant"]
    assert len(assistants) == 2
    assert str(assistants[1]).count("c2") == 1


async def test_arguments_that_are_no_object_are_sent_back_as_an_empty_one(provider: str):
    async with asker(provider) as it:
        asked = await it.ask(
            [user("hi"), agent(calls=1), call("c1", "{broken"), result("c1", "bad", ok=False)]
        )
    assert b"broken" not in asked.raw_body
    assert (b'"arguments":"{}"' in asked.raw_body) or (b'"input":{}' in asked.raw_body)


async def test_a_name_no_provider_accepts_does_not_spoil_every_later_request(provider: str):
    """Shows: M12."""
    entries = [
        user("hi"),
        agent(calls=2),
        call("c1", tool="b\u0430sh "),
        call("c2", tool=""),
        result("c1"),
        result("c2"),
    ]
    async with asker(provider) as it:
        asked = await it.ask(entries)
    assert b'"name":"b_sh_"' in asked.raw_body
    assert b'"name":"unknown"' in asked.raw_body


async def test_a_conversation_whose_start_was_cut_away_begins_with_a_user():
    async with asker("anthropic") as it:
        asked = await it.ask([agent("as I said"), user("yes?")])
    assert texts(asked) == [
        ("user", "[earlier conversation removed]"),
        ("assistant", "as I said"),
        ("user", "yes?"),
    ]


async def test_a_conversation_that_ends_with_the_models_own_words_asks_it_to_go_on():
    async with asker("anthropic") as it:
        asked = await it.ask([user("hi"), agent("well")])
        assert texts(asked)[-1] == ("user", "[continue]")
        later = await it.ask([user("hi"), agent("well"), user("go on", "u2")])
    assert texts(later) == [("user", "hi"), ("assistant", "well"), ("user", "go on")]


async def test_replies_in_a_row_are_one_and_empty_ones_none(provider: str):
    async with asker(provider) as it:
        asked = await it.ask(
            [user("hi"), agent("one"), agent("", at="a2"), agent("two", at="a3"), user("ok", "u2")]
        )
    assert [role for role, _ in texts(asked)] == ["user", "assistant", "user"]
    assert [word in texts(asked)[1][1] for word in ("one", "two")] == [True, True]


async def test_no_empty_text_is_ever_sent(provider: str):
    entries = [
        user("  "),
        agent(" \n", calls=1),
        call("c1"),
        result("c1", " "),
        user("", "u2"),
        user("x", "u3"),
    ]
    async with asker(provider) as it:
        asked = await it.ask(entries, system="")
    assert all(words.strip() for role, words in texts(asked) if role != "assistant")
    assert b'"text":""' not in asked.raw_body


async def test_a_conversation_without_a_word_is_still_a_request(provider: str):
    async with asker(provider) as it:
        asked = await it.ask([], system="")
    assert [role for role, _ in texts(asked)] == ["user"]


async def test_half_a_character_becomes_a_sign_for_it_everywhere(provider: str):
    entries = [
        user("a\ud800b"),
        agent("\udc00", calls=1),
        call("c1", '{"p": "\ud83d\ude00\udfff"}'),
        result("c1", "\ud800"),
    ]
    async with asker(provider) as it:
        asked = await it.ask(entries, system="s\ud800")
    assert asked.raw_body.decode().count("\ufffd") == 5
    assert "\U0001f600" in asked.raw_body.decode()


THOUGHTS = (
    '{"type":"thinking","thinking":"hm","signature":"c2ln"}',
    '{"type":"redacted_thinking","data":"eA=="}',
)


async def test_thoughts_go_back_first_and_unchanged_to_the_provider_that_signed_them():
    entries = [user("hi"), agent("so", calls=1, thoughts=THOUGHTS), call("c1"), result("c1")]
    foreign = [user("hi"), agent("so", thoughts=('{"type":"reasoning"}', "no json", "[]")), user("x", "u2")]
    async with asker("anthropic") as it:
        blocks = (await it.ask(entries)).messages[1]["content"]
        assert [block["type"] for block in blocks] == ["thinking", "redacted_thinking", "text", "tool_use"]
        assert blocks[0] == msgspec.json.decode(THOUGHTS[0])
        other = (await it.ask(foreign, provider_cache={})).messages[1]["content"]
        assert other == [{"type": "text", "text": "so"}]
    async with asker("openai") as it:
        assert b"thinking" not in (await it.ask(entries)).raw_body


async def test_thinking_is_not_asked_for_between_calls_whose_thoughts_are_gone():
    loop = [call("c1"), result("c1"), agent("more", calls=1, at="a2"), call("c2"), result("c2")]
    asked_for: list[bool] = []
    async with asker("anthropic") as it:
        for entries in (
            [user("hi"), agent("so", calls=1, thoughts=THOUGHTS), *loop],
            [user("hi"), agent("so", calls=1), *loop],
            [user("hi"), agent("so", calls=1), *loop, user("next", "u2")],
            [
                user("hi"),
                agent("so", calls=1),
                *loop,
                agent("done", at="a3"),
                Notice(id="n", topic="x", text="y"),
            ],
        ):
            asked = await it.ask(entries, model={"thinking": "low"}, provider_cache={})
            asked_for.append("thinking" in asked.body)
    assert asked_for == [True, False, True, True]


async def test_thoughts_are_heard_and_kept_with_their_signatures():
    async with asker("anthropic", text_reply("done", thinking="let me see")) as it:
        answer = await it.turn([user("hi")])
        redacted = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"eA=="}}\n\n'
    assert answer.thinking_blocks == ('{"type":"thinking","thinking":"let me see","signature":"c2lnbmVk"}',)
    end = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    async with asker("anthropic", raw_stream(redacted + end)) as it:
        assert (await it.turn([user("hi")])).thinking_blocks == (THOUGHTS[1],)


async def test_the_bytes_of_a_turn_begin_the_bytes_of_the_next(provider: str):
    """The prefix is stable: nothing in it changes that need not."""
    entries: list[Entry] = [user("hi")]
    async with asker(provider) as it:
        before = (await it.ask(entries, tools=(READ,))).raw_body
        for number in range(6):
            entries += [agent("I look.", calls=1, at=f"a{number}"), call(f"c{number}"), result(f"c{number}")]
            now = (await it.ask(entries, tools=(READ,))).raw_body
            assert now.startswith(before.removesuffix(b"]}"))
            before = now


async def test_a_remembered_prefix_makes_the_same_bytes_as_a_fresh_one(provider: str):
    entries: list[Entry] = []
    async with asker(provider) as it:
        for entry in [
            *CONVERSATION,
            agent("done", at="a2"),
            Notice(id="n2", topic="news", text="x"),
            agent("", at="a3"),
        ]:
            entries.append(entry)
            remembered = (await it.ask(entries)).raw_body
            assert (await it.ask(entries, provider_cache={})).raw_body == remembered


async def test_another_conversation_in_the_same_memory_is_noticed(provider: str):
    async with asker(provider) as it:
        await it.ask([user("first"), agent("one"), user("second", "u2")])
        shorter = await it.ask([user("other")])
        edited = await it.ask([user("edited"), agent("two"), user("third", "u3")])
        changed = await it.ask([user("edited again"), agent("three"), user("third", "u3")])
    assert [b"first" in asked.raw_body for asked in (shorter, edited, changed)] == [False] * 3
    assert b"two" not in changed.raw_body


async def test_other_settings_in_the_same_conversation_are_sent(provider: str):
    """Shows: E010."""
    async with asker(provider) as it:
        await it.ask([user("hi")])
        other = (await it.ask([user("hi")], model={"name": "other"}, system="New.", tools=(READ,))).body
    assert other["model"] == "other"
    assert "New." in str(other)
    assert len(other["tools"]) == 1


async def test_a_history_of_megabytes_arrives_whole(provider: str):
    entries: list[Entry] = [user("begin")]
    for number in range(300):
        entries += [agent("y" * 5_000, at=f"a{number}"), user("x" * 5_000, f"u{number}")]
    async with asker(provider) as it:
        first = await it.ask(entries)
        assert len(first.raw_body) > 3_000_000
        assert int(first.headers["content-length"]) == len(first.raw_body)
        assert [words[:1] for _, words in texts(first)] == ["b", *["y", "x"] * 300]


_TEXT = st.text(max_size=3)
_IDS = st.sampled_from(["c1", "c2", "c3"])
_ENTRIES: st.SearchStrategy[list[Entry]] = st.lists(
    st.one_of(
        st.builds(user, _TEXT),
        st.builds(agent, _TEXT, calls=st.integers(0, 2)),
        st.builds(call, _IDS),
        st.builds(result, _IDS, _TEXT),
        st.builds(Notice, id=st.just("n"), kind=st.just("news"), text=_TEXT),
    ),
    max_size=12,
)


@given(_ENTRIES)
def test_whatever_a_person_left_of_a_conversation_every_call_is_answered_once_and_no_words_are_lost(
    entries: list[Entry],
):
    groups = list(split_exchanges(entries))
    for unit in groups:
        assert set(unit.results) <= set(unit.calls)
    assert [unit.start for unit in groups] == sorted({unit.start for unit in groups})
    words = [
        entry.text
        for entry in entries
        if isinstance(entry, Message) and entry.role == "user" and entry.text.strip()
    ]
    told = [
        text
        for unit in groups
        for text in unit.user_texts
        if not text.startswith(("[notice: ", "[result of "))
    ]
    assert told == words
    answered = sum(len(unit.results) for unit in groups)
    orphans = sum(text.startswith("[result of ") for unit in groups for text in unit.user_texts)
    assert answered + orphans == sum(isinstance(entry, ToolResult) for entry in entries)


@given(_ENTRIES, st.integers(0, 12))
def test_going_on_from_where_a_unit_begins_is_the_same_as_beginning_anew(entries: list[Entry], more: int):
    groups = list(split_exchanges(entries))
    start = groups[min(more, len(groups) - 1)].start
    assert list(split_exchanges(entries, start)) == [unit for unit in groups if unit.start >= start]


async def test_calls_of_one_reply_between_results_stay_one_reply(provider: str):
    entries = [user("hi"), agent(calls=2), call("c1"), result("c1"), call("c2"), result("c2")]
    async with asker(provider) as it:
        asked = await it.ask(entries)
    assert [message["role"] for message in asked.messages].count("assistant") == 1
