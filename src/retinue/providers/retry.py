"""Chooses the provider for a request, limits its time, and retries failed attempts with backoff."""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from retinue.domain.clock import Clock
from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.providers import CLI_AGENTS
from retinue.domain.run import Reason
from retinue.domain.tool import api_tool_name
from retinue.domain.transcript import ToolCall
from retinue.errors import ModelFailed, RetinueError
from retinue.interfaces import Provider
from retinue.providers.errors import ProviderError, RetryAfter
from retinue.providers.interface import own_base_url
from retinue.providers.rate_limit import RateLimitGate, RateLimitPermit
from retinue.providers.request_limits import RequestLimiter, RequestLimits, RequestSlot
from retinue.providers.retry_policy import CLI_AGENT_TIMEOUTS, RetrySettings
from retinue.providers.stream_timeout import StreamWatchdog

ProviderFactory = Callable[[Model], Provider]
DEFAULT_SETTINGS = RetrySettings()
NO_SETTINGS: Mapping[str, RetrySettings] = {}
NO_LIMITS: Mapping[str, RequestLimits] = {}


class RetryingProvider:
    """A provider that delegates to others and retries.

    A failed stream is discarded and requested again from the start, never continued: nothing of a reply is
    acted on before it is complete.
    """

    def __init__(
        self,
        factories: Mapping[str, ProviderFactory],
        clock: Clock,
        settings: RetrySettings = DEFAULT_SETTINGS,
        settings_by_provider: Mapping[str, RetrySettings] = NO_SETTINGS,
        limits_by_provider: Mapping[str, RequestLimits] = NO_LIMITS,
    ) -> None:
        self._factories = factories
        self._clock = clock
        self._settings = settings
        self._settings_by_provider = settings_by_provider
        self._limits_by_provider = limits_by_provider
        self._limiters: dict[str, RequestLimiter] = {}
        """The limiters of the servers that have limits."""
        self._servers_down: set[str] = set()
        """Servers that gave no reply within the retry window; a request to one gives up at its first failure."""
        self._providers: dict[tuple[str, str], Provider] = {}
        self._gates: dict[tuple[str, str], RateLimitGate] = {}
        self._closed = False

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        key = _model_key(request.model)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = RateLimitGate()
        server = _server_name(request.model)
        if request.is_probe:
            self._servers_down.add(server)
        settings = self._settings_for(request)
        limiter = self._limiter_for(request.model.provider, server)
        state = _RetryState(
            settings, self._clock, gate, on_delta, server, self._servers_down, request=request
        )
        timeouts = CLI_AGENT_TIMEOUTS if request.model.provider in CLI_AGENTS else settings.timeouts
        while True:
            permit = gate.try_enter() or await state.wait_for_gate()
            slot = None
            if limiter is not None:
                permit, slot = await state.enter_limits(limiter, permit)
            stream_timeout = StreamWatchdog(timeouts, on_delta, partial(self._record_success, server, permit))
            try:
                provider = self._provider_for(key, request.model)
                return _restore_tool_names(
                    await stream_timeout.run(provider.request_reply(request, stream_timeout.receive_delta)),
                    request,
                )
            except ProviderError as error:
                delay_s = state.record_failure(error, permit, stream_timeout)
            except ModelFailed:
                raise
            except RetinueError as error:
                raise ModelFailed(str(error), reason=Reason.CONFIG) from error
            finally:
                permit.leave()
                if slot is not None:
                    slot.leave()
            if delay_s:
                await state.report_pause()
                await asyncio.sleep(delay_s)

    def _record_success(self, server: str, permit: RateLimitPermit) -> None:
        self._servers_down.discard(server)
        permit.report_success()

    def _settings_for(self, request: ModelRequest) -> RetrySettings:
        settings = self._settings_by_provider.get(request.model.provider, self._settings)
        if request.max_retry_s < settings.retry_window_s:
            return replace(settings, retry_window_s=request.max_retry_s)
        return settings

    def _limiter_for(self, provider: str, server: str) -> RequestLimiter | None:
        """Return the limiter of a server; a server that a definition names has one of its own."""
        if not self._limits_by_provider:
            return None
        limits = self._limits_by_provider.get(provider)
        if limits is not None and server not in self._limiters:
            self._limiters[server] = RequestLimiter(provider, limits)
        return self._limiters.get(server)

    async def close(self) -> None:
        self._closed = True
        providers = {id(provider): provider for provider in self._providers.values()}
        self._providers.clear()
        for provider in providers.values():
            await provider.close()

    def _provider_for(self, key: tuple[str, str], model: Model) -> Provider:
        if key in self._providers:
            return self._providers[key]
        if self._closed:
            raise ModelFailed(f"{model.full_name!r} was not called: Retinue has been closed. Resume the run")
        factory = self._factories.get(model.provider)
        if factory is None:
            names = ", ".join(sorted(self._factories))
            raise ModelFailed(
                f"there is no provider {model.provider!r} for model {model.full_name!r}. Use one of {names}",
                reason=Reason.CONFIG,
            )
        try:
            provider = factory(model)
        except RetinueError as error:
            raise ModelFailed(str(error), reason=Reason.CONFIG) from error
        self._providers[key] = provider
        return provider


