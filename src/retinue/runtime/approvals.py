"""Whether a call needs a person's yes, and how one is asked for, waited for and used up."""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from retinue.domain.approval import (
    MOST_COMPARED,
    MOST_NAMED,
    Answer,
    Approval,
    NamedFile,
    Policy,
    State,
    Touch,
    digest_of,
)
from retinue.domain.ceiling import Wish
from retinue.domain.change import replace
from retinue.domain.glob import first_match
from retinue.domain.permissions.scope import Scope
from retinue.domain.permissions.shell_commands import words
from retinue.domain.run import Run
from retinue.domain.sandbox_level import Level
from retinue.domain.sanitize import shown
from retinue.domain.session import Session
from retinue.domain.tool import Asks
from retinue.domain.transcript import Called
from retinue.domain.value import value
from retinue.errors import NobodyHere, OutOfScope, Refused, RetinueError
from retinue.interfaces import Files, Ports, Tool, Tx
from retinue.runtime.run_events import told

PERSON = "person"
ALWAYS = "this tool asks each time, whatever is granted"
MOST_WORDS = 256
"""Of a command that are tried as names of files."""


class Parked(Exception):
    """Nothing went wrong: a call waits for a person, and the run goes on when there is an answer."""

    def __init__(self, question: str = "") -> None:
        super().__init__(question)
        self.question = question
        """What the person is asked, where words are the answer."""


class Later(NobodyHere):
    """Nobody is here now, and a person can answer later: a question may wait for that."""


@value
class Caller:
    """Who calls, and under which rights."""

    run: Run
    session: Session
    scope: Scope


@value
class Wanted:
    """One call at the gate, understood but not yet let through."""

    called: Called
    tool: Tool
    args: Mapping[str, Any]
    caller: Caller

    @property
    def resource(self) -> str:
        return self.tool.resource(self.args) if self.tool.resource else self.tool.spec.name


@value
class Leave:
    """What a call that was let through acts with."""

    scope: Scope
    files: Files
    answer: Answer | None = None


async def leave(wanted: Wanted, ports: Ports) -> Leave:
    """OutOfScope and Refused say why not; Parked waits for a person."""
    tool, scope = wanted.tool, wanted.caller.scope
    if tool.asks is Asks.NEVER:
        return Leave(scope=scope, files=ports.files(scope))
    if tool.door and await _begun(wanted, ports):
        return Leave(scope=scope, files=ports.files(scope))
    if tool.touch == "more":
        return await _more(wanted, ports)
    if tool.touch == "run":
        return await _command(wanted, ports)
    if tool.touch in ("read", "write"):
        return await _file(wanted, ports)
    if ports.policy is Policy.AUTO:
        return Leave(scope=scope, files=ports.files(scope))
    await asked(Question(wanted=wanted, resource=wanted.resource, why=_why(wanted)), ports)
    return Leave(scope=scope, files=ports.files(scope), answer=Answer.ALLOW)


def _why(wanted: Wanted) -> str:
    """What a person should know of a call that neither a path nor a command describes."""
    if not wanted.tool.door:
        return "this tool acts on the world"
    if wanted.args.get("allowed_paths") == []:
        return (
            "it starts another agent, which may read every file on this machine that is not closed or denied"
        )
    return "it starts another agent, with rights of its own"


def _why_there(wanted: Wanted, real: str, touch: Wish) -> str:
    scope = wanted.caller.scope
    if scope.guards(real):
        guard = first_match(scope.guarded, real, ignore_case=True)
        return f"other programs obey what stands there ({guard}), so each change asks"
    return ALWAYS if scope.grants_write(real) else f"nothing grants {touch} there in advance"


def ask_key(run: str, call: str) -> str:
    """What a run that a call asks for is known by: however often the call is made, there is one."""
    return f"call:{run}/{call}"


async def _begun(wanted: Wanted, ports: Ports) -> bool:
    """A door that was passed once and is called again, because the run waited meanwhile."""
    key = ask_key(wanted.caller.run.id, wanted.called.id)
    return await ports.ledger.look(lambda tx: tx.run_by_key(key)) is not None


async def again(wanted: Wanted, refused: OutOfScope, ports: Ports) -> Leave | None:
    """A refused file may have been allowed once, by a person who was asked for it: then that is used up now."""
    if wanted.tool.touch not in ("read", "write") or not refused.resource:
        return None
    scope = await _allowed_once(wanted, refused.resource, ports)
    return None if scope is None else Leave(scope=scope, files=ports.files(scope))


async def _file(wanted: Wanted, ports: Ports) -> Leave:
    scope, resource = wanted.caller.scope, wanted.resource
    touch: Wish = "write" if wanted.tool.touch == "write" else "read"
    try:
        real = ports.files(scope).judge(resource, touch)
    except OutOfScope:
        lifted = await _allowed_once(wanted, resource, ports)
        if lifted is None:
            raise
        return Leave(scope=lifted, files=ports.files(lifted))
    files = ports.files(scope)
    granted = scope.grants_write(real) and wanted.tool.asks is not Asks.ALWAYS
    if granted or (ports.policy is Policy.AUTO and not scope.guards(real)):
        return Leave(scope=scope, files=files)
    await asked(Question(wanted=wanted, resource=real, why=_why_there(wanted, real, touch)), ports)
    return Leave(scope=scope, files=files.only(real), answer=Answer.ALLOW)


