"""sessions_spawn and sessions_list: workers in the background, in conversations of their own; what they find is
announced."""

from typing import Annotated, Literal

import msgspec

from retinue.domain.delivery import one_line, subagent_status
from retinue.domain.run import Ask, Run, iso
from retinue.domain.system_prompt import worker_prompt
from retinue.domain.tool import Effect
from retinue.errors import BadConfig, Failed, NotFound, Refused
from retinue.interfaces import Call, Tx
from retinue.runtime.approvals import ask_key
from retinue.runtime.child_workspace import Child
from retinue.runtime.spawn import spawn
from retinue.tools.define import tool
from retinue.tools.delegation.answer_json import said

NAME = "sessions_spawn"
MAX_LISTED = 200
FORBIDDEN = said(status="forbidden", error="sessions_spawn is not allowed from sub-agent sessions")


def _misread(sentence: str) -> str:
    return said(status="error", error=sentence)


@tool(
    name=NAME, effect=Effect.IDEMPOTENT, category="sessions", door=True, forbidden=FORBIDDEN, misread=_misread
)
async def sessions_spawn(
    call: Call,
    *,
    task: Annotated[str, "What the worker is to do: all of it, it knows nothing of this conversation."],
    label: Annotated[str | None, "A word or two to know it by, such as research."] = None,
    model: Annotated[str | None, "Another model than the usual one."] = None,
    thinking: Annotated[Literal["off", "low", "medium", "high"] | None, "How much it thinks."] = None,
    timeoutSeconds: Annotated[  # noqa: N803  (the seed's name)
        Annotated[int, msgspec.Meta(ge=0)] | None, "How long it may take; 0 is the longest there is."
    ] = None,
    cleanup: Annotated[
        Literal["delete", "keep"], "Whether its conversation stays when its result was announced."
    ] = "keep",
) -> str:
    """Spawn a background sub-agent run in an isolated session. Results are announced back when complete: go on with
    something else meanwhile, or end your turn."""
    ports = call.ports
    if ports is None:
        raise Failed(said(status="error", error="there is no session to spawn from"))
    if not task.strip():
        raise Failed(said(status="error", error="task is empty"))
    agent = call.session.agent
    key = f"agent:{agent}:subagent:{ports.chance.uuid()}"
    ask = Ask(
        key=ask_key(call.run.id, call.id),
        agent=agent,
        task=task,
        requester=call.session.key,
        parent_run=call.run.id,
        door=NAME,
        source="subagent",
        label=one_line(label or ""),
        model=model or ports.subagents.model,
        thinking=thinking,
        deadline_seconds=timeoutSeconds,
        keep=cleanup == "keep",
    )
    prompt = worker_prompt(requester=call.session.key, session=key, label=ask.label or agent, task=task)
    child = Child(
        parent=call.session,
        description=ask.label or one_line(task)[:40],
        own_paths=True,
        prompt=lambda _: prompt,
        key=key,
        leaf=True,
    )
    try:
        run = await spawn(ask, child, ports)
    except (Refused, NotFound) as error:
        raise Failed(said(status="forbidden", error=str(error))) from error
    except BadConfig as error:
        raise Failed(said(status="error", error=str(error))) from error
    return said(status="accepted", runId=run.id, sessionKey=run.key)


@tool(name="sessions_list", effect=Effect.READ, category="sessions", looks=True)
async def sessions_list(
    call: Call,
    limit: Annotated[Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)], "How many at most."] = 50,
) -> str:
    """List the runs that this conversation has started in other sessions, the newest first: what became of each, and
    its session's key."""
    ports = call.ports
    if ports is None:
        raise Failed(said(status="error", error="there is no session to look from"))

    def step(tx: Tx) -> list[Run]:
        asking = tx.runs(session=call.session.id)
        found = [run for each in asking for run in tx.runs(parent_run=each.id, limit=limit)]
        return sorted(found, key=lambda run: run.id, reverse=True)[:limit]

    runs = await ports.ledger.look(step)
    return said(count=len(runs), sessions=[_row(run) for run in runs])


def _row(run: Run) -> dict[str, object]:
    return {
        "key": run.key,
        "runId": run.id,
        "agentId": run.agent,
        "label": run.ask.label or None,
        "status": subagent_status(run),
        "startedAt": iso(run.started_at),
        "finishedAt": iso(run.ended_at),
        "error": run.error or None,
    }
