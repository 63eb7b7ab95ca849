"""What a person does to a run on its way: stop it, hear what it has come to, send it away, say how to go on."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from retinue.domain.run import Run
from retinue.domain.session import Session
from retinue.errors import Usage
from retinue.interfaces import Ports
from retinue.runtime import run_control
from retinue.runtime.interrupts import interrupt


class Steering(ABC):
    """The half of the application that goes on with what was begun, or does not."""

    def __init__(self, ports: Ports, owner_lives: Callable[[str], bool]) -> None:
        self._ports = ports
        self._owner_lives = owner_lives

    @abstractmethod
    async def find_run(self, ref: str) -> Run:
        """By id or unambiguous prefix, or by any name of its session."""

    async def cancel(self, ref: str) -> Run:
        run = await self.find_run(ref)
        return await run_control.cancel(run.id, self._ports, alive=self._owner_lives)

    async def interrupt(self, ref: str) -> Run:
        """It ends with a summary of what it has come to, and so do those it asked. Wait for it to hear that."""
        run = await self.find_run(ref)
        return await interrupt(run.id, self._ports)

    async def detach(self, ref: str) -> Run:
        """A run that a call waits for goes on in the background, and whoever waited goes on too."""
        run = await self.find_run(ref)
        return await run_control.detach(run.id, self._ports)

    async def answered(
        self,
        session: Session,
        text: str | None,
        *,
        model: str | None = None,
        owner: str | None = None,
        key: str = "",
    ) -> Run | None:
        """The run of a conversation that waited for a person's words, with these; None: none does."""
        said(text)
        entry = entry_for(key) if key else ""
        return await run_control.answered(session, text, self._ports, model=model, owner=owner, entry=entry)


def said(text: str | None) -> None:
    """Blank words are none; where none are given, those count that are typed in the file."""
    if text is not None and not text.strip():
        raise Usage("there is nothing to send: the text is blank")


def entry_for(key: str) -> str:
    """Under which id the words of a wish with a key stand in a file, where no run of that key is born for them."""
    return f"said-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