async def _command(wanted: Wanted, ports: Ports) -> Leave:
    scope, text = wanted.caller.scope, wanted.resource
    if not (verdict := scope.command(text)).ok:
        raise OutOfScope(
            f"this command is denied ({verdict.rule})",
            resource=text,
            denied=(scope.commands and scope.commands.deny) or (),
            error="command_not_allowed",
        )
    level = await ports.level()
    granted = scope.grants_command(text)
    leave = Leave(scope=scope, files=ports.files(scope))
    spared = granted.ok and wanted.tool.asks is not Asks.ALWAYS
    if level is Level.STRICT and (spared or ports.policy is Policy.AUTO):
        return leave
    named = await _named(text, leave.files, ports)
    if level is Level.STRICT and await _used_once(wanted, "run", text, ports, files=named):
        return leave
    why = ALWAYS if spared or granted.ok else granted.rule
    if level is not Level.STRICT:
        why = f"the sandbox here is {level}, so every command asks"
    await asked(Question(wanted=wanted, resource=text, why=why, level=level, files=named), ports)
    return replace(leave, answer=Answer.ALLOW)


async def _named(command: str, files: Files, ports: Ports) -> tuple[NamedFile, ...]:
    """The files that a command names and this agent may read, as they are now. What it does to files that it does not
    name is the sandbox's business."""

    def looked() -> tuple[NamedFile, ...]:
        found: dict[str, NamedFile] = {}
        for word in words(command)[:MOST_WORDS]:
            if len(found) == MOST_NAMED:
                break
            with suppress(RetinueError):  # then it is no file, or none that this agent may read
                seen = files.read(word, max_bytes=MOST_COMPARED)
                digest = hashlib.sha256(seen.data).hexdigest()
                path = shown(ports.redact(seen.real))
                found[seen.real] = NamedFile(path=path, sha256=digest, size=seen.size)
        return tuple(found.values())

    return await asyncio.to_thread(looked)


async def _more(wanted: Wanted, ports: Ports) -> Leave:
    """A wish for more scope. What is closed for good is refused without troubling anyone."""
    scope, resource = wanted.caller.scope, wanted.resource
    about = ports.tools.get(str(wanted.args.get("tool", "")))
    if about is None or about.touch not in ("read", "write", "run"):
        raise Refused(
            f"a person can be asked for paths and commands; {wanted.args.get('tool')!r} takes neither. "
            "Which tools an agent has is written in its preset.md"
        )
    if await _is_added(wanted, ports):
        return Leave(scope=scope, files=ports.files(scope), answer=Answer.ADD)
    if about.touch == "run":
        verdict = scope.command(resource)
        if scope.unheld or not verdict.ok:
            raise Refused(f"nobody can allow this here: {scope.unheld or verdict.rule}")
    else:
        files, resource = ports.files(scope), ports.files(scope).name(resource)
        with suppress(OutOfScope):
            files.judge(resource, about.touch)
            raise Refused(f"{resource} is in your scope already: call {about.spec.name}")
        if not (verdict := scope.plus(resource, about.touch).path(resource, about.touch)).ok:
            raise Refused(f"nobody can allow this here: {verdict.rule}")
    files = ports.files(scope)
    named = await _named(resource, files, ports) if about.touch == "run" else ()
    reason = str(wanted.args.get("reason", ""))
    question = Question(wanted=wanted, resource=resource, why=reason, more=True, files=named)
    approval = await asked(question, ports)
    return Leave(scope=scope, files=files, answer=approval.answer)


async def _is_added(wanted: Wanted, ports: Ports) -> bool:
    """Whether a person's yes to this very call is in the scope by now: the scope is another one since."""

    def step(tx: Tx) -> bool:
        known = tx.approvals(run=wanted.caller.run.id, call=wanted.called.id, state=[State.ALLOWED])
        return any(each.answer is Answer.ADD for each in known)

    return await ports.ledger.look(step)


@value
class Question:
    """What a person is asked, exactly."""

    wanted: Wanted
    resource: str
    why: str
    level: Level | None = None
    more: bool = False
    """It is a wish for more scope, and the yes is kept for a later call."""
    files: tuple[NamedFile, ...] = ()

    def digest(self, files: tuple[NamedFile, ...]) -> str:
        """What a yes to this speaks for, if the files that are named hold this."""
        scope = self.wanted.caller.scope
        # A yes to a command that is held tightly is no yes to the same command held loosely.
        rights = scope.hash if self.level is None else f"{scope.hash} {self.level}"
        name, args = self.wanted.tool.spec.name, self.wanted.args
        return digest_of(name, args, resource=self.resource, root=scope.root, scope=rights, files=files)


