"""Text events of a reply while it is streamed."""

from typing import Any

from retinue.domain.model_turn import ReplyDelta
from retinue.domain.redaction import Redactor
from retinue.runtime.stream_buffer import StreamBuffer

SECRET = "s3cret-value-of-ours-0123456789"


def ignore_event(_kind: str, **_data: Any) -> None:
    """Discard an event."""


def test_a_listener_that_joins_in_the_middle_of_a_secret_does_not_receive_its_end() -> None:
    """Without a listener no events are prepared, but earlier text still counts for redaction."""
    events: list[dict[str, Any]] = []
    listeners: list[bool] = []

    def record_event(_kind: str, **data: Any) -> None:
        events.append(data)

    buffer = StreamBuffer(Redactor([SECRET]), record_event, lambda: bool(listeners))
    buffer.start_reply("entry")

    buffer.add(ReplyDelta(text="It is " + SECRET[:10]))
    assert events == []
    listeners.append(True)
    buffer.add(ReplyDelta(text=SECRET[10:] + " and no more."))
    buffer.finish()

    text = "".join(data["text"] for data in events)
    assert SECRET[10:] not in text
    assert text.endswith(" and no more.")


def test_the_partial_text_is_kept_without_any_listener() -> None:
    buffer = StreamBuffer(Redactor([SECRET]), ignore_event, lambda: False)
    buffer.start_reply("entry")

    buffer.add(ReplyDelta(text="Half of "))
    buffer.add(ReplyDelta(text=f"it: {SECRET}"))

    assert buffer.take_partial() == "Half of it: [secret of 31 characters]"
