"""An approval: what it can become, and that it speaks for exactly one call."""

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
)
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import Refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
ASKED = Approval(
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
MORE = replace(ASKED, access="scope")


@pytest.mark.parametrize(
    ("asked", "answer", "state"),
    [
        (ASKED, Answer.ALLOW, ApprovalState.ALLOWED),
        (ASKED, Answer.DENY, ApprovalState.DENIED),
        (MORE, Answer.ALLOW, ApprovalState.ALLOWED),
        (MORE, Answer.DENY, ApprovalState.DENIED),
        (MORE, Answer.ADD, ApprovalState.ALLOWED),
    ],
)
def test_a_pending_question_takes_one_answer_and_remembers_whose_it_was(
    asked: Approval, answer: Answer, state: ApprovalState
):
    answered = asked.record_answer(answer, by="ada", at=NOW)
    assert answered == replace(asked, state=state, answer=answer, answered_by="ada", answered_at=NOW)


@pytest.mark.parametrize("state", [state for state in ApprovalState if state is not ApprovalState.PENDING])
@pytest.mark.parametrize("answer", list(Answer))
def test_what_is_settled_takes_no_answer_any_more(state: ApprovalState, answer: Answer):
    with pytest.raises(Refused, match=f"^approval 01A is {state} already$"):
        replace(MORE, state=state).record_answer(answer, by="ada", at=NOW)


@pytest.mark.parametrize("late", [timedelta(), timedelta(microseconds=1), timedelta(days=9)])
def test_an_answer_counts_only_in_time(late: timedelta):
    """Shows: T12."""
    assert (
        ASKED.record_answer(Answer.ALLOW, by="ada", at=LATER - timedelta(microseconds=1)).answer
        is Answer.ALLOW
    )
    with pytest.raises(Refused, match=r"expired at 2026-01-01T00:01:00.*it counts as denied"):
        ASKED.record_answer(Answer.ALLOW, by="ada", at=LATER + late)


@pytest.mark.parametrize("access", ["read", "write", "run", "tool"])
def test_only_a_wish_for_more_scope_can_be_added(access: ToolAccess):
    with pytest.raises(Refused, match="approval 01A is for one call: answer allow or deny"):
        replace(ASKED, access=access).record_answer(Answer.ADD, by="ada", at=NOW)


@pytest.mark.parametrize("state", list(ApprovalState))
def test_only_a_yes_is_used_and_only_once(state: ApprovalState):
    """Shows: P11."""
    approval = replace(ASKED, state=state)
    if state is ApprovalState.ALLOWED:
        assert approval.mark_used().state is ApprovalState.USED
    else:
        with pytest.raises(Refused, match=f"^approval 01A is {state} and allows nothing$"):
            approval.mark_used()


def test_a_question_expires_or_is_void():
    assert ASKED.expire() == replace(ASKED, state=ApprovalState.EXPIRED)
    assert ASKED.void() == replace(ASKED, state=ApprovalState.VOID)


SCRIPT = NamedFile(path="/w/run.sh", sha256="aa", size=7)
CALL: Any = {"resource": "/w/a", "root": "/w", "scope_hash": "abc"}


def test_the_digest_tells_every_call_from_every_other():
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


def test_what_is_printed_leaves_nothing_out():
    full = replace(
        ASKED,
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
        "chain": ["person", "agent:general:main"],
        "add_effect": None,
        "digest": "d",
        "state": "allowed",
        "asked_at": approval_as_json(full)["asked_at"],
        "expires_at": approval_as_json(full)["expires_at"],
        "answered_at": approval_as_json(full)["asked_at"],
        "answered_by": "ada",
        "answer": "allow",
    }
    nothing = approval_as_json(ASKED)
    assert [
        nothing[key] for key in ("reason", "workspace", "sandbox", "answered_at", "answered_by", "answer")
    ] == [None] * 6


@pytest.mark.parametrize(
    ("tool", "resource", "says"),
    [
        ("bash", "make", "add speaks for make with any arguments, from now on in this session"),
        ("bash", "make test", "add speaks for this very command, from now on in this session"),
        ("bash", "ls; make", "add spares no question: it is more than one program and plain words"),
        ("read", "/etc/hosts", "add writes it into the session's preset.md, and it counts from now on"),
    ],
)
def test_what_adding_comes_to_is_told_before_it_is_done(tool: str, resource: str, says: str):
    wish = replace(ASKED, access="scope", tool=tool, resource=resource)
    assert describe_add_answer(wish) == approval_as_json(wish)["add_effect"] == says


def test_a_level_reaches_those_below_it():
    order = [SandboxLevel.STRICT, SandboxLevel.LANDLOCK, SandboxLevel.NONE]
    for at, level in enumerate(order):
        assert [level.is_at_least(least) for least in order] == [at <= other for other in range(3)]
