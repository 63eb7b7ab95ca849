"""What one case is like: all of it follows from a number, and each part can be made smaller."""

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
    """Conversations that a person begins."""
    people: int = 1
    moves: int = 8
    """Of each person, after the first runs were asked for."""
    deaths: int = 1
    processes: int = 1
    """At the same time."""
    shake: int = 3
    """At most so many times everybody gives way before a step."""
    turns: int = 5
    """After so many replies of one run the model calls nothing any more."""
    fan: int = 3
    """Calls in one reply."""
    asks: bool = False
    """A person must say yes to what acts."""
    coarse: bool = False
    """The clock shows the same time to many."""
    failures: bool = True
    """Models fail, refuse, say nothing, and hang."""

    @staticmethod
    def of(seed: int, *, sqlite: bool = False) -> "Plan":
        chance = Random(f"plan {seed}")
        return Plan(
            seed=seed,
            sqlite=sqlite,
            max_live=chance.choice((1, 1, 2, 3, 8)),
            per_requester=chance.choice((1, 2, 8)),
            per_tree=chance.choice((2, 5, 12, 30)),
            depth=chance.choice((1, 2, 3, 3)),
            tops=chance.choice((1, 1, 2, 3)),
            people=chance.choice((1, 1, 2)),
            moves=chance.choice((0, 2, 6, 12)),
            deaths=chance.choice((0, 0, 1, 2, 5)),
            processes=chance.choice((1, 1, 2)),
            shake=chance.choice((0, 1, 3, 10)),
            turns=chance.choice((2, 4, 6)),
            fan=chance.choice((1, 2, 4)),
            asks=chance.random() < 0.25,
            coarse=chance.random() < 0.15,
            failures=chance.random() < 0.7,
        )

    def smaller(self) -> "Iterator[Plan]":
        """Each a little simpler than this one."""
        least: dict[str, Any] = {
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
        for name, value in least.items():
            now = getattr(self, name)
            steps = [value] if isinstance(now, bool) or now < value else [value, (now + value) // 2, now - 1]
            for step in dict.fromkeys(steps):
                if step != now and (isinstance(now, bool) or now < value or step >= value):
                    yield replace(self, **{name: step})
