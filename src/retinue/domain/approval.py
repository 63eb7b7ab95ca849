"""An approval: a person says yes, once, to one exact call."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from retinue.domain.agent import ShellCommands
from retinue.domain.change import replace
from retinue.domain.permissions.shell_commands import need_not_ask
from retinue.domain.rules import literal
from retinue.domain.run import iso
from retinue.domain.sandbox_level import Level
from retinue.domain.value import value
from retinue.errors import Conflict, Refused


class Policy(StrEnum):
    """What happens to a call that needs a yes and has none."""

    ASK = "ask"
    AUTO = "auto"
    """Yes inside the scope where the sandbox is strict; what is weaker, or asks for more, still asks."""
    DENY = "deny"


class Answer(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    ADD = "add"
    """Of a wish for more scope: from now on, written into the session's preset.md."""


class State(StrEnum):
    PENDING = "pending"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"
    """There is nothing to answer any more: the run that asked was stopped, or it asks something else by now."""
    USED = "used"
    """It allowed a call, and that call was begun: it allows nothing any more."""


Touch = Literal["read", "write", "run", "tool", "more"]
"""What a call does with its resource: a file is read or written, a command is run, a tool is used; or a session asks
for more scope."""


@value
class NamedFile:
    """A file that a command names, as it was when a person was asked: a yes to its name is one to what it held."""

    path: str
    """Its real name, made visible."""
    sha256: str
    """Of its beginning, up to MOST_COMPARED bytes."""
    size: int


MOST_NAMED = 8
"""Files of one command that are compared."""
MOST_COMPARED = 1 << 20
"""Bytes of each of them."""


@value
class Approval:
    """A row of the ledger: what is asked, exactly, by whom, and what became of it."""

    id: str
    run: str
    session: str
    agent: str
    call: str
    """The call's entry: one approval speaks for one call."""
    tool: str
    touch: Touch
    resource: str
    """The file, command or tool it is about, as the guard knows it."""
    args: str
    """The call's arguments as the model gave them, without secrets."""
    reason: str = ""
    """Why it is asked: the rule, or the agent's own words when it asks for more scope."""
    root: str = ""
    level: Level | None = None
    files: tuple[NamedFile, ...] = ()
    """Those that a command names and the agent may read."""
    chain: tuple[str, ...] = ()
    """Who asked for whom, outermost first: a person, then the sessions down to this one."""
    digest: str = ""
    """Of the exact call: another call, or the same under other rights, is not this one."""
    state: State = State.PENDING
    asked_at: datetime
    expires_at: datetime
    answered_at: datetime | None = None
    answered_by: str = ""
    answer: Answer | None = None

    def answered(self, answer: Answer, *, by: str, at: datetime) -> Self:
        """The first answer counts, and only in time."""
        if self.state is not State.PENDING:
            raise Conflict(f"approval {self.id} is {self.state} already")
        if at >= self.expires_at:
            raise Conflict(f"approval {self.id} expired at {iso(self.expires_at)}: it counts as denied")
        if answer is Answer.ADD and self.touch != "more":
            raise Refused(f"approval {self.id} is for one call: answer allow or deny")
        state = State.DENIED if answer is Answer.DENY else State.ALLOWED
        return replace(self, state=state, answer=answer, answered_by=by, answered_at=at)

    def expired(self) -> Self:
        return replace(self, state=State.EXPIRED)

    def void(self) -> Self:
        return replace(self, state=State.VOID)

    def used(self) -> Self:
        if self.state is not State.ALLOWED:
            raise Refused(f"approval {self.id} is {self.state} and allows nothing")
        return replace(self, state=State.USED)


def digest_of(
    tool: str,
    args: Mapping[str, Any],
    *,
    resource: str,
    root: str,
    scope: str,
    files: Iterable[NamedFile] = (),
) -> str:
    """What an approval is bound to."""
    facts = [tool, args, resource, root, scope, [(each.path, each.sha256, each.size) for each in files]]
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    ).hexdigest()


def adding(approval: Approval) -> str | None:
    """What the answer `add` would come to; None: nothing can be added. What a command becomes is not always what it looks
    like."""
    if approval.touch != "more":
        return None
    if approval.tool != "bash":
        return "add writes it into the session's preset.md, and it counts from now on"
    spared = ShellCommands(allow=(literal(approval.resource),))
    if not need_not_ask(approval.resource, spared).ok:
        return "add spares no question: it is more than one program and plain words"
    plain = approval.resource.split()
    if len(plain) == 1:
        return f"add speaks for {plain[0]} with any arguments, from now on in this session"
    return "add speaks for this very command, from now on in this session"


def as_json(approval: Approval) -> dict[str, Any]:
    """The shape that `approvals list` and `approvals show` print."""
    return {
        "id": approval.id,
        "run_id": approval.run,
        "session_id": approval.session,
        "agent": approval.agent,
        "call": approval.call,
        "tool": approval.tool,
        "touch": approval.touch,
        "resource": approval.resource,
        "args": approval.args,
        "reason": approval.reason or None,
        "workspace": approval.root or None,
        "sandbox": None if approval.level is None else str(approval.level),
        "files": [asdict(each) for each in approval.files],
        "chain": list(approval.chain),
        "add": adding(approval),
        "digest": approval.digest,
        "state": str(approval.state),
        "asked_at": iso(approval.asked_at),
        "expires_at": iso(approval.expires_at),
        "answered_at": iso(approval.answered_at),
        "answered_by": approval.answered_by or None,
        "answer": None if approval.answer is None else str(approval.answer),
    }
