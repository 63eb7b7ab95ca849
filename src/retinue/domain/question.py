"""Questions from an agent to a person, and how answers are read."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from retinue.domain.run import Run
from retinue.domain.transcript import Entry, Message, ToolCall, unanswered_calls

ASK_USER_TOOL = "ask_user"
"""The tool that asks a person.

A call of it without a result, in a run that waits for a person, is a question.
"""


class Question(Struct, frozen=True, kw_only=True):
    run_id: str
    session_path: str
    agent: str
    tool_call: ToolCall
    text: str
    options: tuple[str, ...] = ()

    def text_with_options(self) -> str:
        """Return the question with its options on one line."""
        return f"{self.text} ({' / '.join(self.options)})" if self.options else self.text

    def as_json(self) -> dict[str, Any]:
        facts = {"question": self.text, "options": list(self.options)}
        return facts | {"agent": self.agent, "run_id": self.run_id, "call": self.tool_call.id}


def open_question(run: Run, entries: Sequence[Entry]) -> Question | None:
    """Return the run's first open question since the model's last reply, if any."""
    start = next((index for index in range(len(entries) - 1, -1, -1) if _is_reply(entries[index])), 0)
    for tool_call in unanswered_calls(entries[start:]):
        if tool_call.run == run.id and tool_call.tool == ASK_USER_TOOL:
            text, options = _parse_question(tool_call.args)
            return Question(
                run_id=run.id,
                session_path=run.transcript_path,
                agent=run.agent,
                tool_call=tool_call,
                text=text,
                options=options,
            )
    return None


def resolve_answer(answer: str, options: Sequence[str]) -> str:
    """Return the option with that number, or the answer itself if it is no option's number."""
    if answer.isdecimal() and 0 < int(answer) <= len(options):
        return options[int(answer) - 1]
    return answer


def _is_reply(entry: Entry) -> bool:
    return isinstance(entry, Message) and entry.role == "agent"


def _parse_question(args: str) -> tuple[str, tuple[str, ...]]:
    """Parse a question's arguments; text that a person's edit made invalid is returned unchanged."""
    try:
        arguments = json.loads(args)
        return str(arguments["question"]), tuple(str(each) for each in arguments.get("options") or ())
    except (ValueError, TypeError, KeyError, AttributeError):
        return args, ()
