"""Suspects are tried one by one, and whoever ended the last round comes first in the next."""

from retinue.domain.run import Run
from retinue.runtime.quarantine import in_turn
from retinue.testing.ledgers import a_run


def tried(**attempts: int) -> list[Run]:
    return [a_run(name, attempts=count) for name, count in attempts.items()]


def names(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def test_the_first_round_goes_by_age():
    assert names(in_turn(tried(c=2, a=2, b=2))) == ["a", "b", "c"]


def test_whoever_was_last_when_the_process_died_is_first_and_alone_in_the_next_round():
    """Shows: P22."""
    assert names(in_turn(tried(a=3, b=3, c=2, d=2))) == ["b", "a", "c", "d"]


def test_whoever_was_counted_most_is_never_tried_beside_the_others():
    assert names(in_turn(tried(a=3, b=4, c=3)))[0] == "b"
