"""What is heard of a reply while it comes."""

from typing import Any

from retinue.domain.model_turn import ReplyDelta
from retinue.domain.redaction import Redactor
from retinue.runtime.stream_buffer import StreamBuffer

SECRET = "s3cret-value-of-ours-0123456789"


def nobody(_kind: str, **_data: Any) -> None:
    """Listens."""


def test_who_begins_to_listen_in_the_middle_of_a_secret_does_not_hear_its_end() -> None:
    """While nobody listens nothing is made ready to be shown; what was said meanwhile still counts."""
    told: list[dict[str, Any]] = []
    there: list[bool] = []

    def tell(_kind: str, **data: Any) -> None:
        told.append(data)

    hearing = StreamBuffer(Redactor([SECRET]), tell, lambda: bool(there))
    hearing.start_reply("entry")

    hearing.add(ReplyDelta(text="It is " + SECRET[:10]))
    assert told == []
    there.append(True)
    hearing.add(ReplyDelta(text=SECRET[10:] + " and no more."))
    hearing.finish()

    shown = "".join(data["text"] for data in told)
    assert SECRET[10:] not in shown
    assert shown.endswith(" and no more.")


def test_nobody_listens_and_the_words_are_kept() -> None:
    hearing = StreamBuffer(Redactor([SECRET]), nobody, lambda: False)
    hearing.start_reply("entry")

    hearing.add(ReplyDelta(text="Half of "))
    hearing.add(ReplyDelta(text=f"it: {SECRET}"))

    assert hearing.take_partial() == "Half of it: [secret of 31 characters]"
