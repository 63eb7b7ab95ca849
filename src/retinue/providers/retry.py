"""The gateway: which driver takes a turn, how long it may take, and when it is asked again."""

import asyncio
import math
from collections.abc import Callable, Mapping

from retinue.domain.change import replace
from retinue.domain.cli_agent import PROGRAMS
from retinue.domain.clock import Chance
from retinue.domain.model_turn import Delta, Model, Reply, Request
from retinue.domain.run import Reason
from retinue.domain.tool import spelled
from retinue.domain.transcript import Called
from retinue.domain.value import value
from retinue.errors import ModelFailed, RetinueError
from retinue.interfaces import Driver
from retinue.providers.errors import Pause, Trouble
from retinue.providers.rate_limit import Gate, Visit
from retinue.providers.stream_timeout import Patience, Watch

MakeDriver = Callable[[Model], Driver]

OF_PROGRAMS = Patience(idle=1800.0, progress=math.inf, total=math.inf, again=False)
"""A program that acts by itself may be long at it, and what it did is not done twice: its run's deadline is its limit."""


@value
class GatewaySettings:
    """How often and how long a turn is tried. Seconds."""

    attempts: int = 5
    """For what passes: a broken connection, a server's error, an incomplete answer."""
    rate_attempts: int = 8
    """How often a model may say in a row that it has too much to do."""
    backoff_seconds: float = 1.0
    backoff_max_seconds: float = 30.0
    retry_after_max_seconds: float = 120.0
    retry_seconds: float = 600.0
    """No attempt begins later than this after the turn did."""
    idle_seconds: float = 120.0
    """Without a byte, the first one included."""
    progress_seconds: float = 180.0
    """Without a word, whatever bytes come: blanks and keep-alive comments are no words."""
    total_seconds: float = 600.0
    """For one attempt."""


class Gateway:
    """A driver made of drivers. A failed stream is discarded and asked again from the start, never joined:
    nothing of a reply is acted upon before all of it is there."""

    def __init__(
        self,
        drivers: Mapping[str, MakeDriver],
        chance: Chance,
        settings: GatewaySettings | None = None,
    ) -> None:
        self._makers = drivers
        self._chance = chance
        self._settings = settings or GatewaySettings()
        self._patience = Patience(
            idle=self._settings.idle_seconds,
            progress=self._settings.progress_seconds,
            total=self._settings.total_seconds,
        )
        self._drivers: dict[tuple[str, str], Driver] = {}
        self._gates: dict[tuple[str, str], Gate] = {}
        self._closed = False

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        key = _key(request.model)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate()
        turn = _Turn(self._settings, self._chance, gate, heard)
        patience = OF_PROGRAMS if request.model.driver in PROGRAMS else self._patience
        while True:
            visit = gate.enter() or await turn.admitted()
            watch = Watch(patience, heard, visit.opened)
            try:
                driver = self._driver(key, request.model)
                return _by_name(await watch.over(driver.turn(request, watch.heard)), request)
            except Trouble as trouble:
                seconds = turn.failed(trouble, visit, watch)
            except ModelFailed:
                raise
            except RetinueError as error:
                raise ModelFailed(str(error), reason=Reason.CONFIG) from error
            finally:
                visit.left()
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        drivers = {id(driver): driver for driver in self._drivers.values()}
        self._drivers.clear()
        for driver in drivers.values():
            await driver.close()

    def _driver(self, key: tuple[str, str], model: Model) -> Driver:
        if key in self._drivers:
            return self._drivers[key]
        if self._closed:
            raise ModelFailed(f"{model.full!r} was not asked: Retinue has been closed; resume the run")
        maker = self._makers.get(model.driver)
        if maker is None:
            known = ", ".join(sorted(self._makers))
            raise ModelFailed(
                f"there is no driver {model.driver!r} for model {model.full!r}: use one of {known}",
                reason=Reason.CONFIG,
            )
        try:
            driver = maker(model)
        except RetinueError as error:
            raise ModelFailed(str(error), reason=Reason.CONFIG) from error
        self._drivers[key] = driver
        return driver


