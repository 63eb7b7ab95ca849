"""agents_message and agents_list: a message to another agent in a conversation of its own, and its one answer."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal
from weakref import WeakKeyDictionary

import msgspec

from retinue.domain.agent import Agent
from retinue.domain.delivery import error, harmless
from retinue.domain.run import Ask, Reason, Run, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import LISTING, MESSAGE
from retinue.domain.tool import Effect
from retinue.domain.transcript import Called, Returned
from retinue.domain.value import value
from retinue.errors import BadConfig, Failed, NotFound, Refused, RetinueError
from retinue.interfaces import Call, Ports, Tx
from retinue.runtime.approvals import ask_key
from retinue.runtime.child_results import outcome
from retinue.runtime.child_workspace import handed_down
from retinue.runtime.run_creation import LIVE, send
from retinue.runtime.run_plan import definition, scope_of
from retinue.runtime.spawn import ancestry, begin, permitted
from retinue.runtime.startable_agents import nameable, peers
from retinue.runtime.tool_executor import capped
from retinue.tools.define import tool
from retinue.tools.delegation.answer_json import said

LATEST, CREATE, LATEST_OR_CREATE = "latest", "create", "latest-or-create"
DEFAULT_SECONDS = 300
MAX_RESPONSE = 60_000
"""Characters of an answer that are shown: even escaped, they fit into a result."""
MAX_TOOL_CALLS = 200
LATER = "The response will be announced as [Async response, responseId={run}]: go on meanwhile."
_FIRST: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Calls of one reply are made side by side: whoever is not the first to address an agent finds the conversation that
the first began."""


def _fault(code: str, message: str, reason: str = "", beside: Mapping[str, object] | None = None) -> str:
    """One shape for every error; the codes are for programs."""
    told = {"code": code, "message": message} | ({"reason": reason} if reason else {})
    return said(error=told, **(beside or {}))


def _misread(sentence: str) -> str:
    return _fault("invalid_arguments", sentence)


FORBIDDEN = _fault(
    "agent_not_accessible",
    "an agent that was asked by another one does not ask others, unless its definition names agents_message",
)


@value
class _Message:
    """What is asked of whom: the arguments of one call."""

    agent: str
    content: str
    session: str
    wait: bool
    seconds: float


@tool(
    name=MESSAGE,
    effect=Effect.IDEMPOTENT,
    capabilities=["agents.write"],
    category="agents",
    door=True,
    forbidden=FORBIDDEN,
    misread=_misread,
)
async def agents_message(
    call: Call,
    *,
    agentId: Annotated[str, "Which agent is asked."],  # noqa: N803  (the seed's name)
    content: Annotated[str, "The message: it becomes a user message in a conversation of that agent."],
    session: Annotated[
        str,
        "In which conversation: latest, create, latest-or-create, or the id of one that belongs to the agent.",
    ] = LATEST_OR_CREATE,
    mode: Annotated[
        Literal["sync", "async"],
        "sync waits for the response; async returns at once, and the response is announced later.",
    ] = "sync",
    timeout: Annotated[  # noqa: ASYNC109  (the seed's name, and no clock of ours)
        Annotated[float, msgspec.Meta(ge=0)],
        "How many seconds sync waits; 0 is the longest there is. The agent goes on after that.",
    ] = DEFAULT_SECONDS,
) -> str:
    """Send a message to another agent, which answers in a conversation of its own with its own tools and history. Ask it
    for one thing at a time: one message, one response."""
    ports = call.ports
    if ports is None:
        raise Failed(_fault("agent_message_failed", "there is no session to send from"))
    seconds = float(ports.limits.deadline(timeout))
    message = _Message(agent=agentId, content=content, session=session, wait=mode == "sync", seconds=seconds)
    key = ask_key(call.run.id, call.id)
    run = await ports.ledger.look(lambda tx: tx.run_by_key(key)) or await _sent(key, message, call, ports)
    if message.wait:
        run = await outcome(run, call, ports)
    return await _answered(run, message, ports)


