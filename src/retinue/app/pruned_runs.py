"""The texts of pruned runs: the ledger keeps their hashes only, but a session's transcript is never pruned."""

from msgspec import Struct

from retinue.domain.run import Run
from retinue.domain.transcript import Message, ToolCall
from retinue.errors import NotFound
from retinue.ledger.tombstones import hash_text
from retinue.sessions.store import FileStore


class TranscriptTexts(Struct, frozen=True, kw_only=True):
    """What a session's transcript says about a pruned run."""

    task: str | None = None
    """The message that the run answered; None if it is no longer there."""
    response: str | None = None
    """The last message of the run; None if no message has the recorded hash."""
    tool_calls: int = 0


async def find_transcript_texts(run: Run, store: FileStore) -> TranscriptTexts:
    """Find the message and the response of a pruned run in its session's transcript.

    A person may have cleared or changed the file, so the response counts only if its hash is the recorded one.
    """
    task, response, tool_calls = None, None if run.result_hash else "", 0
    try:
        session = await store.find(run.session_id)
    except NotFound:
        return TranscriptTexts(response=response)
    async for entries in store.iter_entries(session):
        for entry in entries:
            if entry.run != run.id:
                continue
            if isinstance(entry, ToolCall):
                tool_calls += 1
            elif isinstance(entry, Message) and entry.role == "user":
                task = entry.text if task is None else task
            elif isinstance(entry, Message) and hash_text(entry.text) == run.result_hash:
                response = entry.text
    return TranscriptTexts(task=task, response=response, tool_calls=tool_calls)
