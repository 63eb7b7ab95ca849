"""The gate between a wish and the world: the only place a tool is called."""

import asyncio
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from time import perf_counter

from retinue.domain.ceiling import Wish
from retinue.domain.change import replace
from retinue.domain.limits import MAX_ARGUMENT_BYTES, MAX_RESULT_BYTES
from retinue.domain.permissions.scope import Scope
from retinue.domain.rules import Verdict
from retinue.domain.run import iso_seconds
from retinue.domain.sanitize import for_model
from retinue.domain.tool import Effect
from retinue.domain.transcript import Called, Returned
from retinue.errors import OutOfScope, Refused, RetinueError
from retinue.interfaces import Call, Ports, Tool
from retinue.runtime import side_effects
from retinue.runtime.approvals import Caller, Leave, Parked, Wanted, again, ask_key, leave

MOST_BEARINGS = 256
_OF_PLACES = frozenset(
    {
        "read", "write", "granted", "deny", "closed", "guarded", "house", "root", "made", "label", "tmp",
        "writable", "configured", "commands", "lifted",
    }
)  # fmt: skip
"""What rules say of files and commands: no tool is offered or kept back for them. All else of a scope may count."""
_bearing: Callable[[Scope], Hashable] = attrgetter(
    *(each.name for each in fields(Scope) if each.name not in _OF_PLACES)
)
NOT_NAMED = "below the top a definition must name the tools that start agents"
ASK_TOOL = "request_scope_expansion"
ASK_FOR_MORE = f" If you need it, ask with {ASK_TOOL}; otherwise go on without it."


def verdict(tool: Tool, scope: Scope) -> Verdict:
    """The one judgement on a tool, for the list and for the call alike."""
    return _judgement(tool, scope, _judged_by(scope))


def offered(tools: Mapping[str, Tool], scope: Scope) -> Mapping[str, Tool]:
    """What the model is shown, in a stable order."""
    known, table = _judged_by(scope), (tuple(tools), tuple(tools.values()))
    if known.table != table:
        judged = {name: _judgement(tools[name], scope, known).ok for name in sorted(tools)}
        known.table = table
        known.offered = {name: tools[name] for name, ok in judged.items() if ok}
    return known.offered


