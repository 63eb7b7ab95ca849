"""How the drivers read: events however they are cut, and the oddities of servers that almost agree."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.model_turn import Model, Reply, ReplyDelta, Request, StopReason
from retinue.domain.transcript import Message
from retinue.errors import ModelFailed
from retinue.interfaces import Provider
from retinue.providers.anthropic import AnthropicProvider
from retinue.providers.errors import ProviderError
from retinue.providers.http.sse import MAX_EVENT_BYTES, EventParser
from retinue.providers.openai_chat import OpenAIChatProvider
from retinue.testing.fake_model_server import FakeModelServer
from retinue.testing.replies import FakeResponse, raw_stream, text_reply
from retinue.testing.wire_formats import anthropic_events, openai_events

MAKERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIChatProvider(url, ""),
    "anthropic": lambda url: AnthropicProvider(url, ""),
}


async def read(provider: str, answer: FakeResponse, heard: list[ReplyDelta] | None = None) -> Reply:
    async with FakeModelServer([answer]) as server:
        driver = MAKERS[provider](server.url)
        request = Request(
            model=Model(provider=provider, name="m"),
            agent_name="a",
            system="",
            tools=(),
            entries=[Message(id="1", role="user", text="hi")],
            provider_cache={},
        )
        try:
            return await driver.request_reply(request, ([] if heard is None else heard).append)
        finally:
            await driver.close()


def events(*values: Any) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(value) + b"\n\n" for value in values)


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}


def fragments(*calls: dict[str, Any], finish: str = "tool_calls") -> FakeResponse:
    return raw_stream(events(*[chunk({"tool_calls": [call]}) for call in calls], chunk(finish=finish)))


STREAM = b"\xef\xbb\xbf: hello\r\ndata: one\r\nid: 7\r\n\r\nevent: x\ndata:two\ndata: gr\xc3\xbc\xc3\x9fe\n\n\n\rdata: three\r\r"
FOUND = [b"one", "two\ngrüße".encode(), b"three"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=len(STREAM)))
def test_a_stream_cut_anywhere_holds_the_same_events(cuts: list[int]):
    """Shows: X11."""
    reader = EventParser()
    found: list[bytes] = []
    at = 0
    for cut in [*sorted(cuts), len(STREAM)]:
        found += reader.feed(STREAM[at:cut])
        at = cut
    assert found + reader.finish() == FOUND


@pytest.mark.parametrize("blank", [b"data: \n\n", b"data:\n\n", b"event: ping\ndata: \n\n", b"data\n\n"])
@pytest.mark.parametrize("size", [1, 100])
def test_an_event_without_data_is_passed_over(blank: bytes, size: int):
    stream = b"data: one\n\n" + blank + b": two comes\ndata: two\n\n" + blank
    reader = EventParser()
    found = [event for at in range(0, len(stream), size) for event in reader.feed(stream[at : at + size])]
    assert found + reader.finish() == [b"one", b"two"]


@pytest.mark.parametrize("provider", MAKERS)
async def test_a_server_may_show_by_empty_events_that_it_is_there(provider: str):
    made = {"openai": openai_events, "anthropic": anthropic_events}[provider](text_reply("hello"), "m")
    answer = await read(provider, raw_stream(b"data: \n\n".join(made)))
    assert answer.text == "hello"


def test_an_event_that_was_not_closed_is_found_at_the_end():
    reader = EventParser()
    assert reader.feed(b"data: [DONE]") == []
    assert reader.finish() == [b"[DONE]"]
    assert reader.finish() == []


@pytest.mark.parametrize(
    "line", [b"x" * 1_000_000, b"data: " + b"x" * 999_994 + b"\n"], ids=["line", "lines"]
)
def test_an_event_without_end_is_refused(line: bytes):
    """Shows: M17."""
    reader = EventParser()
    for _ in range(MAX_EVENT_BYTES // 1_000_000):
        assert reader.feed(line) == []
    with pytest.raises(ProviderError, match="16,000,000"):
        reader.feed(line)


async def test_fragments_without_an_index_are_put_together_in_order():
    """Shows: M14."""
    answer = await read(
        "openai",
        fragments(
            {"id": "x", "function": {"name": "read", "arguments": '{"path":'}},
            {"function": {"arguments": '"a"}'}},
            {"id": "x", "function": {"name": "read", "arguments": '{"path":"b"}'}},
            {"id": "x", "function": {"name": "ls", "arguments": "{}"}},
            {"function": {"name": "ls", "arguments": '{"path":"c"}'}},
        ),
    )
    assert [(wish.tool, wish.arguments) for wish in answer.tool_calls] == [
        ("read", '{"path":"a"}'),
        ("read", '{"path":"b"}'),
        ("ls", "{}"),
        ("ls", '{"path":"c"}'),
    ]


async def test_calls_without_arguments_and_without_an_index_stay_apart():
    """Shows: M14."""
    answer = await read(
        "openai",
        fragments(
            {"id": "x", "function": {"name": "ls"}},
            {"id": "y", "function": {"name": "ls"}},
            {"id": "y", "function": {"name": "glob"}},
        ),
    )
    assert [(wish.tool, wish.arguments) for wish in answer.tool_calls] == [
        ("ls", "{}"),
        ("ls", "{}"),
        ("glob", "{}"),
    ]


async def test_fragments_without_an_index_belong_to_the_call_that_has_their_id():
    """Shows: M14."""
    answer = await read(
        "openai",
        fragments(
            {"id": "x", "function": {"name": "read", "arguments": ""}},
            {"id": "x", "function": {"name": "read", "arguments": '{"path":'}},
            {"id": "y", "function": {"name": "ls", "arguments": "{"}},
            {"id": "x", "function": {"arguments": '"a"}'}},
            {"id": "y", "function": {"name": "ls", "arguments": "}"}},
        ),
    )
    assert [(wish.tool, wish.arguments) for wish in answer.tool_calls] == [
        ("read", '{"path":"a"}'),
        ("ls", "{}"),
    ]


@pytest.mark.parametrize(
    "arguments", ["", {}, {"path": "a"}, "{"], ids=["none", "empty", "an object", "half"]
)
@pytest.mark.parametrize("more", [{}, {"index": 0}, {"id": "x"}], ids=["bare", "one index", "one id"])
async def test_each_call_of_a_whole_message_is_a_call_of_its_own(arguments: object, more: dict[str, object]):
    """Shows: M14."""
    wishes = [{**more, "function": {"name": name, "arguments": arguments}} for name in ("ls", "ls", "read")]
    whole = {"choices": [{"message": {"tool_calls": wishes}, "finish_reason": "tool_calls"}]}
    answer = await read(
        "openai", FakeResponse(body=msgspec.json.encode(whole), content_type="application/json")
    )
    assert [wish.tool for wish in answer.tool_calls] == ["ls", "ls", "read"]


async def test_calls_that_all_claim_the_same_index_stay_apart():
    """Shows: M14."""
    answer = await read(
        "openai",
        fragments(
            {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path":"a"}'}},
            {"index": 0, "id": "y", "function": {"name": "read", "arguments": '{"path":"b"}'}},
            {"index": 0, "function": {"name": "ls", "arguments": "{}"}},
        ),
    )
    assert [wish.arguments for wish in answer.tool_calls] == ['{"path":"a"}', '{"path":"b"}', "{}"]


async def test_fragments_of_two_calls_may_alternate():
    answer = await read(
        "openai",
        fragments(
            {"index": 1, "id": "y", "function": {"name": "ls", "arguments": "{"}},
            {"index": 0, "id": "x", "function": {"name": "read", "arguments": '{"path"'}},
            {"index": 1, "function": {"arguments": "}"}},
            {"index": 0, "function": {"arguments": ':"a"}'}},
        ),
    )
    assert sorted((wish.tool, wish.arguments) for wish in answer.tool_calls) == [
        ("ls", "{}"),
        ("read", '{"path":"a"}'),
    ]


async def test_a_name_in_pieces_is_joined_and_a_repeated_one_is_not_doubled():
    answer = await read(
        "openai",
        fragments(
            {"index": 0, "id": "x", "function": {"name": "re"}},
            {"index": 0, "function": {"name": "ad", "arguments": ""}},
            {"index": 0, "function": {"arguments": "{}"}},
            {"index": 1, "id": "y", "function": {"name": "glob"}},
            {"index": 1, "id": "y", "function": {"name": "glob", "arguments": "{"}},
            {"index": 1, "id": "y", "function": {"name": "glob", "arguments": "}"}},
        ),
    )
    assert [(wish.tool, wish.arguments) for wish in answer.tool_calls] == [("read", "{}"), ("glob", "{}")]


async def test_arguments_sent_as_an_object_are_taken_as_one():
    answer = await read(
        "openai", fragments({"index": 0, "function": {"name": "read", "arguments": {"path": "a"}}})
    )
    assert answer.tool_calls[0].arguments == '{"path":"a"}'


async def test_calls_with_an_ordinary_stop_are_calls_all_the_same():
    answer = await read("openai", fragments({"index": 0, "function": {"name": "ls"}}, finish="stop"))
    assert (answer.stop_reason, len(answer.tool_calls)) == (StopReason.TOOLS, 1)


async def test_only_the_first_choice_counts_and_unknown_fields_are_passed_over():
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}
    first = {"index": 0, "delta": {"content": [{"type": "text", "text": "yes"}, 7]}, "logprobs": {}}
    body = events({"choices": [other, first], "x": 1}, {"choices": None}, {}, chunk(finish="eos"))
    answer = await read("openai", raw_stream(body))
    assert (answer.text, answer.stop_reason) == ("yes", StopReason.END)


async def test_a_refusal_in_its_own_field_is_a_refusal():
    """Shows: M19."""
    answer = await read("openai", raw_stream(events(chunk({"refusal": "I will not."}), chunk(finish="stop"))))
    assert (answer.stop_reason, answer.text) == (StopReason.REFUSED, "I will not.")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_in_other_servers_words_is_heard_as_thinking(field: str):
    heard: list[ReplyDelta] = []
    body = events(chunk({field: "hm"}), chunk({"content": "so"}), chunk(finish="stop"))
    answer = await read("openai", raw_stream(body), heard)
    assert answer.text == "so"
    assert [delta.thinking for delta in heard if delta.thinking] == ["hm"]


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
async def test_a_piece_that_is_no_completion_ends_the_attempt(body: bytes, reason: str):
    """Shows: M07."""
    with pytest.raises(ModelFailed) as caught:
        await read("openai", raw_stream(body))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("code", "retry", "gate"),
    [(429, True, True), (503, True, False), (402, False, False), (401, False, False), (1302, True, False)],
)
async def test_a_number_in_an_error_inside_a_stream_is_a_status_that_came_late(
    code: int, retry: bool, gate: bool
):
    with pytest.raises(ProviderError) as caught:
        await read("openai", raw_stream(events({"error": {"message": "no", "code": code}})))
    assert (caught.value.retry, caught.value.close_rate_limit_gate) == (retry, gate)


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
async def test_a_piece_that_is_no_message_ends_the_attempt(body: bytes, reason: str):
    """Shows: M07."""
    with pytest.raises(ModelFailed) as caught:
        await read("anthropic", raw_stream(body))
    assert caught.value.reason == reason


@pytest.mark.parametrize("provider", MAKERS)
@pytest.mark.parametrize("said", ["", " \n", "\x00", None])
async def test_an_error_without_words_still_makes_a_sentence(provider: str, said: str | None):
    with pytest.raises(ModelFailed, match=r"^the model's server failed: no reason given$"):
        await read(provider, raw_stream(events({"error": {"message": said}})))


async def test_an_error_that_is_an_empty_text_still_makes_a_sentence():
    with pytest.raises(ModelFailed, match=r"^the model's server failed: no reason given$"):
        await read("openai", raw_stream(events({"error": ""})))


async def test_blocks_without_an_index_and_events_of_a_later_day_do_no_harm():
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
    answer = await read("anthropic", raw_stream(body))
    assert (answer.text, answer.model) == ("ab", "m-2")
    assert [(wish.tool, wish.arguments) for wish in answer.tool_calls] == [("ls", '{"path":"p"}')]
    assert (answer.usage.input, answer.usage.output, answer.usage.cached) == (7, 9, 4)


ENDS = {
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


@pytest.mark.parametrize("provider", MAKERS)
@pytest.mark.parametrize("size", [0, 40], ids=["together", "apart"])
@pytest.mark.parametrize(
    "junk",
    [
        b"data: junk\n\n",
        b'data: {"choices": 7, "content": 7}\n\n',
        b'data: {"error": {"message": "too late"}}\n\n',
    ],
    ids=["no JSON", "no piece", "an error"],
)
async def test_what_follows_a_finished_reply_does_not_spoil_it(provider: str, size: int, junk: bytes):
    words, counts = ENDS[provider]
    answer = await read(provider, raw_stream(words + junk + counts + junk, chunk=size))
    assert (answer.text, answer.usage.input, answer.usage.output) == ("whole", 77, 5)


async def test_an_endless_event_after_a_finished_reply_does_not_spoil_it():
    words, _ = ENDS["openai"]
    answer = await read("openai", raw_stream(words + b"data: " + b"x" * (MAX_EVENT_BYTES + 1)))
    assert answer.text == "whole"


@pytest.mark.parametrize("usage", [[], 7, "many", {"prompt_tokens": []}])
async def test_strange_counts_do_not_spoil_a_reply(usage: object):
    """Shows: M22."""
    ended = raw_stream(events(chunk({"content": "whole"}), {**chunk(finish="stop"), "usage": usage}))
    assert (await read("openai", ended)).text == "whole"
    message = {"type": "message_start", "message": {"usage": usage}}
    ended = raw_stream(
        events(message, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    )
    assert (await read("anthropic", ended)).stop_reason is StopReason.END


@pytest.mark.parametrize("provider", MAKERS)
@pytest.mark.parametrize("body", [b"{}", b'{"type": "completion"}', b"no json", b"[]"])
async def test_a_document_that_is_no_reply_is_no_success(provider: str, body: bytes):
    """Shows: M18."""
    with pytest.raises(ModelFailed) as caught:
        await read(provider, FakeResponse(body=body, content_type="application/json"))
    assert caught.value.reason == "incomplete"


@pytest.mark.parametrize("provider", MAKERS)
async def test_an_error_in_a_document_with_a_good_status_is_an_error(provider: str):
    """Shows: M18."""
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    with pytest.raises(ModelFailed, match="Overloaded") as caught:
        await read(provider, FakeResponse(body=body, content_type="application/json"))
    assert caught.value.reason == "rate_limited"


@pytest.mark.parametrize("provider", MAKERS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": "plain words"}',
        b'{"message": "plain words"}',
        b'{"detail": "plain words"}',
        b"plain words",
    ],
)
async def test_an_errors_sentence_is_found_in_every_usual_place(provider: str, body: bytes):
    with pytest.raises(ModelFailed, match="plain words"):
        await read(provider, FakeResponse(status=422, body=body, content_type="application/json"))
