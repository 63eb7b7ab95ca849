"""How the HTTP providers read responses, including those of servers that deviate from the API."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_providers import http_provider
from model_request import make_model_request
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ReplyDelta, StopReason
from retinue.domain.run import Usage
from retinue.domain.transcript import Message
from retinue.errors import ModelFailed
from retinue.http.sse import MAX_EVENT_BYTES, EventParser, EventTooLong
from retinue.interfaces import Provider
from retinue.providers.errors import ProviderError
from retinue.testing.fake_model_server import FakeModelServer
from retinue.testing.replies import FakeResponse, raw_stream, text_reply
from retinue.testing.wire_formats import anthropic_events, openai_events

FACTORIES: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: http_provider("openai", url),
    "anthropic": lambda url: http_provider("anthropic", url),
}


async def request_reply(
    provider: str, response: FakeResponse, deltas: list[ReplyDelta] | None = None
) -> ModelReply:
    async with FakeModelServer([response]) as server:
        client = FACTORIES[provider](server.url)
        entries = [Message(id="1", role="user", text="hi")]
        request = make_model_request(Model(provider=provider, name="m"), entries)
        try:
            return await client.request_reply(request, ([] if deltas is None else deltas).append)
        finally:
            await client.close()


async def request_tool_calls(*fragments: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and arguments of each tool call read from the fragments."""
    reply = await request_reply("openai", tool_call_fragments(*fragments))
    return [(call.tool, call.arguments) for call in reply.tool_calls]


def events(*values: object) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(value) + b"\n\n" for value in values)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}


def tool_call_fragments(*calls: dict[str, Any], finish: str = "tool_calls") -> FakeResponse:
    return raw_stream(events(*[chunk({"tool_calls": [call]}) for call in calls], chunk(finish=finish)))


EVENT_STREAM = b"\xef\xbb\xbf: hello\r\ndata: one\r\nid: 7\r\n\r\nevent: x\ndata:two\ndata: gr\xc3\xbc\xc3\x9fe\n\n\n\rdata: three\r\r"
EXPECTED_EVENTS = [b"one", "two\ngrüße".encode(), b"three"]


@given(st.lists(st.integers(0, len(EVENT_STREAM)), max_size=len(EVENT_STREAM)))
def test_an_event_stream_parses_the_same_however_it_is_cut(cuts: list[int]):
    """Shows: X11."""
    parser = EventParser()
    parsed_events: list[bytes] = []
    start = 0
    for cut in [*sorted(cuts), len(EVENT_STREAM)]:
        parsed_events += parser.feed(EVENT_STREAM[start:cut])
        start = cut
    assert parsed_events + parser.finish() == EXPECTED_EVENTS


@pytest.mark.parametrize("blank", [b"data: \n\n", b"data:\n\n", b"event: ping\ndata: \n\n", b"data\n\n"])
@pytest.mark.parametrize("size", [1, 100])
def test_events_without_data_are_skipped(blank: bytes, size: int):
    stream = b"data: one\n\n" + blank + b": two comes\ndata: two\n\n" + blank
    parser = EventParser()
    parsed_events = [
        event for start in range(0, len(stream), size) for event in parser.feed(stream[start : start + size])
    ]
    assert parsed_events + parser.finish() == [b"one", b"two"]


async def test_empty_events_between_pieces_of_a_reply_are_skipped(provider: str):
    stream_events = {"openai": openai_events, "anthropic": anthropic_events}[provider](
        text_reply("hello"), "m"
    )
    reply = await request_reply(provider, raw_stream(b"data: \n\n".join(stream_events)))
    assert reply.text == "hello"


def test_an_unterminated_event_is_returned_at_the_end_of_the_stream():
    parser = EventParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.finish() == [b"[DONE]"]
    assert parser.finish() == []


