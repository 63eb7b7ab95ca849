"""What the model answers in each part of the benchmark, and what it must have been told before it does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retinue.domain.value import value
from retinue.testing.replies import Answer, calls, reply
from retinue.trials.bench.answers import Canned, anthropic, openai

NOTE = "The parcels leave at nine.\n"
"""What stands in the file that the tool reads: a model that was not told it gives no answer."""
FILE = "note.txt"
ASK = "Read the note."
ANSWER = "The note says that the parcels leave at nine."
HELLO = "Hello there."
TELL = "Say it all."
TOKENS = 200
WORDS = " ".join(f"w{number:03d}" for number in range(TOKENS))
SPAWN = "Start them all."
CHILD_ASK = "Say that you are there."
CHILD = "This child is there."
ALL = "All of them are there."
FEW = "Not all of them are there."
LOOK = "Look around."
LOOKS = 20
"""Turns of the run whose requests are held against each other."""
SEEN = "That is all there is to see."
WISH = "Write it down."


@value
class Rule:
    """One answer, and when it is given: the first that fits counts."""

    answer: Answer
    role: str = ""
    """Whose message must be the last: `user` or `tool`; empty: anybody's."""
    holds: str = ""
    """Text that must occur in the request."""
    times: int = 1
    """How often at least."""
    exactly: int | None = None
    """How many messages of tools the request must hold."""
    apart: bool = False
    """Each event in a write of its own."""
    pace: float = 0
    """Seconds between them."""


@value
class Playable:
    """A rule, ready to be played."""

    rule: Rule
    holds: bytes
    openai: Canned
    anthropic: Canned


def part(number: int) -> str:
    """Another file for each turn: nobody is asked to do the same twice."""
    return f"part-{number}.txt"


def furnish(place: Path) -> None:
    """What the agents find where they work."""
    (place / FILE).write_text(NOTE)
    for number in range(LOOKS):
        (place / part(number)).write_text(f"Part {number}: {NOTE}")


def read(path: str = FILE) -> Answer:
    return calls(("read", {"path": path}))


def _spawn(door: str, args: Mapping[str, Any], count: int) -> Answer:
    """One reply that starts them all, each with a task of its own."""
    wished = [
        (door, {name: f"{value} ({number})" if value == CHILD_ASK else value for name, value in args.items()})
        for number in range(count)
    ]
    return Answer(calls=tuple(wished), piece=4096)


def crowd(door: str, args: Mapping[str, Any], count: int, *, tool: bool) -> Sequence[Rule]:
    """A parent that starts so many children at once and answers when it has heard of all of them. With `tool` each child
    reads the note before it answers."""
    child = [Rule(role="user", holds=CHILD_ASK, answer=reply(CHILD))]
    if tool:
        child = [
            Rule(role="user", holds=CHILD_ASK, answer=read()),
            Rule(role="tool", holds=NOTE.strip(), answer=reply(CHILD)),
        ]
    return (
        Rule(role="tool", holds=CHILD, times=count, answer=reply(ALL)),
        Rule(role="user", holds=SPAWN, answer=_spawn(door, args, count)),
        *child,
        Rule(role="tool", answer=reply(FEW)),
        Rule(answer=reply(HELLO)),
    )


TURN = (
    Rule(role="tool", holds=NOTE.strip(), answer=reply(ANSWER)),
    Rule(role="user", answer=read()),
)
SCENES: Mapping[str, Sequence[Rule]] = {
    "turn": TURN,
    "talk": (
        Rule(role="user", holds=TELL, answer=reply(WORDS, piece=5), apart=True),
        Rule(answer=reply(HELLO)),
    ),
    "paced": (
        Rule(role="user", holds=TELL, answer=reply(WORDS, piece=5), apart=True, pace=0.002),
        Rule(answer=reply(HELLO)),
    ),
    "look": (
        *(Rule(exactly=turn, answer=read(part(turn))) for turn in range(LOOKS - 1)),
        Rule(answer=reply(SEEN)),
    ),
    "wish": (Rule(answer=calls(("write", {"path": "new.txt", "content": "words"}))),),
}
"""Scene → its rules. Crowds are added by how many they are and which door they come through."""


def playable(rules: Sequence[Rule]) -> list[Playable]:
    return [
        Playable(
            rule=rule,
            holds=rule.holds.encode(),
            openai=openai(rule.answer, apart=rule.apart),
            anthropic=anthropic(rule.answer, apart=rule.apart),
        )
        for rule in rules
    ]
