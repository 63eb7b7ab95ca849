"""Asks the fallbacks of a model, in their order, if it fails."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.run import Reason
from retinue.errors import BadConfig, ModelFailed
from retinue.interfaces import Provider

MAX_RETRY_WITH_FALLBACKS_S = 60.0
"""Longest time for which one model is tried again if there are others to ask."""


class FallbackProvider:
    """A provider that asks the next model if one fails for any reason: an outage, a refusal or a missing key.

    What a refused request costs another model is one request; the alternative is a run that ends. If all fail and at
    least one is only unavailable, the run waits for that one.
    """

    def __init__(self, provider: Provider, check_model: Callable[[Model], None]) -> None:
        self._provider = provider
        self._check_model = check_model
        """Raises BadConfig if the model cannot be used here, such as for a missing key."""

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        if not request.model.fallbacks:
            return await self._provider.request_reply(request, on_delta)
        models = request.model.candidates
        output = _Output(on_delta)
        failures: list[tuple[Model, ModelFailed]] = []
        for position, model in enumerate(models):
            try:
                reply = await self._request(replace(request, model=model), output.receive_delta)
            except ModelFailed as error:
                failures.append((model, error))
                if position + 1 < len(models):
                    output.discard()
                    on_delta(_fallback_notice(model, error, models[position + 1]))
            else:
                return reply
        raise _combined_failure(failures)

    async def close(self) -> None:
        await self._provider.close()

    async def _request(self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]) -> ModelReply:
        try:
            self._check_model(request.model)
        except BadConfig as error:
            raise ModelFailed(str(error), reason=Reason.CONFIG) from error
        limited = replace(request, max_retry_s=min(request.max_retry_s, MAX_RETRY_WITH_FALLBACKS_S))
        return await self._provider.request_reply(limited, on_delta)


class _Output:
    """Passes deltas on, and knows whether a part of a reply was shown."""

    def __init__(self, on_delta: Callable[[ReplyDelta], None]) -> None:
        self._on_delta = on_delta
        self._is_shown = False

    def receive_delta(self, delta: ReplyDelta) -> None:
        if delta.is_discarded:
            self._is_shown = False
        elif delta.text or delta.thinking:
            self._is_shown = True
        self._on_delta(delta)

    def discard(self) -> None:
        if self._is_shown:
            self.receive_delta(ReplyDelta(is_discarded=True))


def _fallback_notice(model: Model, error: ModelFailed, following: Model) -> ReplyDelta:
    return ReplyDelta(
        notice=f"{model.full_name} is not used: {str(error).rstrip('. ')}. Asking {following.full_name}",
        fallback_model=following.full_name,
    )


def _combined_failure(failures: Sequence[tuple[Model, ModelFailed]]) -> ModelFailed:
    """Return the error of a request that all models failed; an outage counts before a refusal."""
    errors = [error for _, error in failures]
    decisive = next((error for error in errors if error.outage_server), errors[0])
    return ModelFailed(
        "; ".join(f"{model.full_name}: {str(error).rstrip('. ')}" for model, error in failures),
        reason=decisive.reason,
        outage_server=decisive.outage_server,
        breaks_off=decisive.breaks_off,
    )
