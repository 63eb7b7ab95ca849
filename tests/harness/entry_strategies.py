"""Random transcript entries, built from random ids, texts and numbers."""

from hypothesis import strategies as st

from retinue.domain.transcript import Entry, Message, Notice, ToolCall, ToolResult


def build_entries(
    messages: st.SearchStrategy[Message],
    *,
    ids: st.SearchStrategy[str],
    bodies: st.SearchStrategy[str],
    short_texts: st.SearchStrategy[str],
    parse_errors: st.SearchStrategy[str],
    counts: st.SearchStrategy[int],
) -> st.SearchStrategy[Entry]:
    """Build a strategy for entries of every kind, of which the messages are given."""
    return st.one_of(
        messages,
        st.builds(
            ToolCall,
            id=ids,
            tool=ids,
            args=bodies,
            at=short_texts,
            run=short_texts,
            invalid_reason=parse_errors,
        ),
        st.builds(
            ToolResult,
            call_id=ids,
            text=bodies,
            ok=st.booleans(),
            duration_ms=counts,
            at=short_texts,
            run=short_texts,
        ),
        st.builds(Notice, id=ids, topic=short_texts, text=bodies, at=short_texts, run=short_texts),
    )
