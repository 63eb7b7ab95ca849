"""Telling: an event about a run, stamped and attributed."""

from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.interfaces import Ports


def told(kind: str, run: Run, ports: Ports, **data: object) -> Event:
    return Event(
        kind=kind,  # pyright: ignore[reportArgumentType]  (callers pass literals of the table)
        at=ports.chance.now(),
        session=run.session_id,
        run=run.id,
        parent_run=run.ask.parent_run or "",
        agent=run.agent,
        data=data,
    )
