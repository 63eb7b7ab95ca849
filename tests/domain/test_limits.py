"""Limits: the documented defaults, and a run timeout that is always finite."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.limits import MAX_CONFIGURABLE_DEPTH, Limits


def test_limits_have_the_documented_defaults():
    assert Limits() == Limits(
        max_depth=3,
        max_live=16,
        max_live_per_requester=16,
        max_runs_per_tree=10_000,
        max_calls_per_turn=1024,
        identical_calls=8,
        max_turns=500,
        deadline_seconds=3600,
        deadline_max_seconds=86_400,
        idle_seconds=300,
        approval_seconds=86_400,
        resume_window_seconds=86_400,
    )
    assert MAX_CONFIGURABLE_DEPTH == 5


@pytest.mark.parametrize(
    ("limits", "requested_s", "expected"),
    [
        (Limits(), None, 3600),
        (Limits(), 0, 86_400),
        (Limits(), -1, 86_400),
        (Limits(), 120, 120),
        (Limits(), 0.5, 0.5),
        (Limits(), 86_401, 86_400),
        (Limits(), math.inf, 86_400),
        (Limits(), -math.inf, 86_400),
        (Limits(), math.nan, 86_400),
        (Limits(deadline_seconds=90_000), None, 86_400),
        (Limits(deadline_seconds=0), None, 86_400),
        (Limits(deadline_max_seconds=60), None, 60),
        (Limits(deadline_max_seconds=60), 0, 60),
    ],
)
def test_a_missing_timeout_is_the_default_and_zero_or_infinity_is_the_maximum(
    limits: Limits, requested_s: float | None, expected: float
):
    assert limits.run_timeout_s(requested_s) == expected


@given(requested_s=st.none() | st.floats())
def test_every_run_timeout_is_above_zero_and_at_most_the_maximum(requested_s: float | None):
    assert 0 < Limits().run_timeout_s(requested_s) <= 86_400