class _Turn:
    """One turn's patience: how often it was tried, how long it has taken, and whether to try again."""

    def __init__(
        self, settings: GatewaySettings, chance: Chance, gate: Gate, heard: Callable[[Delta], None]
    ) -> None:
        self._settings = settings
        self._chance = chance
        self._gate = gate
        self._heard = heard
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._failures = 0
        self._refusals = 0

    async def admitted(self) -> Visit:
        """Waits while the model's gate is shut. Those who waited come in spread out, not all at once."""
        waited = False
        while True:
            if waited and not self._gate.shut:
                await asyncio.sleep(self._chance.uniform(0, min(1.0, self._settings.backoff_seconds)))
                waited = False
            visit = self._gate.enter()
            if visit is not None:
                return visit
            self._still_worth_waiting()
            self._tell_of_the_gate()
            await self._gate.changed()
            waited = True

    def failed(self, trouble: Trouble, visit: Visit, watch: Watch) -> float:
        """How long to wait before the turn is asked again; raises when it may not be."""
        if trouble.gate:
            before = max(self._gate.refusals, self._refusals)
            self._refusals += 1
            visit.refused(self._pause(trouble.pause, before))
        else:
            self._failures += 1
        seconds = 0.0 if trouble.gate else self._pause(trouble.pause, self._failures - 1)
        spent = (
            not trouble.retry
            or self._failures >= self._settings.attempts
            or self._refusals >= self._settings.rate_attempts
            or self._elapsed() + seconds > self._settings.retry_seconds
        )
        if spent:
            raise _final(trouble, self._failures + self._refusals, watch.text) from trouble
        if watch.told:
            self._heard(Delta(discarded=True))
        if seconds:
            self._heard(Delta(waiting=f"{_WAITS[trouble.reason]}, trying again in {_whole(seconds)} s"))
        return seconds

    def _still_worth_waiting(self) -> None:
        """Only its own refusals and its own time count against a turn: others' may be many, and say nothing of it."""
        late = self._elapsed() + max(0.0, self._gate.until - self._clock()) > self._settings.retry_seconds
        if late:
            raise ModelFailed(
                f"the model is asked too often and took no request for {_whole(self._elapsed())} s",
                reason=Reason.RATE_LIMITED,
            )

    def _tell_of_the_gate(self) -> None:
        seconds = self._gate.until - self._clock()
        if seconds > 0:
            self._heard(Delta(waiting=f"{_WAITS[Reason.RATE_LIMITED]}, trying again in {_whole(seconds)} s"))

    def _pause(self, pause: Pause, before: int) -> float:
        """Full jitter below a bound that doubles each time, and never less than the server asked for, within reason:
        a server that keeps asking for one second is asked ever more rarely."""
        settings = self._settings
        bound = min(settings.backoff_seconds * 2.0 ** min(before, 16), settings.backoff_max_seconds)
        if pause.at is not None:
            pause = Pause(seconds=(pause.at - self._chance.now()).total_seconds())
        if pause.seconds is None:
            return self._chance.uniform(0, bound)
        least = min(max(pause.seconds, 0.0), settings.retry_after_max_seconds)
        return max(least, self._chance.uniform(bound / 2, bound)) if before else least

    def _elapsed(self) -> float:
        return self._clock() - self._began


def _by_name(reply: Reply, request: Request) -> Reply:
    """A call by the tool's own name, however the driver had to spell it to the model: of those that it has now, and of
    those that it remembers from earlier in the conversation."""
    if not reply.wishes:
        return reply
    names = {spec.name for spec in request.tools}
    if all(wish.tool in names for wish in reply.wishes):
        return reply
    before = (entry.tool for entry in request.entries if isinstance(entry, Called))
    meant = {spelled(name): name for name in (*before, *names)}
    wishes = tuple(
        wish if wish.tool in names else replace(wish, tool=meant.get(wish.tool, wish.tool))
        for wish in reply.wishes
    )
    return replace(reply, wishes=wishes)


_WAITS: Mapping[str, str] = {
    Reason.RATE_LIMITED: "rate limited",
    Reason.UNREACHABLE: "model unreachable",
    Reason.INCOMPLETE: "the answer broke off",
    Reason.PROVIDER: "the model's server failed",
}


def _final(trouble: Trouble, tried: int, partial: str) -> ModelFailed:
    times = f" (tried {tried} times)" if tried > 1 else ""
    return ModelFailed(f"{trouble}{times}", reason=trouble.reason, partial=partial)


def _key(model: Model) -> tuple[str, str]:
    """What a driver and a gate are shared by: the model, and where the definition says it is served."""
    return model.full, repr(sorted(model.settings.items())) if model.settings else ""


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
