"""One attempt at a run: its counters, and how it appends entries and emits events."""

from dataclasses import dataclass

from msgspec.structs import replace

from retinue.domain.event import EventKind
from retinue.domain.question import Question, resolve_answer
from retinue.domain.run import Run, Status
from retinue.domain.timestamps import iso_timestamp_seconds
from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult, public_entry_id
from retinue.interfaces import Conversation, RuntimeContext, Transaction
from retinue.runtime.recovery import split_unanswered_calls
from retinue.runtime.run_events import make_event


@dataclass(slots=True)
class RunAttempt:
    """Mutable state of one attempt at a run; updated counters replace the frozen `run`."""

    run: Run
    context: RuntimeContext
    just_appended: bool = False
    """Nothing was awaited since the last append to the conversation."""

    async def record_progress(self) -> None:
        """Record that the run made progress since its process last died, so that this crash is not counted again."""
        recovery = self.run.recovery.record_progress()

        def step(tx: Transaction) -> None:
            current = tx.get_run(self.run.id)
            if current is not None and current.status is Status.RUNNING:
                tx.update_run(replace(current, recovery=recovery))

        self.run = replace(self.run, recovery=recovery)
        await self.context.ledger.write(step)

    def emit_event(self, kind: EventKind, **data: object) -> None:
        if self.context.events.has_listeners():
            self.context.events.emit(make_event(kind, self.run, self.context, **data))

    async def append_entries(self, conversation: Conversation, *entries: Entry, sync: bool = True) -> None:
        await conversation.append(*entries, sync=sync)
        self.just_appended = True
        if self.context.events.has_listeners():
            self.emit_saved(*entries)

    def emit_saved(self, *entries: Entry) -> None:
        """Emit `entry.saved` for entries that are in the file, where listeners can read them."""
        for entry in entries:
            stop_reason = entry.stop_reason if isinstance(entry, Message) else ""
            extra = {"stop_reason": stop_reason} if stop_reason else {}
            self.emit_event(
                "entry.saved", entry=public_entry_id(entry), entry_kind=_entry_label(entry), **extra
            )

    def timestamp(self) -> str:
        return iso_timestamp_seconds(self.context.clock.now())

    def make_notice(self, kind: str, text: str) -> Notice:
        return Notice(
            id=self.context.clock.new_entry_id(), topic=kind, text=text, at=self.timestamp(), run=self.run.id
        )

    def make_user_message(self, text: str) -> Message:
        """Build the message of a person who replies to the running run."""
        at = self.timestamp()
        return Message(id=self.context.clock.new_entry_id(), role="user", text=text, at=at, run=self.run.id)

    def make_answer_result(self, question: Question, reply: str) -> ToolResult:
        """Build the result of a question: the person's answer."""
        text = resolve_answer(reply, question.options)
        return ToolResult(call_id=question.tool_call.id, text=text, at=self.timestamp(), run=self.run.id)

    def make_failed_result(self, tool_call: ToolCall, text: str) -> ToolResult:
        """Build the result of a call that was not run or failed."""
        return ToolResult(call_id=tool_call.id, text=text, ok=False, at=self.timestamp(), run=self.run.id)

    def make_unanswered_results(self, conversation: Conversation, reason: str) -> list[ToolResult]:
        """Build results for all open calls."""
        _, results = split_unanswered_calls(conversation.entries, replace(self.run, id=""))
        return [
            replace(each, text=f"No result: {reason}.", run=self.run.id, at=self.timestamp())
            for each in results
        ]


def _entry_label(entry: Entry) -> str:
    match entry:
        case Message():
            return entry.role
        case ToolCall():
            return "call"
        case ToolResult():
            return "result"
        case Notice():
            return "notice"
