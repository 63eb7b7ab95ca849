"""Retries, rate limits and timeouts of both HTTP providers, against a server that fails in every way."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from model_providers import API_KEY, PROVIDER_FACTORIES, http_provider
from model_request import make_model_request
from msgspec.structs import replace

from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_REPLY_BYTES
from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta, StopReason
from retinue.domain.tool import ToolSpec, api_tool_name
from retinue.domain.transcript import Message
from retinue.errors import BadConfig, ModelFailed
from retinue.interfaces import Provider
from retinue.providers.rate_limit import RateLimitGate
from retinue.providers.retry import RetryingProvider
from retinue.providers.retry_policy import RetrySettings
from retinue.providers.stream_request import BYTES_RECEIVED
from retinue.providers.stream_timeout import KEEPALIVE, StreamTimeoutSettings, StreamWatchdog
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

VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
EVENTS = {"openai": openai_events, "anthropic": anthropic_events}
QUICK_TIMEOUTS = StreamTimeoutSettings(first_byte_s=5, idle_s=5, no_output_s=5, total_s=10)
QUICK_SETTINGS = RetrySettings(
    retry_window_s=0.5,
    max_incomplete_replies=3,
    backoff_s=0.02,
    max_backoff_s=0.1,
    timeouts=QUICK_TIMEOUTS,
)


@dataclass(slots=True)
class RetryHarness:
    """A retrying provider, the fake server behind it, and the deltas it reported."""

    server: FakeModelServer
    retrying: RetryingProvider
    provider: str
    deltas: list[ReplyDelta] = field(default_factory=list[ReplyDelta])

    async def request_reply(
        self, on_delta: Callable[[ReplyDelta], None] | None = None, tools: tuple[ToolSpec, ...] = ()
    ) -> ModelReply:
        request = make_model_request(
            Model(provider=self.provider, name="a-model"),
            [Message(id="01", role="user", text="hello")],
            agent_name="general",
            system="Be brief.",
            tools=tools,
        )
        return await self.retrying.request_reply(request, on_delta or self.deltas.append)

    async def catch_failure(self) -> ModelFailed:
        with pytest.raises(ModelFailed) as error_info:
            await self.request_reply()
        return error_info.value

    @property
    def request_count(self) -> int:
        return len(self.server.requests)

    @property
    def wait_reasons(self) -> list[str]:
        return [delta.wait_reason for delta in self.deltas if delta.wait_reason]


@asynccontextmanager
async def start_harness(
    provider: str, script: Script, settings: RetrySettings = QUICK_SETTINGS
) -> AsyncGenerator[RetryHarness]:
    async with FakeModelServer(script) as server:
        factories = {name: _bind_url(make, server.url) for name, make in PROVIDER_FACTORIES.items()}
        retrying = RetryingProvider(factories, fixed_clock(), settings)
        try:
            yield RetryHarness(server=server, retrying=retrying, provider=provider)
        finally:
            await retrying.close()


def _bind_url(make: Callable[[str], Provider], url: str) -> Callable[[Model], Provider]:
    return lambda model: make(url)


async def catch_model_failure(
    retrying: RetryingProvider,
    provider: str,
    on_delta: Callable[[ReplyDelta], None] = lambda delta: None,
) -> ModelFailed:
    """Request a reply, close the provider and return the error of the request."""
    with pytest.raises(ModelFailed) as error_info:
        await retrying.request_reply(make_model_request(Model(provider=provider, name="m")), on_delta)
    await retrying.close()
    return error_info.value


async def test_eight_concurrent_requests_wait_at_one_rate_limit_gate_until_it_opens(provider: str):
    """Shows: M01."""
    busy = [http_error(429, retry_after=0.05)] * 11
    async with start_harness(
        provider, [*busy, *[text_reply("at last")] * 8], replace(QUICK_SETTINGS, retry_window_s=30)
    ) as harness:
        replies = await asyncio.gather(*(harness.request_reply() for _ in range(8)))
        # Eight requests hit the limit, three single attempts are refused, and then all eight succeed.
        assert harness.request_count == 8 + 3 + 8
        attempt_times = [request.received_at for request in harness.server.requests[8:12]]
        assert all(later - earlier >= 0.05 for earlier, later in pairwise(attempt_times))
    assert [reply.text for reply in replies] == ["at last"] * 8
    assert harness.wait_reasons[0] == "rate limited, retrying in 1 s"


@pytest.mark.parametrize("code", [429, 529])
async def test_a_retry_waits_for_the_retry_after_time(provider: str, code: int):
    """Shows: M01."""
    settings = replace(QUICK_SETTINGS, retry_window_s=30)
    async with start_harness(
        provider, [http_error(code, retry_after=0.3), text_reply("now")], settings
    ) as harness:
        assert (await harness.request_reply()).text == "now"
        first, second = (request.received_at for request in harness.server.requests)
        assert second - first >= 0.3


async def test_a_retry_after_date_is_understood_and_limited(provider: str):
    """Shows: M01."""
    far_date = format_datetime(START_TIME + timedelta(days=400), usegmt=True)
    settings = replace(QUICK_SETTINGS, max_retry_after_s=0.2)
    async with start_harness(
        provider, [http_error(429, retry_after=far_date), text_reply("now")], settings
    ) as harness:
        assert (await harness.request_reply()).text == "now"
        first, second = (request.received_at for request in harness.server.requests)
        assert second - first >= 0.2


@pytest.mark.parametrize(
    "retry_after",
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
async def test_an_invalid_retry_after_is_ignored(provider: str, retry_after: str):
    """Shows: M01."""
    settings = replace(QUICK_SETTINGS, max_retry_after_s=0.1)
    failures = [http_error(code, retry_after=retry_after) for code in (429, 503)]
    async with start_harness(provider, [*failures, text_reply("now")], settings) as harness:
        assert (await harness.request_reply()).text == "now"


@pytest.mark.parametrize("kind", ["rate_limit_error", "insufficient_quota", "billing_error"])
async def test_a_turn_waits_for_a_server_that_is_rate_limited_for_the_whole_retry_window(
    provider: str, kind: str
):
    async with start_harness(
        provider, lambda _: http_error(429, "slow down", retry_after=0.01, kind=kind)
    ) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, failure.outage_server) == ("rate_limited", provider)
        assert "slow down" in str(failure) or "accepted no request" in str(failure)
        assert harness.request_count > 1


@pytest.mark.parametrize("code", [500, 503])
async def test_a_request_to_a_server_that_is_known_to_be_down_is_attempted_once(provider: str, code: int):
    responses = iter([*[http_error(code)] * 100])
    is_back = False

    def respond(_: object) -> FakeResponse:
        return text_reply("back") if is_back else next(responses)

    async with start_harness(provider, respond) as harness:
        assert (await harness.catch_failure()).outage_server == provider
        attempts = harness.request_count
        assert attempts > 1
        await harness.catch_failure()
        assert harness.request_count == attempts + 1
        is_back = True
        assert (await harness.request_reply()).text == "back"


@pytest.mark.parametrize("code", [429, 529])
async def test_a_request_to_a_model_that_stays_rate_limited_does_not_wait_for_it(provider: str, code: int):
    async with start_harness(provider, lambda _: http_error(code, retry_after=3600)) as harness:
        assert (await harness.catch_failure()).outage_server == provider
        assert (await harness.catch_failure()).outage_server == provider
        assert harness.request_count == 1


async def test_a_probe_is_attempted_once(provider: str):
    async with start_harness(provider, lambda _: http_error(503)) as harness:
        with pytest.raises(ModelFailed) as error_info:
            await harness.retrying.request_reply(
                make_model_request(Model(provider=provider, name="a-model"), is_probe=True),
                harness.deltas.append,
            )
        assert (error_info.value.outage_server, harness.request_count) == (provider, 1)


async def test_concurrent_turns_on_a_rate_limited_model_share_few_requests(provider: str):
    """Shows: M02."""
    async with start_harness(provider, lambda _: http_error(429, retry_after=0.01)) as harness:
        results = await asyncio.gather(*(harness.request_reply() for _ in range(8)), return_exceptions=True)
        reasons = [result.reason for result in results if isinstance(result, ModelFailed)]
        assert reasons == ["rate_limited"] * 8
        one_at_a_time = QUICK_SETTINGS.retry_window_s / 0.01
        assert harness.request_count <= 8 + one_at_a_time


async def test_an_abandoned_attempt_at_a_closed_gate_lets_the_next_caller_try():
    """Shows: M01."""
    gate = RateLimitGate()
    first = gate.try_enter()
    if first is None:
        raise AssertionError("an open gate gives a pass")
    first.report_rate_limit(0)
    first.leave()
    probe = gate.try_enter()
    if probe is None:
        raise AssertionError("a gate whose time has passed gives one pass")
    assert gate.try_enter() is None
    waiter = asyncio.ensure_future(gate.wait_for_change())
    await asyncio.sleep(0)
    assert not waiter.done()
    probe.leave()
    await waiter
    assert gate.try_enter() is not None


async def test_a_model_that_is_overloaded_in_mid_stream_gets_a_limited_number_of_requests(
    provider: str,
):
    """Shows: M02."""
    async with start_harness(provider, lambda _: stream_error(text="well, ")) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, failure.outage_server, failure.breaks_off) == ("rate_limited", provider, True)
        assert harness.request_count == QUICK_SETTINGS.max_incomplete_replies


@pytest.mark.parametrize("code", [500, 502, 503])
async def test_a_server_error_is_retried(provider: str, code: int):
    """Shows: M03."""
    async with start_harness(provider, [http_error(code), text_reply("well again")]) as harness:
        assert (await harness.request_reply()).text == "well again"
        assert harness.wait_reasons == ["the model's server failed, retrying in 1 s"]


@pytest.mark.parametrize(
    "first_response",
    [
        dropped_connection(700, text_reply("the first half of a text and more", piece=2)),
        stream_error(text="the first half"),
        stream_error("api_error", "Internal server error", text="the first half"),
    ],
    ids=["connection cut", "overloaded in mid stream", "error in mid stream"],
)
async def test_a_partial_reply_is_discarded_and_never_joined_to_the_next(
    provider: str, first_response: FakeResponse
):
    """Shows: M03."""
    async with start_harness(provider, [first_response, text_reply("a whole text")]) as harness:
        reply = await harness.request_reply()
    assert reply.text == "a whole text"
    discarded_at = harness.deltas.index(ReplyDelta(is_discarded=True))
    assert "".join(delta.text for delta in harness.deltas[:discarded_at]).startswith("the fi")
    assert "".join(delta.text for delta in harness.deltas[discarded_at:]) == "a whole text"


async def test_an_unreachable_server_is_retried_and_reported(provider: str):
    """Shows: M04."""
    async with FakeModelServer([]) as closed:
        pass
    deltas: list[ReplyDelta] = []
    retrying = RetryingProvider(
        {provider: lambda model: PROVIDER_FACTORIES[provider](closed.url)}, fixed_clock(), QUICK_SETTINGS
    )
    failure = await catch_model_failure(retrying, provider, deltas.append)
    assert failure.reason == "unreachable"
    assert closed.url in str(failure)
    wait_reasons = [delta.wait_reason for delta in deltas]
    assert len(wait_reasons) > 1
    assert all(
        reason.startswith(f"cannot reach {closed.url}") and reason.endswith(", retrying in 1 s")
        for reason in wait_reasons
    )
    assert failure.outage_server == provider


@pytest.mark.parametrize(
    "base_url",
    [
        "not a url",
        "ftp://127.0.0.1",
        "http://",
        "http://models..example",
        f"http://{'m' * 64}.example",
        "http://127.0.0.1/\udcff",
    ],
)
async def test_an_invalid_base_url_is_a_configuration_error(provider: str, base_url: str):
    """Shows: M04."""
    retrying = RetryingProvider(
        {provider: lambda model: PROVIDER_FACTORIES[provider](base_url)}, fixed_clock(), QUICK_SETTINGS
    )
    failure = await catch_model_failure(retrying, provider)
    assert failure.reason == "config"


async def test_a_stream_of_whitespace_is_ended_by_the_progress_timeout(provider: str):
    """Shows: M05."""
    settings = replace(QUICK_SETTINGS, retry_window_s=0, timeouts=replace(QUICK_TIMEOUTS, no_output_s=0.3))
    async with start_harness(provider, lambda _: whitespace_stream(pace=0.01), settings) as harness:
        failure = await harness.catch_failure()
        assert failure.reason == "incomplete"
        assert "produced no output for 0.3 s" in str(failure)


async def test_keepalive_comments_do_not_count_as_progress(provider: str):
    """Shows: M05."""
    settings = replace(QUICK_SETTINGS, retry_window_s=0, timeouts=replace(QUICK_TIMEOUTS, no_output_s=0.3))
    comments = raw_stream(b": keep-alive\n\n" * 1000, chunk=14, pace=0.01)
    async with start_harness(provider, lambda _: comments, settings) as harness:
        assert "produced no output for 0.3 s" in str(await harness.catch_failure())


async def test_an_endless_reply_is_ended_by_the_total_timeout(provider: str):
    """Shows: M05."""
    settings = replace(QUICK_SETTINGS, retry_window_s=30, timeouts=replace(QUICK_TIMEOUTS, total_s=1))
    async with start_harness(
        provider, lambda _: text_reply("word " * 1000, piece=5, pace=0.01), settings
    ) as harness:
        failure = await harness.catch_failure()
        assert failure.reason == "incomplete"
        assert "took more than 1 s" in str(failure)
        assert harness.request_count > 1


async def test_arguments_of_a_long_tool_call_count_as_progress(provider: str):
    """Shows: M05."""
    slow = tool_call_reply(("write", {"content": "x" * 60}), pace=0.02, piece=1)
    async with start_harness(
        provider, [slow], replace(QUICK_SETTINGS, timeouts=replace(QUICK_TIMEOUTS, no_output_s=1))
    ) as harness:
        reply = await harness.request_reply()
    assert reply.tool_calls[0].invalid_reason == ""
    assert [delta for delta in harness.deltas if delta.tool_arguments or delta.text] == []


async def test_a_slow_response_without_streaming_is_not_idle(provider: str):
    """Shows: M05."""
    slow = text_reply("word " * 20, stream=False, chunk=4, pace=0.02)
    async with start_harness(
        provider, [slow], replace(QUICK_SETTINGS, timeouts=replace(QUICK_TIMEOUTS, idle_s=0.5))
    ) as harness:
        assert (await harness.request_reply()).text == "word " * 20


async def test_keepalives_prevent_the_idle_timeout_and_do_not_open_the_rate_limit_gate():
    gate_openings: list[bool] = []
    stream_timeout = StreamWatchdog(
        StreamTimeoutSettings(idle_s=0.5, no_output_s=5, total_s=5),
        lambda _: None,
        lambda: gate_openings.append(True),
    )

    async def send_keepalives() -> ModelReply:
        for _ in range(40):
            stream_timeout.receive_delta(KEEPALIVE)
            await asyncio.sleep(0.02)
        assert gate_openings == []
        stream_timeout.receive_delta(BYTES_RECEIVED)
        return ModelReply(text="at last")

    assert (await stream_timeout.run(send_keepalives())).text == "at last"
    assert gate_openings == [True]


async def test_an_idle_stream_is_ended_and_retried(provider: str):
    """Shows: M06."""
    script = [
        stalled_stream(),
        stalled_stream(after_bytes=600, response=text_reply("half " * 40)),
        text_reply("awake"),
    ]
    async with start_harness(
        provider,
        script,
        replace(
            QUICK_SETTINGS, retry_window_s=30, timeouts=replace(QUICK_TIMEOUTS, first_byte_s=0.4, idle_s=0.4)
        ),
    ) as harness:
        assert (await harness.request_reply()).text == "awake"
        assert harness.request_count == 3


async def test_a_server_that_stays_idle_is_waited_for(provider: str):
    """Shows: M06."""
    async with start_harness(
        provider,
        lambda _: stalled_stream(),
        replace(QUICK_SETTINGS, timeouts=replace(QUICK_TIMEOUTS, first_byte_s=0.1, idle_s=0.1)),
    ) as harness:
        failure = await harness.catch_failure()
        assert failure.reason == "incomplete"
        assert "sent no data for 0.1 s" in str(failure)
        assert failure.outage_server == provider
        assert harness.request_count > 1


async def test_a_stream_without_a_finish_reason_is_retried(provider: str):
    """Shows: M07."""
    async with start_harness(provider, [unfinished_stream("par"), text_reply("whole")]) as harness:
        assert (await harness.request_reply()).text == "whole"
        assert ReplyDelta(is_discarded=True) in harness.deltas


async def test_a_server_whose_streams_keep_breaking_off_is_waited_for(provider: str):
    """Shows: M07."""
    async with start_harness(provider, lambda _: unfinished_stream("par")) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, failure.outage_server, failure.breaks_off) == ("incomplete", provider, True)
        assert harness.request_count == QUICK_SETTINGS.max_incomplete_replies
        assert harness.deltas[-1] == ReplyDelta(is_discarded=True)


async def test_a_probe_is_attempted_once_even_if_its_reply_breaks_off(provider: str):
    async with start_harness(provider, lambda _: unfinished_stream("par")) as harness:
        with pytest.raises(ModelFailed) as error_info:
            await harness.retrying.request_reply(
                make_model_request(Model(provider=provider, name="a-model"), is_probe=True),
                harness.deltas.append,
            )
        assert (error_info.value.outage_server, harness.request_count) == (provider, 1)


async def test_a_finish_reason_without_the_closing_event_is_enough(provider: str):
    async with start_harness(provider, [text_reply("whole", done=False)]) as harness:
        assert (await harness.request_reply()).text == "whole"


async def test_a_complete_reply_counts_even_if_the_server_keeps_the_stream_open(provider: str):
    """Shows: M06."""
    reply_size = len(b"".join(EVENTS[provider](text_reply("whole"), "a-model")))
    async with start_harness(
        provider, [stalled_stream(after_bytes=reply_size - 1, response=text_reply("whole"))]
    ) as harness:
        assert (await harness.request_reply()).text == "whole"
        assert harness.request_count == 1


async def test_a_stream_cut_within_a_tool_call_yields_no_tool_call(provider: str):
    """Shows: M08."""
    tool_call = tool_call_reply(("write", {"path": "a", "content": "x" * 400}))
    async with start_harness(
        provider, [dropped_connection(1500, tool_call), text_reply("no call")]
    ) as harness:
        reply = await harness.request_reply()
    assert (reply.text, reply.tool_calls) == ("no call", ())


@pytest.mark.parametrize("args", ['{"path": "a", "content": "xx', "", '{"path"'])
async def test_a_tool_call_cut_at_the_output_limit_is_invalid(provider: str, args: str):
    """Shows: M09."""
    async with start_harness(provider, [truncated_tool_call("write", args)]) as harness:
        reply = await harness.request_reply()
    assert reply.stop_reason is StopReason.LENGTH
    assert [call.invalid_reason for call in reply.tool_calls] == ["truncated at the output limit"]


async def test_only_the_last_tool_call_can_be_cut_at_the_output_limit(provider: str):
    """Shows: M09."""
    script = [tool_call_reply(("read", {"path": "a"}), ("read", '{"pa'), stop="length")]
    async with start_harness(provider, script) as harness:
        reply = await harness.request_reply()
    assert [call.invalid_reason for call in reply.tool_calls] == ["", "truncated at the output limit"]


@pytest.mark.parametrize("args", ["{bad", "[1]", '"text"', "null", "{} {}", '{"a": 1,}'])
async def test_arguments_that_are_no_json_object_make_the_tool_call_invalid(provider: str, args: str):
    """Shows: M10."""
    async with start_harness(provider, [tool_call_reply(("read", args), ("ls", ""))]) as harness:
        reply = await harness.request_reply()
    assert reply.tool_calls[0].arguments == args
    assert reply.tool_calls[0].invalid_reason == "its arguments are not a JSON object"
    assert (reply.tool_calls[1].arguments, reply.tool_calls[1].invalid_reason) == ("{}", "")


@pytest.mark.parametrize("name", ["Bash", "b\u0430sh", "bash ", "no_such_tool"])
async def test_a_tool_name_is_passed_on_exactly_as_the_model_wrote_it(provider: str, name: str):
    """Shows: M11, M12."""
    async with start_harness(provider, [tool_call_reply((name, {}))]) as harness:
        assert [call.tool for call in (await harness.request_reply()).tool_calls] == [name]


async def test_arguments_beyond_the_size_limit_make_the_call_invalid_and_are_dropped(provider: str):
    """Shows: M13."""
    big = '{"content": "' + "x" * (MAX_ARGUMENT_BYTES + 1) + '"}'
    async with start_harness(
        provider, [tool_call_reply(("write", big), ("ls", {}), piece=100_000)]
    ) as harness:
        reply = await harness.request_reply()
    assert "longer than" in reply.tool_calls[0].invalid_reason
    assert len(reply.tool_calls[0].arguments) < 10_000
    assert reply.tool_calls[1].invalid_reason == ""


async def test_too_deeply_nested_arguments_make_the_tool_call_invalid(provider: str):
    """Shows: M13."""
    deep = '{"a":' * 10_000 + "1" + "}" * 10_000
    async with start_harness(provider, [tool_call_reply(("write", deep), piece=10_000)]) as harness:
        assert (await harness.request_reply()).tool_calls[
            0
        ].invalid_reason == "its arguments are nested too deeply"


@pytest.mark.parametrize("ids", [("same", "same", "same"), ("", "", ""), ("a", "", "a")])
async def test_tool_calls_with_equal_or_empty_ids_stay_separate(provider: str, ids: tuple[str, ...]):
    """Shows: M14."""
    requested_calls: list[tuple[str, ToolArguments]] = [
        ("read", {"path": "a"}),
        ("read", {"path": "b"}),
        ("ls", {}),
    ]
    async with start_harness(provider, [tool_call_reply(*requested_calls, call_ids=ids)]) as harness:
        reply = await harness.request_reply()
    calls = [(call.tool, call.arguments) for call in reply.tool_calls]
    assert calls == [("read", '{"path":"a"}'), ("read", '{"path":"b"}'), ("ls", "{}")]


async def test_the_number_of_tool_calls_and_the_length_of_names_are_limited(provider: str):
    """Shows: M15, M17."""
    many = tool_call_reply(*[("x" * 300, "{}")] * 5000, model="m\n" + "y" * 5000)
    async with start_harness(provider, [many]) as harness:
        reply = await harness.request_reply()
    assert (len(reply.tool_calls), len(reply.tool_calls[0].tool)) == (4096, 256)
    assert reply.truncation_notice == "more than 4096 calls in one reply; the rest was omitted"
    assert len(reply.model) <= 256
    assert reply.model.startswith("m y")


async def test_two_thousand_tool_calls_in_one_reply_all_arrive(provider: str):
    """Shows: M15."""
    async with start_harness(provider, [tool_call_reply(*[("ls", "{}")] * 2000)]) as harness:
        assert len((await harness.request_reply()).tool_calls) == 2000


async def test_a_reply_beyond_the_size_limit_is_cut_with_a_notice(provider: str):
    """Shows: M17."""
    async with start_harness(provider, [huge_reply(50_000_000), text_reply("next")]) as harness:
        reply = await harness.request_reply()
        assert len(reply.text) == MAX_REPLY_BYTES
        assert (reply.stop_reason, reply.truncation_notice) == (
            StopReason.LENGTH,
            "the reply is longer than 8,000,000 bytes; the rest was omitted",
        )
        assert (await harness.request_reply()).text == "next"


async def test_reading_of_an_endless_event_is_limited(provider: str):
    """Shows: M17."""
    endless = raw_stream(b"data: " + b"x" * 20_000_000, chunk=1_000_000)
    async with start_harness(provider, [endless]) as harness:
        assert (await harness.catch_failure()).reason == "provider"


@pytest.mark.parametrize(
    "response",
    [html_page(), empty_response(), http_error(204), stream_error("insufficient_quota")],
    ids=["web page", "empty body", "no content", "quota"],
)
async def test_a_success_status_without_a_reply_is_an_error_and_retried(
    provider: str, response: FakeResponse
):
    """Shows: M18."""
    async with start_harness(provider, [response, text_reply("a reply")]) as harness:
        assert (await harness.request_reply()).text == "a reply"
    async with start_harness(provider, lambda _: response) as harness:
        failure = await harness.catch_failure()
        assert failure.reason in {"provider", "incomplete", "rate_limited"}
        assert failure.outage_server == provider
        assert harness.request_count > 1


async def test_a_refusal_is_a_reply_with_its_text_and_is_not_retried(provider: str):
    """Shows: M19."""
    async with start_harness(provider, [refused_reply("I cannot help with that.")]) as harness:
        reply = await harness.request_reply()
        assert (reply.stop_reason, reply.text) == (StopReason.REFUSED, "I cannot help with that.")
        assert harness.request_count == 1


async def test_tool_calls_of_a_refused_reply_are_dropped(provider: str):
    """Shows: M19."""
    async with start_harness(
        provider, [tool_call_reply(("bash", {"command": "x"}), stop="content_filter")]
    ) as harness:
        assert (await harness.request_reply()).tool_calls == ()


async def test_an_empty_reply_is_returned_unchanged(provider: str):
    """Shows: M20."""
    async with start_harness(provider, [text_reply("")]) as harness:
        reply = await harness.request_reply()
    assert (reply.text, reply.tool_calls, reply.stop_reason) == ("", (), StopReason.END)


async def test_a_reply_names_the_model_that_the_server_used(provider: str):
    """Shows: M21."""
    async with start_harness(provider, [text_reply("hi", model="a-dearer-model")]) as harness:
        assert (await harness.request_reply()).model == "a-dearer-model"


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
async def test_impossible_token_counts_are_replaced_by_an_estimate(
    provider: str, usage: dict[str, Any] | None
):
    """Shows: M22."""
    async with start_harness(provider, [text_reply("x" * 400, usage=usage)]) as harness:
        reply = await harness.request_reply()
        request_size = len(harness.server.requests[0].raw_body)
    assert reply.usage.output == 100
    assert reply.usage.input == -(-request_size // 4)


async def test_plausible_token_counts_of_the_server_are_used(provider: str):
    """Shows: M22."""
    async with start_harness(provider, [text_reply("x" * 400, usage={"input": 77, "output": 88})]) as harness:
        usage = (await harness.request_reply()).usage
    assert (usage.input, usage.output) == (77, 88)


@pytest.mark.parametrize("code", [401, 403])
async def test_the_error_of_a_refused_key_names_its_variable_and_hides_the_key(provider: str, code: int):
    async with start_harness(
        provider, [http_error(code, f"Incorrect API key provided: {API_KEY}")]
    ) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, harness.request_count) == ("auth", 1)
        assert f"Check {VARIABLES[provider]}" in str(failure)
        assert API_KEY not in str(failure)


async def test_an_unknown_model_is_a_configuration_error(provider: str):
    async with start_harness(provider, [http_error(404, "The model `a-model` does not exist")]) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, harness.request_count) == ("config", 1)
        assert "model or URL not found" in str(failure)
        assert "does not exist" in str(failure)


async def test_a_rejected_request_is_not_retried_and_its_error_text_is_sanitized(provider: str):
    """Shows: X11."""
    error_text = f"bad field\x1b]52;c;x\x07 \u2028 near {API_KEY} and sk-other-0123456789 " + "y" * 2000
    async with start_harness(provider, [http_error(400, error_text)]) as harness:
        failure = await harness.catch_failure()
        text = str(failure)
        assert (failure.reason, harness.request_count) == ("provider", 1)
        assert "bad field" in text
        assert API_KEY not in text
        assert "sk-other" not in text
        assert text.isprintable()
        assert len(text) < 700


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_its_target_is_reported(provider: str, code: int):
    location = "http://127.0.0.1:9/v1/messages"
    redirect = FakeResponse(
        status=code, headers={"Location": f"{location}?key={API_KEY}"}, body=b"<html>moved</html>"
    )
    async with start_harness(provider, [redirect]) as harness:
        failure = await harness.catch_failure()
        assert (failure.reason, harness.request_count) == ("provider", 1)
        assert str(failure).endswith(
            f" redirects (HTTP {code}) to {location}?key=[key]. Redirects are not followed. If you trust it, change the base URL"
        )


async def test_a_redirect_without_a_target_is_reported(provider: str):
    async with start_harness(provider, [FakeResponse(status=301, body=b"")]) as harness:
        message = str(await harness.catch_failure())
    assert message.endswith(" redirects (HTTP 301) without naming a new address. Change the base URL")


async def test_cancelling_a_turn_closes_its_connection_at_once(provider: str):
    async with start_harness(
        provider, [stalled_stream(after_bytes=500, response=text_reply("word " * 100)), text_reply("next")]
    ) as harness:
        reply_started = asyncio.Event()
        turn = asyncio.ensure_future(harness.request_reply(lambda delta: reply_started.set()))
        await reply_started.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await harness.server.client_disconnected.wait()
        assert (await harness.request_reply()).text == "next"


async def test_consecutive_turns_share_one_connection(provider: str):
    async with start_harness(
        provider, [text_reply("one"), tool_call_reply(("ls", {})), text_reply("three")]
    ) as harness:
        for _ in range(3):
            await harness.request_reply()
        assert harness.server.connection_count == 1


async def test_a_reply_does_not_depend_on_how_the_stream_is_cut(provider: str):
    """Shows: X11."""
    response = tool_call_reply(("read", {"path": "añ\U0001f600"}), text="grüße \U0001f600", piece=3)
    async with start_harness(
        provider,
        [byte_by_byte_reply("grüße", pace=0), replace(response, chunk=1), replace(response, chunk=7)],
    ) as harness:
        assert (await harness.request_reply()).text == "grüße"
        first, second = await harness.request_reply(), await harness.request_reply()
    assert first == second
    assert (first.text, first.tool_calls[0].arguments) == ("grüße \U0001f600", '{"path":"añ\U0001f600"}')


async def test_a_response_without_streaming_is_read(provider: str):
    response = tool_call_reply(("read", {"path": "a"}), text="I look.", stream=False)
    async with start_harness(
        provider, [response, replace(response, finish=False), text_reply("x", stream=False)]
    ) as harness:
        reply = await harness.request_reply()
        assert (reply.text, reply.tool_calls[0].arguments, reply.stop_reason) == (
            "I look.",
            '{"path":"a"}',
            StopReason.TOOLS,
        )
        assert (await harness.request_reply()).text == "x"


async def test_the_error_of_an_unknown_provider_lists_the_known_ones():
    retrying = RetryingProvider(
        {name: lambda model: http_provider("openai") for name in ("openai", "anthropic")}, fixed_clock()
    )
    failure = await catch_model_failure(retrying, "opnai")
    assert failure.reason == "config"
    assert "Use one of anthropic, openai" in str(failure)


async def test_a_provider_that_cannot_be_created_is_a_configuration_error():
    def refuse(model: Model) -> Provider:
        raise BadConfig("OPENAI_API_KEY is not set")

    failure = await catch_model_failure(RetryingProvider({"openai": refuse}, fixed_clock()), "openai")
    assert "OPENAI_API_KEY is not set" in str(failure)
    assert failure.reason == "config"


async def test_a_missing_key_is_a_configuration_error(provider: str):
    def fail_to_get_key() -> str:
        raise BadConfig(f"{VARIABLES[provider]} is not set")

    make = partial(http_provider, provider)
    retrying = RetryingProvider(
        {provider: lambda model: make("http://127.0.0.1:9", fail_to_get_key)}, fixed_clock()
    )
    failure = await catch_model_failure(retrying, provider)
    assert "is not set" in str(failure)
    assert failure.reason == "config"


def test_a_base_url_with_a_password_is_refused(provider: str):
    make = partial(http_provider, provider)
    with pytest.raises(
        BadConfig, match=f"must not contain a password. Put the key into {VARIABLES[provider]}"
    ):
        make("https://me:secret@127.0.0.1/v1", "")


@pytest.mark.parametrize("suffix", ["?api-version=1", "?", "#here", "/v1?key=secret#"])
def test_a_base_url_with_a_query_or_fragment_is_refused(provider: str, suffix: str):
    make = partial(http_provider, provider)
    with pytest.raises(BadConfig) as error_info:
        make(f"https://127.0.0.1{suffix}", "")
    assert str(error_info.value) == ("A base URL must not contain '?' or '#'. Write it as https://host/path")


async def test_providers_are_created_once_per_model_and_settings_and_all_are_closed():
    created: list[str] = []
    closed: list[str] = []

    class RecordingProvider:
        def __init__(self, model: Model) -> None:
            self.name = model.full_name
            created.append(self.name)

        async def request_reply(
            self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
        ) -> ModelReply:
            return ModelReply(text=self.name)

        async def close(self) -> None:
            closed.append(self.name)

    retrying = RetryingProvider({"noted": RecordingProvider}, fixed_clock())
    plain = Model(provider="noted", name="a")
    other_server = replace(plain, settings={"base_url": "http://127.0.0.1:1"})
    for model in (plain, plain, other_server, replace(plain, name="b")):
        reply = await retrying.request_reply(make_model_request(model), lambda delta: None)
        assert reply.text == model.full_name
    await retrying.close()
    assert created == ["noted:a", "noted:a", "noted:b"]
    assert closed == created


@pytest.mark.parametrize("code", [503, 429])
async def test_closing_the_provider_fails_a_turn_that_waits_for_its_retry(provider: str, code: int):
    async with start_harness(provider, lambda _: http_error(code, retry_after=0.3)) as harness:
        retry_waiting = asyncio.Event()
        turn = asyncio.ensure_future(harness.request_reply(lambda delta: retry_waiting.set()))
        await retry_waiting.wait()
        await harness.retrying.close()
        with pytest.raises(
            ModelFailed, match="a-model' was not called: Retinue has been closed"
        ) as error_info:
            await turn
        assert (error_info.value.reason, harness.request_count, harness.server.connection_count) == (
            "unreachable",
            1,
            1,
        )


@pytest.mark.parametrize("key", ["ключ-ключ", "two\nlines", "nul\x00"])
async def test_a_key_that_no_header_can_carry_is_refused_before_any_request(provider: str, key: str):
    make = partial(http_provider, provider)
    async with FakeModelServer([]) as server:
        client = make(server.url, lambda: key)
        with pytest.raises(ModelFailed) as error_info:
            await client.request_reply(
                make_model_request(Model(provider=provider, name="m")), lambda delta: None
            )
        await client.close()
        assert (error_info.value.reason, server.requests) == ("auth", [])
        assert VARIABLES[provider] in str(error_info.value)


def test_the_retry_and_scripted_modules_do_not_import_aiohttp():
    code = "import sys, retinue.providers.retry, retinue.providers.scripted; print('aiohttp' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


def test_the_http_providers_import_no_packages_besides_httptools_and_msgspec():
    code = (
        "import sys, asyncio, httptools, msgspec; before = set(sys.modules); "
        "import retinue.providers.openai_chat, retinue.providers.anthropic, retinue.providers.retry; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - {'retinue'} - sys.stdlib_module_names))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


async def test_tool_names_are_translated_to_names_the_api_accepts_and_back(provider: str):
    names = ["github.search", "read", f"github.{'x' * 90}", f"github.{'x' * 90}y"]
    tools = tuple(ToolSpec(name=name, description="Acts.", schema={"type": "object"}) for name in names)
    calls: list[tuple[str, ToolArguments]] = [(api_tool_name(name), "{}") for name in names]
    async with start_harness(
        provider, lambda _: tool_call_reply(*calls, ("github.search", "{}"), ("nowhere__x", "{}"))
    ) as harness:
        reply = await harness.request_reply(tools=tools)
    sent_names = [name.get("function", name)["name"] for name in harness.server.requests[0].body["tools"]]
    assert sent_names[:2] == ["github__search", "read"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in sent_names)
    assert len({*sent_names}) == len(names)
    assert [call.tool for call in reply.tool_calls] == [*names, "github.search", "nowhere__x"]


async def test_an_expired_timeout_does_not_cancel_anything_after_the_turn_has_ended():
    stream_timeout = StreamWatchdog(
        StreamTimeoutSettings(idle_s=0, no_output_s=0, total_s=0), lambda _: None, lambda: None
    )

    async def reply_at_once() -> ModelReply:
        return ModelReply(text="There.")

    assert (await stream_timeout.run(reply_at_once())).text == "There."
    await asyncio.sleep(0)
    assert (task := asyncio.current_task()) is not None
    assert task.cancelling() == 0
