"""What is heard of a reply while it comes: told in pieces, and kept until the whole of it is on disk."""

from collections.abc import Callable

from retinue.domain.model_turn import Act, Delta
from retinue.domain.redaction import Redactor, Veil


class _Words:
    """What one reply says, or thinks: kept as it comes, and shown through a veil once somebody listens."""

    __slots__ = ("_passed", "_redact", "_veil", "pieces")

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self.pieces: list[str] = []
        self._passed = 0
        """How many of them went through the veil: none while nobody listens."""
        self._veil: Veil | None = None

    def shown(self) -> str:
        """What can be shown of the newest. Whoever came late is told nothing of those before, and the end of a secret
        that began there is known for one."""
        veil = self._veil = self._veil or Veil(self._redact)
        if self._passed < len(self.pieces) - 1:
            veil.shown("".join(self.pieces[self._passed : -1]))
        self._passed = len(self.pieces)
        return veil.shown(self.pieces[-1])

    def rest(self) -> str:
        """Nothing follows. Nothing was shown: then this is not told either."""
        return "" if self._veil is None else self._veil.rest()


class Hearing:
    """One reply on its way. Listeners get its words redacted; what was discarded is forgotten. It has the id of the entry
    that it becomes from its first word on, so that whoever has both knows them for one."""

    def __init__(
        self, redact: Redactor, tell: Callable[..., None], listened: Callable[[], bool] = lambda: True
    ) -> None:
        self._redact = redact
        self._tell = tell
        self._listened = listened
        self.entry = ""
        self.forget()

    def begin(self, entry: str) -> None:
        """Another reply is asked for."""
        self.forget()
        self.entry = entry

    def hear(self, delta: Delta) -> None:
        if delta.discarded:
            self.forget()
            self._tell("text.discarded")
        elif delta.text:
            self._said.pieces.append(delta.text)
            if self._listened() and (shown := self._said.shown()):
                self._tell("text.delta", text=shown, entry=self.entry)
        elif delta.thinking:
            self._thought.pieces.append(delta.thinking)
            if self._listened() and (shown := self._thought.shown()):
                self._tell("thinking.delta", text=shown, entry=self.entry)
        elif delta.act is not None:
            self._act(delta.act)
        elif delta.waiting:
            self._tell("run.state", phase="model", note=self._redact(delta.waiting))

    def _act(self, act: Act) -> None:
        """A call that whoever answers makes by itself is told like any other."""
        tool = self._redact(act.tool)
        if act.over:
            self._tell("tool.ended", tool=tool, call=act.id, ok=act.ok, ms=act.ms)
        else:
            self._tell("tool.started", tool=tool, call=act.id, args=self._redact(act.args))

    def finish(self) -> None:
        """The reply is on disk: what waited for more is told, and nothing of it is partial any more."""
        if rest := self._thought.rest():
            self._tell("thinking.delta", text=rest, entry=self.entry)
        if rest := self._said.rest():
            self._tell("text.delta", text=rest, entry=self.entry)
        self.forget()

    def forget(self) -> None:
        self._said = _Words(self._redact)
        self._thought = _Words(self._redact)

    def partial(self) -> str:
        """Words of a reply that never became whole, once."""
        text = self._redact("".join(self._said.pieces))
        self.forget()
        return text
