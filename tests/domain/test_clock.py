"""The clock and its ids: ids sort by time and never repeat, whatever the clock does."""

import re
import threading
import uuid
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from retinue.testing.fixed_clock import START_TIME, fixed_clock
from retinue.worker.clock import IncreasingNumbers, format_ulid, format_uuid7, system_clock

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
LIMIT = 2**48 - 1


def test_the_system_clock_is_in_utc():
    now = system_clock().now()
    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_entry_ids_increase_even_within_a_millisecond():
    clock = system_clock()
    ids = [clock.new_entry_id() for _ in range(5000)]
    assert sorted(set(ids)) == ids
    assert all(ULID.fullmatch(entry_id) for entry_id in ids)


def test_uuids_are_version_seven_and_increase():
    clock = system_clock()
    ids = [clock.new_uuid() for _ in range(2000)]
    assert sorted(set(ids)) == ids
    for text in ids:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 7, uuid.RFC_4122)


def test_entry_ids_and_uuids_begin_with_the_time():
    before = int(datetime.now(UTC).timestamp() * 1000)
    clock = system_clock()
    entry_id, run_id = clock.new_entry_id(), clock.new_uuid()
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    at = 0
    for char in entry_id[:10]:
        at = at * 32 + alphabet.index(char)
    assert 0 <= at - before < 60_000
    assert 0 <= (uuid.UUID(run_id).int >> 80) - before < 60_000


@given(clock=st.lists(st.integers(1, LIMIT - 1), min_size=1, max_size=60), bits=st.sampled_from([74, 80]))
def test_numbers_increase_whatever_the_clock_does(clock: list[int], bits: int):
    ticks = iter(clock)
    rising = IncreasingNumbers(lambda: next(ticks), bits=bits)
    numbers = [rising.next() for _ in clock]
    assert sorted(set(numbers)) == numbers
    assert numbers[0] >> bits == clock[0]


def test_numbers_never_run_out_while_the_clock_does_not_advance():
    rising = IncreasingNumbers(lambda: 7, bits=34)
    numbers = [rising.next() for _ in range(100)]
    assert sorted(set(numbers)) == numbers
    assert numbers[-1] >> 34 > 7


def test_threads_never_get_the_same_number():
    rising = IncreasingNumbers(lambda: 7, bits=80)
    found: list[list[int]] = [[] for _ in range(4)]

    def take(into: list[int]) -> None:
        into.extend(rising.next() for _ in range(1000))

    threads = [threading.Thread(target=take, args=(into,)) for into in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({number for some in found for number in some}) == 4000


@given(numbers=st.lists(st.integers(0, 2**128 - 1), min_size=2, max_size=2))
def test_ulids_sort_like_their_numbers(numbers: list[int]):
    one, two = numbers
    assert (format_ulid(one) < format_ulid(two)) == (one < two)
    assert ULID.fullmatch(format_ulid(one))


@given(numbers=st.lists(st.integers(0, 2**122 - 1), min_size=2, max_size=2))
def test_uuids_sort_like_their_numbers(numbers: list[int]):
    one, two = numbers
    assert (format_uuid7(one) < format_uuid7(two)) == (one < two)
    assert uuid.UUID(format_uuid7(one)).version == 7


def test_uniform_stays_between_its_bounds_and_varies():
    uniform = system_clock().uniform
    numbers = {uniform(2.0, 3.0) for _ in range(50)}
    assert all(2.0 <= number <= 3.0 for number in numbers)
    assert len(numbers) > 1


def test_a_fixed_clock_repeats_its_times_and_ids_and_they_are_well_formed():
    one, two = fixed_clock(), fixed_clock()
    for _ in range(3):
        assert one.now() == two.now()
        assert one.new_entry_id() == two.new_entry_id()
        assert one.new_uuid() == two.new_uuid()
    ids = [one.new_entry_id() for _ in range(100)]
    assert sorted(set(ids)) == ids
    assert ULID.fullmatch(ids[0])
    assert uuid.UUID(one.new_uuid()).version == 7
    assert one.uniform(1, 2) == 1.5


def test_a_fixed_clock_advances_by_its_step_and_ids_of_different_seeds_differ():
    clock = fixed_clock(step=timedelta(seconds=1))
    assert [clock.now(), clock.now()] == [START_TIME, START_TIME + timedelta(seconds=1)]
    other = fixed_clock(seed=1)
    assert not {clock.new_uuid() for _ in range(50)} & {other.new_uuid() for _ in range(50)}
    assert not {clock.new_entry_id() for _ in range(50)} & {other.new_entry_id() for _ in range(50)}
