"""Replies cut off at the model's output limit, and the replies that continue them."""

from collections.abc import Sequence

from retinue.domain.run import Reason, Run
from retinue.domain.transcript import Entry, Message, Notice

CONTINUE_NOTICE = "continue"
"""Topic of the notice that asks the model to continue its reply."""
CONTINUE_PROMPT = (
    "Your last reply was cut off at the output limit. Continue it exactly where it stopped: repeat nothing, and "
    "do not comment on the interruption."
)
INCOMPLETE_NOTICE = "The reply is incomplete: the model's output limit cut it off, and its continuation too."
CUT_STOP_REASON = "length"


def is_incomplete(run: Run) -> bool:
    """Return True if the run is done with a last reply that was cut off."""
    return run.reason is Reason.INCOMPLETE and run.status.is_final


def cut_text_before(reply: Message, entries: Sequence[Entry]) -> str | None:
    """Return the text that a reply continues; None if it continues none."""
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].id == reply.id:
            return _cut_text_above(index, reply.run, entries)
    return None


def reply_texts(entries: Sequence[Entry], run: str) -> list[str]:
    """Return the texts of a run's replies; a reply and its continuation are one text."""
    texts: list[str] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, Message) and entry.role == "agent" and entry.run == run:
            if texts and _cut_text_above(index, run, entries) is not None:
                texts[-1] += entry.text
            else:
                texts.append(entry.text)
    return [each for each in texts if each.strip()]


def _cut_text_above(index: int, run: str, entries: Sequence[Entry]) -> str | None:
    """Return the text of the run's reply above an entry, if only notices and a request to continue are between."""
    is_requested = False
    for at in range(index - 1, -1, -1):
        entry = entries[at]
        if not isinstance(entry, Notice):
            is_reply = isinstance(entry, Message) and entry.role == "agent" and entry.run == run
            return entry.text if is_requested and is_reply and isinstance(entry, Message) else None
        is_requested = is_requested or (entry.topic == CONTINUE_NOTICE and entry.run == run)
    return None
