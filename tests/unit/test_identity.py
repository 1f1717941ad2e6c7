"""Ids are 63 bits, rise with time and are never given twice, whatever the clock does (A4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.identity import EPOCH_MS, MAX_ID, NUMBERS, PER_MS, Exhausted, Ids, first_id_of, make, ms_of, number_of

START = EPOCH_MS + 60_000_000_000


@given(st.integers(0, 2**41 - 1), st.integers(0, NUMBERS - 1), st.integers(0, PER_MS - 1))
def test_an_id_holds_its_time_and_number_in_63_bits(offset, number, sequence):
    made = make(EPOCH_MS + offset, number, sequence)
    assert 0 <= made <= MAX_ID
    assert (ms_of(made), number_of(made)) == (EPOCH_MS + offset, number)
    assert made >= first_id_of(EPOCH_MS + offset)


@given(st.lists(st.tuples(st.integers(1, 3 * PER_MS), st.integers(-5_000, 5_000)), min_size=1, max_size=30))
def test_ids_rise_and_never_repeat_though_the_clock_jumps(steps):
    ids = Ids(7, START, START + 10_000_000)
    now, last = START, -1
    for count, jump in steps:
        now += jump
        for made in ids.take(count, now):
            assert made > last
            last = made


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2 * PER_MS)), max_size=30))
def test_two_holders_of_one_number_never_make_the_same_id(turns):
    """Reservations never overlap, so neither do ids, even when both believe they own the number."""
    reserved = START
    holders = []
    for _ in range(2):
        holders.append(Ids(3, reserved, reserved + 50))
        reserved += 50
    seen: set[int] = set()
    for which, count in turns:
        ids = holders[which]
        try:
            made = ids.take(count, START)
        except Exhausted:
            ids.extend(reserved, reserved + 50)
            reserved += 50
            continue
        assert not seen & set(made)
        seen |= set(made)


def test_an_exhausted_reservation_gives_nothing_and_loses_nothing():
    ids = Ids(0, START, START + 1)
    with pytest.raises(Exhausted):
        ids.take(2 * PER_MS, START)
    assert len(ids.take(PER_MS, START)) == PER_MS


def test_a_reservation_that_follows_on_is_used_to_its_last_id():
    ids = Ids(0, START, START + 1)
    first = ids.take(10, START)
    ids.extend(ids.after_ms, START + 2)
    rest = ids.take(2 * PER_MS - 10, START)
    assert len({*first, *rest}) == 2 * PER_MS
