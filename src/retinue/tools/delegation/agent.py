"""agent, explore, plan and agent_ask: one task for a named agent, its last word as the answer, and more questions to it."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from retinue.domain import agent_pool
from retinue.domain.delivery import error as why
from retinue.domain.delivery import harmless, no_work, one_line
from retinue.domain.limits import MAX_RESULT_BYTES
from retinue.domain.run import Ask, Reason, Run, Status
from retinue.domain.session import Session
from retinue.domain.system_prompt import first_message
from retinue.domain.tool import Effect
from retinue.domain.transcript import Said
from retinue.errors import BadConfig, Conflict, Failed, NotFound, Refused, RetinueError
from retinue.interfaces import Call, Ports, Tx
from retinue.runtime.approvals import Parked, ask_key
from retinue.runtime.child_results import outcome
from retinue.runtime.child_workspace import Child
from retinue.runtime.run_creation import LIVE, send
from retinue.runtime.run_events import told
from retinue.runtime.spawn import permitted, spawn
from retinue.runtime.tool_executor import capped
from retinue.tools.define import tool
from retinue.tools.delegation.answer_json import said

GENERAL, EXPLORER, PLANNER = "general", "explorer", "planner"
UNSEEN = "\n\n[Only you have read this. The user has not: tell them what of it matters to them.]"
BACKGROUND = "It goes on in the background as run {run}, and its result will be announced to you."
SUMMARISE = (
    "You ended without a report. Say in a few sentences what you did, what you found, and what is still open."
)
NO_SUMMARY = "Agent '{agent}' completed the task but did not provide a summary."
NOT_FOUND = "Agent not found: {id}. Agent may have been evicted from pool or ID is invalid."
NO_POOL = "there is no pool (subagents.pool): {agent} is not kept, and cannot be asked more"
BUSY = "Agent {id} is currently in use. Wait for current operation to complete."
INTERRUPTED = "[Request interrupted"
SHORT = 20
"""A last word with fewer characters may be no report."""
LAST = 3
"""So many replies make a summary."""
SEEN = 500
"""So many of the newest runs are looked at to see who else was asked since."""
SLUG = re.compile(r"[a-z0-9-]{1,200}")
"""What a folder of a child can be called."""

WRONG = {
    "persist": "persist parameter must be a boolean",
    "task_prompt": "task_prompt parameter is required and must be a string",
    "agent_id": "agent_id parameter is required and must be a string",
    "message": "message parameter is required and must be a string",
}


def _invalid(problem: str) -> str:
    return said(success=False, error=problem, error_type="validation_error")


def _misread(sentence: str) -> str:
    """Ours names the argument in front; what is wrong with those below is said in one way."""
    named = (problem for name, problem in WRONG.items() if sentence.startswith(f"the argument `{name}`"))
    return _invalid(next(named, sentence))


def _forbidden(name: str) -> str:
    problem = f"{name} is not allowed from sub-agent sessions unless the agent's definition names it"
    return said(success=False, error=problem, error_type=Refused.code)


Task = Annotated[str, "The whole task: the agent knows nothing of this conversation."]
Persist = Annotated[bool, "Whether the agent stays, so that agent_ask can ask it more."]


@tool(
    name="agent",
    effect=Effect.IDEMPOTENT,
    category="agents",
    door=True,
    names_agent="agent_name",
    forbidden=_forbidden("agent"),
    misread=_misread,
)
async def agent(
    call: Call,
    *,
    agent_name: Annotated[str, "Which agent does it."] = GENERAL,
    task_prompt: Task,
    persist: Persist = True,
) -> str:
    """Give a task to a specialised agent, which works in a conversation of its own and reports when it is done. Several
    calls in one reply work side by side. Its agent_id, if it persists, is for agent_ask."""
    return await _handed_on(call, "agent", agent_name.strip() or GENERAL, task_prompt, persist=persist)


@tool(
    name="explore",
    effect=Effect.IDEMPOTENT,
    category="agents",
    door=True,
    forbidden=_forbidden("explore"),
    misread=_misread,
)
async def explore(call: Call, *, task_prompt: Task, persist: Persist = True) -> str:
    """Let an agent that only reads find out where things are and how they hang together. Use it for wide questions
    about code or files, whose search would fill this conversation."""
    return await _handed_on(call, "explore", EXPLORER, task_prompt, persist=persist)


@tool(
    name="plan",
    effect=Effect.IDEMPOTENT,
    category="agents",
    door=True,
    forbidden=_forbidden("plan"),
    misread=_misread,
)
async def plan(call: Call, *, task_prompt: Task, persist: Persist = True) -> str:
    """Let an agent that changes nothing read what is there and turn a goal into a plan of small steps."""
    return await _handed_on(call, "plan", PLANNER, task_prompt, persist=persist)


async def _handed_on(call: Call, door: str, name: str, task: str, *, persist: bool) -> str:
    ports = _ports(call)
    if not task.strip():
        raise Failed(_invalid(WRONG["task_prompt"]))
    kept = persist and ports.subagents.pool
    ask = _asking(call, door, name, first_message(task), keep=kept)
    if persist and not kept and not await ports.ledger.look(lambda tx: tx.run_by_key(ask.key)):
        ports.emit(told("run.state", call.run, ports, phase="tool", warning=NO_POOL.format(agent=name)))
    child = Child(
        parent=call.session,
        description=one_line(task)[:40],
        own_paths=True,
        prompt=lambda definition: agent_pool.specialised(definition, task),
    )
    try:
        run = await spawn(ask, child, ports)
    except NotFound as error:
        raise _no(f"Agent '{name}' not found", NotFound.code, agent_used=name) from error
    except (Refused, BadConfig) as error:
        raise _no(str(error), error.code, agent_used=name) from error
    return await _report(_ended(run), call, ports)


def _ended(run: Run) -> Run:
    """As it was found or born just now, its result not taken yet: with the taking, what is not to be kept goes, and it
    may have to be read. Should it end this very moment, whoever is parked for it learns so at once."""
    if run.status.live and run.awaited:
        raise Parked
    return run


async def _report(run: Run, call: Call, ports: Ports) -> str:
    """The last word, or what stands for it."""
    agent_id = run.slug if run.ask.keep else None
    if run.status.live:
        return said(
            success=True, result=BACKGROUND.format(run=run.id), agent_used=run.agent, agent_id=agent_id
        )
    replies = await _replies(run, ports)
    silent = bool(replies) and not replies[-1].calls and not replies[-1].text.strip()
    words = _words(replies)
    done = run.status is Status.DONE
    text = _complete(run, words, silent=silent) if done else ""
    seconds = _seconds(run)
    if not text and (done or _speechless(run, words, silent=silent)):
        again = await _asked_again(run, call, ports)
        if again is not None and (done or again.status is Status.DONE):
            text, seconds = again.text.strip(), seconds + _seconds(again)
    await outcome(run, call, ports)
    if not (done or text):
        raise _failed(run, words)
    return said(
        success=True,
        result=_told(text or NO_SUMMARY.format(agent=run.agent)) + _idle(run) + UNSEEN,
        agent_used=run.agent,
        duration_seconds=round(seconds, 3),
        agent_id=agent_id,
    )


def _idle(run: Run) -> str:
    """Whoever asked should know when words are all that was done."""
    return f"\n\n[{no_work(run)}]" if run.no_work else ""


def _speechless(run: Run, words: Sequence[str], *, silent: bool) -> bool:
    """It was given up because it never said a word, and may have worked: it is worth asking what it did."""
    return run.status is Status.FAILED and run.reason is Reason.STUCK and silent and not words


def _failed(run: Run, words: Sequence[str]) -> Failed:
    """What did not come to its end is no success, whatever was said on the way."""
    work = _told(_summary(run.agent, words)) if words else None
    return _no(_told(why(run)), str(run.reason or run.status), agent_used=run.agent, result=work)


async def _replies(run: Run, ports: Ports) -> list[Said]:
    """Read only where the last word does not speak for itself. After a crash what was not kept may be gone."""
    if run.status is Status.DONE and not _poor(run.text.strip()):
        return []
    with suppress(RetinueError):
        async with ports.store.open(await ports.store.find(run.path)) as talk:
            return [
                entry
                for entry in talk.entries
                if isinstance(entry, Said) and entry.by == "agent" and entry.run == run.id
            ]
    return []


def _words(replies: Sequence[Said]) -> list[str]:
    return [reply.text.strip() for reply in replies if reply.text.strip()]


def _poor(text: str) -> bool:
    return len(text) < SHORT or INTERRUPTED in text


def _complete(run: Run, words: Sequence[str], *, silent: bool) -> str:
    """The last word; a summary of the work where there is none, or one too short to be a report; nothing where there
    is nothing to make one of."""
    text = "" if silent else run.text.strip()
    if not _poor(text):
        return text
    earlier = [each for each in words if INTERRUPTED not in each]
    if earlier and earlier != [text]:
        return _summary(run.agent, earlier)
    return "" if INTERRUPTED in text else text


def _summary(agent: str, words: Sequence[str]) -> str:
    return "\n\n".join((f"Agent '{agent}' work summary:", *words[-LAST:]))


async def _asked_again(run: Run, call: Call, ports: Ports) -> Run | None:
    """One more run in its conversation, waited for in the same way, that asks for nothing but a report."""
    ask = _asking(call, run.ask.door, run.agent, SUMMARISE, keep=run.ask.keep, part=agent_pool.AGAIN)
    try:
        again = await send(ask, await ports.store.find(run.path), ports)
    except (NotFound, Refused):
        return None
    return await outcome(again, call, ports)


def _told(text: str) -> str:
    """A child's words as data, and no more than fits into one answer with its quotes and breaks escaped."""
    return capped(harmless(text), MAX_RESULT_BYTES // 4)


def _seconds(run: Run) -> float:
    return (run.duration_ms or 0) / 1000


@tool(
    name="agent_ask",
    effect=Effect.IDEMPOTENT,
    category="agents",
    door=True,
    forbidden=_forbidden("agent_ask"),
    misread=_misread,
)
async def agent_ask(
    call: Call,
    *,
    agent_id: Annotated[str, "As agent, explore or plan gave it."],
    message: Annotated[str, "What to ask, or what to do next: the agent remembers its own conversation."],
) -> str:
    """Ask an agent more that worked for you before and persists: it goes on in its own conversation."""
    ports = _ports(call)
    for name, words in (("agent_id", agent_id), ("message", message)):
        if not words.strip():
            raise Failed(_invalid(WRONG[name]))
    key = ask_key(call.run.id, call.id)
    run = await ports.ledger.look(lambda tx: tx.run_by_key(key))
    if run is None:
        run = await _sent(call, agent_id, message, ports)
    ended = await outcome(run, call, ports)
    if ended.status.live:
        return said(success=True, result=BACKGROUND.format(run=ended.id), agent_id=agent_id)
    if ended.status is not Status.DONE:
        raise _failed(ended, _words(await _replies(ended, ports)))
    return said(
        success=True,
        result=_told(ended.text.strip()) + UNSEEN,
        agent_used=ended.agent,
        duration_seconds=round(_seconds(ended), 3),
        agent_id=agent_id,
    )


async def _sent(call: Call, agent_id: str, message: str, ports: Ports) -> Run:
    """Of two that ask at once, one is first: the other gives way, and nothing of it happens."""
    session = await _pooled(agent_id, call, ports)
    ask = _asking(call, agent_pool.ASKING, session.agent, message, keep=True)
    ask = replace(ask, ceilings=call.run.ask.ceilings)  # it may have been made for somebody with more rights
    try:
        await permitted(ask, call.session, ports)
        return await send(ask, session, ports, alone=True)
    except Conflict as error:
        raise _no(BUSY.format(id=agent_id), "busy") from error
    except Refused as error:
        raise _no(str(error), error.code, agent_used=session.agent) from error


async def _pooled(agent_id: str, call: Call, ports: Ports) -> Session:
    """A kept agent of this very conversation: it lies in its folder, and an id names nothing elsewhere."""
    nobody = _no(NOT_FOUND.format(id=agent_id), NotFound.code)
    if not SLUG.fullmatch(agent_id) or not ports.subagents.pool:
        raise nobody
    try:
        session = await ports.store.find(f"{call.session.path}/agents/{agent_id}")
    except RetinueError as error:
        raise nobody from error

    def step(tx: Tx) -> list[Run]:
        return [*tx.runs(status=LIVE), *tx.runs(limit=SEEN), *tx.runs(session=session.id)]

    found = agent_pool.standing(agent_pool.uses(await ports.ledger.look(step)), ports.chance.now())
    use = next((each for each in found if each.session == session.id), None)
    if use is None or session.attributes.get(agent_pool.RETIRED):
        raise nobody
    if use.in_use:
        raise _no(BUSY.format(id=agent_id), "busy")
    return session


def _asking(call: Call, door: str, agent: str, words: str, *, keep: bool, part: str = "") -> Ask:
    return Ask(
        key=ask_key(call.run.id, f"{call.id}{part}"),
        agent=agent,
        task=words,
        requester=call.session.key,
        parent_run=call.run.id,
        door=door,
        source="subagent",
        wait=True,
        keep=keep,
    )


def _ports(call: Call) -> Ports:
    if call.ports is None:
        raise _no("there is no session to work from", "system_error")
    return call.ports


def _no(problem: str, kind: str, **facts: object) -> Failed:
    return Failed(said(success=False, error=problem, **facts, error_type=kind))
