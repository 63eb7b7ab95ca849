"""What the HTTP providers send: exact settings, messages the API accepts, and a stable prefix."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_providers import API_KEY, PROVIDER_FACTORIES, http_provider
from model_request import make_model_request
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest
from retinue.domain.tool import ToolSpec
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult
from retinue.interfaces import Provider
from retinue.providers.message_order import split_exchanges
from retinue.providers.openai_chat import OPENAI_URL, request_format
from retinue.providers.reply_data import short_call_id
from retinue.providers.request_encoding import encode_request
from retinue.providers.wire_format import RequestTarget
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.replies import FakeResponse, raw_stream, text_reply

READ = ToolSpec(
    name="read",
    description="Reads a file.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


@dataclass(slots=True)
class ProviderHarness:
    """A provider and the fake server behind it."""

    server: FakeModelServer
    client: Provider
    provider: str
    cache: dict[str, Any] = field(default_factory=dict[str, Any])

    async def send(self, entries: Sequence[Entry], **options: Any) -> CapturedRequest:
        """Request a reply and return what the server received."""
        await self.request_reply(entries, **options)
        return self.server.requests[-1]

    async def request_reply(self, entries: Sequence[Entry], **options: Any) -> ModelReply:
        """Request a reply. Options are fields of the request; `model` are fields of its model."""
        fields: dict[str, Any] = {"system": "Be brief.", "tools": (), "provider_cache": self.cache} | options
        model_fields: dict[str, Any] = {"name": "a-model", **fields.pop("model", {})}
        model = Model(provider=self.provider, **model_fields)
        return await self.client.request_reply(
            ModelRequest(model=model, agent_name="general", entries=entries, **fields), lambda delta: None
        )


@asynccontextmanager
async def start_harness(
    provider: str, response: FakeResponse | None = None
) -> AsyncGenerator[ProviderHarness]:
    async with FakeModelServer(lambda _: response or text_reply("ok")) as server:
        client = PROVIDER_FACTORIES[provider](server.url)
        try:
            yield ProviderHarness(server=server, client=client, provider=provider)
        finally:
            await client.close()


def user(text: str, entry_id: str = "u1") -> Message:
    return Message(id=entry_id, role="user", text=text)


def agent(
    text: str = "", *, calls: int = 0, entry_id: str = "a1", provider_data: tuple[str, ...] = ()
) -> Message:
    return Message(id=entry_id, role="agent", text=text, tool_call_count=calls, provider_data=provider_data)


def call(call_id: str, args: str = "{}", tool: str = "read") -> ToolCall:
    return ToolCall(id=call_id, tool=tool, args=args)


def result(call_id: str, text: str = "found", *, ok: bool = True) -> ToolResult:
    return ToolResult(call_id=call_id, text=text, ok=ok)


def message_text(message: dict[str, Any]) -> str:
    content = message["content"]
    if not isinstance(content, list):
        return content or ""
    return "\n".join(
        block.get("text") or block.get("content") or "" for block in cast("list[dict[str, Any]]", content)
    )


def message_texts(request: CapturedRequest) -> list[tuple[str, str]]:
    """Return the role and text of each message except the system message."""
    return [
        (message["role"], message_text(message))
        for message in request.messages
        if message["role"] != "system"
    ]


async def test_the_model_and_its_settings_are_sent_exactly(provider: str):
    """Shows: A032, C099, E010."""
    async with start_harness(provider) as harness:
        settings = {"name": "claude-3-7-sonnet-20250219", "temperature": 0.3, "max_tokens": 1234}
        body = (await harness.send([user("hi")], model=settings)).body
        assert (body["model"], body["temperature"], body["max_tokens"]) == (
            "claude-3-7-sonnet-20250219",
            0.3,
            1234,
        )
        assert body["stream"] is True
        default = (await harness.send([user("hi")], model={"name": "other"}, provider_cache={})).body
        assert default["model"] == "other"
        assert "temperature" not in default


@pytest.mark.parametrize("level", ["low", "medium", "high"])
async def test_a_thinking_level_is_translated_for_each_api(level: str):
    """Shows: E010."""
    async with start_harness("openai") as harness:
        body = (await harness.send([user("hi")], model={"thinking": level})).body
        assert body["reasoning_effort"] == level
    budget = {"low": 2048, "medium": 8192, "high": 24576}[level]
    async with start_harness("anthropic") as harness:
        body = (await harness.send([user("hi")], model={"thinking": level, "temperature": 0.3})).body
        assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": level})
        assert body["max_tokens"] == budget + 8192
        assert "temperature" not in body
        limited = (await harness.send([user("hi")], model={"thinking": level, "max_tokens": 500})).body
        assert limited["max_tokens"] == budget + 500
        old = {"name": "claude-sonnet-4-5-20250929", "thinking": level}
        body = (await harness.send([user("hi")], model=old, provider_cache={})).body
        assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}


async def test_thinking_is_switched_off_explicitly_and_left_to_the_server_without_a_level(provider: str):
    """Shows: E010."""
    off = {"openai": {"reasoning_effort": "none"}, "anthropic": {"thinking": {"type": "disabled"}}}[provider]
    async with start_harness(provider) as harness:
        body = (await harness.send([user("hi")], model={"thinking": "off"})).body
        assert {name: body.get(name) for name in off} == off
        body = (await harness.send([user("hi")], model={"thinking": None}, provider_cache={})).body
        assert not {"thinking", "reasoning_effort", "output_config"} & body.keys()


def test_max_completion_tokens_is_sent_only_to_openai_itself():
    """Shows: C099."""
    model = Model(provider="openai", name="m", max_tokens=77)
    request = make_model_request(model, [user("hi")])
    openai_body, other_body = (
        msgspec.json.decode(
            b"".join(encode_request(replace(request, provider_cache={}), request_format(target)).chunks)
        )
        for url in (f"{OPENAI_URL}v1", "http://127.0.0.1/v1")
        for target in [RequestTarget(server="s", base_url=url, model="m")]
    )
    assert (openai_body["max_completion_tokens"], other_body["max_tokens"]) == (77, 77)
    assert "max_tokens" not in openai_body


async def test_the_key_and_the_api_version_are_sent_as_headers():
    async with start_harness("openai") as harness:
        headers = (await harness.send([user("hi")])).headers
        assert headers["authorization"] == f"Bearer {API_KEY}"
    async with start_harness("anthropic") as harness:
        headers = (await harness.send([user("hi")])).headers
        assert (headers["x-api-key"], headers["anthropic-version"]) == (API_KEY, "2023-06-01")
        assert "authorization" not in headers


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_a_base_url_may_end_with_a_slash_or_a_version(suffix: str):
    async with FakeModelServer(lambda _: text_reply("ok")) as server:
        providers: list[Provider] = [
            http_provider("openai", server.url + suffix),
            http_provider("anthropic", server.url + suffix),
        ]
        request = make_model_request(Model(provider="x", name="m"), [user("hi")])
        for client in providers:
            assert (await client.request_reply(request, lambda delta: None)).text == "ok"
            await client.close()
        assert [request.path for request in server.requests][1] == "/v1/messages"
        assert "authorization" not in server.requests[0].headers


async def test_messages_are_the_last_field_of_a_request(provider: str):
    async with start_harness(provider) as harness:
        body = (await harness.send([user("hi")], tools=(READ,))).body
        assert list(body)[-1] == "messages"
        assert list(body)[:2] == ["model", "stream"]


async def test_tools_and_system_prompt_have_the_format_of_each_api():
    async with start_harness("openai") as harness:
        body = (await harness.send([user("hi")], tools=(READ,))).body
        function = {"name": "read", "description": "Reads a file.", "parameters": READ.schema}
        assert body["tools"] == [{"type": "function", "function": function}]
        assert body["stream_options"] == {"include_usage": True}
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    async with start_harness("anthropic") as harness:
        body = (await harness.send([user("hi")], tools=(READ,))).body
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


ID_C1, ID_C2 = short_call_id("c1"), short_call_id("c2")
"""Ids on the wire of calls that no server issued."""


async def test_chat_completions_get_results_in_call_order_and_notices_after_them():
    async with start_harness("openai") as harness:
        messages = (await harness.send(CONVERSATION)).messages
    assert messages[1:] == [
        {"role": "user", "content": "find it"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": ID_C1, "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
                {"id": ID_C2, "type": "function", "function": {"name": "read", "arguments": '{"path": "b"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": ID_C1, "content": "found"},
        {"role": "tool", "tool_call_id": ID_C2, "content": "no such file"},
        {"role": "user", "content": "[notice: announcement]\na child is done"},
        {"role": "user", "content": "and?"},
    ]


async def test_anthropic_gets_results_and_text_after_a_reply_in_one_message():
    async with start_harness("anthropic") as harness:
        messages = (await harness.send(CONVERSATION)).messages
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "find it"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": ID_C1, "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": ID_C2, "name": "read", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": ID_C1, "content": "found"},
                {"type": "tool_result", "tool_use_id": ID_C2, "content": "no such file", "is_error": True},
                {"type": "text", "text": "[notice: announcement]\na child is done"},
                {"type": "text", "text": "and?"},
            ],
        },
    ]


async def test_a_result_whose_call_was_deleted_is_sent_as_user_text(provider: str):
    async with start_harness(provider) as harness:
        request = await harness.send([user("hi"), result("gone", "late news")])
    assert message_texts(request)[-1][0] == "user"
    assert "[result of a call that was removed]\nlate news" in message_texts(request)[-1][1]


async def test_a_call_whose_result_was_deleted_gets_a_placeholder_result(provider: str):
    async with start_harness(provider) as harness:
        request = await harness.send([user("hi"), agent(calls=1), call("c1"), user("go on", "u2")])
    all_text = "\n".join(text for _, text in message_texts(request)[2:])
    assert "[the result of this call is missing]" in all_text


async def test_a_call_whose_reply_was_deleted_is_sent_in_a_message_without_text(provider: str):
    entries = [
        user("hi"),
        agent("one", calls=1),
        call("c1"),
        result("c1"),
        call("c2"),
        result("c2"),
        user("so?", "u2"),
    ]
    async with start_harness(provider) as harness:
        request = await harness.send(entries)
    assistant_messages = [message for message in request.messages if message["role"] == "assistant"]
    assert len(assistant_messages) == 2
    assert str(assistant_messages[1]).count(ID_C2) == 1


async def test_arguments_that_are_no_json_object_are_sent_as_an_empty_object(provider: str):
    async with start_harness(provider) as harness:
        request = await harness.send(
            [user("hi"), agent(calls=1), call("c1", "{broken"), result("c1", "bad", ok=False)]
        )
    assert b"broken" not in request.raw_body
    assert (b'"arguments":"{}"' in request.raw_body) or (b'"input":{}' in request.raw_body)


async def test_an_invalid_tool_name_in_the_history_is_replaced(provider: str):
    """Shows: M12."""
    entries = [
        user("hi"),
        agent(calls=2),
        call("c1", tool="b\u0430sh "),
        call("c2", tool=""),
        result("c1"),
        result("c2"),
    ]
    async with start_harness(provider) as harness:
        request = await harness.send(entries)
    assert b'"name":"b_sh_"' in request.raw_body
    assert b'"name":"unknown"' in request.raw_body


async def test_a_conversation_that_lost_its_start_begins_with_a_user_message():
    async with start_harness("anthropic") as harness:
        request = await harness.send([agent("as I said"), user("yes?")])
    assert message_texts(request) == [
        ("user", "[earlier conversation removed]"),
        ("assistant", "as I said"),
        ("user", "yes?"),
    ]


async def test_a_conversation_that_ends_with_a_reply_gets_a_user_message_to_continue():
    async with start_harness("anthropic") as harness:
        request = await harness.send([user("hi"), agent("well")])
        assert message_texts(request)[-1] == ("user", "[continue]")
        later = await harness.send([user("hi"), agent("well"), user("go on", "u2")])
    assert message_texts(later) == [("user", "hi"), ("assistant", "well"), ("user", "go on")]


async def test_consecutive_replies_are_merged_and_empty_ones_dropped(provider: str):
    async with start_harness(provider) as harness:
        request = await harness.send(
            [
                user("hi"),
                agent("one"),
                agent("", entry_id="a2"),
                agent("two", entry_id="a3"),
                user("ok", "u2"),
            ]
        )
    assert [role for role, _ in message_texts(request)] == ["user", "assistant", "user"]
    assert [text in message_texts(request)[1][1] for text in ("one", "two")] == [True, True]


async def test_empty_texts_are_never_sent(provider: str):
    entries = [
        user("  "),
        agent(" \n", calls=1),
        call("c1"),
        result("c1", " "),
        user("", "u2"),
        user("x", "u3"),
    ]
    async with start_harness(provider) as harness:
        request = await harness.send(entries, system="")
    assert all(text.strip() for role, text in message_texts(request) if role != "assistant")
    assert b'"text":""' not in request.raw_body


async def test_an_empty_conversation_is_still_a_valid_request(provider: str):
    async with start_harness(provider) as harness:
        request = await harness.send([], system="")
    assert [role for role, _ in message_texts(request)] == ["user"]


async def test_lone_surrogates_are_replaced_everywhere(provider: str):
    entries = [
        user("a\ud800b"),
        agent("\udc00", calls=1),
        call("c1", '{"p": "\ud83d\ude00\udfff"}'),
        result("c1", "\ud800"),
    ]
    async with start_harness(provider) as harness:
        request = await harness.send(entries, system="s\ud800")
    assert request.raw_body.decode().count("\ufffd") == 5
    assert "\U0001f600" in request.raw_body.decode()


THOUGHTS = (
    '{"type":"thinking","thinking":"hm","signature":"c2ln"}',
    '{"type":"redacted_thinking","data":"eA=="}',
)


async def thinking_of(harness: ProviderHarness, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the data of a reply to these entries that has two thinking blocks."""
    reply = await harness.request_reply(entries, provider_cache={})
    return (reply.provider_data[0], *THOUGHTS)


