"""Limits on requests to a server: at the same time, and within a minute, in the order of their arrival."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from model_providers import PROVIDER_FACTORIES
from model_request import make_model_request
from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ReplyDelta
from retinue.domain.transcript import Message
from retinue.errors import ModelFailed
from retinue.interfaces import Provider
from retinue.providers.fallback import MAX_RETRY_WITH_FALLBACKS_S
from retinue.providers.request_limits import RequestLimiter, RequestLimits
from retinue.providers.retry import RetryingProvider
from retinue.providers.retry_policy import RetrySettings
from retinue.testing.fake_model_server import CapturedRequest, FakeModelServer
from retinue.testing.fixed_clock import fixed_clock
from retinue.testing.replies import FakeResponse, http_error, text_reply

SETTINGS = RetrySettings(retry_window_s=30, backoff_s=0.01, max_backoff_s=0.02)


@dataclass(slots=True)
class LimitedServer:
    """A model server that answers when it is told to, and a provider with limits in front of it."""

    limits: RequestLimits
    settings: RetrySettings = SETTINGS
    running: int = 0
    max_running: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: list[str] = field(default_factory=list[str])
    deltas: list[ReplyDelta] = field(default_factory=list[ReplyDelta])
    retrying: RetryingProvider | None = None
    next_response: Callable[[str], FakeResponse] = text_reply

    async def choose(self, request: CapturedRequest) -> FakeResponse:
        text = str(request.messages[-1]["content"])
        self.arrived.append(text)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await self.open.wait()
        self.running -= 1
        return self.next_response(text)

    async def request(self, text: str, model: str = "a-model") -> ModelReply:
        assert self.retrying is not None
        request = make_model_request(
            Model(provider="openai", name=model), [Message(id="01", role="user", text=text)]
        )
        return await self.retrying.request_reply(request, self.deltas.append)

    @property
    def wait_reasons(self) -> list[str]:
        return [delta.wait_reason for delta in self.deltas if delta.wait_reason]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110  (requests arrive over a socket)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serve(server: LimitedServer) -> AsyncGenerator[LimitedServer]:
    async with FakeModelServer(server.choose) as fake:
        server.retrying = RetryingProvider(
            {"openai": _factory(fake.url)},
            fixed_clock(),
            server.settings,
            limits_by_provider={"openai": server.limits},
        )
        try:
            yield server
        finally:
            server.open.set()
            await server.retrying.close()


def _factory(url: str) -> Callable[[Model], Provider]:
    return lambda _: PROVIDER_FACTORIES["openai"](url)


async def test_no_more_requests_run_at_the_same_time_than_allowed_and_they_begin_in_order():
    async with serve(LimitedServer(RequestLimits(max_concurrent=2))) as server:
        tasks = [asyncio.create_task(server.request(f"{number:02}")) for number in range(12)]
        await server.wait_until(lambda: len(server.arrived) == 2 and len(server.wait_reasons) == 10)
        assert set(server.wait_reasons) == {
            "waiting for another request to openai to end (max_concurrent = 2)"
        }
        server.open.set()
        replies = await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == [f"{number:02}" for number in range(12)]
    assert server.max_running == 2
    # Two run at a time, so that neighbours may arrive in either order.
    assert all(abs(position - int(text)) <= 1 for position, text in enumerate(server.arrived))


async def test_the_limit_is_shared_by_all_models_of_a_server():
    async with serve(LimitedServer(RequestLimits(max_concurrent=1))) as server:
        tasks = [asyncio.create_task(server.request("x", model=f"model-{number}")) for number in range(4)]
        await server.wait_until(lambda: len(server.arrived) == 1 and len(server.wait_reasons) == 3)
        server.open.set()
        await asyncio.gather(*tasks)
    assert server.max_running == 1


async def test_a_cancelled_request_leaves_the_queue_and_its_slot():
    async with serve(LimitedServer(RequestLimits(max_concurrent=1))) as server:
        running, waiting, last = (
            asyncio.create_task(server.request(text)) for text in ("running", "waiting", "last")
        )
        await server.wait_until(lambda: len(server.wait_reasons) == 2 and server.arrived)
        waiting.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        server.open.set()
        assert (await last).text == "last"
    assert waiting.cancelled()
    assert server.arrived == ["running", "last"]


async def test_the_time_in_the_queue_is_not_part_of_the_retry_window():
    """The window is over when the request begins; it is tried again all the same."""
    settings = replace(SETTINGS, retry_window_s=0.2)
    async with serve(LimitedServer(RequestLimits(max_concurrent=1), settings)) as server:
        first = asyncio.create_task(server.request("first"))
        await server.wait_until(lambda: server.arrived)
        second = asyncio.create_task(server.request("second"))
        await asyncio.sleep(0.4)
        failures = [http_error(503, "busy")]
        server.next_response = lambda text: (
            failures.pop() if text == "second" and failures else text_reply(text)
        )
        server.open.set()
        assert [(await each).text for each in (first, second)] == ["first", "second"]
    assert server.arrived == ["first", "second", "second"]


async def test_a_request_waits_until_the_minute_allows_it_again():
    """The minute of this test has 40 ms."""
    limiter = RequestLimiter("openai", RequestLimits(requests_per_minute=2), minute_s=0.04)
    started: list[float] = []
    for _ in range(7):
        slot = limiter.try_enter()
        if slot is None:
            assert limiter.wait_reason() == (
                "waiting for the next request that openai may get (requests_per_minute)"
            )
            slot = await limiter.join_queue()
        started.append(slot.started_at)
        slot.leave()
    assert all(later - earlier >= 0.04 for earlier, later in zip(started, started[2:], strict=False))


async def test_less_than_one_request_a_minute_is_one_in_a_longer_time():
    limiter = RequestLimiter("openai", RequestLimits(requests_per_minute=0.5))
    slot = limiter.try_enter()
    assert slot is not None
    slot.leave()
    assert limiter.try_enter() is None


async def test_a_request_that_was_never_sent_does_not_count():
    limiter = RequestLimiter("openai", RequestLimits(requests_per_minute=1))
    slot = limiter.try_enter()
    assert slot is not None
    place = limiter.join_queue()
    slot.leave(was_sent=False)
    second = await place
    assert limiter.try_enter() is None
    limiter.leave_queue(place)  # assigned, and given up
    assert second is not limiter.try_enter()


async def test_queued_requests_do_not_run_into_a_rate_limit_one_after_the_other():
    """The gate of the model closes while they wait for their slot, so only one of them tries at a time."""
    async with serve(LimitedServer(RequestLimits(max_concurrent=1))) as server:
        refused: list[str] = []

        def refuse_first(text: str) -> FakeResponse:
            if not refused:
                refused.append(text)
                return http_error(429, "slow down", retry_after=0.2)
            return text_reply(text)

        server.next_response = refuse_first
        server.open.set()
        replies = await asyncio.gather(*(server.request(f"{number}") for number in range(6)))
    assert len(replies) == 6
    assert len(server.arrived) == 7


async def test_a_request_with_fallbacks_is_retried_for_a_shorter_time():
    """The request says how long; a provider's own shorter time wins."""
    settings = replace(SETTINGS, retry_window_s=3600)
    async with serve(LimitedServer(RequestLimits(), settings)) as server:
        assert server.retrying is not None
        server.open.set()
        server.next_response = lambda _: http_error(503, "down")
        request = make_model_request(
            Model(provider="openai", name="m"), [Message(id="01", role="user", text="x")]
        )
        with pytest.raises(ModelFailed) as caught:
            await server.retrying.request_reply(replace(request, max_retry_s=0.1), server.deltas.append)
    assert caught.value.outage_server == "openai"
    assert MAX_RETRY_WITH_FALLBACKS_S == 60
