"""Tenants get equal parts of the resource they want most, by weight, and nobody more than its quota (E5 E6)."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.fairness import Claim, Usage, jain, over_quota
from headway.policy.order import Head
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.room import need_of

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NEVER = BASE - datetime.timedelta(days=1)


def board(waiting: dict[tuple[int, int], int], shapes: dict[int, Resources], nodes: list[Capacity], claims=None, slack: float = 0) -> Board:
    made = Board(shapes, lambda tenant: (claims or {}).get(tenant, Claim()))
    for number, capacity in enumerate(nodes, 1):
        made.add_node(NodeRoom(number, f"n{number}", capacity))
    made.resize()
    task = 0
    for group, count in waiting.items():
        head = Head(more=False)
        for _ in range(count):
            task += 1
            head.keys.append((BASE + datetime.timedelta(seconds=slack), 1000, task))
        made.heads[group] = head
        made.touched(group)
    return made


def counts(made: Board) -> dict[int, int]:
    return {tenant: held.count for tenant, held in made.usage.tenants.items()}


@given(st.integers(2, 8), st.integers(1, 40))
def test_tenants_that_want_everything_differ_by_one_task_at_most(tenants, places):
    made = board({(t, 1): 100 for t in range(tenants)}, {1: Resources(cpus_milli=1)}, [Capacity(places, 100, 100)])
    made.place(Round(1000, NEVER))
    held = counts(made)
    assert sum(held.values()) == places
    assert max(held.values()) - min(held.get(t, 0) for t in range(tenants)) <= 1


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=5), st.integers(20, 200))
def test_weights_divide_the_fleet_within_a_task(weights, places):
    claims = {t: Claim(weight) for t, weight in enumerate(weights)}
    made = board({(t, 1): 300 for t in claims}, {1: Resources(cpus_milli=1)}, [Capacity(places, 1000, 1000)], claims)
    made.place(Round(1000, NEVER))
    held = counts(made)
    for tenant, weight in enumerate(weights):
        assert abs(held.get(tenant, 0) - places * weight / sum(weights)) <= 1.01 * len(weights)


def test_the_dominant_resource_counts_as_in_the_paper():
    # 9 cpus, 18 GB; A's tasks want <1 cpu, 4 GB>, B's <3 cpus, 1 GB>: A gets 3 tasks, B 2 (Ghodsi et al., figure 1).
    shapes = {1: Resources(cpus_milli=1, memory=4), 2: Resources(cpus_milli=3, memory=1)}
    made = board({(1, 1): 10, (2, 2): 10}, shapes, [Capacity(9, 18, 100)])
    made.place(Round(1000, NEVER))
    assert counts(made) == {1: 3, 2: 2}


@given(st.dictionaries(st.integers(1, 6), st.integers(0, 30), min_size=1), st.integers(1, 60))
def test_no_room_is_left_while_somebody_waits(waiting, places):
    made = board({(t, 1): n for t, n in waiting.items() if n}, {1: Resources(cpus_milli=1)}, [Capacity(places, 100, 100)])
    plan = made.place(Round(1000, NEVER))
    assert sum(len(p.keys) for p in plan) == min(places, sum(waiting.values()))


@given(st.integers(0, 20), st.integers(1, 10), st.integers(0, 20))
def test_quotas_hold_whatever_waits(max_running, need, limit):
    claims = {1: Claim(1.0, max_running, ((0, limit),))}
    made = board({(1, 1): 100}, {1: Resources(cpus_milli=need)}, [Capacity(1000, 1000, 1000)], claims)
    for _ in range(3):
        made.place(Round(1000, NEVER))
    held = made.usage.tenants[1]
    assert held.count == min(max_running, limit // need)
    if held.count < 100:
        assert over_quota(claims[1], held.count, held.amounts, need_of(made.shapes[1]))


def test_a_tenant_with_a_million_delays_anothers_single_task_by_one_task_at_most():
    made = board({(1, 1): 1000}, {1: Resources(cpus_milli=1)}, [Capacity(10, 100, 100)])
    made.place(Round(1000, BASE + datetime.timedelta(days=1)))
    head = Head(more=False)
    head.keys.append((BASE + datetime.timedelta(hours=1), 1000, 99_999))  # due long after everything of the other
    made.heads[(2, 1)] = head
    made.touched((2, 1))
    made.hold(1, (1, 1), -1)
    [placed] = made.place(Round(1000, BASE + datetime.timedelta(minutes=1)))
    assert placed.group == (2, 1)


def test_within_their_part_of_the_fleet_the_earlier_deadline_goes_first_whoever_holds_less():
    made = board({}, {1: Resources(cpus_milli=1)}, [Capacity(10, 100, 100)])
    for tenant, start in ((1, 50), (2, 10)):
        head = Head(more=False)
        head.keys.append((BASE + datetime.timedelta(seconds=start), 1000, tenant))
        made.heads[(tenant, 1)] = head
        made.touched((tenant, 1))
    made.hold(1, (2, 1), 1)
    made.hold(1, (3, 1), 8)  # one place is left; tenant 2 holds one task, tenant 1 none
    [placed] = made.place(Round(1000, BASE + datetime.timedelta(minutes=1)))
    assert placed.group == (2, 1), "both are due and below their part"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(-3, 5)), max_size=60))
def test_books_are_right_after_any_sequence_of_changes(steps):
    """What the board believes equals what a plain count of everything gives: shares, room, utilisation."""
    shapes = {1: Resources(cpus_milli=2, memory=1), 2: Resources(cpus_milli=1, memory=3), 3: Resources(disk=4)}
    made = board({}, shapes, [Capacity(50, 60, 70), Capacity(20, 30, 40)])
    held: dict[tuple[int, int, int], int] = {}
    for tenant, shape, count in steps:
        node = 1 + (tenant + shape) % 2
        key = (node, tenant, shape)
        if held.get(key, 0) + count < 0:
            continue
        held[key] = held.get(key, 0) + count
        made.hold(node, (tenant, shape), count)
    for node in (1, 2):
        used = [0] * 6
        for (there, _, shape), count in held.items():
            if there == node:
                for i, amount in need_of(shapes[shape]):
                    used[i] += amount * count
        whole = made.rooms[node].capacity.amounts()
        assert made.rooms[node].free == [w - u for w, u in zip(whole, used, strict=True)]
    for i in range(6):
        assert made.rooms.used[i] == sum(
            room.capacity.amounts()[i] - max(room.free[i], 0) for room in made.rooms.values()
        )
    for tenant in {t for _, t, _ in held}:
        count = sum(c for (_, t, _), c in held.items() if t == tenant)
        assert counts(made).get(tenant, 0) == count
    made.set_held(1, {})
    made.set_held(2, {})
    assert made.usage.tenants == {}
    assert made.usage.weight == 0


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-3, 3))),
    st.dictionaries(st.integers(1, 3), st.integers(1, 4)),
)
def test_a_count_sets_right_whatever_was_told_before_it(told, counted):
    """A leader that has just begun hears of the end of tasks whose start it has not counted yet."""
    made = board({}, {1: Resources(cpus_milli=10)}, [Capacity(1000, 1000, 1000)])
    for tenant, count in told:
        made.hold(1, (tenant, 1), count)
    made.set_held(1, {(tenant, 1): count for tenant, count in counted.items()})
    assert counts(made) == counted
    assert {tenant: held.amounts[0] for tenant, held in made.usage.tenants.items()} == {t: 10 * count for t, count in counted.items()}
    assert made.rooms.used[0] == 10 * sum(counted.values())


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_jains_index_lies_between_one_over_n_and_one(values):
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_jains_index_of_equals_is_one_and_of_one_winner_one_over_n():
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)


@given(st.integers(1, 5), st.integers(1, 50), st.integers(0, 100))
def test_only_what_is_due_goes_through_a_door_that_says_so(tenants, waiting, due):
    made = board({}, {1: Resources(cpus_milli=1)}, [Capacity(1000, 1000, 1000)])
    for tenant in range(tenants):
        head = Head(more=False)
        head.keys = [(BASE + datetime.timedelta(seconds=n), 1, tenant * 1000 + n) for n in range(waiting)]
        made.heads[(tenant, 1)] = head
        made.touched((tenant, 1))
    horizon = BASE + datetime.timedelta(seconds=due)
    plan = made.place(Round(10_000, horizon, gate=lambda _shape, _tight: Gate.DUE))
    keys = [key for placed in plan for key in placed.keys]
    assert all(key[0] <= horizon for key in keys)
    assert len(keys) == tenants * min(waiting, due + 1)
    later = made.place(Round(10_000, horizon))  # the door opens: nobody was forgotten
    assert len(keys) + sum(len(placed.keys) for placed in later) == tenants * waiting


@given(st.integers(1, 50), st.integers(1, 30))
def test_what_can_wait_stops_where_room_is_kept(places, waiting):
    made = board({(1, 1): waiting}, {1: Resources(cpus_milli=1)}, [Capacity(places, 100, 100)], slack=3600)
    gate = lambda _shape, tight: Gate.DUE if tight else Gate.OPEN  # noqa: E731
    made.place(Round(1000, BASE, gate, fill=0.8))
    held = counts(made).get(1, 0)
    assert held <= min(waiting, int(0.8 * places) + 1)
    assert held in (waiting, places) or made.tight


def test_usage_without_a_fleet_divides_nothing_by_zero():
    usage = Usage()
    usage.add(1, ((0, 5),), 1)
    usage.resize((0, 0, 0, 0, 0, 0))
    assert usage.share(1) == 0.0


changes = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2]), st.integers(1, 5)), max_size=30)
NEEDS = {1: need_of(Resources(cpus_milli=1)), 2: need_of(Resources(cpus_milli=2, memory=3))}


@given(changes, st.dictionaries(st.integers(1, 4), st.integers(0, 20)), st.dictionaries(st.integers(1, 4), st.integers(0, 30)))
def test_an_allowance_is_exactly_what_keeps_a_tenant_within_its_quotas(held, most_running, most_cpus):
    claims = {t: Claim(max_running=most_running.get(t), limits=((0, most_cpus[t]),) if t in most_cpus else ()) for t in range(1, 5)}
    usage = Usage(claims.__getitem__)
    usage.resize([100, 100, 100, 0, 0, 0])
    for tenant, kind, count in held:
        usage.add(tenant, NEEDS[kind], usage.allowance(tenant, NEEDS[kind], count))
    for tenant, one in usage.tenants.items():
        claim = claims[tenant]
        assert claim.max_running is None or one.count <= claim.max_running
        assert all(one.amounts[i] <= limit for i, limit in claim.limits)
        for need in NEEDS.values():
            assert bool(usage.allowance(tenant, need, 1)) == (not over_quota(claim, one.count, one.amounts, need))


@given(changes, st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4))
def test_what_is_given_back_leaves_nothing_behind_and_new_subscriptions_change_shares_by_their_weights(held, weights):
    chosen = dict(enumerate([1.0] * 4, 1))
    usage = Usage(lambda tenant: Claim(chosen[tenant]))
    usage.resize([100, 100, 100, 0, 0, 0])
    for tenant, kind, count in held:
        usage.add(tenant, NEEDS[kind], count)
    before = {tenant: usage.share(tenant) for tenant in usage.tenants}
    chosen.update(enumerate(weights, 1))
    usage.reclaim()
    assert usage.weight == pytest.approx(sum(chosen[tenant] for tenant in usage.tenants))
    for tenant, share in before.items():
        assert usage.share(tenant) * chosen[tenant] == pytest.approx(share)
        assert usage.part(tenant) == pytest.approx(chosen[tenant] / usage.weight)
    for tenant, kind, count in held:
        usage.add(tenant, NEEDS[kind], -count)
    assert usage.tenants == {}
    assert usage.weight == pytest.approx(0.0)


@given(changes)
def test_somebody_holds_no_more_than_an_equal_part_and_whoever_does_is_entitled(held):
    usage = Usage()
    usage.resize([100, 100, 100, 0, 0, 0])
    for tenant, kind, count in held:
        usage.add(tenant, NEEDS[kind], count)
    under = [tenant for tenant in usage.tenants if usage.is_under_part(tenant)]
    assert all(usage.may_stop_others(tenant) for tenant in under)
    total = sum(usage.share(tenant) for tenant in usage.tenants)
    assert under or not usage.tenants or total >= 1.0, "shares that do not fill the fleet cannot all be more than an equal part"
    usage.reset()
    assert usage.tenants == {}