async def test_signed_thinking_blocks_are_sent_back_unchanged_to_their_own_server_only():
    foreign_entries = [
        user("hi"),
        agent("so", provider_data=('{"type":"reasoning"}', "no json", "[]")),
        user("x", "u2"),
    ]
    async with start_harness("anthropic", text_reply("so", thinking="hm")) as harness:
        data = await thinking_of(harness, [user("hi")])
        entries = [user("hi"), agent("so", calls=1, provider_data=data), call("c1"), result("c1")]
        blocks = (await harness.send(entries, provider_cache={})).messages[1]["content"]
        assert [block["type"] for block in blocks] == ["thinking", "redacted_thinking", "text", "tool_use"]
        assert blocks[0] == msgspec.json.decode(THOUGHTS[0])
        other = (await harness.send(foreign_entries, provider_cache={})).messages[1]["content"]
        assert other == [{"type": "text", "text": "so"}]
    async with start_harness("openai") as harness:
        assert b"thinking" not in (await harness.send(entries)).raw_body


async def test_thinking_blocks_are_not_sent_after_an_edit_of_what_they_followed():
    async with start_harness("anthropic", text_reply("so", thinking="hm")) as harness:
        first = agent("so", provider_data=await thinking_of(harness, [user("hi")]))
        entries = [user("hi"), first, user("and?", "u2")]
        second = agent("thus", entry_id="a2", provider_data=await thinking_of(harness, entries))
        for question, thinking_expected in (("hi", [True, True]), ("hello", [False, False])):
            edited = [user(question), *entries[1:], second, user("go on", "u3")]
            messages = (await harness.send(edited, provider_cache={})).messages
            replies = [message["content"] for message in messages if message["role"] == "assistant"]
            assert [blocks[0]["type"] == "thinking" for blocks in replies] == thinking_expected
        edited = [*entries[:2], user("really?", "u2"), second, user("go on", "u3")]
        messages = (await harness.send(edited, provider_cache={})).messages
        replies = [message["content"] for message in messages if message["role"] == "assistant"]
        assert [blocks[0]["type"] == "thinking" for blocks in replies] == [True, False]


