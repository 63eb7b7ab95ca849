"""Approvals: a person allows one exact tool call, once."""

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from retinue.domain.agent import ShellCommands
from retinue.domain.permissions.command_files import unknown_files_note
from retinue.domain.permissions.shell_commands import check_preapproved
from retinue.domain.rules import escape_glob
from retinue.domain.sandbox_level import SandboxLevel
from retinue.domain.timestamps import iso_timestamp
from retinue.errors import Conflict, Refused


class ApprovalPolicy(StrEnum):
    """What happens to a call that needs approval."""

    ASK = "ask"
    AUTO = "auto"
    """Allow calls within the scope if the sandbox is strict; in weaker sandboxes or beyond the scope, ask."""
    DENY = "deny"


class Answer(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    ADD = "add"
    """For a request for more scope: allow from now on, written into the session's preset.md."""


class ApprovalState(StrEnum):
    PENDING = "pending"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"
    """No answer is needed any more: the run was stopped, or has replaced the question by another."""
    USED = "used"
    """The allowed call has started; the approval allows nothing more."""


ToolAccess = Literal["read", "write", "run", "tool", "scope"]
"""The kind of access a call makes to its resource.

A call reads or writes a file, runs a command, uses a tool, or requests more scope for the session.
"""


class NamedFile(Struct, frozen=True, kw_only=True):
    """A file that a command uses, as it was when the approval was requested.

    Approving the command also approves the current content of the file.
    """

    path: str
    """The file's real path, with invisible characters shown."""
    sha256: str
    """Hash of the file's first MAX_COMPARED_BYTES bytes."""
    size: int


_ROOT_PATTERN = re.compile(r"/[/.*?]*")
_ROOT_WILDCARD = re.compile(r"/+(?:\Z|[^/]*[*?\[])")

MAX_COMPARED_FILES = 64
"""Files of one command that are compared."""
MAX_COMPARED_BYTES = 1 << 20
"""Bytes of each file that are compared."""


class Approval(Struct, frozen=True, kw_only=True, rename={"access": "touch"}):
    """A stored approval request: the exact question, its requesters and the answer."""

    id: str
    run: str
    session: str
    agent: str
    call: str
    """Id of the call's transcript entry; each approval is for one call."""
    tool: str
    access: ToolAccess
    resource: str
    """The file, command or tool in question, as the permission check sees it."""
    args: str
    """The call's arguments as the model gave them, with secrets redacted."""
    reason: str = ""
    """Why approval is needed: the rule, or the agent's own reason when it requests more scope."""
    root: str = ""
    level: SandboxLevel | None = None
    files: tuple[NamedFile, ...] = ()
    """The files that the command is known to use and the agent may read."""
    chain: tuple[str, ...] = ()
    """The requesters, outermost first: a person, then the sessions down to this one."""
    digest: str = ""
    """Hash of the exact call and its rights; any other call needs its own approval."""
    rules: str = ""
    """The version of the rules that the hash includes."""
    state: ApprovalState = ApprovalState.PENDING
    asked_at: datetime
    expires_at: datetime
    answered_at: datetime | None = None
    answered_by: str = ""
    answer: Answer | None = None

    def record_answer(self, answer: Answer, *, by: str, at: datetime) -> Self:
        """Record the answer; only the first one counts, and only before the approval expires."""
        if self.state is not ApprovalState.PENDING:
            raise Conflict(f"approval {self.id} cannot be answered any more: it is {self.state}")
        if at >= self.expires_at:
            raise Conflict(
                f"approval {self.id} expired at {iso_timestamp(self.expires_at)}: it counts as denied"
            )
        if answer is Answer.ADD and self.access != "scope":
            raise Refused(f"approval {self.id} is for one call: answer allow or deny")
        state = ApprovalState.DENIED if answer is Answer.DENY else ApprovalState.ALLOWED
        return replace(self, state=state, answer=answer, answered_by=by, answered_at=at)

    def expire(self) -> Self:
        return replace(self, state=ApprovalState.EXPIRED)

    def void(self) -> Self:
        return replace(self, state=ApprovalState.VOID)

    def mark_used(self) -> Self:
        if self.state is not ApprovalState.ALLOWED:
            raise Refused(f"approval {self.id} is {self.state} and allows nothing")
        return replace(self, state=ApprovalState.USED)


def approval_digest(
    tool: str,
    arguments: Mapping[str, Any],
    *,
    resource: str,
    root: str,
    scope_hash: str,
    files: Iterable[NamedFile] = (),
) -> str:
    """Return a hash of everything that an approval applies to."""
    facts = [
        tool,
        arguments,
        resource,
        root,
        scope_hash,
        [(each.path, each.sha256, each.size) for each in files],
    ]
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    ).hexdigest()


