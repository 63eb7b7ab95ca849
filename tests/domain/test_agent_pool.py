"""The pool: who is in it is computed from runs and the time, and a key tells definitions apart."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from retinue.domain import agent_pool
from retinue.domain.agent import Agent
from retinue.domain.run import Run, RunRequest, Status
from retinue.domain.system_prompt import first_message

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def sha8(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def a_run(session: str, *, minute: float = 0, door: str = "agent", live: bool = False, **more: Any) -> Run:
    """A run that began so many minutes after noon and took no time, unless it still goes on."""
    at = NOON + timedelta(minutes=minute)
    wished: dict[str, Any] = {
        "key": f"call:r/{session}{minute}",
        "keep_session": True,
        "parent_run": "r",
    } | more
    return Run(
        id=f"{session}-{minute}-{door}",
        request=RunRequest(
            agent="helper", task="Execute this task: x", entry_point=door, requester="main-1/main", **wished
        ),
        session_id=session,
        slug=f"helper-{session}",
        session_key=f"helper-{session}/main",
        agent="helper",
        transcript_path=f"/s/{session}/session.md",
        status=Status.RUNNING if live else Status.DONE,
        created_at=at,
        started_at=at,
        ended_at=None if live else at,
    )


def standing(*runs: Run, minute: float = 0) -> list[str]:
    return [
        use.session_id
        for use in agent_pool.available_sessions(
            agent_pool.pooled_sessions(runs), NOON + timedelta(minutes=minute)
        )
    ]


def test_the_key_is_the_name_and_two_short_hashes():
    """Shows: B030, B031."""
    agent = Agent(name="scout", prompt="You look.", tool_allow=("read", "grep"))
    assert agent_pool.pool_key(agent, agent.prompt) == f"agent-scout@{sha8('You look.')}@{sha8('grep|read')}"


def test_the_order_of_tools_does_not_matter_and_their_number_does():
    """Shows: B032, B035."""
    keys = {
        tools: agent_pool.pool_key(Agent(name="a", tool_allow=tools), "p")
        for tools in (("read", "grep"), ("grep", "read"), ("read",), (), None)
    }
    assert keys["read", "grep"] == keys["grep", "read"]
    assert len(set(keys.values())) == 4
    assert keys[None].endswith(sha8(""))


def test_tools_that_are_taken_away_change_the_key():
    allowed = [
        agent_pool.pool_key(Agent(name="a", tool_allow=allow, tool_deny=deny), "p")
        for allow in (None, ("read",))
        for deny in (None, ("bash",))
    ]
    assert len(set(allowed)) == 4


def test_another_name_or_prompt_is_another_key():
    """Shows: B029, B034, B038."""
    keys = {agent_pool.pool_key(Agent(name=name), prompt) for name in ("a", "b") for prompt in ("x", "y")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "task", ["Find x.", "Two\n\nYour task:\nlines", "dos\r\nlines", "ends with blanks \n\n"]
)
@pytest.mark.parametrize("own", ["You look.", "You look.\n\nYour task:\nnone of yours"])
def test_the_task_is_taken_out_of_a_prompt_again(own: str, task: str):
    """Shows: B033."""
    written = agent_pool.prompt_with_task(Agent(name="a", prompt=own), task)
    read_back = written.replace("\r\n", "\n").strip("\n")
    assert agent_pool.prompt_without_task(read_back, first_message(task)) == own


def test_the_pool_holds_kept_sessions_of_its_doors_only():
    runs = [
        a_run("agent"),
        a_run("explore", door="explore"),
        a_run("plan", door="plan"),
        a_run("other", door="sessions_spawn"),
        a_run("gone", keep_session=False),
        a_run("by-hand", parent_run=None),
    ]
    assert sorted(standing(*runs)) == ["agent", "explore", "plan"]


def test_uses_count_what_was_given_and_not_what_was_only_asked_for_again():
    """Shows: B046."""
    runs = [
        a_run("s"),
        a_run("s", minute=1, key="call:r/c~summary"),
        a_run("s", minute=2, door="agent_ask"),
        a_run("s", minute=3, door="cli", parent_run=None, live=True),
    ]
    (use,) = agent_pool.pooled_sessions([*runs, runs[0]])
    assert (use.use_count, use.last_used_at) == (2, NOON + timedelta(minutes=2))
    assert (use.is_working, use.is_in_use) == (False, True)
    assert (use.slug, use.parent_key) == ("helper-s", "main-1/main")


def test_an_idle_agent_is_out_after_five_minutes_and_one_at_work_never():
    """Shows: B045."""
    idle, busy = a_run("idle"), a_run("busy", live=True)
    assert standing(idle, busy, minute=4.9) == ["idle", "busy"]
    assert standing(idle, busy, minute=5) == ["busy"]


def test_what_a_person_says_to_an_agent_that_is_out_brings_it_not_back():
    talk = a_run("idle", minute=9, door="cli", parent_run=None, live=True)
    assert standing(a_run("idle"), talk, minute=9) == []


def test_beyond_ten_the_idle_ones_used_longest_ago_are_out():
    """Shows: B045."""
    idle = [a_run(f"{number:02}", minute=number / 10) for number in range(12)]
    assert standing(*idle, minute=2) == [f"{number:02}" for number in range(11, 1, -1)]
    again = a_run("00", minute=1.5, door="agent_ask")
    assert standing(*idle, again, minute=2)[0] == "00"


def test_when_all_are_at_work_there_are_more_than_ten_and_no_room_for_idle_ones():
    """Shows: B045."""
    busy = [a_run(f"{number:02}", live=True) for number in range(12)]
    assert len(standing(*busy, a_run("idle", minute=1), minute=1)) == 12


def an_entry(session: str, key: str, *, minute: float = 0, live: bool = False) -> Any:
    (use,) = agent_pool.pooled_sessions([a_run(session, minute=minute, live=live)])
    return use, key, NOON + timedelta(minutes=minute)


def test_an_entry_says_which_definition_and_how_often_that_one_was_used():
    """Shows: B036, B046."""
    key = f"agent-helper@{sha8('p')}@{sha8('')}"
    found = {"a": an_entry("a", key), "b": an_entry("b", key, live=True), "c": an_entry("c", f"{key[:-1]}x")}
    rows = [agent_pool.pool_entry_as_json(entry) for entry in agent_pool.pool_entries(found)]
    assert [row["use_count"] for row in rows] == [2, 2, 1]
    assert [row["in_use"] for row in rows] == [False, True, False]
    assert rows[0] == {
        "key": key,
        "agent": "helper",
        "prompt_hash": sha8("p"),
        "tools_hash": sha8(""),
        "agent_id": "helper-a",
        "session_id": "a",
        "parent": "main-1/main",
        "created_at": "2026-11-15T12:00:00.000Z",
        "last_used_at": "2026-11-15T12:00:00.000Z",
        "use_count": 2,
        "in_use": False,
    }


def test_statistics_say_how_many_there_are_and_how_old():
    """Shows: B046."""
    key = "agent-helper@1@2"
    found = {"a": an_entry("a", key), "b": an_entry("b", key, minute=1, live=True)}
    assert agent_pool.pool_stats(agent_pool.pool_entries(found), NOON + timedelta(minutes=2)) == {
        "total": 2,
        "in_use": 1,
        "available": 1,
        "max": 10,
        "idle_seconds": 300.0,
        "oldest_age_seconds": 120.0,
        "newest_age_seconds": 60.0,
    }
    assert agent_pool.pool_stats([], NOON)["oldest_age_seconds"] is None