async def test_thinking_with_a_budget_is_not_requested_in_a_tool_loop_without_thinking_blocks():
    tool_turns = [call("c1"), result("c1"), agent("more", calls=1, entry_id="a2"), call("c2"), result("c2")]
    model = {"name": "claude-opus-4-1", "thinking": "low"}
    thinking_requested: list[bool] = []
    async with start_harness("anthropic", text_reply("so", thinking="hm")) as harness:
        reply = await harness.request_reply([user("hi")], model=model)
        for entries in (
            [user("hi"), agent("so", calls=1, provider_data=reply.provider_data), *tool_turns],
            [user("hi"), agent("so", calls=1), *tool_turns],
            [user("hi"), agent("so", calls=1), *tool_turns, user("next", "u2")],
            [
                user("hi"),
                agent("so", calls=1),
                *tool_turns,
                agent("done", entry_id="a3"),
                Notice(id="n", topic="x", text="y"),
            ],
        ):
            request = await harness.send(entries, model=model, provider_cache={})
            thinking_requested.append("thinking" in request.body)
    assert thinking_requested == [True, False, True, True]


async def test_thinking_blocks_of_a_reply_keep_their_signatures():
    async with start_harness("anthropic", text_reply("done", thinking="let me see")) as harness:
        reply = await harness.request_reply([user("hi")])
        redacted = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"eA=="}}\n\n'
    assert reply.provider_data[1] == '{"type":"thinking","thinking":"let me see","signature":"c2lnbmVk"}'
    suffix = b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    async with start_harness("anthropic", raw_stream(redacted + suffix)) as harness:
        assert (await harness.request_reply([user("hi")])).provider_data[1:] == (THOUGHTS[1],)