@pytest.mark.parametrize(
    "line", [b"x" * 1_000_000, b"data: " + b"x" * 999_994 + b"\n"], ids=["line", "lines"]
)
def test_an_endless_event_is_refused(line: bytes):
    """Shows: M17."""
    parser = EventParser()
    for _ in range(MAX_EVENT_BYTES // 1_000_000):
        assert parser.feed(line) == []
    with pytest.raises(EventTooLong, match="16,000,000"):
        parser.feed(line)


async def test_tool_call_fragments_without_an_index_are_joined_in_order():
    """Shows: M14."""
    calls = await request_tool_calls(
        {"id": "x", "function": {"name": "read", "arguments": '{"path":'}},
        {"function": {"arguments": '"a"}'}},
        {"id": "x", "function": {"name": "read", "arguments": '{"path":"b"}'}},
        {"id": "x", "function": {"name": "ls", "arguments": "{}"}},
        {"function": {"name": "ls", "arguments": '{"path":"c"}'}},
    )
    assert calls == [
        ("read", '{"path":"a"}'),
        ("read", '{"path":"b"}'),
        ("ls", "{}"),
        ("ls", '{"path":"c"}'),
    ]


async def test_tool_calls_without_arguments_and_index_stay_separate():
    """Shows: M14."""
    calls = await request_tool_calls(
        {"id": "x", "function": {"name": "ls"}},
        {"id": "y", "function": {"name": "ls"}},
        {"id": "y", "function": {"name": "glob"}},
    )
    assert calls == [
        ("ls", "{}"),
        ("ls", "{}"),
        ("glob", "{}"),
    ]


async def test_tool_call_fragments_without_an_index_are_joined_by_id():
    """Shows: M14."""
    calls = await request_tool_calls(
        {"id": "x", "function": {"name": "read", "arguments": ""}},
        {"id": "x", "function": {"name": "read", "arguments": '{"path":'}},
        {"id": "y", "function": {"name": "ls", "arguments": "{"}},
        {"id": "x", "function": {"arguments": '"a"}'}},
        {"id": "y", "function": {"name": "ls", "arguments": "}"}},
    )
    assert calls == [
        ("read", '{"path":"a"}'),
        ("ls", "{}"),
    ]


@pytest.mark.parametrize("arguments", ["", {}, {"path": "a"}, "{"], ids=["none", "empty", "object", "half"])
@pytest.mark.parametrize(
    "extra_fields", [{}, {"index": 0}, {"id": "x"}], ids=["no id", "same index", "same id"]
)
async def test_tool_calls_of_a_response_without_streaming_stay_separate(
    arguments: object, extra_fields: dict[str, object]
):
    """Shows: M14."""
    calls = [
        {**extra_fields, "function": {"name": name, "arguments": arguments}} for name in ("ls", "ls", "read")
    ]
    document = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    reply = await request_reply(
        "openai", FakeResponse(body=msgspec.json.encode(document), content_type="application/json")
    )
    assert [call.tool for call in reply.tool_calls] == ["ls", "ls", "read"]


async def test_tool_calls_with_the_same_index_stay_separate():
    """Shows: M14."""
    calls = await request_tool_calls(
        {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path":"a"}'}},
        {"index": 0, "id": "y", "function": {"name": "read", "arguments": '{"path":"b"}'}},
        {"index": 0, "function": {"name": "ls", "arguments": "{}"}},
    )
    assert [arguments for _, arguments in calls] == ['{"path":"a"}', '{"path":"b"}', "{}"]


async def test_fragments_of_two_tool_calls_may_alternate():
    calls = await request_tool_calls(
        {"index": 1, "id": "y", "function": {"name": "ls", "arguments": "{"}},
        {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path"'}},
        {"index": 1, "function": {"arguments": "}"}},
        {"index": 0, "function": {"arguments": ':"a"}'}},
    )
    assert sorted(calls) == [
        ("ls", "{}"),
        ("read", '{"path":"a"}'),
    ]


async def test_a_split_tool_name_is_joined_and_a_repeated_name_is_not_doubled():
    calls = await request_tool_calls(
        {"index": 0, "id": "x", "function": {"name": "re"}},
        {"index": 0, "function": {"name": "ad", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
        {"index": 1, "id": "y", "function": {"name": "glob"}},
        {"index": 1, "id": "y", "function": {"name": "glob", "arguments": "{"}},
        {"index": 1, "id": "y", "function": {"name": "glob", "arguments": "}"}},
    )
    assert calls == [("read", "{}"), ("glob", "{}")]


async def test_arguments_sent_as_an_object_are_accepted():
    reply = await request_reply(
        "openai", tool_call_fragments({"index": 0, "function": {"name": "read", "arguments": {"path": "a"}}})
    )
    assert reply.tool_calls[0].arguments == '{"path":"a"}'


async def test_tool_calls_count_even_with_the_finish_reason_stop():
    reply = await request_reply(
        "openai", tool_call_fragments({"index": 0, "function": {"name": "ls"}}, finish="stop")
    )
    assert (reply.stop_reason, len(reply.tool_calls)) == (StopReason.TOOLS, 1)


async def test_only_the_first_choice_counts_and_unknown_fields_are_ignored():
    second_choice = {"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}
    first_choice = {"index": 0, "delta": {"content": [{"type": "text", "text": "yes"}, 7]}, "logprobs": {}}
    body = events(
        {"choices": [second_choice, first_choice], "x": 1}, {"choices": None}, {}, chunk(finish="eos")
    )
    reply = await request_reply("openai", raw_stream(body))
    assert (reply.text, reply.stop_reason) == ("yes", StopReason.END)


async def test_a_refusal_field_makes_the_reply_a_refusal():
    """Shows: M19."""
    reply = await request_reply(
        "openai", raw_stream(events(chunk({"refusal": "I will not."}), chunk(finish="stop")))
    )
    assert (reply.stop_reason, reply.text) == (StopReason.REFUSED, "I will not.")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_is_read_from_the_reasoning_fields_of_other_servers(field: str):
    deltas: list[ReplyDelta] = []
    body = events(chunk({field: "hm"}), chunk({"content": "so"}), chunk(finish="stop"))
    reply = await request_reply("openai", raw_stream(body), deltas)
    assert reply.text == "so"
    assert [delta.thinking for delta in deltas if delta.thinking] == ["hm"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"data: {not json\n\n", "incomplete"),
        (b"data: [1, 2]\n\n", "incomplete"),
        (b'data: {"choices": "none"}\n\n', "incomplete"),
        (b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n', "incomplete"),
        (b'data: {"error": "it broke"}\n\n', "provider"),
        (b'data: {"error": {"message": "bad key", "code": "invalid_api_key"}}\n\n', "auth"),
        (b'data: {"error": {"message": "too long", "code": "context_length_exceeded"}}\n\n', "provider"),
        (b'data: {"error": {"message": "bad key", "code": 401}}\n\n', "auth"),
        (b'data: {"error": {"message": "no such model", "code": 404}}\n\n', "config"),
        (b'data: {"error": {"message": "slow down", "code": 429}}\n\n', "rate_limited"),
        (b'data: {"error": {"message": "no", "code": 429, "type": "invalid_api_key"}}\n\n', "auth"),
        (b'data: {"error": {"message": "no", "code": 7}}\n\n', "provider"),
        (events(chunk({"content": "x"}, "error")), "provider"),
    ],
)
async def test_an_invalid_or_error_chunk_fails_an_openai_reply(body: bytes, reason: str):
    """Shows: M07."""
    with pytest.raises(ModelFailed) as error_info:
        await request_reply("openai", raw_stream(body))
    assert error_info.value.reason == reason


@pytest.mark.parametrize(
    ("code", "retry", "close_gate"),
    [(429, True, True), (503, True, False), (402, False, False), (401, False, False), (1302, True, False)],
)
async def test_a_numeric_error_code_in_a_stream_counts_as_an_http_status(
    code: int, retry: bool, close_gate: bool
):
    with pytest.raises(ProviderError) as error_info:
        await request_reply("openai", raw_stream(events({"error": {"message": "no", "code": code}})))
    assert (error_info.value.retry, error_info.value.close_rate_limit_gate) == (retry, close_gate)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"event: x\ndata: {not json\n\n", "incomplete"),
        (events({"type": "error", "error": {"type": "authentication_error", "message": "no"}}), "auth"),
        (events({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}), "provider"),
        (events({"type": "message_stop"}), "incomplete"),
        (events({"type": "message_delta", "delta": {"stop_reason": None}}), "incomplete"),
    ],
)
async def test_an_invalid_or_error_event_fails_an_anthropic_reply(body: bytes, reason: str):
    """Shows: M07."""
    with pytest.raises(ModelFailed) as error_info:
        await request_reply("anthropic", raw_stream(body))
    assert error_info.value.reason == reason


@pytest.mark.parametrize("message", ["", " \n", "\x00", None])
async def test_an_error_without_a_message_is_still_reported(provider: str, message: str | None):
    with pytest.raises(ModelFailed, match=r"^the model's server failed: no reason given$"):
        await request_reply(provider, raw_stream(events({"error": {"message": message}})))


async def test_an_error_that_is_an_empty_string_is_still_reported():
    with pytest.raises(ModelFailed, match=r"^the model's server failed: no reason given$"):
        await request_reply("openai", raw_stream(events({"error": ""})))


async def test_blocks_without_an_index_are_read_and_unknown_events_are_ignored():
    body = events(
        {
            "type": "message_start",
            "message": {
                "model": "m-2",
                "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1},
            },
        },
        {"type": "something_new", "index": 5},
        {"type": "content_block_start", "content_block": {"type": "text", "text": "a"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}},
        {
            "type": "content_block_start",
            "content_block": {"type": "tool_use", "id": "x", "name": "ls", "input": {"path": "p"}},
        },
        {
            "type": "content_block_delta",
            "index": 99,
            "delta": {"type": "input_json_delta", "partial_json": "{"},
        },
        {"type": "content_block_start"},
        {"type": "content_block_delta"},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    )
    reply = await request_reply("anthropic", raw_stream(body))
    assert (reply.text, reply.model) == ("ab", "m-2")
    assert [(call.tool, call.arguments) for call in reply.tool_calls] == [("ls", '{"path":"p"}')]
    assert (reply.usage.input, reply.usage.output, reply.usage.cached) == (7, 9, 4)


@pytest.mark.parametrize("streams", [True, False])
async def test_tokens_read_from_and_written_to_a_cache_are_counted_apart(streams: bool):
    usage = {"input": 1000, "output": 5, "cached": 600, "cache_write": 300}
    for provider in FACTORIES:
        reply = await request_reply(provider, replace(text_reply("Hello."), usage=usage, stream=streams))
        assert reply.usage == Usage(input=1000, output=5, cached=600, cache_write=300), provider


async def test_reasoning_that_a_server_counts_in_the_total_only_is_output():
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 145}
    body = events(chunk({"content": "whole"}), {**chunk(finish="stop"), "usage": usage})
    reply = await request_reply("openai", raw_stream(body))
    assert (reply.usage.input, reply.usage.output) == (100, 45)


async def test_hits_that_a_server_counts_outside_the_details_are_cached_input():
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 60}
    body = events(chunk({"content": "whole"}), {**chunk(finish="stop"), "usage": usage})
    assert (await request_reply("openai", raw_stream(body))).usage.cached == 60


