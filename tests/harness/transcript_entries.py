"""What tests read from the entries of a transcript."""

import re
from collections.abc import Iterable

from retinue.domain.transcript import Entry, ToolCall


def entry_texts(entries: Iterable[Entry]) -> list[str]:
    """The texts of entries, none of which is a call."""
    texts: list[str] = []
    for entry in entries:
        assert not isinstance(entry, ToolCall), entry
        texts.append(entry.text)
    return texts


def delimited_text(text: str) -> str:
    """Return the agent text quoted in a tool result or notice, between two random delimiters."""
    found = re.search(r"^<<<(\w+)\n(.*)\n\1>>>$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, text
    return found[2]
