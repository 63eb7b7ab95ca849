"""The agent pool: its entries are computed from runs and the time, and each definition has its own key."""

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


def make_pool_run(
    session: str, *, minute: float = 0, entry_point: str = "agent", live: bool = False, **overrides: Any
) -> Run:
    """Build a run that started `minute` minutes after noon, and ended at once unless it is live."""
    at = NOON + timedelta(minutes=minute)
    request_fields: dict[str, Any] = {
        "key": f"call:r/{session}{minute}",
        "keep_session": True,
        "parent_run": "r",
    } | overrides
    return Run(
        id=f"{session}-{minute}-{entry_point}",
        request=RunRequest(
            agent="helper",
            task="Execute this task: x",
            entry_point=entry_point,
            requester="main-1/main",
            **request_fields,
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


def available_session_ids(*runs: Run, minute: float = 0) -> list[str]:
    return [
        use.session_id
        for use in agent_pool.available_sessions(
            agent_pool.pooled_sessions(runs), NOON + timedelta(minutes=minute)
        )
    ]


def test_a_pool_key_is_the_agent_name_and_two_short_hashes():
    """Shows: B030, B031."""
    agent = Agent(name="scout", prompt="You look.", tool_allow=("read", "grep"))
    assert agent_pool.pool_key(agent, agent.prompt) == f"agent-scout@{sha8('You look.')}@{sha8('grep|read')}"


def test_a_pool_key_ignores_the_order_of_tools_but_not_the_selection():
    """Shows: B032, B035."""
    keys = {
        tools: agent_pool.pool_key(Agent(name="a", tool_allow=tools), "p")
        for tools in (("read", "grep"), ("grep", "read"), ("read",), (), None)
    }
    assert keys["read", "grep"] == keys["grep", "read"]
    assert len(set(keys.values())) == 4
    assert keys[None].endswith(sha8(""))


def test_denied_tools_change_the_pool_key():
    allowed = [
        agent_pool.pool_key(Agent(name="a", tool_allow=allow, tool_deny=deny), "p")
        for allow in (None, ("read",))
        for deny in (None, ("bash",))
    ]
    assert len(set(allowed)) == 4


def test_another_name_or_prompt_gives_another_pool_key():
    """Shows: B029, B034, B038."""
    keys = {agent_pool.pool_key(Agent(name=name), prompt) for name in ("a", "b") for prompt in ("x", "y")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "task", ["Find x.", "Two\n\nYour task:\nlines", "dos\r\nlines", "ends with blanks \n\n"]
)
@pytest.mark.parametrize("own", ["You look.", "You look.\n\nYour task:\nnone of yours"])
def test_the_task_can_be_removed_from_a_prompt_again(own: str, task: str):
    """Shows: B033."""
    written = agent_pool.prompt_with_task(Agent(name="a", prompt=own), task)
    read_back = written.replace("\r\n", "\n").strip("\n")
    assert agent_pool.prompt_without_task(read_back, first_message(task)) == own


def test_the_pool_holds_only_kept_sessions_created_by_its_delegation_tools():
    runs = [
        make_pool_run("agent"),
        make_pool_run("explore", entry_point="explore"),
        make_pool_run("plan", entry_point="plan"),
        make_pool_run("other", entry_point="sessions_spawn"),
        make_pool_run("gone", keep_session=False),
        make_pool_run("by-hand", parent_run=None),
    ]
    assert sorted(available_session_ids(*runs)) == ["agent", "explore", "plan"]


def test_the_use_count_includes_tasks_and_follow_ups_but_not_summaries_or_user_messages():
    """Shows: B046."""
    runs = [
        make_pool_run("s"),
        make_pool_run("s", minute=1, key="call:r/c~summary"),
        make_pool_run("s", minute=2, entry_point="agent_ask"),
        make_pool_run("s", minute=3, entry_point="cli", parent_run=None, live=True),
    ]
    (use,) = agent_pool.pooled_sessions([*runs, runs[0]])
    assert (use.use_count, use.last_used_at) == (2, NOON + timedelta(minutes=2))
    assert (use.is_working, use.is_in_use) == (False, True)
    assert (use.slug, use.parent_key) == ("helper-s", "main-1/main")


def test_an_idle_agent_leaves_the_pool_after_five_minutes_and_a_working_agent_never():
    """Shows: B045."""
    idle, busy = make_pool_run("idle"), make_pool_run("busy", live=True)
    assert available_session_ids(idle, busy, minute=4.9) == ["idle", "busy"]
    assert available_session_ids(idle, busy, minute=5) == ["busy"]


def test_a_user_message_does_not_return_an_expired_agent_to_the_pool():
    talk = make_pool_run("idle", minute=9, entry_point="cli", parent_run=None, live=True)
    assert available_session_ids(make_pool_run("idle"), talk, minute=9) == []


def test_the_pool_keeps_the_ten_most_recently_used_idle_agents():
    """Shows: B045."""
    idle = [make_pool_run(f"{number:02}", minute=number / 10) for number in range(12)]
    assert available_session_ids(*idle, minute=2) == [f"{number:02}" for number in range(11, 1, -1)]
    reused = make_pool_run("00", minute=1.5, entry_point="agent_ask")
    assert available_session_ids(*idle, reused, minute=2)[0] == "00"


def test_working_agents_may_exceed_ten_and_then_leave_no_room_for_idle_agents():
    """Shows: B045."""
    busy = [make_pool_run(f"{number:02}", live=True) for number in range(12)]
    assert len(available_session_ids(*busy, make_pool_run("idle", minute=1), minute=1)) == 12


def make_session_use(
    session: str, key: str, *, minute: float = 0, live: bool = False
) -> tuple[agent_pool.PooledSession, str, datetime]:
    (use,) = agent_pool.pooled_sessions([make_pool_run(session, minute=minute, live=live)])
    return use, key, NOON + timedelta(minutes=minute)


def test_a_pool_entry_names_its_definition_and_the_use_count_of_that_definition():
    """Shows: B036, B046."""
    key = f"agent-helper@{sha8('p')}@{sha8('')}"
    uses_by_session = {
        "a": make_session_use("a", key),
        "b": make_session_use("b", key, live=True),
        "c": make_session_use("c", f"{key[:-1]}x"),
    }
    rows = [agent_pool.pool_entry_as_json(entry) for entry in agent_pool.pool_entries(uses_by_session)]
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


def test_pool_statistics_report_counts_and_ages():
    """Shows: B046."""
    key = "agent-helper@1@2"
    uses_by_session = {"a": make_session_use("a", key), "b": make_session_use("b", key, minute=1, live=True)}
    assert agent_pool.pool_stats(agent_pool.pool_entries(uses_by_session), NOON + timedelta(minutes=2)) == {
        "total": 2,
        "in_use": 1,
        "available": 1,
        "max": 10,
        "idle_seconds": 300.0,
        "oldest_age_seconds": 120.0,
        "newest_age_seconds": 60.0,
    }
    assert agent_pool.pool_stats([], NOON)["oldest_age_seconds"] is None