FINISHED_STREAMS = {
    "openai": (
        events(chunk({"content": "whole"}), chunk(finish="stop")),
        events({"choices": [], "usage": {"prompt_tokens": 77, "completion_tokens": 5}}),
    ),
    "anthropic": (
        events(
            {"type": "message_start", "message": {"usage": {"input_tokens": 77}}},
            {"type": "content_block_start", "content_block": {"type": "text", "text": "whole"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ),
        events({"type": "message_delta", "usage": {"output_tokens": 5}}),
    ),
}


@pytest.mark.parametrize("size", [0, 40], ids=["together", "apart"])
@pytest.mark.parametrize(
    "junk",
    [
        b"data: junk\n\n",
        b'data: {"choices": 7, "content": 7}\n\n',
        b'data: {"error": {"message": "too late"}}\n\n',
    ],
    ids=["no JSON", "invalid chunk", "error"],
)
async def test_junk_after_a_finished_reply_is_ignored(provider: str, size: int, junk: bytes):
    reply_events, usage_events = FINISHED_STREAMS[provider]
    reply = await request_reply(provider, raw_stream(reply_events + junk + usage_events + junk, chunk=size))
    assert (reply.text, reply.usage.input, reply.usage.output) == ("whole", 77, 5)


async def test_an_endless_event_after_a_finished_reply_is_ignored():
    reply_events, _ = FINISHED_STREAMS["openai"]
    reply = await request_reply("openai", raw_stream(reply_events + b"data: " + b"x" * (MAX_EVENT_BYTES + 1)))
    assert reply.text == "whole"


@pytest.mark.parametrize("usage", [[], 7, "many", {"prompt_tokens": []}])
async def test_invalid_token_counts_are_ignored(usage: object):
    """Shows: M22."""
    response = raw_stream(events(chunk({"content": "whole"}), {**chunk(finish="stop"), "usage": usage}))
    assert (await request_reply("openai", response)).text == "whole"
    message = {"type": "message_start", "message": {"usage": usage}}
    response = raw_stream(
        events(message, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    )
    assert (await request_reply("anthropic", response)).stop_reason is StopReason.END


@pytest.mark.parametrize(
    "count",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-3",
        "-1e999",
        '"12"',
        "null",
        "true",
        "[]",
        "{}",
        "0.5",
        "9" * 400,
    ],
)
async def test_token_counts_that_are_no_counts_do_not_spoil_a_reply(count: str):
    """Servers written in Python send NaN and Infinity, which JSON does not have.

    Shows: M22.
    """
    for usage in (
        count,
        f'{{"prompt_tokens": {count}, "completion_tokens": {count}, "prompt_tokens_details": {count}}}',
    ):
        delta = events(chunk({"content": "whole"})).decode()
        last = f'data: {{"choices": [{{"index": 0, "delta": {{}}, "finish_reason": "stop"}}], "usage": {usage}}}\n\n'
        reply = await request_reply("openai", raw_stream((delta + last).encode()))
        assert (reply.text, reply.stop_reason) == ("whole", StopReason.END)
        assert 0 <= reply.usage.input < 10_000
        assert 0 <= reply.usage.output < 10_000
    for usage in (
        count,
        f'{{"input_tokens": {count}, "output_tokens": {count}, "cache_read_input_tokens": {count}}}',
    ):
        stream = (
            f'data: {{"type": "message_start", "message": {{"usage": {usage}}}}}\n\n'
            'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "whole"}}\n\n'
            f'data: {{"type": "message_delta", "delta": {{"stop_reason": "end_turn"}}, "usage": {usage}}}\n\n'
            'data: {"type": "message_stop"}\n\n'
        )
        reply = await request_reply("anthropic", raw_stream(stream.encode()))
        assert (reply.text, reply.stop_reason) == ("whole", StopReason.END)
        assert 0 <= reply.usage.input < 10_000
        assert 0 <= reply.usage.output < 10_000


@pytest.mark.parametrize("body", [b"{}", b'{"type": "completion"}', b"no json", b"[]"])
async def test_a_json_document_without_a_reply_is_an_error(provider: str, body: bytes):
    """Shows: M18."""
    with pytest.raises(ModelFailed) as error_info:
        await request_reply(provider, FakeResponse(body=body, content_type="application/json"))
    assert error_info.value.reason == "incomplete"


async def test_an_error_document_with_a_success_status_is_an_error(provider: str):
    """Shows: M18."""
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    with pytest.raises(ModelFailed, match="Overloaded") as error_info:
        await request_reply(provider, FakeResponse(body=body, content_type="application/json"))
    assert error_info.value.reason == "rate_limited"


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": "plain words"}',
        b'{"message": "plain words"}',
        b'{"detail": "plain words"}',
        b"plain words",
    ],
)
async def test_the_error_message_is_read_from_every_usual_field(provider: str, body: bytes):
    with pytest.raises(ModelFailed, match="plain words"):
        await request_reply(provider, FakeResponse(status=422, body=body, content_type="application/json"))