async def _sent(key: str, message: _Message, call: Call, ports: Ports) -> Run:
    """Every check comes before the conversation that is written to is so much as chosen."""
    for name, given in (("content", message.content), ("session", message.session)):
        if not given.strip():
            raise Failed(_fault("invalid_arguments", f"{name} is empty"))
    until = ports.chance.now() + timedelta(seconds=message.seconds)
    ask = Ask(
        key=key,
        agent=message.agent,
        task=message.content,
        requester=call.session.key,
        parent_run=call.run.id,
        door=MESSAGE,
        source="subagent",
        wait=message.wait,
        wait_until=until if message.wait else None,
        unless_busy=True,
        ceilings=handed_down(await definition(call.session, ports), call.session, ports, run=call.run),
    )
    await _reachable(ask, call, ports)
    chosen, created = await _conversation(message, call, ports)
    try:
        return await send(replace(ask, session=None if created else chosen.id), chosen, ports)
    except Refused as refused:
        if created:
            await ports.store.delete(chosen)
        raise Failed(_fault("agent_message_failed", str(refused))) from refused


async def _reachable(ask: Ask, call: Call, ports: Ports) -> None:
    """An agent that is there, that lists show and the rights allow, that can be worked, and that is not itself waiting
    for the one who asks."""
    barred = f"Agent not accessible: {ask.agent}"
    try:
        target = ports.agents.get(ask.agent, call.session.workspace.meant).agent
    except NotFound as missing:
        raise Failed(_fault("agent_not_found", f"Agent not found: {ask.agent}")) from missing
    above = await ports.ledger.look(lambda tx: ancestry(call.run.id, tx))
    line = [run.agent for run in above]
    if ask.agent in line:
        chain = " > ".join((*line, ask.agent))
        raise Failed(_fault("agent_not_accessible", f"{barred}: it is at work above already: {chain}"))
    if not target.ui_visible:
        raise Failed(_fault("agent_not_accessible", barred, reason="its definition says ui_visible: false"))
    try:
        await permitted(ask, call.session, ports, above=above)
    except Refused as refused:
        raise Failed(_fault("agent_not_accessible", barred, reason=str(refused))) from refused
    try:
        ports.model(target, None)
    except BadConfig as bad:
        raise Failed(_fault("agent_not_available", f"Agent not available: {ask.agent}: {bad}")) from bad


async def _conversation(message: _Message, call: Call, ports: Ports) -> tuple[Session, bool]:
    """The one that is meant, and whether it was made for this message. After a crash between its making and the run's
    birth it stays behind, empty."""
    if message.session == CREATE:
        return await _begun(message, call, ports), True
    if message.session not in (LATEST, LATEST_OR_CREATE):
        return await _exactly(message.session, message.agent, ports), False
    if found := await _latest(message.agent, ports):
        return found, False
    if message.session == LATEST:
        raise Failed(_fault("agent_session_error", "No existing session for agent"))
    async with _FIRST.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if found := await _latest(message.agent, ports):
            return found, False
        return await _begun(message, call, ports), True


async def _begun(message: _Message, call: Call, ports: Ports) -> Session:
    try:
        return await begin(message.agent, call.session.workspace.root, ports)
    except RetinueError as failed:
        raise Failed(_fault("agent_session_error", str(failed))) from failed


async def _latest(agent: str, ports: Ports) -> Session | None:
    return next(iter(await ports.store.sessions(agent=agent, children=False)), None)


async def _exactly(wanted: str, agent: str, ports: Ports) -> Session:
    """Only what the store lists can be meant, and only by its whole name: a path would lead to any folder. Somebody's
    child is nobody else's to talk to."""
    listed = await ports.store.sessions(children=False)
    for each in listed:
        if wanted in (each.id, each.slug, each.key, *each.aliases):
            if each.agent != agent:
                raise Failed(_fault("agent_session_error", "Session does not belong to this agent"))
            return each
    raise Failed(_fault("agent_session_error", "Session not found"))


async def _answered(run: Run, message: _Message, ports: Ports) -> str:
    facts = await reported(run, ports, wait=message.wait, seconds=message.seconds)
    if "error" in facts:
        raise Failed(said(**facts))
    return said(**facts)


