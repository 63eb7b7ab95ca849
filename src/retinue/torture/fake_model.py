"""A slow, deterministic fake model that records every request."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from msgspec import Struct

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error
from retinue.torture.scenario import ReplyToken, position_in, reply_token, reply_tokens_in, scripted_calls

MAX_TURNS = 30
"""Replies to one agent after which the model refuses to answer; no script is nearly as long."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A model request."""

    position: str
    turn: int
    attempt: int
    """1 for the first request of this turn, 2 for the second, and so on."""
    quoted_tokens: frozenset[ReplyToken]
    """Replies quoted in the request: the requester must have them on disk."""
    message_digests: tuple[str, ...]
    """A digest of each message after the system message."""


class FakeModel:
    """Answers by position and turn: the same request gets the same answer, with the number of the attempt."""

    def __init__(self, seed: int, *, max_delay_s: float = 0.05) -> None:
        self.requests: list[ModelRequest] = []
        self.request_times: list[float] = []
        """Arrival time of each request, by `perf_counter`."""
        self.max_delay_s = max_delay_s
        self.answer_delay_s: Callable[[str, int], float] | None = None
        """Seconds to delay an answer, by position and turn."""
        self._rng = random.Random(seed)  # noqa: S311  (the delay of a fake model needs no secure randomness)
        self._attempts: Counter[tuple[str, int]] = Counter()

    def __call__(self, captured: CapturedRequest) -> FakeResponse:
        messages = [each for each in captured.messages if each.get("role") != "system"]
        position = next(filter(None, (position_in(_message_text(each)) for each in messages)), None)
        if position is None:
            return http_error(400, "this request contains no position of the tree")
        turn = captured.reply_count
        if turn > MAX_TURNS:
            return http_error(400, f"{position} has had {turn} replies")
        self._attempts[position, turn] += 1
        attempt = self._attempts[position, turn]
        quoted_tokens = frozenset(
            token for each in messages for token in reply_tokens_in(_message_text(each))
        )
        digests = tuple(hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16] for each in messages)
        self.request_times.append(perf_counter())
        self.requests.append(
            ModelRequest(
                position=position,
                turn=turn,
                attempt=attempt,
                quoted_tokens=quoted_tokens,
                message_digests=digests,
            )
        )
        return FakeResponse(
            text=f"Here is {reply_token(position, turn, attempt)}, as it should be.",
            calls=tuple(scripted_calls(position, turn)),
            delay=self.answer_delay_s(position, turn)
            if self.answer_delay_s
            else self._rng.uniform(0, self.max_delay_s),
            pace=self._rng.uniform(0, self.max_delay_s / 10),
        )

    def requests_for_tree(self, tree: str) -> list[ModelRequest]:
        """Return the requests for one tree."""
        return [each for each in self.requests if each.position.startswith(f"{tree}/")]


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content)
