"""The tree of agents that is tortured: who they are, what each is told to do, and what its model answers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Wish = tuple[str, Mapping[str, Any]]

MARK: Wish = ("mark", {})
SIGN: Wish = ("sign", {})
_PLACE = re.compile(r"\[\[([0-9A-Za-z./-]+)\]\]")
_TOKEN = re.compile(r"word\(([0-9A-Za-z./-]+)#(\d+)\.(\d+)\)")

Token = tuple[str, int, int]
"""Which agent's reply, the how many-th of its conversation, and the how many-th time it was asked for."""


def agents() -> list[dict[str, Any]]:
    """One below the other, each naming the tools that start others, as agents below the top must."""
    doors = ["mark", "sign", "agent", "spawn_subagent", "sessions_spawn", "PersistentAgent"]
    return [
        {"name": name, "description": "Works.", "prompt": f"You are {name}.", "tools": doors}
        for name in ("lead", "one", "two", "three", "four", "five")
    ]


def task(place: str) -> str:
    """A task names its place in the tree, so that the model knows who asks whatever became of the process."""
    return f"Do your part. [[{place}]]"


def place_of(text: str) -> str | None:
    found = _PLACE.search(text)
    return found and found.group(1)


def word(place: str, turn: int, time: int) -> str:
    """What tells one reply from every other, wherever it turns up later."""
    return f"word({place}#{turn}.{time})"


def words(text: str) -> list[Token]:
    return [(place, int(turn), int(time)) for place, turn, time in _TOKEN.findall(text)]


def wishes(place: str, turn: int) -> Sequence[Wish]:
    """What the model of that place calls in that turn; nothing is its last word."""
    tree, _, path = place.partition("/")
    script = _SCRIPTS[tree.split("-")[0]].get(path.rpartition(".")[2], ())
    if turn >= len(script):
        return ()
    return [(tool, _placed(args, place)) for tool, args in script[turn]]


def _placed(args: Mapping[str, Any], place: str) -> dict[str, Any]:
    """`@x` stands for the task of the place x below this one."""
    return {
        name: task(f"{place}.{value[1:]}") if isinstance(value, str) and value.startswith("@") else value
        for name, value in args.items()
    }


def _agent(name: str, at: str) -> Wish:
    return ("agent", {"agent_name": name, "task_prompt": f"@{at}"})


def _subtask(name: str, at: str, mode: str = "blocking") -> Wish:
    return ("spawn_subagent", {"agentId": name, "prompt": f"@{at}", "returnMode": mode, "label": at})


def _worker(at: str) -> Wish:
    return ("sessions_spawn", {"task": f"@{at}", "label": at})


def _persistent(name: str, at: str) -> Wish:
    return ("PersistentAgent", {"preset": name, "description": at, "prompt": f"@{at}"})


_SCRIPTS: Mapping[str, Mapping[str, Sequence[Sequence[Wish]]]] = {
    # Four deep, through every kind of door, with two in the background, and a person's yes at the bottom.
    "deep": {
        "lead": [[_agent("one", "one"), _worker("worker")], [MARK]],
        "worker": [[MARK]],
        "one": [[MARK], [_subtask("two", "two")]],
        "two": [[_persistent("three", "three"), _subtask("five", "five", "background")], [MARK]],
        "five": [[MARK]],
        "three": [[_agent("four", "four")]],
        "four": [[MARK, MARK], [SIGN]],
    },
    # The same way down with nobody beside anybody, so that each run of it makes the same calls in the same order.
    "chain": {
        "lead": [[_agent("one", "one")], [_worker("worker")]],
        "worker": [[MARK]],
        "one": [[MARK], [_subtask("two", "two")]],
        "two": [[_agent("three", "three")]],
        "three": [[_subtask("four", "four")]],
        "four": [[MARK]],
    },
    # One that waits for a worker in the background.
    "pair": {"lead": [[_worker("worker")]], "worker": [[MARK]]},
}
