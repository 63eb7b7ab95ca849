"""spawn_subagent: a subtask for another agent, in a conversation and a workspace of its own, waited for or not."""

from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from retinue.domain.delivery import error as why
from retinue.domain.delivery import inbox_status, one_line, report
from retinue.domain.delivery import label as called
from retinue.domain.run import Ask, Reason, Run, Status
from retinue.domain.tool import Effect
from retinue.domain.value import value
from retinue.domain.workspace import Isolation
from retinue.errors import BadDefinition, Failed, NotFound, Refused
from retinue.interfaces import Call, Ports
from retinue.runtime.approvals import ask_key
from retinue.runtime.child_results import outcome
from retinue.runtime.child_workspace import Child, overridden
from retinue.runtime.run_end import nonce
from retinue.runtime.spawn import spawn
from retinue.tools.define import tool
from retinue.tools.delegation.answer_json import said

NAME = "spawn_subagent"
NO_PARENT = "there is no session to spawn from"
MAX_DESCRIPTION = 40

Mode = Literal["inherit", "sandbox", "custom"]
ReturnMode = Literal["blocking", "background"]
ISOLATION = {"inherit": Isolation.SHARED, "sandbox": Isolation.SANDBOX, "custom": Isolation.CUSTOM}


@value
class Override:
    """What is said of a workspace for one call, instead of what the definition says."""

    mode: Annotated[
        Mode | None,
        msgspec.Meta(
            description="inherit: the folder you work in; sandbox: a worktree of its own; custom: another folder."
        ),
    ] = None
    customPath: Annotated[  # noqa: N815  (the seed's name)
        str | None, msgspec.Meta(description="The folder, with mode custom; you must be able to read it.")
    ] = None
    allowWrites: Annotated[  # noqa: N815  (the seed's name)
        bool | None,
        msgspec.Meta(
            description="Whether it may write there; it never may where you or its definition may not."
        ),
    ] = None


@tool(name=NAME, effect=Effect.IDEMPOTENT, category="agents", door=True, names_agent="agentId")
async def spawn_subagent(
    call: Call,
    *,
    agentId: Annotated[str, "Which agent does the work."],  # noqa: N803  (the seed's name)
    prompt: Annotated[str, "The whole task: the agent knows nothing of this conversation."],
    capability: Annotated[
        Literal["primary", "subtask", "watcher", "orchestrator"], "The role in which it is started."
    ] = "subtask",
    returnMode: Annotated[  # noqa: N803  (the seed's name)
        ReturnMode,
        "blocking: the answer is its summary. background: go on meanwhile; its end comes to your inbox by itself.",
    ] = "blocking",
    label: Annotated[str | None, "A word or two to know it by."] = None,
    workspace: Annotated[Override | None, "Another workspace than its definition says."] = None,
) -> str:
    """Hand a subtask to another agent, which works in a conversation of its own: none of it but the summary comes here.
    Use it for work that stands alone and would fill this conversation with detail."""
    ports = call.ports
    if ports is None:
        raise Failed(NO_PARENT)
    if not prompt.strip():
        raise Failed("the prompt is empty: say what the agent is to do")
    ask = Ask(
        key=ask_key(call.run.id, call.id),
        agent=agentId,
        task=prompt,
        requester=call.session.key,
        parent_run=call.run.id,
        door=NAME,
        source="subagent",
        label=one_line(label or ""),
        wait=returnMode == "blocking",
        role=capability,
    )
    run = await known(ask, ports)
    if run is None:
        child = Child(parent=call.session, description=ask.label or one_line(prompt), own_paths=True)
        run = await begun(ask, _placed(child, workspace, ask, call), ports)
    return await answered(run, call, ports)


async def known(ask: Ask, ports: Ports) -> Run | None:
    """The run that this very call asked for before: then nothing is looked at a second time."""
    return await ports.ledger.look(lambda tx: tx.run_by_key(ask.key))


async def begun(ask: Ask, child: Child, ports: Ports) -> Run:
    """The run, or why there is none, in the words that users of this door know."""
    try:
        return await spawn(ask, replace(child, description=child.description[:MAX_DESCRIPTION]), ports)
    except NotFound as error:
        raise _unknown(ask.agent, error) from error
    except Refused as error:
        raise Failed(str(error)) from error


async def answered(run: Run, call: Call, ports: Ports) -> str:
    """Its summary as data, where somebody waits for it; else that it is under way."""
    if not run.ask.wait:
        return _under_way(run)
    run = await outcome(run, call, ports)
    if run.status.live:
        return _under_way(run)
    if run.reason is Reason.INTERRUPTED and run.text.strip():
        return report(run, run.text, nonce(ports), ports.cost(run))
    if run.status is not Status.DONE:
        raise Failed(f"{called(run)} error: {why(run)} (its conversation: {run.path})")
    return report(run, run.text, nonce(ports), ports.cost(run))


def _under_way(run: Run) -> str:
    return said(sessionId=run.session_id, runId=run.id, agentId=run.agent, status=inbox_status(run))


def _unknown(agent: str, error: NotFound) -> Failed:
    """A definition that is there and broken is told with its own words."""
    return Failed(
        str(error) if isinstance(error.__cause__, BadDefinition) else f"Unknown agent profile: {agent}"
    )


def _placed(child: Child, wish: Override | None, ask: Ask, call: Call) -> Child:
    if wish is None or call.ports is None:
        return child
    try:
        own = call.ports.agents.get(ask.agent, call.session.workspace.meant).agent.workspace
    except NotFound as error:
        raise _unknown(ask.agent, error) from error
    placed = overridden(
        own,
        isolation=None if wish.mode is None else ISOLATION[wish.mode],
        folder=_folder(wish, call),
        writable=wish.allowWrites,
    )
    return replace(child, workspace=placed)


def _folder(wish: Override, call: Call) -> str | None:
    """A folder is named by its real name, and only one that the caller itself may read."""
    if (wish.mode == "custom") != bool(wish.customPath):
        raise Failed("workspace.customPath and workspace.mode custom go together: say both or neither")
    return call.files.judge(wish.customPath, "read") if wish.customPath else None