async def asked(question: Question, ports: Ports) -> Approval:
    """Returns when a person has said yes to exactly this, and the yes is used up (unless it is kept for a later
    call). Asking is a row in the ledger: it outlives this process, and any surface can answer it."""
    if ports.policy is Policy.DENY:
        raise _said_no(question, "the configuration answers every such question with no (approvals = deny)")
    approval = await ports.ledger.do(lambda tx: _standing(question, tx, ports))
    if approval.state is State.PENDING:
        raise Parked
    if approval.state is State.EXPIRED:
        raise _said_no(question, f"nobody answered within {ports.limits.approval_seconds:g} s")
    if approval.state is State.DENIED:
        raise _said_no(question, "a person said no")
    return approval


def _standing(question: Question, tx: Tx, ports: Ports) -> Approval:
    """What became of a question so far; it is put now if it was not yet, or was another one. A no stands, whatever
    has become of the files since."""
    now, caller = ports.chance.now(), question.wanted.caller
    known = tx.approvals(run=caller.run.id, call=question.wanted.called.id)
    last = known[-1] if known else None
    if last is None:
        return _put(question, tx, ports, now)
    if last.state is State.PENDING and now >= last.expires_at:
        last = last.expired()
        tx.set_approval(last)
    same = last.digest == question.digest(question.files)
    if last.state is State.ALLOWED and same and not question.more:
        tx.set_approval(last.used())
    if last.state is not State.USED and same:
        return last
    if last.state in (State.DENIED, State.EXPIRED) and last.digest == question.digest(last.files):
        return last
    if last.state is State.PENDING:
        tx.set_approval(last.void())
    return _put(_retold(question, last), tx, ports, now)


def _retold(question: Question, last: Approval) -> Question:
    """A question that is asked again because of its files says which."""
    if last.digest != question.digest(last.files):
        return question
    names = dict.fromkeys(each.path for each in {*question.files} ^ {*last.files})
    return replace(question, why=f"changed since you were asked: {', '.join(sorted(names))}")


def _put(question: Question, tx: Tx, ports: Ports, now: datetime) -> Approval:
    wanted, caller = question.wanted, question.wanted.caller
    put = Approval(
        id=ports.chance.entry_id(),
        run=caller.run.id,
        session=caller.session.id,
        agent=caller.session.agent,
        call=wanted.called.id,
        tool=str(wanted.args["tool"]) if question.more else wanted.tool.spec.name,
        touch="more" if question.more else wanted.tool.touch,
        resource=ports.redact(question.resource),
        args=wanted.called.args,
        reason=ports.redact(question.why),
        root=caller.scope.root,
        level=question.level,
        files=question.files,
        chain=_chain(caller, tx),
        digest=question.digest(question.files),
        asked_at=now,
        expires_at=now + timedelta(seconds=ports.limits.approval_seconds),
    )
    tx.add_approval(put)
    facts = {"approval": put.id, "tool": put.tool, "resource": put.resource}
    tx.emit(told("approval.asked", caller.run, ports, **facts))
    return put


def _said_no(question: Question, why: str) -> OutOfScope:
    name = question.wanted.tool.spec.name
    return OutOfScope(
        f"{name} was not done: {why}. Go on without it, or say what you need it for.",
        resource=question.resource,
        error="approval_denied",
    )


def _chain(caller: Caller, tx: Tx) -> tuple[str, ...]:
    """Who asked for whom, outermost first: from the rows, never from words."""
    names: list[str] = []
    run: Run | None = caller.run
    while run is not None and len(names) < _LONGEST_CHAIN:
        names.append(run.key)
        run = tx.run(run.ask.parent_run) if run.ask.parent_run else None
    return (PERSON, *reversed(names))


_LONGEST_CHAIN = 16


async def _allowed_once(wanted: Wanted, resource: str, ports: Ports) -> Scope | None:
    """The scope with this one file in it, if a person allowed just that to this run; it is used up by this."""
    scope = wanted.caller.scope
    touch: Wish = "write" if wanted.tool.touch == "write" else "read"
    real = ports.files(scope).name(resource)
    wider = scope.plus(real, touch)
    if not wider.path(real, touch).ok or not await _used_once(wanted, touch, real, ports):
        return None
    return wider


async def _used_once(
    wanted: Wanted, touch: Touch, resource: str, ports: Ports, *, files: tuple[NamedFile, ...] = ()
) -> bool:
    def step(tx: Tx) -> bool:
        for each in tx.approvals(run=wanted.caller.run.id, state=[State.ALLOWED]):
            about = ports.tools.get(each.tool)
            once = each.touch == "more" and each.answer is Answer.ALLOW
            same = (each.resource, each.files) == (resource, files)
            if once and same and about is not None and about.touch == touch:
                tx.set_approval(each.used())
                return True
        return False

    return await ports.ledger.do(step)
