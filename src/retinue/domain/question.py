"""A question: what an agent wants to know of a person before it goes on, and what the words of an answer say."""

import json
from collections.abc import Sequence
from typing import Any

from retinue.domain.run import Run
from retinue.domain.transcript import Called, Entry, Said, dangling
from retinue.domain.value import value

ASKING = "ask_user"
"""The tool that asks: a call of it without a result, in a run that waits for a person, is a question."""


@value
class Question:
    run: str
    session: str
    agent: str
    call: Called
    text: str
    options: tuple[str, ...] = ()

    def told(self) -> str:
        """In one breath, with what may be answered."""
        return f"{self.text} ({' / '.join(self.options)})" if self.options else self.text

    def as_json(self) -> dict[str, Any]:
        facts = {"question": self.text, "options": list(self.options)}
        return facts | {"agent": self.agent, "run_id": self.run, "call": self.call.id}


def asked(run: Run, entries: Sequence[Entry]) -> Question | None:
    """What a run asks now: its first open question since the model spoke last."""
    since = next((at for at in range(len(entries) - 1, -1, -1) if _reply(entries[at])), 0)
    for called in dangling(entries[since:]):
        if called.run == run.id and called.tool == ASKING:
            text, options = _read(called.args)
            return Question(
                run=run.id, session=run.path, agent=run.agent, call=called, text=text, options=options
            )
    return None


def chosen(answer: str, options: Sequence[str]) -> str:
    """A number picks its option; any other words stand for themselves."""
    if answer.isdecimal() and 0 < int(answer) <= len(options):
        return options[int(answer) - 1]
    return answer


def _reply(entry: Entry) -> bool:
    return isinstance(entry, Said) and entry.by == "agent"


def _read(args: str) -> tuple[str, tuple[str, ...]]:
    """A person may have changed the file: what cannot be understood is shown as it stands."""
    try:
        wish = json.loads(args)
        return str(wish["question"]), tuple(str(each) for each in wish.get("options") or ())
    except (ValueError, TypeError, KeyError, AttributeError):
        return args, ()
