"""Approvals: the state changes, and that an approval allows exactly one call."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from retinue.domain.approval import (
    Answer,
    Approval,
    ApprovalState,
    NamedFile,
    ToolAccess,
    approval_as_json,
    approval_digest,
    describe_add_answer,
    describe_root_request,
    describe_unknown_files,
)
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
PENDING = Approval(
    id="01A",
    run="01R",
    session="s",
    agent="general",
    call="01C",
    tool="write",
    access="write",
    resource="/w/a",
    args="{}",
    asked_at=NOW,
    expires_at=LATER,
)
SCOPE_REQUEST = replace(PENDING, access="scope")


@pytest.mark.parametrize(
    ("pending", "answer", "state"),
    [
        (PENDING, Answer.ALLOW, ApprovalState.ALLOWED),
        (PENDING, Answer.DENY, ApprovalState.DENIED),
        (SCOPE_REQUEST, Answer.ALLOW, ApprovalState.ALLOWED),
        (SCOPE_REQUEST, Answer.DENY, ApprovalState.DENIED),
        (SCOPE_REQUEST, Answer.ADD, ApprovalState.ALLOWED),
    ],
)
def test_a_pending_approval_records_one_answer_and_its_author(
    pending: Approval, answer: Answer, state: ApprovalState
):
    answered = pending.record_answer(answer, by="ada", at=NOW)
    assert answered == replace(pending, state=state, answer=answer, answered_by="ada", answered_at=NOW)


@pytest.mark.parametrize("state", [state for state in ApprovalState if state is not ApprovalState.PENDING])
@pytest.mark.parametrize("answer", list(Answer))
def test_an_approval_that_is_not_pending_refuses_an_answer(state: ApprovalState, answer: Answer):
    with pytest.raises(Refused, match=f"^approval 01A cannot be answered any more: it is {state}$"):
        replace(SCOPE_REQUEST, state=state).record_answer(answer, by="ada", at=NOW)


@pytest.mark.parametrize("late", [timedelta(), timedelta(microseconds=1), timedelta(days=9)])
def test_an_answer_after_the_expiry_is_refused(late: timedelta):
    """Shows: T12."""
    assert (
        PENDING.record_answer(Answer.ALLOW, by="ada", at=LATER - timedelta(microseconds=1)).answer
        is Answer.ALLOW
    )
    with pytest.raises(Refused, match=r"expired at 2026-01-01T00:01:00.*it counts as denied"):
        PENDING.record_answer(Answer.ALLOW, by="ada", at=LATER + late)


@pytest.mark.parametrize("access", ["read", "write", "run", "tool"])
def test_only_a_scope_request_accepts_the_answer_add(access: ToolAccess):
    with pytest.raises(Refused, match="approval 01A is for one call: answer allow or deny"):
        replace(PENDING, access=access).record_answer(Answer.ADD, by="ada", at=NOW)


@pytest.mark.parametrize("state", list(ApprovalState))
def test_only_an_allowed_approval_can_be_used_and_only_once(state: ApprovalState):
    """Shows: P11."""
    approval = replace(PENDING, state=state)
    if state is ApprovalState.ALLOWED:
        assert approval.mark_used().state is ApprovalState.USED
    else:
        with pytest.raises(Refused, match=f"^approval 01A is {state} and allows nothing$"):
            approval.mark_used()


def test_an_approval_can_expire_or_become_void():
    assert PENDING.expire() == replace(PENDING, state=ApprovalState.EXPIRED)
    assert PENDING.void() == replace(PENDING, state=ApprovalState.VOID)


SCRIPT = NamedFile(path="/w/run.sh", sha256="aa", size=7)
CALL: Any = {"resource": "/w/a", "root": "/w", "scope_hash": "abc"}


def test_the_approval_digest_differs_for_every_different_call():
    """Shows: T10."""
    different = [
        approval_digest("write", {"path": "a"}, **CALL),
        approval_digest("edit", {"path": "a"}, **CALL),
        approval_digest("write", {"path": "b"}, **CALL),
        approval_digest("write", {"path": "a", "content": ""}, **CALL),
        approval_digest("write", {"path": "a\u200b"}, **CALL),
        approval_digest("write", {"path": "\udc80"}, **CALL),
        approval_digest("write", {"path": "a"}, **(CALL | {"resource": "/w/b"})),
        approval_digest("write", {"path": "a"}, **(CALL | {"root": "/x"})),
        approval_digest("write", {"path": "a"}, **(CALL | {"scope_hash": "abd"})),
        approval_digest("write", {"path": ["a"]}, **CALL),
        approval_digest("write", {}, **CALL),
        approval_digest("write", {"path": "a"}, **CALL, files=(SCRIPT,)),
        approval_digest("write", {"path": "a"}, **CALL, files=(SCRIPT, SCRIPT)),
        approval_digest("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, path="/w/b.sh"),)),
        approval_digest("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, sha256="ab"),)),
        approval_digest("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, size=8),)),
    ]
    assert len(set(different)) == len(different)
    assert approval_digest("w", {"a": 1, "b": 2}, **CALL) == approval_digest("w", {"b": 2, "a": 1}, **CALL)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@given(ARGUMENTS, ARGUMENTS)
def test_equal_digests_mean_equal_arguments(one: dict[str, Any], other: dict[str, Any]):
    """Shows: T10."""
    same = approval_digest("t", one, **CALL) == approval_digest("t", other, **CALL)
    assert not same or one == other


def test_an_approval_as_json_has_every_field():
    full = replace(
        PENDING,
        reason="why",
        root="/w",
        level=SandboxLevel.NONE,
        chain=("person", "agent:general:main"),
        digest="d",
        files=(SCRIPT,),
    ).record_answer(Answer.ALLOW, by="ada", at=NOW)
    assert approval_as_json(full) == {
        "id": "01A",
        "run_id": "01R",
        "session_id": "s",
        "agent": "general",
        "call": "01C",
        "tool": "write",
        "access": "write",
        "resource": "/w/a",
        "args": "{}",
        "reason": "why",
        "workspace": "/w",
        "sandbox": "none",
        "files": [{"path": "/w/run.sh", "sha256": "aa", "size": 7}],
        "files_note": None,
        "chain": ["person", "agent:general:main"],
        "add_effect": None,
        "warning": None,
        "digest": "d",
        "state": "allowed",
        "asked_at": approval_as_json(full)["asked_at"],
        "expires_at": approval_as_json(full)["expires_at"],
        "answered_at": approval_as_json(full)["asked_at"],
        "answered_by": "ada",
        "answer": "allow",
    }
    as_json = approval_as_json(PENDING)
    assert [
        as_json[key] for key in ("reason", "workspace", "sandbox", "answered_at", "answered_by", "answer")
    ] == [None] * 6


@pytest.mark.parametrize(
    ("tool", "resource", "effect"),
    [
        ("bash", "make", "add allows make with any arguments in this session from now on"),
        ("bash", "make test", "add allows exactly this command in this session from now on"),
        (
            "bash",
            "ls; make",
            "add has no effect for this command: only one program with literal arguments (no quotes, variables or pipes) can be added",
        ),
        ("read", "/etc/hosts", "add writes it to the session's preset.md, where it applies from now on"),
    ],
)
def test_the_effect_of_the_answer_add_is_described_in_advance(tool: str, resource: str, effect: str):
    request = replace(PENDING, access="scope", tool=tool, resource=resource)
    assert describe_add_answer(request) == approval_as_json(request)["add_effect"] == effect


@pytest.mark.parametrize(
    ("tool", "access", "arguments", "is_warned"),
    [
        ("read", "scope", {"tool": "read", "resource": "/"}, True),
        ("write", "scope", {"tool": "write", "resource": "/**"}, True),
        ("ls", "scope", {"tool": "ls", "resource": " /./* "}, True),
        ("read", "scope", {"tool": "read", "resource": "/w/a"}, False),
        ("bash", "scope", {"tool": "bash", "resource": "ls /"}, False),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["docs/**", "/**"]}, True),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": []}, True),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["/[a-z]*/**"]}, True),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["/tmp/../**"]}, True),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["/./*t*/**"]}, True),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["/w/*", "*/**"]}, False),
        ("PersistentAgent", "tool", {"prompt": "x", "allowed_paths": ["/w/**"]}, False),
        ("PersistentAgent", "tool", {"prompt": "x"}, False),
        ("write", "write", {"path": "/w/a"}, False),
    ],
)
def test_a_request_for_the_root_of_the_file_system_has_a_warning(
    tool: str, access: Any, arguments: dict[str, Any], is_warned: bool
):
    request = replace(PENDING, access=access, tool=tool, args=json.dumps(arguments))
    warning = describe_root_request(request)
    assert approval_as_json(request)["warning"] == warning
    assert (warning is not None and "root of the file system" in warning) is is_warned
    relative = replace(request, args=json.dumps({"tool": tool, "resource": "../../.."}), resource="/")
    assert (describe_root_request(relative) is not None) is (access == "scope")


def test_a_sandbox_level_is_at_least_every_weaker_level():
    order = [SandboxLevel.STRICT, SandboxLevel.LANDLOCK, SandboxLevel.NONE]
    for at, level in enumerate(order):
        assert [level.is_at_least(least) for least in order] == [at <= other for other in range(3)]


def test_an_approval_of_a_command_says_whether_its_files_are_known():
    sentence = "It cannot be known which other files sh uses; only the listed files are compared."
    command = replace(PENDING, access="run", tool="bash", resource="sh run.sh", files=(SCRIPT,))
    assert describe_unknown_files(command) == sentence
    assert describe_unknown_files(replace(command, access="scope")) == sentence
    assert describe_unknown_files(replace(command, resource="cat a")) is None
    assert describe_unknown_files(replace(command, access="scope", tool="write")) is None
