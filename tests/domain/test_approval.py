"""An approval: what it can become, and that it speaks for exactly one call."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.approval import Answer, Approval, NamedFile, State, Touch, adding, as_json, digest_of
from retinue.domain.sandbox_level import Level
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
    touch="write",
    resource="/w/a",
    args="{}",
    asked_at=NOW,
    expires_at=LATER,
)
MORE = replace(ASKED, touch="more")


@pytest.mark.parametrize(
    ("asked", "answer", "state"),
    [
        (ASKED, Answer.ALLOW, State.ALLOWED),
        (ASKED, Answer.DENY, State.DENIED),
        (MORE, Answer.ALLOW, State.ALLOWED),
        (MORE, Answer.DENY, State.DENIED),
        (MORE, Answer.ADD, State.ALLOWED),
    ],
)
def test_a_pending_question_takes_one_answer_and_remembers_whose_it_was(
    asked: Approval, answer: Answer, state: State
):
    answered = asked.answered(answer, by="ada", at=NOW)
    assert answered == replace(asked, state=state, answer=answer, answered_by="ada", answered_at=NOW)


@pytest.mark.parametrize("state", [state for state in State if state is not State.PENDING])
@pytest.mark.parametrize("answer", list(Answer))
def test_what_is_settled_takes_no_answer_any_more(state: State, answer: Answer):
    with pytest.raises(Refused, match=f"^approval 01A is {state} already$"):
        replace(MORE, state=state).answered(answer, by="ada", at=NOW)


@pytest.mark.parametrize("late", [timedelta(), timedelta(microseconds=1), timedelta(days=9)])
def test_an_answer_counts_only_in_time(late: timedelta):
    """Shows: T12."""
    assert ASKED.answered(Answer.ALLOW, by="ada", at=LATER - timedelta(microseconds=1)).answer is Answer.ALLOW
    with pytest.raises(Refused, match=r"expired at 2026-01-01T00:01:00.*it counts as denied"):
        ASKED.answered(Answer.ALLOW, by="ada", at=LATER + late)


@pytest.mark.parametrize("touch", ["read", "write", "run", "tool"])
def test_only_a_wish_for_more_scope_can_be_added(touch: Touch):
    with pytest.raises(Refused, match="approval 01A is for one call: answer allow or deny"):
        replace(ASKED, touch=touch).answered(Answer.ADD, by="ada", at=NOW)


@pytest.mark.parametrize("state", list(State))
def test_only_a_yes_is_used_and_only_once(state: State):
    """Shows: P11."""
    approval = replace(ASKED, state=state)
    if state is State.ALLOWED:
        assert approval.used().state is State.USED
    else:
        with pytest.raises(Refused, match=f"^approval 01A is {state} and allows nothing$"):
            approval.used()


def test_a_question_expires_or_is_void():
    assert ASKED.expired() == replace(ASKED, state=State.EXPIRED)
    assert ASKED.void() == replace(ASKED, state=State.VOID)


SCRIPT = NamedFile(path="/w/run.sh", sha256="aa", size=7)
CALL: Any = {"resource": "/w/a", "root": "/w", "scope": "abc"}


def test_the_digest_tells_every_call_from_every_other():
    """Shows: T10."""
    different = [
        digest_of("write", {"path": "a"}, **CALL),
        digest_of("edit", {"path": "a"}, **CALL),
        digest_of("write", {"path": "b"}, **CALL),
        digest_of("write", {"path": "a", "content": ""}, **CALL),
        digest_of("write", {"path": "a\u200b"}, **CALL),
        digest_of("write", {"path": "\udc80"}, **CALL),
        digest_of("write", {"path": "a"}, **(CALL | {"resource": "/w/b"})),
        digest_of("write", {"path": "a"}, **(CALL | {"root": "/x"})),
        digest_of("write", {"path": "a"}, **(CALL | {"scope": "abd"})),
        digest_of("write", {"path": ["a"]}, **CALL),
        digest_of("write", {}, **CALL),
        digest_of("write", {"path": "a"}, **CALL, files=(SCRIPT,)),
        digest_of("write", {"path": "a"}, **CALL, files=(SCRIPT, SCRIPT)),
        digest_of("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, path="/w/b.sh"),)),
        digest_of("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, sha256="ab"),)),
        digest_of("write", {"path": "a"}, **CALL, files=(replace(SCRIPT, size=8),)),
    ]
    assert len(set(different)) == len(different)
    assert digest_of("w", {"a": 1, "b": 2}, **CALL) == digest_of("w", {"b": 2, "a": 1}, **CALL)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@given(ARGUMENTS, ARGUMENTS)
def test_equal_digests_mean_equal_arguments(one: dict[str, Any], other: dict[str, Any]):
    """Shows: T10."""
    same = digest_of("t", one, **CALL) == digest_of("t", other, **CALL)
    assert not same or one == other


def test_what_is_printed_leaves_nothing_out():
    full = replace(
        ASKED,
        reason="why",
        root="/w",
        level=Level.NONE,
        chain=("person", "agent:general:main"),
        digest="d",
        files=(SCRIPT,),
    ).answered(Answer.ALLOW, by="ada", at=NOW)
    assert as_json(full) == {
        "id": "01A",
        "run_id": "01R",
        "session_id": "s",
        "agent": "general",
        "call": "01C",
        "tool": "write",
        "touch": "write",
        "resource": "/w/a",
        "args": "{}",
        "reason": "why",
        "workspace": "/w",
        "sandbox": "none",
        "files": [{"path": "/w/run.sh", "sha256": "aa", "size": 7}],
        "chain": ["person", "agent:general:main"],
        "add": None,
        "digest": "d",
        "state": "allowed",
        "asked_at": as_json(full)["asked_at"],
        "expires_at": as_json(full)["expires_at"],
        "answered_at": as_json(full)["asked_at"],
        "answered_by": "ada",
        "answer": "allow",
    }
    nothing = as_json(ASKED)
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
    wish = replace(ASKED, touch="more", tool=tool, resource=resource)
    assert adding(wish) == as_json(wish)["add"] == says


def test_a_level_reaches_those_below_it():
    order = [Level.STRICT, Level.LANDLOCK, Level.NONE]
    for at, level in enumerate(order):
        assert [level.reaches(least) for least in order] == [at <= other for other in range(3)]
