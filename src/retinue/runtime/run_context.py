"""The run in hand: what was counted of it so far, and how everybody who works on it speaks of it."""

from dataclasses import dataclass

from retinue.domain.change import replace
from retinue.domain.question import Question, chosen
from retinue.domain.run import Run, iso_seconds
from retinue.domain.transcript import Called, Entry, Notice, Returned, Said, name_of
from retinue.interfaces import Conversation, Ports
from retinue.runtime.recovery import unanswered
from retinue.runtime.run_events import told


@dataclass(slots=True)
class Desk:
    """One for each time that a run is worked. The run is a value: whoever counts puts a new one here."""

    run: Run
    ports: Ports
    added_last: bool = False
    """Nothing was waited for since something was added to the conversation."""

    def tell(self, kind: str, **data: object) -> None:
        if self.ports.listened():
            self.ports.emit(told(kind, self.run, self.ports, **data))

    async def add(self, talk: Conversation, *entries: Entry, sync: bool = True) -> None:
        await talk.append(*entries, sync=sync)
        self.added_last = True
        if self.ports.listened():
            self.saved(*entries)

    def saved(self, *entries: Entry) -> None:
        """They are in the file: whoever listens can read them there."""
        for entry in entries:
            self.tell("entry.saved", entry=name_of(entry), of=_what(entry))

    def at(self) -> str:
        return iso_seconds(self.ports.chance.now())

    def notice(self, kind: str, text: str) -> Notice:
        return Notice(id=self.ports.chance.entry_id(), kind=kind, text=text, at=self.at(), run=self.run.id)

    def heard(self, words: str) -> Said:
        """What a person says to the run on its way."""
        at = self.at()
        return Said(id=self.ports.chance.entry_id(), by="user", text=words, at=at, run=self.run.id)

    def replied(self, question: Question, words: str) -> Returned:
        """A person's answer is what the call came to."""
        text = chosen(words, question.options)
        return Returned(of=question.call.id, text=text, at=self.at(), run=self.run.id)

    def returned(self, called: Called, text: str) -> Returned:
        """The answer to a call that was not made, or came to nothing."""
        return Returned(of=called.id, text=text, ok=False, at=self.at(), run=self.run.id)

    def unmade(self, talk: Conversation, why: str) -> list[Returned]:
        """Answers to all calls that stand open."""
        _, lost = unanswered(talk.entries, replace(self.run, id=""))
        return [replace(each, text=f"No result: {why}.", run=self.run.id, at=self.at()) for each in lost]


def _what(entry: Entry) -> str:
    match entry:
        case Said():
            return entry.by
        case Called():
            return "call"
        case Returned():
            return "result"
        case Notice():
            return "notice"
