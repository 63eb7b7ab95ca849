"""Build events about a run."""

from retinue.domain.event import Event, EventKind
from retinue.domain.run import Run
from retinue.interfaces import RuntimeContext


def make_event(kind: EventKind, run: Run, context: RuntimeContext, **data: object) -> Event:
    return Event(
        kind=kind,
        at=context.clock.now(),
        session=run.session_id,
        run=run.id,
        parent_run=run.request.parent_run or "",
        agent=run.agent,
        data=data,
    )
