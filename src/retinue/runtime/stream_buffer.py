"""Buffer of a streamed reply: emit redacted pieces to listeners, and keep the text until it is saved."""

from collections.abc import Callable

from retinue.domain.model_turn import ProviderToolCall, ReplyDelta
from retinue.domain.redaction import Redactor, StreamRedactor


class _TextStream:
    """Text or thinking of one reply: buffered as it arrives, redacted piece by piece once a listener exists."""

    __slots__ = ("_emitted_count", "_redact", "_stream_redactor", "pieces")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self.pieces: list[str] = []
        self._emitted_count = 0
        """Number of pieces already passed through the stream redactor; 0 while there is no listener."""
        self._stream_redactor: StreamRedactor | None = None

    def take_visible(self) -> str:
        """Return what can be shown of the newest piece.

        A listener who joined late gets no earlier pieces, but a secret that began in them is still
        recognised.
        """
        redactor = self._stream_redactor = self._stream_redactor or StreamRedactor(self._redact)
        if self._emitted_count < len(self.pieces) - 1:
            redactor.feed("".join(self.pieces[self._emitted_count : -1]))
        self._emitted_count = len(self.pieces)
        return redactor.feed(self.pieces[-1])

    def flush(self) -> str:
        """Return the text that redaction held back; empty if nothing was shown."""
        return "" if self._stream_redactor is None else self._stream_redactor.flush()


class StreamBuffer:
    """Buffer of one streamed reply.

    Listeners receive redacted text. Every piece carries the id of the reply's transcript entry, so that a client
    can match the two.
    """

    def __init__(
        self, redact: Redactor, emit: Callable[..., None], has_listeners: Callable[[], bool] = lambda: True
    ) -> None:
        self._redact = redact
        self._emit = emit
        self._has_listeners = has_listeners
        self.entry_id = ""
        self.discard()

    def start_reply(self, entry_id: str) -> None:
        """Start a new reply and discard the previous one."""
        self.discard()
        self.entry_id = entry_id

    def add(self, delta: ReplyDelta) -> None:
        if delta.is_discarded:
            self.discard()
            self._emit("text.discarded")
        elif delta.text:
            self._text.pieces.append(delta.text)
            if self._has_listeners() and (visible := self._text.take_visible()):
                self._emit("text.delta", text=visible, entry=self.entry_id)
        elif delta.thinking:
            self._thinking.pieces.append(delta.thinking)
            if self._has_listeners() and (visible := self._thinking.take_visible()):
                self._emit("thinking.delta", text=visible, entry=self.entry_id)
        elif delta.provider_tool_call is not None:
            self._emit_provider_call(delta.provider_tool_call)
        elif delta.fallback_model:
            note = self._redact(delta.notice)
            self._emit("run.state", phase="model", note=note, warning=note, fallback=delta.fallback_model)
        elif note := delta.wait_reason or delta.notice:
            self._emit("run.state", phase="model", note=self._redact(note))

    def _emit_provider_call(self, provider_call: ProviderToolCall) -> None:
        """Emit a CLI agent's own tool call like any other."""
        tool = self._redact(provider_call.tool)
        if provider_call.is_finished:
            self._emit(
                "tool.ended",
                tool=tool,
                call=provider_call.id,
                ok=provider_call.ok,
                ms=provider_call.duration_ms,
            )
        else:
            self._emit(
                "tool.started", tool=tool, call=provider_call.id, args=self._redact(provider_call.arguments)
            )

    def finish(self) -> None:
        """Emit what redaction held back and clear the buffer, once the reply is on disk."""
        if remainder := self._thinking.flush():
            self._emit("thinking.delta", text=remainder, entry=self.entry_id)
        if remainder := self._text.flush():
            self._emit("text.delta", text=remainder, entry=self.entry_id)
        self.discard()

    def discard(self) -> None:
        self._text = _TextStream(self._redact)
        self._thinking = _TextStream(self._redact)

    def thinking_text(self) -> str:
        """Return the redacted thinking of the reply so far."""
        return self._redact("".join(self._thinking.pieces)) if self._thinking.pieces else ""

    def take_partial(self) -> str:
        """Return the redacted text of an unfinished reply, once."""
        text = self._redact("".join(self._text.pieces))
        self.discard()
        return text
