"""Programs that act by themselves: who lets one begin, what it is held to, and what a restart knows of its turn."""

import json
from dataclasses import replace

from retinue.domain.approval import Policy
from retinue.domain.ceiling import NETWORK
from retinue.domain.cli_agent import PROGRAMS
from retinue.domain.permissions.scope import Scope
from retinue.domain.sandbox_level import Level
from retinue.domain.session import Session
from retinue.domain.side_effect import Deed, Progress, digest
from retinue.domain.transcript import Called
from retinue.errors import OutOfScope, RetinueError
from retinue.interfaces import Conversation, Ports, Tx
from retinue.runtime.approvals import Caller, Question, Wanted, asked
from retinue.runtime.run_context import Desk
from retinue.runtime.run_plan import Plan
from retinue.runtime.tool_executor import verdict

SHELL = "bash"
"""The tool that such a program has the reach of: whoever may not have it may not be one."""
CUT_OFF = (
    "Your work on this was cut off: the process ended while you were at it, and what you had done by then is done. "
    "Look at how things are before you do anything a second time."
)
NOTHING = "You may read here, and change nothing: what you would change, say in your answer."
ONLY = "You may change files only where these patterns allow it: {patterns}. Elsewhere you may read."


def acts(plan: Plan) -> bool:
    return plan.model.driver in PROGRAMS


async def engaged(plan: Plan, desk: Desk, session: Session) -> Plan:
    """The plan with what the program is held to: in a strict cell what no person would be asked for, and elsewhere what
    a person allows. OutOfScope when its scope has no room for a program; Parked waits for a person."""
    ports, driver = desk.ports, plan.model.driver
    scope = plan.scope.under(ports.bounds())
    _fits(plan, scope, ports)
    level = await ports.level()
    if level is Level.STRICT:
        held = scope if ports.policy is Policy.AUTO else replace(scope, write=scope.granted)
        return replace(plan, scope=held, system=f"{plan.system}\n\n{_told(held)}".strip())
    called = Called(
        id=desk.run.id, tool=driver, args=json.dumps({"task": desk.run.ask.task}), run=desk.run.id
    )
    shell = ports.tools[SHELL]
    tool = replace(shell, spec=replace(shell.spec, name=driver))
    caller = Caller(run=desk.run, session=session, scope=scope)
    await asked(
        Question(
            wanted=Wanted(called=called, tool=tool, args={"task": desk.run.ask.task}, caller=caller),
            resource=f"{PROGRAMS[driver].binary} in {scope.root}",
            why=f"the sandbox here is {level}, and {PROGRAMS[driver].binary} would run with your own rights, held by nothing",
            level=level,
        ),
        ports,
    )
    return replace(plan, scope=scope)


def _fits(plan: Plan, scope: Scope, ports: Ports) -> None:
    """What cannot be held is refused: a program's own commands are seen by nobody. What it reaches besides its models is
    the network's, and as much in need of leave as a tool's."""
    driver, shell = plan.model.driver, ports.tools[SHELL]
    why = "" if (judged := verdict(shell, scope)).ok else f"this agent may run none ({judged.rule})"
    if not why and scope.commands is not None and scope.commands.deny:
        why = f"they cannot be kept from {', '.join(scope.commands.deny)} (shell_commands deny)"
    if why:
        raise OutOfScope(f"{driver} runs commands of its own, and {why}: use another driver, or change that")
    if plan.model.settings.get("hosts") and not (far := scope.tool(SHELL, (*shell.capabilities, NETWORK))).ok:
        raise OutOfScope(
            f"{driver} may not reach the hosts that its settings name ({far.rule}): take them out"
        )


def _told(scope: Scope) -> str:
    places = scope.write if scope.writable else tuple(each for each in scope.write if scope.private(each))
    return ONLY.format(patterns=", ".join(places)) if places else NOTHING


async def doubts(talk: Conversation, desk: Desk) -> None:
    """A turn that was begun and never ended is told of, once: the program finds it in the conversation."""

    def step(tx: Tx) -> bool:
        open_ones = [
            deed
            for deed in tx.deeds(desk.run.id)
            if deed.progress is Progress.STARTED and deed.tool in PROGRAMS
        ]
        for deed in open_ones:
            tx.set_deed(deed.lost())
        return bool(open_ones)

    if await desk.ports.ledger.do(step):
        await desk.add(talk, desk.notice("resumed", CUT_OFF))


async def begun(desk: Desk, plan: Plan) -> Deed:
    """The turn is on disk as begun, with how it is held, before it begins."""
    ports = desk.ports
    deed = Deed(
        call=ports.chance.entry_id(),
        run=desk.run.id,
        tool=plan.model.driver,
        digest=digest(plan.model.driver, desk.run.ask.task or ""),
        note=str(await ports.level()),
        started_at=ports.chance.now(),
    )
    await ports.ledger.do(lambda tx: tx.set_deed(deed))
    return deed


async def ended(deed: Deed, desk: Desk, error: RetinueError | None = None) -> None:
    """It has ended, and its reply is in the file: until both are so, whoever takes the run up again does not know how
    far it came."""
    ports = desk.ports
    text = "" if error is None else ports.redact(str(error))
    over = deed.ended(ok=error is None, text=text, at=ports.chance.now())
    await ports.ledger.do(lambda tx: tx.set_deed(over))
