"""The model of the trial: slow, deterministic, and with a memory of everything that it was asked."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from retinue.domain.value import value
from retinue.testing.fake_model_server import Captured
from retinue.testing.replies import Answer, status
from retinue.torture.scenario import Token, place_of, wishes, word, words


@value
class Asked:
    """One request, as the server saw it."""

    place: str
    turn: int
    time: int
    """The how many-th request for this very turn."""
    seen: frozenset[Token]
    """The replies that the request quotes: whoever quotes them has them on disk."""
    messages: tuple[str, ...]
    """A digest of each message after the system's."""


class Model:
    """Answers by place and turn, so that whoever asks the same hears the same, and says which time it was."""

    def __init__(self, seed: int, *, slowest: float = 0.05) -> None:
        self.asked: list[Asked] = []
        self.at: list[float] = []
        """When each of them came, by the clock that the trial measures with."""
        self.slowest = slowest
        self.hold: Callable[[str, int], float] | None = None
        """Seconds by which an answer is held back, by place and turn."""
        self._chance = random.Random(seed)  # noqa: S311  (how slow a model is, is no secret)
        self._times: Counter[tuple[str, int]] = Counter()

    def __call__(self, captured: Captured) -> Answer:
        rest = [each for each in captured.messages if each.get("role") != "system"]
        place = next(filter(None, (place_of(_text(each)) for each in rest)), None)
        if place is None:
            return status(400, "this request belongs to no place of the tree")
        turn = captured.turns
        self._times[place, turn] += 1
        time = self._times[place, turn]
        seen = frozenset(token for each in rest for token in words(_text(each)))
        digests = tuple(hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16] for each in rest)
        self.at.append(perf_counter())
        self.asked.append(Asked(place=place, turn=turn, time=time, seen=seen, messages=digests))
        return Answer(
            text=f"Here is {word(place, turn, time)}, as it should be.",
            calls=tuple(wishes(place, turn)),
            delay=self.hold(place, turn) if self.hold else self._chance.uniform(0, self.slowest),
            pace=self._chance.uniform(0, self.slowest / 10),
        )

    def of(self, tree: str) -> list[Asked]:
        """What was asked for one tree."""
        return [each for each in self.asked if each.place.startswith(f"{tree}/")]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content)
