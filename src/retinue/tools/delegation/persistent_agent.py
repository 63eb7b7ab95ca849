"""PersistentAgent: a child with a conversation of its own in the parent's folder, and all it said as the answer."""

from typing import Annotated

from retinue.domain.approval import Answer
from retinue.domain.delivery import report
from retinue.domain.run import Ask, Reason, Run, Status
from retinue.domain.tool import Asks, Effect
from retinue.domain.transcript import Said
from retinue.errors import Failed, NotFound, RetinueError
from retinue.interfaces import Call, Ports
from retinue.runtime.approvals import ask_key
from retinue.runtime.child_results import outcome
from retinue.runtime.child_workspace import Child
from retinue.runtime.run_end import nonce
from retinue.runtime.spawn import spawn
from retinue.tools.define import tool

NAME = "PersistentAgent"
NO_PARENT = "PersistentAgent requires parent persistent session"
ABORTED = "Error: User aborted agent"
BACKGROUND = (
    "It goes on in the background as run {run}. What it finds will be announced to you: go on meanwhile."
)
NETWORK = frozenset(
    {Reason.RATE_LIMITED, Reason.UNREACHABLE, Reason.INCOMPLETE, Reason.PROVIDER, Reason.AUTH}
)


@tool(
    name=NAME,
    effect=Effect.IDEMPOTENT,
    category="gptel-persistent",
    door=True,
    asks=Asks.ALWAYS,
    names_agent="preset",
)
async def persistent_agent(
    call: Call,
    preset: Annotated[str, "Which agent does the work."],
    description: Annotated[str, "A few words that name the work; they become part of its folder's name."],
    prompt: Annotated[str, "The whole task: the agent knows nothing of this conversation."],
    allowed_paths: Annotated[
        list[str] | None,
        "What it may read, as globs; what you may read when not given; [] for no restriction.",
    ] = None,
    denied_paths: Annotated[list[str] | None, "What it may not touch, as globs."] = None,
) -> str:
    """Hand a piece of work to another agent, which works in a conversation of its own and answers when it is done. Use it
    for work that stands alone and would fill this conversation with detail. Its answer is everything it said."""
    ports = call.ports
    if ports is None or not ports.keeps:
        raise Failed(NO_PARENT)
    if not prompt.strip():
        raise Failed("the prompt is empty: say what the agent is to do")
    ask = Ask(
        key=ask_key(call.run.id, call.id),
        agent=preset,
        task=prompt,
        requester=call.session.key,
        parent_run=call.run.id,
        door=NAME,
        source="subagent",
        label=description,
        wait=True,
    )
    child = Child(
        parent=call.session,
        description=description,
        allowed_paths=allowed_paths,
        denied_paths=denied_paths,
        by_person=call.answer is Answer.ALLOW,
    )
    try:
        run = await spawn(ask, child, ports)
    except NotFound as error:
        raise Failed(f"Preset template not found: {preset} (checked .md and .org)") from error
    return await _said(await outcome(run, call, ports), ports)


async def _said(run: Run, ports: Ports) -> str:
    if run.status.live:
        return BACKGROUND.format(run=run.id)
    if run.reason is Reason.INTERRUPTED and run.text.strip():
        return report(run, run.text, nonce(ports), ports.cost(run))
    if run.status is Status.CANCELLED:
        raise Failed(ABORTED)
    if run.status is not Status.DONE:
        failure = "Error: Network failure\n" if run.reason in NETWORK else "Error: "
        raise Failed(f"{failure}{run.error or run.reason or run.status}")
    return report(run, "\n\n".join(await _texts(run, ports)) or run.text, nonce(ports), ports.cost(run))


async def _texts(run: Run, ports: Ports) -> list[str]:
    """As its file tells; nothing while somebody else has that open, or when it is gone."""
    if run.turns == 1:
        return [run.text]
    try:
        async with ports.store.open(await ports.store.find(run.path)) as talk:
            entries = [*await talk.earlier(run.id), *talk.entries]
    except RetinueError:
        return []
    said = [each for each in entries if isinstance(each, Said) and each.by == "agent" and each.run == run.id]
    return [each.text for each in said if each.text.strip()]