class _RetryState:
    """The attempts of one request: their number, the elapsed time, and whether to try again."""

    def __init__(
        self,
        settings: RetrySettings,
        clock: Clock,
        gate: RateLimitGate,
        on_delta: Callable[[ReplyDelta], None],
        server: str,
        servers_down: set[str],
        *,
        request: ModelRequest,
    ) -> None:
        self._request = request
        self._server = server
        self._servers_down = servers_down
        self._settings = settings
        self._clock = clock
        self._gate = gate
        self._on_delta = on_delta
        self._loop_time = asyncio.get_running_loop().time
        self._started_at = self._loop_time()
        self._failures = 0
        self._rate_limits = 0
        self._incomplete_replies = 0
        self._latest_error: ProviderError | None = None

    async def wait_for_gate(self) -> RateLimitPermit:
        """Wait while the model's gate is closed.

        Waiting requests resume after random delays, not all at once.
        """
        waited = False
        while True:
            if waited and not self._gate.is_closed:
                await asyncio.sleep(self._clock.uniform(0, min(1.0, self._settings.backoff_s)))
                waited = False
            permit = self._gate.try_enter()
            if permit is not None:
                return permit
            self._check_retry_window()
            self._report_gate_wait()
            await self.report_pause()
            await self._gate.wait_for_change()
            waited = True

    async def enter_limits(
        self, limiter: RequestLimiter, permit: RateLimitPermit
    ) -> tuple[RateLimitPermit, RequestSlot]:
        """Return a slot within the server's limits, with a permit that is still valid after the wait for it."""
        while (slot := limiter.try_enter()) is None:
            # Meanwhile other requests to the model may try, and its gate may close.
            permit.leave()
            slot = await self._wait_for_slot(limiter)
            if (current_permit := self._gate.try_enter()) is not None:
                return current_permit, slot
            slot.leave(was_sent=False)
            permit = await self.wait_for_gate()
        return permit, slot

    async def _wait_for_slot(self, limiter: RequestLimiter) -> RequestSlot:
        """Wait until the request may begin within its server's limits. This time is not part of the retry window."""
        queued_at = self._loop_time()
        self._on_delta(ReplyDelta(wait_reason=limiter.wait_reason()))
        place = limiter.join_queue()
        try:
            await self.report_pause()
            slot = await place
        except BaseException:
            limiter.leave_queue(place)
            raise
        self._started_at += self._loop_time() - queued_at
        return slot

    async def report_pause(self) -> None:
        if self._request.on_pause is not None:
            await self._request.on_pause()

    def record_failure(
        self, error: ProviderError, permit: RateLimitPermit, stream_timeout: StreamWatchdog
    ) -> float:
        """Record a failed attempt and return the seconds to wait; raise if no further attempt is allowed."""
        self._latest_error = error
        if error.close_rate_limit_gate:
            earlier_rate_limits = max(self._gate.consecutive_rate_limits, self._rate_limits)
            self._rate_limits += 1
            permit.report_rate_limit(self._backoff_s(error.retry_after, earlier_rate_limits))
        else:
            self._failures += 1
        delay_s = (
            0.0 if error.close_rate_limit_gate else self._backoff_s(error.retry_after, self._failures - 1)
        )
        self._incomplete_replies += stream_timeout.has_output
        attempts = self._failures + self._rate_limits
        if not error.retry:
            raise _final_error(error, attempts, partial=stream_timeout.text) from error
        if stream_timeout.has_output:
            self._on_delta(ReplyDelta(is_discarded=True))
        if (
            self._request.is_probe
            or self._incomplete_replies >= self._settings.max_incomplete_replies
            or self._is_window_over(delay_s)
        ):
            raise _final_error(
                error,
                attempts,
                outage_server=self._report_outage(),
                breaks_off=stream_timeout.has_output,
            ) from error
        if delay_s:
            cause = str(error) if error.reason is Reason.UNREACHABLE else _WAIT_REASONS[error.reason]
            self._on_delta(ReplyDelta(wait_reason=f"{cause}, retrying in {_round_up_seconds(delay_s)} s"))
        return delay_s

    def _check_retry_window(self) -> None:
        """Raise if the gate stays closed beyond the retry window.

        Only a request's own time counts against it: rate limits of other requests do not.
        """
        if self._is_window_over(max(0.0, self._gate.closed_until - self._loop_time())):
            seconds = _round_up_seconds(self._elapsed_s())
            error = self._latest_error or "the model is rate limited"
            raise ModelFailed(
                f"{error} (no request was accepted for {seconds} s)",
                reason=Reason.RATE_LIMITED,
                outage_server=self._report_outage(),
            )

    def _is_window_over(self, delay_s: float) -> bool:
        """Return True if no attempt may begin after this delay, or if the server is known to be down."""
        return (
            self._server in self._servers_down or self._elapsed_s() + delay_s > self._settings.retry_window_s
        )

    def _report_outage(self) -> str:
        """Record that the server is down, for other requests to it, and return its name."""
        self._servers_down.add(self._server)
        return self._server

    def _report_gate_wait(self) -> None:
        seconds = self._gate.closed_until - self._loop_time()
        if seconds > 0:
            self._on_delta(
                ReplyDelta(
                    wait_reason=f"{_WAIT_REASONS[Reason.RATE_LIMITED]}, retrying in {_round_up_seconds(seconds)} s"
                )
            )

    def _backoff_s(self, retry_after: RetryAfter, earlier_failures: int) -> float:
        """Return the delay before the next attempt.

        Full jitter below a bound that doubles each time, and at least the server's Retry-After, which is
        capped. Repeated rate limits increase the delay even if Retry-After stays at one second.
        """
        settings = self._settings
        max_delay_s = min(settings.backoff_s * 2.0 ** min(earlier_failures, 16), settings.max_backoff_s)
        if retry_after.at is not None:
            retry_after = RetryAfter(seconds=(retry_after.at - self._clock.now()).total_seconds())
        if retry_after.seconds is None:
            return self._clock.uniform(0, max_delay_s)
        min_delay_s = min(max(retry_after.seconds, 0.0), settings.max_retry_after_s)
        return (
            max(min_delay_s, self._clock.uniform(max_delay_s / 2, max_delay_s))
            if earlier_failures
            else min_delay_s
        )

    def _elapsed_s(self) -> float:
        return self._loop_time() - self._started_at


