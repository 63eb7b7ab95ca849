"""What tests read from the entries of a transcript."""

from collections.abc import Iterable

from retinue.domain.transcript import Entry, ToolCall


def entry_texts(entries: Iterable[Entry]) -> list[str]:
    """The texts of entries, none of which is a call."""
    texts: list[str] = []
    for entry in entries:
        assert not isinstance(entry, ToolCall), entry
        texts.append(entry.text)
    return texts
