"""Results of sub-agents: their short summaries."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from retinue.domain.delivery import brief_summary, work_summary
from retinue.domain.run import Run, RunRequest

RUN = Run(
    id="r1",
    request=RunRequest(key="k", agent="main", task="look"),
    session_id="s1",
    slug="main-20261115184207",
    session_key="main-20261115184207/main",
    agent="main",
    transcript_path="sessions/x/session.md",
    created_at=datetime(2026, 11, 15, 18, 42, 7, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("replies", "summary"),
    [(["It is in a.txt."], "It is in a.txt."), (["It is in a.txt.", "I also\nlooked."], "It is in a.txt.…")],
)
def test_the_summary_of_collected_replies_leaves_out_their_title(replies: list[str], summary: str):
    assert brief_summary(replace(RUN, text=work_summary("main", replies))) == summary
