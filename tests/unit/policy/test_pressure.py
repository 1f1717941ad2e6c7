"""How much room is kept for urgent tasks, what is due first at peak, and what a tenant is entitled to (E1 E2 E4 E5)."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy import census
from headway.policy.fairness import Usage, water_level
from headway.policy.order import Head
from headway.policy.peak import BEGINS, KEEP_S, kept
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.pressure import Pressure
from headway.policy.promotion import ALL, EARLIEST_S, LONGEST_ROOM_S, early, room_in

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
rates = st.floats(0, 1e4)


@given(rates, rates, st.floats(0, 1))
def test_the_room_kept_is_never_more_than_the_peak_leaves(urgent, drain, part):
    assert 0 <= kept(urgent, drain, part) <= 1 - BEGINS + 1e-9


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1, 10), st.floats(1e-6, 1e-3))
def test_more_urgent_tasks_need_more_room_and_a_larger_fleet_a_smaller_part(urgent, drain, more, part):
    assert kept(urgent * more, drain, part) >= kept(urgent, drain, part)
    assert kept(urgent, drain, part / more) <= kept(urgent, drain, part)


def test_a_large_fleet_keeps_little_and_a_small_one_what_it_did():
    assert kept(0.2, 1.0, 2 / 80_000) < 0.001
    assert kept(0.2, 1.0, 2 / 14) == pytest.approx(0.2)


def test_room_is_kept_for_a_while_after_urgent_tasks_came_and_not_without():
    pressure = Pressure()
    pressure.look(0.0, 0.9, list, dict)
    assert pressure.peak
    assert (pressure.keep, pressure.fill, pressure.due_first) == (False, None, False)
    pressure.came(9, 0.1, 1.0, under_part=False)
    pressure.look(1.5, 0.9, list, dict)
    assert not pressure.keep, "who holds more than its part cannot make others wait"
    pressure.came(1, 0.1, 1.5, under_part=True)
    pressure.look(2.0, 0.9, list, dict)
    assert pressure.due_first
    assert pressure.fill is not None
    assert pressure.fill == pytest.approx(0.8)
    pressure.look(2.0 + KEEP_S, 0.9, list, dict)
    assert (pressure.keep, pressure.fill) == (False, None)


def pressed(parts: dict[int, float], utilisation: float) -> Pressure:
    """After 200 seconds in each of which ten tasks ended: nine that held a hundredth of the fleet, and one that held four."""
    pressure = Pressure(start_up_s=0.5)
    for second in range(200):
        pressure.ended(10)
        pressure.freed(9, 0.01)
        pressure.freed(1, 0.04)
        pressure.look(float(second), utilisation, list, lambda: parts)
    return pressure


def test_on_a_full_fleet_each_shape_is_due_as_much_earlier_as_its_rooms_are_rare():
    full = pressed({1: 0.01, 2: 0.04, 3: 0.5}, 0.95)
    assert 1 not in full.early, "every end leaves such a room"
    assert full.early[2] == pytest.approx(ALL / 1 - ALL / 10, rel=0.05), "one end in ten leaves it"
    assert full.early[3] == EARLIEST_S, "none does: a node will be kept"
    assert full.lead_s == LONGEST_ROOM_S + 0.5
    assert pressed({1: 0.01, 2: 0.04}, 0.95).lead_s == pytest.approx(7.5, rel=0.05), "seven times the mean of a second"
    assert pressed({1: 0.01}, 0.95).lead_s == 2.0
    assert pressed({1: 0.01, 2: 0.04, 3: 0.5}, 0.5).early == {}, "there is room anyway"


@given(st.floats(0.001, 1e4), st.floats(0, 1), st.floats(0, 1))
def test_rarer_rooms_are_waited_for_from_earlier_on_and_never_for_longer_than_a_bound(drain, leaves, part):
    assert 0 <= early(drain, leaves) <= early(drain, leaves * part) <= EARLIEST_S
    assert early(drain, 1.0) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=20), st.floats(0.01, 2))
def test_the_water_level_divides_the_whole_and_no_more(asked, whole):
    level = water_level(asked, whole)
    given_out = sum(min(share, level) * weight for share, weight in asked)
    wanted = sum(share * weight for share, weight in asked)
    if wanted > whole:
        assert given_out == pytest.approx(whole)
    else:
        assert level == 1.0, "there is enough for everyone"


def usage_of(held: dict[int, int]) -> Usage:
    """So many tasks of each tenant, on a fleet of forty."""
    usage = Usage()
    usage.resize((40, 40))
    for tenant, count in held.items():
        usage.add(tenant, ((0, 1),), count)
    return usage


@given(st.dictionaries(st.integers(1, 8), st.integers(1, 5), min_size=1), st.dictionaries(st.integers(1, 8), st.floats(0, 1)))
def test_a_tenant_is_entitled_to_no_less_than_an_equal_part_whatever_others_ask_for(held, due):
    usage = usage_of(held)
    usage.divide(due, utilisation=sum(held.values()) / 40)
    assert usage.level >= 1 / len(held) - 1e-9
    assert usage.level <= 1.0
    usage.divide(due, utilisation=sum(held.values()) / 40, evenly=True)
    assert usage.level == pytest.approx(1 / len(held))


@given(st.dictionaries(st.integers(1, 8), st.integers(1, 5), min_size=2), st.dictionaries(st.integers(1, 8), st.floats(0, 1)))
def test_whoever_stops_others_holds_so_little_that_all_could_have_as_much_of_what_they_ask_for(held, due):
    usage = usage_of(held)
    usage.divide(due, utilisation=sum(held.values()) / 40, evenly=True)
    assert usage.level == pytest.approx(1 / len(held)), "the order goes by equal parts"
    asked = {tenant: usage.share(tenant) + due.get(tenant, 0.0) for tenant in held}
    for tenant in held:
        own = usage.share(tenant)
        left = 1.0 - sum(min(ask, own) for ask in asked.values())
        assert usage.may_stop_others(tenant) or left < 1e-9
        assert own < 1 / len(held) or left > -1e-9 or not usage.may_stop_others(tenant)


def test_when_more_is_due_than_fits_a_small_tenant_may_stop_others_and_one_with_a_backlog_not():
    board = Board({1: Resources(cpus_milli=1)})
    board.add_node(NodeRoom(1, "n1", Capacity(40, 100, 100)))
    board.resize()
    held = {1: 26, 2: 4, **dict.fromkeys(range(3, 13), 1)}  # an equal part is 3.3 of 40
    for tenant, count in held.items():
        board.hold(1, (tenant, 1), count)
    for tenant, count in {1: 100, 2: 1}.items():
        head = board.heads[(tenant, 1)] = Head(more=False)
        head.keys += [(BASE, 1000, 1000 * tenant + task) for task in range(count)]
        board.touched((tenant, 1))
    board.place(Round(1, BASE, due_first=True))
    board.divide(due_first=True)
    assert board.flooded
    for due_first in (True, False):
        board.divide(due_first=due_first)
        assert board.usage.level == pytest.approx(1 / 12), "in the order it is an equal part"
        assert {tenant for tenant in held if board.usage.may_stop_others(tenant)} == set(held) - {1}
    board.divide_evenly()
    assert not board.flooded
    assert board.usage.level == pytest.approx(1 / 12)
    assert board.usage.may_stop_others(2), "as it was last counted"


def two_tenants() -> Board:
    """One place. Tenant 1 holds two others and has a due task; tenant 2 holds nothing, and its task can wait an hour."""
    board = Board({1: Resources(cpus_milli=1)})
    board.add_node(NodeRoom(1, "n1", Capacity(3, 100, 100)))
    board.resize()
    board.hold(1, (1, 1), 2)
    for tenant, slack in ((1, 0), (2, 3600)):
        head = board.heads[(tenant, 1)] = Head(more=False)
        head.keys.append((BASE + datetime.timedelta(seconds=slack), 1000, tenant))
        board.touched((tenant, 1))
    return board


@pytest.mark.parametrize(("due_first", "winner"), [(False, 2), (True, 1)])
def test_at_peak_what_is_due_goes_before_what_can_wait_and_else_who_holds_less(due_first, winner):
    board = two_tenants()
    [placed] = board.place(Round(10, BASE, due_first=due_first))
    assert placed.group[0] == winner


def test_a_tenant_that_holds_less_than_its_part_and_is_due_goes_first_at_peak_too():
    board = two_tenants()
    [placed] = board.place(Round(10, BASE + datetime.timedelta(hours=2), due_first=True))
    assert placed.group[0] == 2


@pytest.mark.parametrize(("backlog", "winner"), [(0, 1), (10, 2)])
def test_due_tasks_of_one_tenant_that_would_fill_the_fleet_go_before_nobody_else(backlog, winner):
    board = two_tenants()
    board.heads[(1, 1)].keys.extend((BASE, 1000, 10 + n) for n in range(backlog))
    board.lanes[1].move(BASE, None)
    board.divide(due_first=True)
    [placed] = board.place(Round(10, BASE, due_first=True))
    assert placed.group[0] == winner


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-50, 50)), min_size=1, max_size=40),
    st.integers(1, 6),
    st.lists(st.booleans()),
)
def test_nothing_that_is_due_is_forgotten_while_the_peak_comes_and_goes(tasks, places, peaks):
    """Only what is due may go; whoever is handed out ends before the next round. In the end nothing due is left."""
    board = Board({1: Resources(cpus_milli=1)})
    board.add_node(NodeRoom(1, "n1", Capacity(places, 1000, 1000)))
    board.resize()
    for tenant in {tenant for tenant, _ in tasks}:
        head = board.heads[(tenant, 1)] = Head(more=False)
        head.keys.extend(sorted((BASE + datetime.timedelta(seconds=at), 1, n) for n, (of, at) in enumerate(tasks) if of == tenant))
        board.touched((tenant, 1))
    gone = 0
    for peak in [*peaks, *[True] * (len(tasks) + 1)]:
        for placed in board.place(Round(1000, BASE, lambda _shape, _tight: Gate.DUE, due_first=peak)):
            gone += len(placed.keys)
            board.hold(1, placed.group, -len(placed.keys))
    assert gone == sum(at <= 0 for _, at in tasks)


def test_a_tenant_with_ever_other_sizes_does_not_fill_the_memory_of_them():
    pressure = Pressure()
    for n in range(1, 100_000):
        pressure.freed(1, n / 100_000)
    assert len(pressure._sizes) < 2_000


@given(st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 1))
def test_the_wait_for_a_room_is_bounded_and_longer_for_rarer_ones(drain, leaves, more):
    assert 0 <= room_in(drain, leaves) <= LONGEST_ROOM_S
    assert room_in(drain, min(leaves + more, 1.0)) <= room_in(drain, leaves)


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_a_closed_queue_holds_back_presses_nobody(held_back, due):
    """However much is overdue there, it neither floods the fleet nor makes others due earlier."""
    board = Board({1: Resources(cpus_milli=1), 2: Resources(cpus_milli=1)})
    board.add_node(NodeRoom(1, "n1", Capacity(10, 1000, 1000)))
    board.resize()
    for shape, count in ((1, held_back), (2, due)):
        head = board.heads[(shape, shape)] = Head(more=False)
        head.keys.extend((BASE, 1, number) for number in range(count))
        board.touched((shape, shape))
    board.place(Round(0, BASE, lambda shape, _tight: Gate.CLOSED if shape == 1 else Gate.OPEN))
    board.divide(due_first=True)
    assert board.flooded == (due > 10)
    assert set(board.going) == ({2} if due else set())
    assert due / 2 <= sum(count for _, count in census.waiting(board.going)) <= due, "a sample: what stands behind its last is not counted"


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3]), st.sets(st.sampled_from([1, 2, 3])), st.booleans()), max_size=40),
    st.integers(1, 6),
)
def test_doors_open_and_close_and_nobody_is_forgotten_nor_counted_where_nothing_may_go(steps, places):
    board = Board({shape: Resources(cpus_milli=1) for shape in (1, 2, 3)})
    board.add_node(NodeRoom(1, "n1", Capacity(places, 1000, 1000)))
    board.resize()
    waiting, number, held = 0, 0, []

    def round_(closed: set[int]) -> None:
        nonlocal waiting
        plan = board.place(Round(100, BASE, lambda shape, _tight: Gate.CLOSED if shape in closed else Gate.OPEN))
        for placed in plan:
            assert placed.group[1] not in closed
            held.extend([placed.group] * len(placed.keys))
            waiting -= len(placed.keys)
        who = {tenant for shape, lane in board.lanes.items() if shape not in closed for tenant in lane.tenants}
        assert set(board.usage.tenants) == who | {tenant for tenant, _ in held}

    for tenant, shape, closed, ends in steps:
        number += 1
        waiting += 1
        head = board.heads.setdefault((tenant, shape), Head(more=False))
        head.keys.append((BASE, 1, number))
        board.touched((tenant, shape))
        if ends and held:
            board.hold(1, held.pop(), -1)
        round_(closed)
    for _ in range(number + 1):
        while held:
            board.hold(1, held.pop(), -1)
        round_(set())
    assert waiting == 0