def describe_add_answer(approval: Approval) -> str | None:
    """Describe what the answer `add` would allow; None if nothing can be added.

    Adding a command creates a rule, which may cover more or less than the command itself.
    """
    if approval.access != "scope":
        return None
    if approval.tool != "bash":
        return "add writes it to the session's preset.md, where it applies from now on"
    added_rule = ShellCommands(allow=(escape_glob(approval.resource),))
    if not check_preapproved(approval.resource, added_rule).ok:
        return "add has no effect for this command: only one program with literal arguments (no quotes, variables or pipes) can be added"
    words = approval.resource.split()
    if len(words) == 1:
        return f"add allows {words[0]} with any arguments in this session from now on"
    return "add allows exactly this command in this session from now on"


def describe_root_request(approval: Approval) -> str | None:
    """Return a warning if the call requests the root of the file system, or everything below it; else None."""
    try:
        arguments: Any = json.loads(approval.args or "{}")
    except ValueError:
        return None
    if not isinstance(arguments, dict):
        return None
    values = cast("dict[str, Any]", arguments)
    if approval.access == "scope":
        named = next(
            (each for each in (str(values.get("resource", "")), approval.resource) if _is_root(each)), None
        )
        return named and (
            f"warning: {named} is the root of the file system. An approval covers exactly this name and nothing "
            "below it; a task rarely needs it"
        )
    allowed_paths = values.get("allowed_paths")
    if not isinstance(allowed_paths, list):
        return None
    patterns = [str(each) for each in cast("list[Any]", allowed_paths)]
    if patterns and not any(map(_matches_at_root, patterns)):
        return None
    listed = next(filter(_matches_at_root, patterns), "an empty list")
    return (
        f"warning: allowed_paths begins at the root of the file system ({listed}): the new agent may read every file "
        "on this machine that it matches and that is not protected or denied"
    )


def _matches_at_root(pattern: str) -> bool:
    """Return whether a pattern is the root, or has a wildcard in the first name below it, as `/[a-z]*/**`."""
    return _is_root(pattern) or _ROOT_WILDCARD.match(posixpath.normpath(pattern.strip())) is not None


def _is_root(path: str) -> bool:
    """Return whether a path or pattern is `/`, or consists of nothing but wildcards below it."""
    return _ROOT_PATTERN.fullmatch(path.strip()) is not None


def describe_unknown_files(approval: Approval) -> str | None:
    """Return one sentence if it cannot be known which files the command of an approval uses."""
    is_command = approval.access == "run" or (approval.access == "scope" and approval.tool == "bash")
    if not is_command:
        return None
    return unknown_files_note(approval.resource, has_files=bool(approval.files)) or None


def approval_as_json(approval: Approval) -> dict[str, Any]:
    """Return the JSON of `approvals list` and `approvals show`."""
    return {
        "id": approval.id,
        "run_id": approval.run,
        "session_id": approval.session,
        "agent": approval.agent,
        "call": approval.call,
        "tool": approval.tool,
        "access": approval.access,
        "resource": approval.resource,
        "args": approval.args,
        "reason": approval.reason or None,
        "workspace": approval.root or None,
        "sandbox": None if approval.level is None else str(approval.level),
        "files": [asdict(each) for each in approval.files],
        "files_note": describe_unknown_files(approval),
        "chain": list(approval.chain),
        "add_effect": describe_add_answer(approval),
        "warning": describe_root_request(approval),
        "digest": approval.digest,
        "state": str(approval.state),
        "asked_at": iso_timestamp(approval.asked_at),
        "expires_at": iso_timestamp(approval.expires_at),
        "answered_at": iso_timestamp(approval.answered_at),
        "answered_by": approval.answered_by or None,
        "answer": None if approval.answer is None else str(approval.answer),
    }