@dataclass(slots=True)
class _Judged:
    """What was judged by the same rules before: thousands of children have those of their siblings."""

    verdicts: dict[str, tuple[Tool, Verdict]] = field(default_factory=dict[str, tuple[Tool, Verdict]])
    table: tuple[tuple[str, ...], tuple[Tool, ...]] = ((), ())
    offered: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Of that table."""


def _judgement(tool: Tool, scope: Scope, known: _Judged) -> Verdict:
    name = tool.spec.name
    found = known.verdicts.get(name)
    if found is None or found[0] is not tool:
        found = known.verdicts[name] = (tool, _judge(tool, scope))
    return found[1]


_latest: dict[int, tuple[Scope, _Judged]] = {}
"""By the very scope that was asked about: comparing what bears on tools takes longer than judging one."""


def _judged_by(scope: Scope) -> _Judged:
    known, judged = _latest.get(id(scope), (None, None))
    if judged is None or known is not scope:
        judged = _known(_bearing(scope))
        if len(_latest) >= MOST_BEARINGS:
            _latest.clear()
        _latest[id(scope)] = (scope, judged)
    return judged


@lru_cache(maxsize=MOST_BEARINGS)
def _known(_bearing: Hashable) -> _Judged:
    return _Judged()


def _judge(tool: Tool, scope: Scope) -> Verdict:
    judged = scope.tool(tool.spec.name, tool.capabilities)
    if judged.ok and tool.withheld:
        return Verdict(ok=False, rule=tool.withheld)
    if judged.ok and not (exposed := scope.exposes(tool.plugin)).ok:
        return exposed
    if judged.ok and tool.door and not scope.hands_on(tool.spec.name):
        return Verdict(ok=False, rule=NOT_NAMED)
    if judged.ok and tool.door and scope.too_deep:
        return Verdict(ok=False, rule=scope.too_deep)
    if judged.ok and tool.touch == "run" and scope.unheld:
        return Verdict(ok=False, rule=scope.unheld)
    return judged


async def call(called: Called, caller: Caller, ports: Ports) -> Returned:
    """Every wish gets an answer; a refusal is an answer like any other. Parked: it waits for a person."""
    started = perf_counter()
    ok, text = await _answer(called, caller, ports)
    tool = ports.tools.get(called.tool)
    took = perf_counter() - started
    returned = Returned(
        of=called.id,
        text=capped(ports.redact(for_model(text))),
        ok=ok,
        ms=round(
            1000 * (took if tool is None or not tool.door else await _since(called, caller, took, ports))
        ),
        at=iso_seconds(ports.chance.now()),
        run=caller.run.id,
    )
    if tool is not None and tool.effect is Effect.ONCE:
        await side_effects.ended(called, returned, ports)
    return returned


async def _since(called: Called, caller: Caller, took: float, ports: Ports) -> float:
    """Seconds since the call was made first: one that waited for a run was put aside, and is made anew."""
    key = ask_key(caller.run.id, called.id)
    child = await ports.ledger.look(lambda tx: tx.run_by_key(key))
    return took if child is None else max(took, (ports.chance.now() - child.created_at).total_seconds())


async def _answer(called: Called, caller: Caller, ports: Ports) -> tuple[bool, str]:
    if called.broken:
        return False, f"This call did not run: {called.broken}. Make the call again, in a smaller step."
    scope = caller.scope.under(ports.bounds())
    tool = ports.tools.get(called.tool)
    if tool is None:
        names = ", ".join(offered(ports.tools, scope)) or "none"
        return False, refusal(
            "unknown_tool", called.tool, message=f"There is no tool {called.tool!r}. Your tools: {names}."
        )
    if (before := await side_effects.known(called, tool, ports)) is not None:
        return before
    judged = verdict(tool, scope)
    if not judged.ok and tool.forbidden and judged.rule == NOT_NAMED:
        return False, tool.forbidden
    # How deep it may go is said by the door itself, in its own words: nobody is born below the limit.
    if not judged.ok and judged.rule != scope.too_deep:
        return False, refusal(
            "tool_not_allowed",
            called.tool,
            allowed=scope.tools.allow or (),
            denied=scope.tools.deny + scope.operator.deny,
            message=f'Tool "{called.tool}" is not allowed for this agent ({judged.rule}).',
        )
    try:
        args = tool.parse(_bounded(called.args))
    except ValueError as error:
        ours = f"The arguments of {called.tool} are wrong: {error}"
        return False, tool.misread(str(error)) if tool.misread else ours
    held = caller if scope is caller.scope else replace(caller, scope=scope)
    return await _judged(Wanted(called=called, tool=tool, args=args, caller=held), ports)


async def _judged(wanted: Wanted, ports: Ports) -> tuple[bool, str]:
    """A path or command is judged, a person is asked where one must be, and then it happens."""
    try:
        try:
            return await _acted(wanted, await leave(wanted, ports), ports)
        except OutOfScope as error:
            if (once := await again(wanted, error, ports)) is None:
                raise
            return await _acted(wanted, once, ports)
    except OutOfScope as error:
        advice = ASK_FOR_MORE if _could_be_more(wanted, error, ports) else ""
        return False, refusal(
            error.error,
            wanted.tool.spec.name,
            resource=error.resource,
            allowed=error.allowed,
            denied=error.denied,
            message=f"{error}{advice}",
        )
    except Refused as error:
        name, resource = wanted.tool.spec.name, wanted.resource
        return False, refusal(error.code, name, resource=resource, message=str(error))
    except RetinueError as error:
        return False, str(error)


def _could_be_more(wanted: Wanted, refused: OutOfScope, ports: Ports) -> bool:
    """Whether asking for it can lead anywhere: what is closed, denied or above the ceiling no answer opens."""
    if refused.error != "out_of_scope" or not refused.resource:
        return refused.error == "out_of_scope"
    scope = wanted.caller.scope
    wish: Wish = "write" if wanted.tool.touch == "write" else "read"
    real = ports.files(scope).name(refused.resource)
    return scope.plus(real, wish).path(real, wish).ok


async def _acted(wanted: Wanted, leave: Leave, ports: Ports) -> tuple[bool, str]:
    """An exception in a tool's own body is an answer to the model; cancellation passes, if it is ours: a body may
    have waited for something of its own that was cancelled, and nobody stops the run by that."""
    caller, name, called = wanted.caller, wanted.tool.spec.name, wanted.called
    recorded = await side_effects.begun(called, caller.run, wanted.tool, ports)
    bound = Call(
        run=caller.run,
        session=caller.session,
        id=called.id,
        recorded=recorded,
        record=lambda note: side_effects.noted(called, note, ports),
        files=leave.files,
        shell=ports.shell(leave.scope),
        answer=leave.answer,
        ask=ports.ask,
        ports=ports if wanted.tool.door or wanted.tool.looks else None,
    )
    try:
        return True, await wanted.tool.body(wanted.args, bound)
    except (RetinueError, Parked):
        raise
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        return False, f"{name} failed: what it waited for was cancelled"
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a tool's own body may fail in any way; the model is told)
        return False, f"{name} failed: {type(error).__name__}: {error}"


def refusal(
    error: str,
    tool: str,
    *,
    message: str,
    resource: str = "",
    allowed: tuple[str, ...] = (),
    denied: tuple[str, ...] = (),
) -> str:
    """One shape for every refusal."""
    return json.dumps(
        {
            "success": False,
            "error": error,
            "tool": tool,
            "resource": resource,
            "allowed_patterns": list(allowed),
            "deny_patterns": list(denied),
            "message": message,
        },
        ensure_ascii=False,
    )


def capped(text: str, limit: int = MAX_RESULT_BYTES) -> str:
    """Head and tail are kept, and the cut says how much is gone."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _bounded(args: str) -> bytes:
    raw = (args or "{}").encode("utf-8", "replace")
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"{len(raw):,} bytes, and {MAX_ARGUMENT_BYTES:,} is the most")
    return raw