async def test_each_request_starts_with_the_bytes_of_the_previous_one(provider: str):
    """A changed prefix would miss the prompt cache of the provider."""
    entries: list[Entry] = [user("hi")]
    async with start_harness(provider) as harness:
        previous_body = (await harness.send(entries, tools=(READ,))).raw_body
        for number in range(6):
            entries += [
                agent("I look.", calls=1, entry_id=f"a{number}"),
                call(f"c{number}"),
                result(f"c{number}"),
            ]
            body = (await harness.send(entries, tools=(READ,))).raw_body
            assert body.startswith(previous_body.removesuffix(b"]}"))
            previous_body = body


async def test_a_cached_prefix_gives_the_same_bytes_as_a_new_encoding(provider: str):
    entries: list[Entry] = []
    async with start_harness(provider) as harness:
        for entry in [
            *CONVERSATION,
            agent("done", entry_id="a2"),
            Notice(id="n2", topic="news", text="x"),
            agent("", entry_id="a3"),
        ]:
            entries.append(entry)
            cached_body = (await harness.send(entries)).raw_body
            assert (await harness.send(entries, provider_cache={})).raw_body == cached_body


async def test_a_changed_conversation_does_not_use_the_cached_prefix(provider: str):
    async with start_harness(provider) as harness:
        await harness.send([user("first"), agent("one"), user("second", "u2")])
        shorter = await harness.send([user("other")])
        edited = await harness.send([user("edited"), agent("two"), user("third", "u3")])
        changed = await harness.send([user("edited again"), agent("three"), user("third", "u3")])
    assert [b"first" in request.raw_body for request in (shorter, edited, changed)] == [False] * 3
    assert b"two" not in changed.raw_body


