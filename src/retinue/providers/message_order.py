"""Transcript entries in the order providers require: reply, tool calls, results, user messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult

NO_RESULT = "[the result of this call is missing]"
ORPHAN_RESULT = "[result of a call that was removed]"
EMPTY_RESULT = "(empty)"


@dataclass(slots=True, init=False)
class Exchange:
    """A reply of the model with its tool calls, their results and the messages that follow.

    The first exchange of a conversation usually has no reply.
    """

    start: int
    """Index of its first entry; it includes everything up to the start of the next exchange."""
    replies: list[Message]
    calls: dict[str, ToolCall]
    results: dict[str, ToolResult]
    user_texts: list[str]

    def __init__(self, *, start: int) -> None:
        self.start = start
        self.replies = []
        self.calls = {}
        self.results = {}
        self.user_texts = []

    @property
    def text(self) -> str:
        return "\n\n".join(
            [message.text for message in self.replies if message.text and not message.text.isspace()]
        )

    def result_of(self, call: ToolCall) -> tuple[str, bool]:
        """Return the text of a call's result and whether it succeeded.

        Every call gets a result: a missing one is replaced by a placeholder.
        """
        tool_result = self.results.get(call.id)
        if tool_result is None:
            return NO_RESULT, False
        return tool_result.text if tool_result.text.strip() else EMPTY_RESULT, tool_result.ok

    def accepts_call(self, call: ToolCall) -> bool:
        """Return whether a call belongs to this exchange.

        A call belongs to the reply before it until that reply has all its calls and each has a result.
        """
        if not (self.replies or self.calls) or call.id in self.calls:
            return False
        if len(self.results) < len(self.calls):
            return True
        declared = self.replies[-1].tool_call_count if self.replies else 0
        return not self.user_texts and (not self.calls or len(self.calls) < declared)


def split_exchanges(entries: Sequence[Entry], start: int = 0) -> Iterator[Exchange]:
    """Yield the exchanges from `start` on, which must be the start of an exchange."""
    exchange = Exchange(start=start)
    for index in range(start, len(entries)):
        entry = entries[index]
        if isinstance(entry, Message) and entry.role == "agent":
            if not entry.tool_call_count and not entry.text.strip():
                continue  # no provider accepts an empty reply without tool calls
            # Consecutive replies are one: providers reject two assistant messages in a row.
            starts_exchange = bool(exchange.calls or exchange.user_texts or not exchange.replies)
        else:
            starts_exchange = (
                isinstance(entry, ToolCall)
                and entry.id not in exchange.calls
                and not exchange.accepts_call(entry)
            )
        if starts_exchange:
            if exchange.replies or exchange.calls or exchange.user_texts:
                yield exchange
            exchange = Exchange(start=index)
        _add_entry(entry, exchange)
    yield exchange


def _add_entry(entry: Entry, exchange: Exchange) -> None:
    if isinstance(entry, Message):
        if entry.role == "agent":
            exchange.replies.append(entry)
        elif entry.text.strip():
            exchange.user_texts.append(entry.text)
    elif isinstance(entry, ToolCall):
        exchange.calls.setdefault(entry.id, entry)
    elif isinstance(entry, Notice):
        exchange.user_texts.append(f"[notice: {entry.topic}]\n{entry.text}")
    elif entry.call_id in exchange.calls and entry.call_id not in exchange.results:
        exchange.results[entry.call_id] = entry
    else:
        exchange.user_texts.append(f"{ORPHAN_RESULT}\n{entry.text}")