def _restore_tool_names(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Replace spelled-out tool names in the calls by the tools' own names.

    Covers the tools of this request and those called earlier in the conversation.
    """
    if not reply.tool_calls:
        return reply
    names = {spec.name for spec in request.tools}
    if all(call.tool in names for call in reply.tool_calls):
        return reply
    earlier_names = (entry.tool for entry in request.entries if isinstance(entry, ToolCall))
    name_by_spelling = {api_tool_name(name): name for name in (*earlier_names, *names)}
    tool_calls = tuple(
        call if call.tool in names else replace(call, tool=name_by_spelling.get(call.tool, call.tool))
        for call in reply.tool_calls
    )
    return replace(reply, tool_calls=tool_calls)


_WAIT_REASONS: Mapping[str, str] = {
    Reason.RATE_LIMITED: "rate limited",
    Reason.INCOMPLETE: "the reply was incomplete",
    Reason.PROVIDER: "the model's server failed",
}


def _final_error(
    error: ProviderError,
    attempts: int,
    *,
    partial: str = "",
    outage_server: str = "",
    breaks_off: bool = False,
) -> ModelFailed:
    times = f" (tried {attempts} times)" if attempts > 1 else ""
    return ModelFailed(
        f"{error}{times}",
        reason=error.reason,
        partial=partial,
        outage_server=outage_server,
        breaks_off=breaks_off,
    )


def _server_name(model: Model) -> str:
    """Return a name for the server, which all its models share."""
    return f"{model.provider} {own_base_url(model)}".rstrip()


def _model_key(model: Model) -> tuple[str, str]:
    """Return the key for sharing providers and gates: the model and the server in its definition."""
    return model.full_name, repr(sorted(model.settings.items())) if model.settings else ""


def _round_up_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))