async def test_settings_changed_within_a_conversation_are_sent(provider: str):
    """Shows: E010."""
    async with start_harness(provider) as harness:
        await harness.send([user("hi")])
        other = (await harness.send([user("hi")], model={"name": "other"}, system="New.", tools=(READ,))).body
    assert other["model"] == "other"
    assert "New." in str(other)
    assert len(other["tools"]) == 1


async def test_a_history_of_several_megabytes_is_sent_whole(provider: str):
    entries: list[Entry] = [user("begin")]
    for number in range(300):
        entries += [agent("y" * 5_000, entry_id=f"a{number}"), user("x" * 5_000, f"u{number}")]
    async with start_harness(provider) as harness:
        first = await harness.send(entries)
        assert len(first.raw_body) > 3_000_000
        assert int(first.headers["content-length"]) == len(first.raw_body)
        assert [text[:1] for _, text in message_texts(first)] == ["b", *["y", "x"] * 300]


_TEXT = st.text(max_size=3)
_IDS = st.sampled_from(["c1", "c2", "c3"])
_ENTRIES: st.SearchStrategy[list[Entry]] = st.lists(
    st.one_of(
        st.builds(user, _TEXT),
        st.builds(agent, _TEXT, calls=st.integers(0, 2)),
        st.builds(call, _IDS),
        st.builds(result, _IDS, _TEXT),
        st.builds(Notice, id=st.just("n"), topic=st.just("news"), text=_TEXT),
    ),
    max_size=12,
)


@given(_ENTRIES)
def test_an_edited_conversation_keeps_all_user_texts_and_one_result_per_call(
    entries: list[Entry],
):
    exchanges = list(split_exchanges(entries))
    for exchange in exchanges:
        assert set(exchange.results) <= set(exchange.calls)
    assert [exchange.start for exchange in exchanges] == sorted({exchange.start for exchange in exchanges})
    expected_texts = [
        entry.text
        for entry in entries
        if isinstance(entry, Message) and entry.role == "user" and entry.text.strip()
    ]
    texts = [
        text
        for exchange in exchanges
        for text in exchange.user_texts
        if not text.startswith(("[notice: ", "[result of "))
    ]
    assert texts == expected_texts
    answered = sum(len(exchange.results) for exchange in exchanges)
    orphans = sum(text.startswith("[result of ") for exchange in exchanges for text in exchange.user_texts)
    assert answered + orphans == sum(isinstance(entry, ToolResult) for entry in entries)


@given(_ENTRIES, st.integers(0, 12))
def test_splitting_from_the_start_of_an_exchange_gives_the_same_exchanges(entries: list[Entry], index: int):
    exchanges = list(split_exchanges(entries))
    start = exchanges[min(index, len(exchanges) - 1)].start
    assert list(split_exchanges(entries, start)) == [
        exchange for exchange in exchanges if exchange.start >= start
    ]


async def test_calls_of_one_reply_with_results_in_between_stay_one_message(provider: str):
    entries = [user("hi"), agent(calls=2), call("c1"), result("c1"), call("c2"), result("c2")]
    async with start_harness(provider) as harness:
        request = await harness.send(entries)
    assert [message["role"] for message in request.messages].count("assistant") == 1
