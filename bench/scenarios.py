"""The model's scripted replies for each scenario, and what a request must contain to get them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.canned_replies import CannedReply, encode_anthropic_reply, encode_openai_reply
from retinue.testing.replies import FakeResponse, text_reply, tool_call_reply

NOTE_TEXT = "The parcels leave at nine.\n"
"""Text of the file that the tool reads; the model replies only if it is in the request."""
NOTE_FILE = "note.txt"
NOTE_PROMPT = "Read the note."
NOTE_REPLY = "The note says that the parcels leave at nine."
HELLO = "Hello there."
STREAM_PROMPT = "Say it all."
STREAM_TOKENS = 200
STREAM_REPLY = " ".join(f"w{number:03d}" for number in range(STREAM_TOKENS))
SPAWN_PROMPT = "Start them all."
CHILD_PROMPT = "Say that you are there."
CHILD_REPLY = "This child is there."
ALL_REPORTED = "All of them are there."
NOT_ALL_REPORTED = "Not all of them are there."
LOOK_PROMPT = "Look around."
LONG_RUN_TURNS = 20
"""Turns of the run whose consecutive requests are compared."""
LOOK_REPLY = "That is all there is to see."
WRITE_PROMPT = "Write it down."


class ReplyRule(Struct, frozen=True, kw_only=True):
    """A reply and its conditions; the first rule that matches is used."""

    response: FakeResponse
    last_role: str = ""
    """Role of the last message: `user` or `tool`; empty: any."""
    required_text: str = ""
    """Text that must occur in the request."""
    min_occurrences: int = 1
    """Minimum number of occurrences."""
    tool_message_count: int | None = None
    """Number of tool messages the request must contain."""
    split_events: bool = False
    """Write each event separately."""
    event_interval_s: float = 0
    """Seconds between them."""


class EncodedRule(Struct, frozen=True, kw_only=True):
    """A rule with its replies encoded for both APIs."""

    rule: ReplyRule
    required_bytes: bytes
    openai: CannedReply
    anthropic: CannedReply


def part_file_name(number: int) -> str:
    """Return a different file name for each turn, so that no call is repeated."""
    return f"part-{number}.txt"


def write_input_files(folder: Path) -> None:
    """Write the files that the agents read."""
    (folder / NOTE_FILE).write_text(NOTE_TEXT)
    for number in range(LONG_RUN_TURNS):
        (folder / part_file_name(number)).write_text(f"Part {number}: {NOTE_TEXT}")


def read_file_reply(path: str = NOTE_FILE) -> FakeResponse:
    return tool_call_reply(("read", {"path": path}))


def _spawn_reply(delegation_tool: str, arguments: Mapping[str, Any], count: int) -> FakeResponse:
    """Return one reply that starts all children, each with a task of its own."""
    tool_calls = [
        (
            delegation_tool,
            {
                name: f"{value} ({number})" if value == CHILD_PROMPT else value
                for name, value in arguments.items()
            },
        )
        for number in range(count)
    ]
    return FakeResponse(calls=tuple(tool_calls), piece=4096)


def spawn_rules(
    delegation_tool: str, arguments: Mapping[str, Any], count: int, *, with_tool: bool
) -> Sequence[ReplyRule]:
    """Return the rules of a parent that starts `count` children and answers when all have reported.

    `with_tool` makes each child read the note before it answers.
    """
    child_rules = [ReplyRule(last_role="user", required_text=CHILD_PROMPT, response=text_reply(CHILD_REPLY))]
    if with_tool:
        child_rules = [
            ReplyRule(last_role="user", required_text=CHILD_PROMPT, response=read_file_reply()),
            ReplyRule(last_role="tool", required_text=NOTE_TEXT.strip(), response=text_reply(CHILD_REPLY)),
        ]
    return (
        ReplyRule(
            last_role="tool",
            required_text=CHILD_REPLY,
            min_occurrences=count,
            response=text_reply(ALL_REPORTED),
        ),
        ReplyRule(
            last_role="user",
            required_text=SPAWN_PROMPT,
            response=_spawn_reply(delegation_tool, arguments, count),
        ),
        *child_rules,
        ReplyRule(last_role="tool", response=text_reply(NOT_ALL_REPORTED)),
        ReplyRule(response=text_reply(HELLO)),
    )


NOTE_RULES = (
    ReplyRule(last_role="tool", required_text=NOTE_TEXT.strip(), response=text_reply(NOTE_REPLY)),
    ReplyRule(last_role="user", response=read_file_reply()),
)
SCENARIOS: Mapping[str, Sequence[ReplyRule]] = {
    "turn": NOTE_RULES,
    "talk": (
        ReplyRule(
            last_role="user",
            required_text=STREAM_PROMPT,
            response=text_reply(STREAM_REPLY, piece=5),
            split_events=True,
        ),
        ReplyRule(response=text_reply(HELLO)),
    ),
    "paced": (
        ReplyRule(
            last_role="user",
            required_text=STREAM_PROMPT,
            response=text_reply(STREAM_REPLY, piece=5),
            split_events=True,
            event_interval_s=0.002,
        ),
        ReplyRule(response=text_reply(HELLO)),
    ),
    "look": (
        *(
            ReplyRule(tool_message_count=turn, response=read_file_reply(part_file_name(turn)))
            for turn in range(LONG_RUN_TURNS - 1)
        ),
        ReplyRule(response=text_reply(LOOK_REPLY)),
    ),
    "write": (ReplyRule(response=tool_call_reply(("write", {"path": "new.txt", "content": "words"}))),),
}
"""Rules by scenario. Spawn scenarios are created from their count and delegation tool."""


def encode_rules(rules: Sequence[ReplyRule]) -> list[EncodedRule]:
    return [
        EncodedRule(
            rule=rule,
            required_bytes=rule.required_text.encode(),
            openai=encode_openai_reply(rule.response, split_events=rule.split_events),
            anthropic=encode_anthropic_reply(rule.response, split_events=rule.split_events),
        )
        for rule in rules
    ]
