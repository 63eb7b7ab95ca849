"""Build events about a run."""

from retinue.domain.event import Event
from retinue.domain.run import Run
from retinue.interfaces import RuntimeContext


def make_event(kind: str, run: Run, context: RuntimeContext, **data: object) -> Event:
    return Event(
        kind=kind,  # pyright: ignore[reportArgumentType]  (callers pass literals of the table)
        at=context.clock.now(),
        session=run.session_id,
        run=run.id,
        parent_run=run.request.parent_run or "",
        agent=run.agent,
        data=data,
    )
