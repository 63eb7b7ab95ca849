"""What a parent receives of a child's run: its text, bounded and marked as data, and its files."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from retinue.domain.agent_pool import ASK_TOOL, POOLED_TOOLS
from retinue.domain.bounded_text import BoundedText
from retinue.domain.continuation import reply_texts
from retinue.domain.delivery import (
    NO_SUMMARY,
    announcement_text,
    bound_child_text,
    failure_summary,
    report_text,
)
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import MESSAGE_TOOL
from retinue.domain.transcript import Entry, Message
from retinue.errors import RetinueError
from retinue.interfaces import RuntimeContext

TOOLS_WITHOUT_STANDARD_SUMMARY = frozenset({*POOLED_TOOLS, ASK_TOOL, MESSAGE_TOOL})
"""Tools that ask the agent for a missing summary, or that announce no empty response."""
ALL_REPLIES_TOOL = "PersistentAgent"
"""Delegation tool whose result is all replies of the child, not only the last one."""
MIN_REPORT_CHARS = 20
"""A final reply with fewer characters may not be a report."""
INTERRUPTED_MARK = "[Request interrupted"
MAX_LISTED_FILES = 50
MAX_ENTRIES = 1_000_000


def make_nonce(context: RuntimeContext) -> str:
    """Return a random delimiter for an agent's text, which the agent cannot guess."""
    return context.clock.new_entry_id()[-8:] + context.clock.new_uuid().replace("-", "")[-12:]


def format_announcement(run: Run, context: RuntimeContext) -> str:
    """Format the announcement of an ended run.

    A temporary session is deleted as soon as this text has been delivered, so the text names the transcript's place
    in the trash.
    """
    if not run.request.keep_session:
        run = replace(run, transcript_path=transcript_in_trash(run, context))
    return announcement_text(
        run, make_nonce(context), max_chars=context.limits.child_result_chars, cost=context.run_cost(run)
    )


def transcript_in_trash(run: Run, context: RuntimeContext) -> str:
    """Return where the transcript of an ended run's temporary session is after its deletion."""
    folder, _, name = run.transcript_path.rpartition("/")
    return f"{context.store.path_in_trash(folder, run.ended_at or context.clock.now())}/{name}"


def format_report(run: Run, text: str, context: RuntimeContext) -> str:
    """Format the result for a tool call that waited for the run."""
    return report_text(
        run,
        text,
        make_nonce(context),
        max_chars=context.limits.child_result_chars,
        cost=context.run_cost(run),
    )


def bounded_child_text(run: Run, text: str, context: RuntimeContext) -> BoundedText:
    """Mark a child's text as data, and shorten it."""
    return bound_child_text(run, text, context.limits.child_result_chars)


def is_insufficient_report(text: str) -> bool:
    """Return True if a final reply is empty, cut off, or too short to be a report."""
    return len(text) < MIN_REPORT_CHARS or INTERRUPTED_MARK in text


def has_sufficient_result(run: Run) -> bool:
    """Return True if the final reply is a report, or an answer that matches its schema."""
    return run.report.has_output or not is_insufficient_report(run.text.strip())


async def load_replies(run: Run, context: RuntimeContext) -> list[Message]:
    """Return the run's replies from its transcript; empty if that is gone."""
    return [
        each
        for each in await _load_entries(run, context)
        if isinstance(each, Message) and each.role == "agent" and each.run == run.id
    ]


async def load_reply_texts(run: Run, context: RuntimeContext) -> list[str]:
    """Return the texts of the run's replies; a reply and its continuation are one text."""
    return reply_texts(await _load_entries(run, context), run.id)


async def _load_entries(run: Run, context: RuntimeContext) -> Sequence[Entry]:
    with suppress(RetinueError):
        session = await context.store.find(run.transcript_path or run.session_id)
        try:
            async with context.store.open(session) as conversation:
                return [*await conversation.read_earlier_entries(run.id), *conversation.entries]
        except RetinueError:  # another process has it open
            return await context.store.read_entry_page(session, limit=MAX_ENTRIES)
    return ()


async def load_result(run: Run, context: RuntimeContext) -> str:
    """Return the whole result of an ended run, which its parent may have received shortened.

    The ledger no longer has the text of a pruned run, so its result is all replies in its transcript.
    """
    is_done = run.status is Status.DONE
    is_last_reply = run.report.has_output or run.request.entry_point != ALL_REPLIES_TOOL
    if is_done and not run.is_pruned and is_last_reply and has_sufficient_result(run):
        return run.text
    whole = "\n\n".join(await load_reply_texts(run, context)) or run.text
    return whole if is_done else f"[{run.status}: {failure_summary(run)}]\n\n{whole}".rstrip()


async def with_result_files(run: Run, session: Session, context: RuntimeContext) -> Run:
    """Return the run with the files of its session's private /tmp, for a child that is kept."""
    if session.is_top_level or not run.tool_calls or not run.request.keep_session:
        return run
    found = await context.sandbox.list_tmp_files(session)
    if not found:
        return run
    files = found[:MAX_LISTED_FILES]
    report = replace(run.report, files=tuple(files), omitted_files=max(0, len(found) - len(files)))
    return replace(run, report=report)


def missing_summary(run: Run) -> str:
    """Return the text for a sub-agent that wrote nothing; a tool that asks for a report gets an empty text."""
    if run.request.entry_point in TOOLS_WITHOUT_STANDARD_SUMMARY:
        return ""
    return NO_SUMMARY.format(agent=run.agent)
