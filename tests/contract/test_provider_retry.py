"""The gateway before both drivers, against a server with every bad habit."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_REPLY_BYTES
from retinue.domain.model_turn import Model, Reply, ReplyDelta, Request, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import Message
from retinue.errors import BadConfig, ModelFailed
from retinue.interfaces import Provider
from retinue.providers.anthropic import AnthropicProvider
from retinue.providers.http.stream_request import BYTES_RECEIVED
from retinue.providers.openai_chat import OpenAIChatProvider
from retinue.providers.rate_limit import RateLimitGate
from retinue.providers.retry import RetryingProvider, RetrySettings
from retinue.providers.stream_timeout import KEEPALIVE, StreamTimeout, StreamTimeouts
from retinue.testing.fake_model_server import FakeModelServer, Script
from retinue.testing.fixed_clock import START_TIME, fixed_clock
from retinue.testing.replies import (
    FakeResponse,
    ToolArguments,
    byte_by_byte_reply,
    dropped_connection,
    empty_response,
    html_page,
    http_error,
    huge_reply,
    raw_stream,
    refused_reply,
    stalled_stream,
    stream_error,
    text_reply,
    tool_call_reply,
    truncated_tool_call,
    unfinished_stream,
    whitespace_stream,
)
from retinue.testing.wire_formats import anthropic_events, openai_events

KEY = "sk-test-0123456789abcdef"
VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
MAKERS: dict[str, Callable[[str], Provider]] = {
    "openai": lambda url: OpenAIChatProvider(url, KEY),
    "anthropic": lambda url: AnthropicProvider(url, KEY),
}
EVENTS = {"openai": openai_events, "anthropic": anthropic_events}
QUICK = RetrySettings(
    max_attempts=3,
    max_rate_limited_attempts=4,
    backoff_s=0.02,
    max_backoff_s=0.1,
    idle_timeout_s=5,
    progress_timeout_s=5,
    total_timeout_s=10,
)


@pytest.fixture(params=MAKERS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass(slots=True)
class Talk:
    """A gateway, the server it talks to, and what was heard."""

    server: FakeModelServer
    gateway: RetryingProvider
    provider: str
    heard: list[ReplyDelta] = field(default_factory=list[ReplyDelta])

    async def turn(
        self, heard: Callable[[ReplyDelta], None] | None = None, tools: tuple[ToolSpec, ...] = ()
    ) -> Reply:
        said = Message(id="01", role="user", text="hello")
        model = Model(provider=self.provider, name="a-model")
        request = Request(
            model=model,
            agent_name="general",
            system="Be brief.",
            tools=tools,
            entries=[said],
            provider_cache={},
        )
        return await self.gateway.request_reply(request, heard or self.heard.append)

    async def fails(self) -> ModelFailed:
        with pytest.raises(ModelFailed) as caught:
            await self.turn()
        return caught.value

    @property
    def asked(self) -> int:
        return len(self.server.requests)

    @property
    def waits(self) -> list[str]:
        return [delta.wait_reason for delta in self.heard if delta.wait_reason]


@asynccontextmanager
async def talk(provider: str, script: Script, settings: RetrySettings = QUICK) -> AsyncGenerator[Talk]:
    async with FakeModelServer(script) as server:
        makers = {name: _made(make, server.url) for name, make in MAKERS.items()}
        gateway = RetryingProvider(makers, fixed_clock(), settings)
        try:
            yield Talk(server=server, gateway=gateway, provider=provider)
        finally:
            await gateway.close()


def _made(make: Callable[[str], Provider], url: str) -> Callable[[Model], Provider]:
    return lambda model: make(url)


async def test_eight_at_once_wait_at_one_gate_until_the_model_takes_requests_again(provider: str):
    """Shows: M01."""
    busy = [http_error(429, retry_after=0.05)] * 11
    async with talk(
        provider, [*busy, *[text_reply("at last")] * 8], replace(QUICK, max_rate_limited_attempts=8)
    ) as it:
        replies = await asyncio.gather(*(it.turn() for _ in range(8)))
        # Eight ask before anyone knows, then one at a time tries and is refused three times, then all are let in.
        assert it.asked == 8 + 3 + 8
        tries = [request.received_at for request in it.server.requests[8:12]]
        assert all(later - earlier >= 0.05 for earlier, later in pairwise(tries))
    assert [answer.text for answer in replies] == ["at last"] * 8
    assert it.waits[0] == "rate limited, trying again in 1 s"


@pytest.mark.parametrize("code", [429, 529])
async def test_the_time_the_server_names_is_waited_for(provider: str, code: int):
    """Shows: M01."""
    async with talk(provider, [http_error(code, retry_after=0.3), text_reply("now")]) as it:
        assert (await it.turn()).text == "now"
        first, second = (request.received_at for request in it.server.requests)
        assert second - first >= 0.3


async def test_a_date_as_retry_after_is_understood_and_a_far_one_is_bounded(provider: str):
    """Shows: M01."""
    soon = format_datetime(START_TIME + timedelta(days=400), usegmt=True)
    settings = replace(QUICK, max_retry_after_s=0.2)
    async with talk(provider, [http_error(429, retry_after=soon), text_reply("now")], settings) as it:
        assert (await it.turn()).text == "now"
        first, second = (request.received_at for request in it.server.requests)
        assert second - first >= 0.2


@pytest.mark.parametrize(
    "nonsense",
    [
        "soon",
        "",
        "-3",
        "1e999",
        "NaN",
        "+NaN",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999",
    ],
)
async def test_a_retry_after_that_means_nothing_does_no_harm(provider: str, nonsense: str):
    """Shows: M01."""
    settings = replace(QUICK, max_retry_after_s=0.1)
    failures = [http_error(code, retry_after=nonsense) for code in (429, 503)]
    async with talk(provider, [*failures, text_reply("now")], settings) as it:
        assert (await it.turn()).text == "now"


async def test_a_model_that_is_always_busy_fails_the_turn_after_bounded_attempts(provider: str):
    """Shows: M02."""
    async with talk(provider, lambda asked: http_error(429, "slow down", retry_after=0.01)) as it:
        failure = await it.fails()
        assert failure.reason == "rate_limited"
        assert "slow down" in str(failure)
        assert it.asked == QUICK.max_rate_limited_attempts


async def test_many_turns_before_a_model_that_is_always_busy_all_fail_and_ask_it_little(provider: str):
    """Shows: M02."""
    async with talk(provider, lambda asked: http_error(429, retry_after=0.01)) as it:
        ends = await asyncio.gather(*(it.turn() for _ in range(8)), return_exceptions=True)
        reasons = [end.reason for end in ends if isinstance(end, ModelFailed)]
        assert reasons == ["rate_limited"] * 8
        assert it.asked <= 8 * QUICK.max_rate_limited_attempts


async def test_one_who_leaves_while_trying_the_gate_leaves_it_to_the_next():
    """Shows: M01."""
    gate = RateLimitGate()
    first = gate.try_enter()
    if first is None:
        raise AssertionError("an open gate lets everyone in")
    first.report_rate_limit(0)
    first.leave()
    probe = gate.try_enter()
    if probe is None:
        raise AssertionError("after the time has passed one may try")
    assert gate.try_enter() is None
    waiting = asyncio.ensure_future(gate.wait_for_change())
    await asyncio.sleep(0)
    assert not waiting.done()
    probe.leave()
    await waiting
    assert gate.try_enter() is not None


async def test_a_model_that_accepts_and_then_says_it_is_overloaded_is_asked_a_bounded_number_of_times(
    provider: str,
):
    """Shows: M02."""
    async with talk(provider, lambda asked: stream_error(text="well, ")) as it:
        failure = await it.fails()
        assert (failure.reason, failure.partial) == ("rate_limited", "well, ")
        assert it.asked == QUICK.max_rate_limited_attempts


async def test_a_spent_quota_is_not_asked_again(provider: str):
    async with talk(provider, [http_error(429, "You exceeded your quota", kind="insufficient_quota")]) as it:
        failure = await it.fails()
        assert (failure.reason, it.asked) == ("rate_limited", 1)


@pytest.mark.parametrize("code", [500, 502, 503])
async def test_a_server_error_is_asked_again(provider: str, code: int):
    """Shows: M03."""
    async with talk(provider, [http_error(code), text_reply("well again")]) as it:
        assert (await it.turn()).text == "well again"
        assert it.waits == ["the model's server failed, trying again in 1 s"]


@pytest.mark.parametrize(
    "broken",
    [
        dropped_connection(700, text_reply("the first half of a text and more", piece=2)),
        stream_error(text="the first half"),
        stream_error("api_error", "Internal server error", text="the first half"),
    ],
    ids=["connection cut", "overloaded in mid stream", "error in mid stream"],
)
async def test_half_an_answer_is_discarded_and_never_joined_to_the_next(provider: str, broken: FakeResponse):
    """Shows: M03."""
    async with talk(provider, [broken, text_reply("a whole text")]) as it:
        answer = await it.turn()
    assert answer.text == "a whole text"
    at = it.heard.index(ReplyDelta(is_discarded=True))
    assert "".join(delta.text for delta in it.heard[:at]).startswith("the fi")
    assert "".join(delta.text for delta in it.heard[at:]) == "a whole text"


async def test_a_server_that_is_not_there_is_tried_again_and_said_to_be_unreachable(provider: str):
    """Shows: M04."""
    async with FakeModelServer([]) as gone:
        pass
    heard: list[ReplyDelta] = []
    gateway = RetryingProvider({provider: lambda model: MAKERS[provider](gone.url)}, fixed_clock(), QUICK)
    request = Request(
        model=Model(provider=provider, name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=[],
        provider_cache={},
    )
    with pytest.raises(ModelFailed) as caught:
        await gateway.request_reply(request, heard.append)
    await gateway.close()
    assert caught.value.reason == "unreachable"
    assert gone.url in str(caught.value)
    waits = [delta.wait_reason for delta in heard]
    assert waits == ["model unreachable, trying again in 1 s"] * (QUICK.max_attempts - 1)


@pytest.mark.parametrize(
    "base",
    [
        "not a url",
        "ftp://127.0.0.1",
        "http://",
        "http://models..example",
        f"http://{'m' * 64}.example",
        "http://127.0.0.1/\udcff",
    ],
)
async def test_a_base_url_that_is_none_is_the_configurations_fault(provider: str, base: str):
    """Shows: M04."""
    gateway = RetryingProvider({provider: lambda model: MAKERS[provider](base)}, fixed_clock(), QUICK)
    request = Request(
        model=Model(provider=provider, name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=[],
        provider_cache={},
    )
    with pytest.raises(ModelFailed) as caught:
        await gateway.request_reply(request, lambda delta: None)
    await gateway.close()
    assert caught.value.reason == "config"


async def test_a_drip_of_bytes_without_words_is_ended_by_the_progress_limit(provider: str):
    """Shows: M05."""
    settings = replace(QUICK, max_attempts=1, idle_timeout_s=5, progress_timeout_s=0.3)
    async with talk(provider, lambda asked: whitespace_stream(pace=0.01), settings) as it:
        failure = await it.fails()
        assert failure.reason == "incomplete"
        assert "said nothing for 0.3 s" in str(failure)


async def test_keep_alive_comments_are_not_words(provider: str):
    """Shows: M05."""
    settings = replace(QUICK, max_attempts=1, idle_timeout_s=5, progress_timeout_s=0.3)
    comments = raw_stream(b": keep-alive\n\n" * 1000, chunk=14, pace=0.01)
    async with talk(provider, lambda asked: comments, settings) as it:
        assert "said nothing for 0.3 s" in str(await it.fails())


async def test_an_answer_that_never_ends_is_ended_by_the_total_limit(provider: str):
    """Shows: M05."""
    settings = replace(QUICK, total_timeout_s=1)
    async with talk(provider, lambda asked: text_reply("word " * 1000, piece=5, pace=0.01), settings) as it:
        failure = await it.fails()
        assert failure.reason == "incomplete"
        assert "took more than 1 s" in str(failure)
        assert failure.partial.startswith("word word")
        assert it.asked == 1


async def test_a_long_call_is_progress_though_nothing_of_it_is_shown(provider: str):
    """Shows: M05."""
    slow = tool_call_reply(("write", {"content": "x" * 60}), pace=0.02, piece=1)
    async with talk(provider, [slow], replace(QUICK, progress_timeout_s=1)) as it:
        answer = await it.turn()
    assert answer.tool_calls[0].invalid_reason == ""
    assert [delta for delta in it.heard if delta.tool_arguments or delta.text] == []


async def test_a_document_that_comes_slowly_is_not_silence(provider: str):
    """Shows: M05."""
    slow = text_reply("word " * 20, stream=False, chunk=4, pace=0.02)
    async with talk(provider, [slow], replace(QUICK, idle_timeout_s=0.5)) as it:
        assert (await it.turn()).text == "word " * 20


async def test_what_moves_without_being_an_answer_is_alive_and_opens_no_gate():
    opened: list[bool] = []
    watch = StreamTimeout(
        StreamTimeouts(idle_s=0.5, progress_s=5, total_s=5), lambda _: None, lambda: opened.append(True)
    )

    async def turn() -> Reply:
        for _ in range(40):
            watch.receive_delta(KEEPALIVE)
            await asyncio.sleep(0.02)
        assert opened == []
        watch.receive_delta(BYTES_RECEIVED)
        return Reply(text="at last")

    assert (await watch.run(turn())).text == "at last"
    assert opened == [True]


async def test_silence_with_the_line_open_is_ended_and_asked_again(provider: str):
    """Shows: M06."""
    script = [
        stalled_stream(),
        stalled_stream(after_bytes=600, response=text_reply("half " * 40)),
        text_reply("awake"),
    ]
    async with talk(provider, script, replace(QUICK, idle_timeout_s=0.4)) as it:
        assert (await it.turn()).text == "awake"
        assert it.asked == 3


async def test_silence_for_ever_ends_as_incomplete(provider: str):
    """Shows: M06."""
    async with talk(provider, lambda asked: stalled_stream(), replace(QUICK, idle_timeout_s=0.1)) as it:
        failure = await it.fails()
        assert failure.reason == "incomplete"
        assert "silent for 0.1 s" in str(failure)
        assert it.asked == QUICK.max_attempts


async def test_a_stream_without_its_finish_reason_is_no_success(provider: str):
    """Shows: M07."""
    async with talk(provider, [unfinished_stream("par"), text_reply("whole")]) as it:
        assert (await it.turn()).text == "whole"
        assert ReplyDelta(is_discarded=True) in it.heard


async def test_a_stream_that_never_finishes_ends_as_incomplete_with_what_was_heard(provider: str):
    """Shows: M07."""
    async with talk(provider, lambda asked: unfinished_stream("par")) as it:
        failure = await it.fails()
        assert (failure.reason, failure.partial, it.asked) == ("incomplete", "par", QUICK.max_attempts)


async def test_a_finish_reason_without_the_closing_event_is_enough(provider: str):
    async with talk(provider, [text_reply("whole", done=False)]) as it:
        assert (await it.turn()).text == "whole"


async def test_a_whole_answer_is_not_lost_to_a_server_that_will_not_hang_up(provider: str):
    """Shows: M06."""
    whole = len(b"".join(EVENTS[provider](text_reply("whole"), "a-model")))
    async with talk(provider, [stalled_stream(after_bytes=whole - 1, response=text_reply("whole"))]) as it:
        assert (await it.turn()).text == "whole"
        assert it.asked == 1


async def test_a_stream_cut_within_a_call_brings_no_call(provider: str):
    """Shows: M08."""
    whole = tool_call_reply(("write", {"path": "a", "content": "x" * 400}))
    async with talk(provider, [dropped_connection(1500, whole), text_reply("no call")]) as it:
        answer = await it.turn()
    assert (answer.text, answer.tool_calls) == ("no call", ())


@pytest.mark.parametrize("args", ['{"path": "a", "content": "xx', "", '{"path"'])
async def test_a_call_cut_at_the_output_limit_says_so_and_never_runs(provider: str, args: str):
    """Shows: M09."""
    async with talk(provider, [truncated_tool_call("write", args)]) as it:
        answer = await it.turn()
    assert answer.stop_reason is StopReason.LENGTH
    assert [wish.invalid_reason for wish in answer.tool_calls] == ["cut at the output limit"]


async def test_of_several_calls_only_the_last_can_be_cut(provider: str):
    """Shows: M09."""
    script = [tool_call_reply(("read", {"path": "a"}), ("read", '{"pa'), stop="length")]
    async with talk(provider, script) as it:
        answer = await it.turn()
    assert [wish.invalid_reason for wish in answer.tool_calls] == ["", "cut at the output limit"]


@pytest.mark.parametrize("args", ["{bad", "[1]", '"text"', "null", "{} {}", '{"a": 1,}'])
async def test_arguments_that_are_no_object_break_the_call(provider: str, args: str):
    """Shows: M10."""
    async with talk(provider, [tool_call_reply(("read", args), ("ls", ""))]) as it:
        answer = await it.turn()
    assert answer.tool_calls[0].arguments == args
    assert answer.tool_calls[0].invalid_reason == "its arguments are not a JSON object"
    assert (answer.tool_calls[1].arguments, answer.tool_calls[1].invalid_reason) == ("{}", "")


@pytest.mark.parametrize("name", ["Bash", "b\u0430sh", "bash ", "no_such_tool"])
async def test_a_tools_name_is_passed_on_exactly_as_the_model_wrote_it(provider: str, name: str):
    """Shows: M11, M12."""
    async with talk(provider, [tool_call_reply((name, {}))]) as it:
        assert [wish.tool for wish in (await it.turn()).tool_calls] == [name]


async def test_arguments_beyond_the_size_limit_break_the_call_and_are_not_kept(provider: str):
    """Shows: M13."""
    big = '{"content": "' + "x" * (MAX_ARGUMENT_BYTES + 1) + '"}'
    async with talk(provider, [tool_call_reply(("write", big), ("ls", {}), piece=100_000)]) as it:
        answer = await it.turn()
    assert "longer than" in answer.tool_calls[0].invalid_reason
    assert len(answer.tool_calls[0].arguments) < 10_000
    assert answer.tool_calls[1].invalid_reason == ""


async def test_arguments_nested_without_end_break_the_call(provider: str):
    """Shows: M13."""
    deep = '{"a":' * 10_000 + "1" + "}" * 10_000
    async with talk(provider, [tool_call_reply(("write", deep), piece=10_000)]) as it:
        assert (await it.turn()).tool_calls[0].invalid_reason == "its arguments are nested too deeply"


@pytest.mark.parametrize("ids", [("same", "same", "same"), ("", "", ""), ("a", "", "a")])
async def test_calls_with_equal_or_empty_ids_stay_apart(provider: str, ids: tuple[str, ...]):
    """Shows: M14."""
    wishes: list[tuple[str, ToolArguments]] = [("read", {"path": "a"}), ("read", {"path": "b"}), ("ls", {})]
    async with talk(provider, [tool_call_reply(*wishes, call_ids=ids)]) as it:
        answer = await it.turn()
    found = [(wish.tool, wish.arguments) for wish in answer.tool_calls]
    assert found == [("read", '{"path":"a"}'), ("read", '{"path":"b"}'), ("ls", "{}")]


async def test_calls_and_names_without_end_are_bounded(provider: str):
    """Shows: M15, M17."""
    many = tool_call_reply(*[("x" * 300, "{}")] * 5000, model="m\n" + "y" * 5000)
    async with talk(provider, [many]) as it:
        answer = await it.turn()
    assert (len(answer.tool_calls), len(answer.tool_calls[0].tool)) == (4096, 256)
    assert answer.truncation_notice == "more than 4096 calls in one reply; the rest was left out"
    assert len(answer.model) <= 256
    assert answer.model.startswith("m y")


async def test_two_thousand_calls_in_one_reply_all_arrive_for_the_guard_to_count(provider: str):
    """Shows: M15."""
    async with talk(provider, [tool_call_reply(*[("ls", "{}")] * 2000)]) as it:
        assert len((await it.turn()).tool_calls) == 2000


async def test_an_answer_beyond_the_size_limit_is_cut_and_says_so(provider: str):
    """Shows: M17."""
    async with talk(provider, [huge_reply(50_000_000), text_reply("next")]) as it:
        answer = await it.turn()
        assert len(answer.text) == MAX_REPLY_BYTES
        assert (answer.stop_reason, answer.truncation_notice) == (
            StopReason.LENGTH,
            "the reply is longer than 8,000,000 bytes; the rest was left out",
        )
        assert (await it.turn()).text == "next"


async def test_one_event_without_end_is_not_read_without_end(provider: str):
    """Shows: M17."""
    endless = raw_stream(b"data: " + b"x" * 20_000_000, chunk=1_000_000)
    async with talk(provider, [endless]) as it:
        assert (await it.fails()).reason == "provider"


@pytest.mark.parametrize("wrong", [html_page(), empty_response()], ids=["web page", "empty body"])
async def test_a_good_status_with_no_reply_in_it_is_an_error_and_asked_again(
    provider: str, wrong: FakeResponse
):
    """Shows: M18."""
    async with talk(provider, [wrong, text_reply("a reply")]) as it:
        assert (await it.turn()).text == "a reply"
    async with talk(provider, lambda asked: wrong) as it:
        assert (await it.fails()).reason in {"provider", "incomplete"}
        assert it.asked == QUICK.max_attempts


async def test_a_refusal_is_a_reply_with_its_text_and_is_not_asked_again(provider: str):
    """Shows: M19."""
    async with talk(provider, [refused_reply("I cannot help with that.")]) as it:
        answer = await it.turn()
        assert (answer.stop_reason, answer.text) == (StopReason.REFUSED, "I cannot help with that.")
        assert it.asked == 1


async def test_a_refusal_takes_its_calls_with_it(provider: str):
    """Shows: M19."""
    async with talk(provider, [tool_call_reply(("bash", {"command": "x"}), stop="content_filter")]) as it:
        assert (await it.turn()).tool_calls == ()


async def test_an_empty_answer_is_brought_back_as_it_is(provider: str):
    """Shows: M20."""
    async with talk(provider, [text_reply("")]) as it:
        answer = await it.turn()
    assert (answer.text, answer.tool_calls, answer.stop_reason) == ("", (), StopReason.END)


async def test_the_model_that_really_answered_is_named(provider: str):
    """Shows: M21."""
    async with talk(provider, [text_reply("hi", model="a-dearer-model")]) as it:
        assert (await it.turn()).model == "a-dearer-model"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"input": -5, "output": -1},
        {"input": 10**15, "output": 10**15},
        {"input": "many", "output": None},
        {"input": True, "output": False},
        {"input": 0, "output": 0},
    ],
    ids=["missing", "negative", "huge", "no numbers", "booleans", "zero"],
)
async def test_counts_that_cannot_be_true_are_replaced_by_an_estimate(
    provider: str, usage: dict[str, Any] | None
):
    """Shows: M22."""
    async with talk(provider, [text_reply("x" * 400, usage=usage)]) as it:
        answer = await it.turn()
        sent = len(it.server.requests[0].raw_body)
    assert answer.usage.output == 100
    assert answer.usage.input == -(-sent // 4)


async def test_counts_that_can_be_true_are_the_providers(provider: str):
    """Shows: M22."""
    async with talk(provider, [text_reply("x" * 400, usage={"input": 77, "output": 88})]) as it:
        usage = (await it.turn()).usage
    assert (usage.input, usage.output) == (77, 88)


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_names_its_variable_and_never_itself(provider: str, code: int):
    async with talk(provider, [http_error(code, f"Incorrect API key provided: {KEY}")]) as it:
        failure = await it.fails()
        assert (failure.reason, it.asked) == ("auth", 1)
        assert f"check {VARIABLES[provider]}" in str(failure)
        assert KEY not in str(failure)


async def test_a_model_that_does_not_exist_is_the_configurations_fault(provider: str):
    async with talk(provider, [http_error(404, "The model `a-model` does not exist")]) as it:
        failure = await it.fails()
        assert (failure.reason, it.asked) == ("config", 1)
        assert "model or URL not found" in str(failure)
        assert "does not exist" in str(failure)


async def test_a_rejected_request_is_not_asked_again_and_quotes_the_server_safely(provider: str):
    """Shows: X11."""
    said = f"bad field\x1b]52;c;x\x07 \u2028 near {KEY} and sk-other-0123456789 " + "y" * 2000
    async with talk(provider, [http_error(400, said)]) as it:
        failure = await it.fails()
        text = str(failure)
        assert (failure.reason, it.asked) == ("provider", 1)
        assert "bad field" in text
        assert KEY not in text
        assert "sk-other" not in text
        assert text.isprintable()
        assert len(text) < 700


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_says_where_to(provider: str, code: int):
    place = "http://127.0.0.1:9/v1/messages"
    elsewhere = FakeResponse(
        status=code, headers={"Location": f"{place}?key={KEY}"}, body=b"<html>moved</html>"
    )
    async with talk(provider, [elsewhere]) as it:
        failure = await it.fails()
        assert (failure.reason, it.asked) == ("provider", 1)
        assert str(failure).endswith(
            f" has moved (HTTP {code}) to {place}?key=[key], which was not asked: if you trust it, mend the base URL"
        )


async def test_a_redirect_to_nowhere_says_so(provider: str):
    async with talk(provider, [FakeResponse(status=301, body=b"")]) as it:
        sentence = str(await it.fails())
    assert sentence.endswith(" has moved (HTTP 301) and does not say where to: mend the base URL")


async def test_a_cancelled_turn_hangs_up_at_once(provider: str):
    async with talk(
        provider, [stalled_stream(after_bytes=500, response=text_reply("word " * 100)), text_reply("next")]
    ) as it:
        speaking = asyncio.Event()
        turn = asyncio.ensure_future(it.turn(lambda delta: speaking.set()))
        await speaking.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await it.server.client_disconnected.wait()
        assert (await it.turn()).text == "next"


async def test_one_connection_serves_turn_after_turn(provider: str):
    async with talk(provider, [text_reply("one"), tool_call_reply(("ls", {})), text_reply("three")]) as it:
        for _ in range(3):
            await it.turn()
        assert it.server.connection_count == 1


async def test_bytes_cut_anywhere_make_the_same_reply(provider: str):
    """Shows: X11."""
    answer = tool_call_reply(("read", {"path": "añ\U0001f600"}), text="grüße \U0001f600", piece=3)
    async with talk(
        provider, [byte_by_byte_reply("grüße", pace=0), replace(answer, chunk=1), replace(answer, chunk=7)]
    ) as it:
        assert (await it.turn()).text == "grüße"
        first, second = await it.turn(), await it.turn()
    assert first == second
    assert (first.text, first.tool_calls[0].arguments) == ("grüße \U0001f600", '{"path":"añ\U0001f600"}')


async def test_a_server_that_cannot_stream_is_understood(provider: str):
    whole = tool_call_reply(("read", {"path": "a"}), text="I look.", stream=False)
    async with talk(provider, [whole, replace(whole, finish=False), text_reply("x", stream=False)]) as it:
        answer = await it.turn()
        assert (answer.text, answer.tool_calls[0].arguments, answer.stop_reason) == (
            "I look.",
            '{"path":"a"}',
            StopReason.TOOLS,
        )
        assert (await it.turn()).text == "x"


async def test_an_unknown_driver_names_those_there_are():
    gateway = RetryingProvider(
        {name: lambda model: OpenAIChatProvider() for name in ("openai", "anthropic")}, fixed_clock()
    )
    request = Request(
        model=Model(provider="opnai", name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=[],
        provider_cache={},
    )
    with pytest.raises(ModelFailed) as caught:
        await gateway.request_reply(request, lambda delta: None)
    assert caught.value.reason == "config"
    assert "use one of anthropic, openai" in str(caught.value)


async def test_a_driver_that_cannot_be_made_is_the_configurations_fault():
    def refuse(model: Model) -> Provider:
        raise BadConfig("OPENAI_API_KEY is not set")

    gateway = RetryingProvider({"openai": refuse}, fixed_clock())
    request = Request(
        model=Model(provider="openai", name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=[],
        provider_cache={},
    )
    with pytest.raises(ModelFailed, match="OPENAI_API_KEY is not set") as caught:
        await gateway.request_reply(request, lambda delta: None)
    assert caught.value.reason == "config"


async def test_a_key_that_cannot_be_had_is_the_configurations_fault(provider: str):
    def missing() -> str:
        raise BadConfig(f"{VARIABLES[provider]} is not set")

    make = {"openai": OpenAIChatProvider, "anthropic": AnthropicProvider}[provider]
    gateway = RetryingProvider({provider: lambda model: make("http://127.0.0.1:9", missing)}, fixed_clock())
    request = Request(
        model=Model(provider=provider, name="m"),
        agent_name="a",
        system="",
        tools=(),
        entries=[],
        provider_cache={},
    )
    with pytest.raises(ModelFailed, match="is not set") as caught:
        await gateway.request_reply(request, lambda delta: None)
    await gateway.close()
    assert caught.value.reason == "config"


def test_a_base_url_with_a_password_is_refused(provider: str):
    make = {"openai": OpenAIChatProvider, "anthropic": AnthropicProvider}[provider]
    with pytest.raises(BadConfig, match=f"must hold no password: put the key into {VARIABLES[provider]}"):
        make("https://me:secret@127.0.0.1/v1", "")


@pytest.mark.parametrize("more", ["?api-version=1", "?", "#here", "/v1?key=secret#"])
def test_a_base_url_that_goes_on_after_its_path_is_refused(provider: str, more: str):
    make = {"openai": OpenAIChatProvider, "anthropic": AnthropicProvider}[provider]
    with pytest.raises(BadConfig) as caught:
        make(f"https://127.0.0.1{more}", "")
    assert str(caught.value) == (
        "a base URL ends with its path, and this one holds '?' or '#': write it as https://host/path"
    )


async def test_drivers_are_made_once_per_model_and_settings_and_all_are_closed():
    made: list[str] = []
    closed: list[str] = []

    class Noted:
        def __init__(self, model: Model) -> None:
            self.name = model.full_name
            made.append(self.name)

        async def request_reply(self, request: Request, on_delta: Callable[[ReplyDelta], None]) -> Reply:
            return Reply(text=self.name)

        async def close(self) -> None:
            closed.append(self.name)

    gateway = RetryingProvider({"noted": Noted}, fixed_clock())
    plain = Model(provider="noted", name="a")
    elsewhere = replace(plain, settings={"base_url": "http://127.0.0.1:1"})
    for model in (plain, plain, elsewhere, replace(plain, name="b")):
        request = Request(model=model, agent_name="a", system="", tools=(), entries=[], provider_cache={})
        assert (await gateway.request_reply(request, lambda delta: None)).text == model.full_name
    await gateway.close()
    assert made == ["noted:a", "noted:a", "noted:b"]
    assert closed == made


@pytest.mark.parametrize("code", [503, 429])
async def test_a_turn_that_waits_while_the_gateway_is_closed_asks_nobody_any_more(provider: str, code: int):
    async with talk(provider, lambda asked: http_error(code, retry_after=0.3)) as it:
        waiting = asyncio.Event()
        turn = asyncio.ensure_future(it.turn(lambda delta: waiting.set()))
        await waiting.wait()
        await it.gateway.close()
        with pytest.raises(ModelFailed, match="a-model' was not asked: Retinue has been closed") as caught:
            await turn
        assert (caught.value.reason, it.asked, it.server.connection_count) == ("unreachable", 1, 1)


@pytest.mark.parametrize("key", ["ключ-ключ", "two\nlines", "nul\x00"])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_a_key_that_no_header_can_carry_is_refused_unsent(name: str, key: str):
    make = {"openai": OpenAIChatProvider, "anthropic": AnthropicProvider}[name]
    async with FakeModelServer([]) as server:
        driver = make(server.url, lambda: key)
        request = Request(
            model=Model(provider=name, name="m"),
            agent_name="a",
            system="",
            tools=(),
            entries=[],
            provider_cache={},
        )
        with pytest.raises(ModelFailed) as caught:
            await driver.request_reply(request, lambda delta: None)
        await driver.close()
        assert (caught.value.reason, server.requests) == ("auth", [])
        assert VARIABLES[name] in str(caught.value)


def test_the_gateway_and_the_scripted_driver_do_not_load_an_http_client():
    code = "import sys, retinue.providers.retry, retinue.providers.scripted; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_drivers_load_nothing_but_what_json_and_http_are_read_with():
    code = (
        "import sys, asyncio, httptools, msgspec; before = set(sys.modules); "
        "import retinue.providers.openai_chat, retinue.providers.anthropic, retinue.providers.retry; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - {'retinue'} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_tool_has_its_own_name_here_and_one_that_the_api_takes_there(provider: str):
    names = ["github.search", "read", f"github.{'x' * 90}", f"github.{'x' * 90}y"]
    tools = tuple(ToolSpec(name=name, description="Acts.", schema={"type": "object"}) for name in names)
    wishes: list[tuple[str, ToolArguments]] = [(api_tool_name(name), "{}") for name in names]
    async with talk(
        provider, lambda _: tool_call_reply(*wishes, ("github.search", "{}"), ("nowhere__x", "{}"))
    ) as it:
        reply = await it.turn(tools=tools)
    sent = [each.get("function", each)["name"] for each in it.server.requests[0].body["tools"]]
    assert sent[:2] == ["github__search", "read"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in sent)
    assert len({*sent}) == len(names)
    assert [wish.tool for wish in reply.tool_calls] == [*names, "github.search", "nowhere__x"]


async def test_a_limit_that_has_passed_before_a_turn_that_waits_for_nothing_strikes_nobody_later():
    watch = StreamTimeout(StreamTimeouts(idle_s=0, progress_s=0, total_s=0), lambda _: None, lambda: None)

    async def at_once() -> Reply:
        return Reply(text="There.")

    assert (await watch.run(at_once())).text == "There."
    await asyncio.sleep(0)
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0
