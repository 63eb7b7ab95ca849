"""The parameters of a case, drawn from its seed; each can be simplified."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    sqlite: bool = False
    max_live: int = 4
    per_requester: int = 4
    per_tree: int = 12
    depth: int = 3
    tops: int = 1
    """Number of sessions that the user starts."""
    people: int = 1
    moves: int = 8
    """Actions of each user, after the first runs were created."""
    deaths: int = 1
    processes: int = 1
    """Number of processes at the same time."""
    shake: int = 3
    """Maximum number of event loop turns before a step."""
    turns: int = 5
    """Number of replies of one run after which the model calls no more tools."""
    fan: int = 3
    """Maximum number of tool calls in one reply."""
    asks: bool = False
    """Calls with side effects require approval."""
    coarse: bool = False
    """The clock returns the same time for calls at the same moment."""
    failures: bool = True
    """Models fail, refuse, send empty replies, and hang."""

    @staticmethod
    def of(seed: int, *, sqlite: bool = False) -> "Plan":
        rng = Random(f"plan {seed}")
        return Plan(
            seed=seed,
            sqlite=sqlite,
            max_live=rng.choice((1, 1, 2, 3, 8)),
            per_requester=rng.choice((1, 2, 8)),
            per_tree=rng.choice((2, 5, 12, 30)),
            depth=rng.choice((1, 2, 3, 3)),
            tops=rng.choice((1, 1, 2, 3)),
            people=rng.choice((1, 1, 2)),
            moves=rng.choice((0, 2, 6, 12)),
            deaths=rng.choice((0, 0, 1, 2, 5)),
            processes=rng.choice((1, 1, 2)),
            shake=rng.choice((0, 1, 3, 10)),
            turns=rng.choice((2, 4, 6)),
            fan=rng.choice((1, 2, 4)),
            asks=rng.random() < 0.25,
            coarse=rng.random() < 0.15,
            failures=rng.random() < 0.7,
        )

    def simpler_plans(self) -> "Iterator[Plan]":
        """Yield plans with one parameter closer to its simplest value."""
        simplest: dict[str, Any] = {
            "sqlite": False,
            "coarse": False,
            "asks": False,
            "failures": False,
            "people": 1,
            "processes": 1,
            "deaths": 0,
            "tops": 1,
            "moves": 0,
            "depth": 1,
            "fan": 1,
            "turns": 2,
            "shake": 0,
            "per_tree": 2,
            "max_live": 8,
            "per_requester": 8,
        }
        for name, value in simplest.items():
            current = getattr(self, name)
            steps = (
                [value]
                if isinstance(current, bool) or current < value
                else [value, (current + value) // 2, current - 1]
            )
            for step in dict.fromkeys(steps):
                if step != current and (isinstance(current, bool) or current < value or step >= value):
                    yield replace(self, **{name: step})
