"""The memory of a long-lived process does not grow with every session that it has worked on."""

import gc
import tracemalloc
from datetime import UTC, datetime

from retinue.domain.session import Session
from retinue.domain.workspace import Workspace
from retinue.sessions.lookup import SessionLookup
from retinue.storage.thread_pool import DiskThreadPool

NOW = datetime(2026, 11, 19, tzinfo=UTC)


def make_session(number: int) -> Session:
    return Session(
        id=f"01a1f5{number:030}",
        slug=f"main-{number:014}",
        agent="main",
        path=f"/home/sessions/main-{number:014}/branches/main",
        created_at=NOW,
        updated_at=NOW,
        workspace=Workspace(root="/w"),
    )


def memory_after(count: int, lookup: SessionLookup, threads: DiskThreadPool) -> int:
    for number in range(count):
        session = make_session(number)
        lookup.remember_new(session)
        lookup.track_work(session.path, change=1)
        lookup.track_work(session.path, change=-1)
        threads.mark_durable(session.path)
        if number % 1000 == 999:
            gc.collect()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_ten_thousand_more_sessions_need_no_more_memory():
    lookup, threads = SessionLookup("/home/sessions", lambda: "token"), DiskThreadPool()
    tracemalloc.start()
    try:
        after_few = memory_after(6_000, lookup, threads)
        after_many = memory_after(16_000, lookup, threads)
    finally:
        tracemalloc.stop()
        threads.close()
    assert after_many < after_few * 1.5