async def reported(
    run: Run, ports: Ports, *, wait: bool, seconds: float, later: str = LATER
) -> dict[str, object]:
    """What became of a message so far, in the seed's shape; `error` is there when it came to nothing. `later` says how
    the response comes when it comes later."""
    known: dict[str, object] = {
        "agentId": run.agent,
        "sessionId": run.session_id,
        "sessionName": await _called(run, ports),
        "created": run.ask.session is None,
        "responseId": run.id,
    }
    if not wait:
        queued = await ports.ledger.look(lambda tx: behind(run, tx))
        asked = {"mode": "async", "status": "queued" if queued else "started", **known}
        return asked | ({"messageId": run.id} if queued else {})
    if run.status.live or await ports.ledger.look(lambda tx: tx.deliveries(run=run.id, answers=False)):
        return {"mode": "sync"} | known | _later(run, seconds, later.format(run=run.id), ports)
    if run.status is not Status.DONE:
        told = {"error": {"code": "agent_message_failed", "message": error(run)}} | known
        summed_up = run.reason is Reason.INTERRUPTED and run.text
        return told | ({"response": harmless(run.text)} if summed_up else {})
    return {
        "mode": "sync",
        "status": "complete",
        **known,
        "response": capped(harmless(run.text), MAX_RESPONSE),
        "truncated": len(harmless(run.text)) > MAX_RESPONSE,
        "durationMs": run.duration_ms,
        "toolCallCount": run.tool_calls,
        "toolCalls": await _tool_calls(run, ports),
    }


def _later(run: Run, seconds: float, later: str, ports: Ports) -> dict[str, object]:
    """Nobody waits for it (any more), and it goes on: its conversation was busy, its time is up, or a person sent it
    to the background."""
    until = run.ask.wait_until
    if run.started_at is None and (until is None or ports.chance.now() < until):
        return {"status": "queued", "messageId": run.id, "message": f"Busy. {later}"}
    return {
        "status": "timeout",
        "timeoutSeconds": int(seconds) if seconds.is_integer() else seconds,
        "message": f"No response yet, and the agent goes on. {later}",
    }


def behind(run: Run, tx: Tx) -> bool:
    """Whether it has not begun because its conversation is busy with something else."""
    now = tx.run(run.id) or run
    others = tx.runs(session=run.session_id, status=LIVE) if now.status is Status.QUEUED else ()
    return any(each.id != run.id and not each.aside and each.created_at <= run.created_at for each in others)


async def _called(run: Run, ports: Ports) -> str:
    """What people call the conversation; its folder's name where it has no other."""
    try:
        return (await ports.store.find(run.session_id)).name or run.slug
    except RetinueError:
        return run.slug


async def _tool_calls(run: Run, ports: Ports) -> list[dict[str, object]] | None:
    """As its file tells; None while somebody else has that open."""
    if not run.tool_calls:
        return []
    try:
        async with ports.store.open(await ports.store.find(run.path)) as talk:
            entries = [*await talk.earlier(run.id), *talk.entries]
    except RetinueError:
        return None
    took = {entry.of: entry.ms for entry in entries if isinstance(entry, Returned)}
    mine = [entry for entry in entries if isinstance(entry, Called) and entry.run == run.id]
    return [{"name": each.tool, "durationMs": took.get(each.id, 0)} for each in mine[:MAX_TOOL_CALLS]]


@tool(
    name=LISTING,
    effect=Effect.READ,
    capabilities=["agents.read"],
    category="agents",
    looks=True,
    misread=_misread,
)
async def agents_list(
    call: Call,
    includeAll: Annotated[  # noqa: N803  (the seed's name)
        bool, "Also the agents that lists do not show; they take no messages."
    ] = False,
) -> str:
    """List the other agents that you can hand work to, and what each is for."""
    ports = call.ports
    if ports is None:
        raise Failed(_fault("agent_not_available", "there is no session to look from"))
    own = await definition(call.session, ports)
    scope = scope_of(own, call.session, ports, run=call.run).under(ports.bounds())
    named = nameable(scope, ports.agents.all(call.session.workspace.meant), ports)
    found = peers(call.session.agent, named, hidden=includeAll)
    return said(agents=[_row(each) for each in found])


def _row(agent: Agent) -> dict[str, object]:
    row: dict[str, object] = {
        "agentId": agent.name,
        "displayName": agent.title,
        "description": agent.description,
        "type": str(agent.type),
    }
    return row if agent.ui_visible else row | {"uiVisible": False}
