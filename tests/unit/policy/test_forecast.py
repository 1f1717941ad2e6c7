"""Estimated starts follow from what runs: the next end, the order, quotas, and what will come (E8)."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.policy.forecast import RATE_S, Held, Lasting, Rival, Scene, ends_of, foresee, share_of, to_come

CPU = ((0, 1000),)
LARGE = ((0, 2000),)
HUNDRED = Lasting((100.0,) * 2000, 600.0)


def scene(*held: Held, waiting: int = 0, cpus: int = 1, **fields) -> Scene:
    free = (1000 * cpus - sum(amount for one in held for _, amount in one.need),)
    own = Rival(1, waiting, 0.0, share_of(1, held, (1000 * cpus,)))
    return Scene(**{"need": CPU, "tenant": 1, "free": [(1, free)], "capacity": (1000 * cpus,), "held": held, "rivals": [own], **fields})


def start(asked: Scene):
    return foresee(asked, random.Random(1))


def test_behind_a_task_of_a_hundred_seconds_it_waits_for_its_end():
    found = start(scene(Held(1, 1, CPU, 30.0, HUNDRED)))
    assert found is not None
    assert 69 < found.low <= found.middle <= found.high < 72


def test_each_of_its_tenants_tasks_before_it_takes_its_time_too():
    found = start(scene(Held(1, 1, CPU, 30.0, HUNDRED), waiting=2))
    assert found is not None
    assert 269 < found.low <= found.high < 272


def test_of_unknown_work_it_is_said_that_it_ends_by_its_cap():
    found = start(scene(Held(1, 1, CPU, 10.0, Lasting((), 600.0))))
    assert found is not None
    assert 0 <= found.low < 60
    assert found.low < found.middle < found.high < 591


def test_a_tenant_that_holds_less_goes_first():
    held = Held(1, 1, CPU, 0.0, HUNDRED)
    mine, other = Rival(1, 0, 0.0, 1.0), Rival(2, 1, 0.0, 0.0)
    alone, behind = start(scene(held, rivals=[mine], level=0.5)), start(scene(held, rivals=[mine, other], level=0.5))
    assert alone is not None
    assert behind is not None
    assert (round(alone.middle), round(behind.middle)) == (100, 100), "the place it gives back makes the shares equal: it may be next"
    many = start(scene(held, Held(1, 1, CPU, 50.0, HUNDRED), cpus=2, rivals=[Rival(1, 0, 0.0, 1.0), other], level=0.1, slack_s=1e6))
    assert many is not None
    assert round(many.middle) == 100, "the first place goes to the tenant with nothing, the second is ours"


def test_at_its_quota_only_an_end_of_its_own_tenant_helps():
    own, other = Held(1, 1, CPU, 0.0, HUNDRED), Held(1, 2, CPU, 95.0, HUNDRED)
    found = start(scene(own, other, cpus=3, rivals=[Rival(1, 0, 0.0, 0.3, most=1)]))
    assert found is not None
    assert round(found.middle) == 100


def test_a_task_that_needs_more_than_one_end_waits_for_all_of_them():
    held = [Held(1, 1, CPU, float(ran), HUNDRED) for ran in (90, 50)]
    found = start(scene(*held, cpus=2, need=((0, 2000),)))
    assert found is not None
    assert 49 < found.low <= found.high < 52


def test_a_rival_at_its_quota_does_not_go_first():
    held = [Held(1, 1, CPU, 50.0, HUNDRED), Held(1, 2, CPU, 0.0, HUNDRED)]
    rivals = [Rival(1, 0, 0.0, 0.5), Rival(2, 5, 0.0, 0.1, most=1)]
    found = start(scene(*held, cpus=2, rivals=rivals, level=0.1))
    assert found is not None
    assert round(found.middle) == 50


def test_rates_of_a_busier_time_do_not_put_it_off_for_ever():
    rivals = [Rival(1, 0, 0.0, 1.0), Rival(2, 0, 50.0, 0.0)]
    found = start(scene(Held(1, 1, CPU, 0.0, HUNDRED), rivals=rivals, slack_s=3600.0, level=0.5))
    assert found is not None
    assert found.middle < 1000


times = st.lists(st.floats(0.01, 1000), max_size=10).map(lambda found: tuple(sorted(found)))


@given(times, st.floats(0.1, 10_000), st.floats(0, 10_000), st.integers())
def test_what_is_left_of_a_run_is_never_negative_and_within_its_cap_or_its_history(known, cap, ran, seed):
    lasting = Lasting(known, cap)
    most = max(cap, *known, ran, 1.0)
    for left in (lasting.rest(ran, random.Random(seed)), lasting.half_rest(ran)):
        assert 0 <= left <= most


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 100), times), min_size=1, max_size=6),
    st.integers(0, 5),
    st.floats(0, 2),
    st.floats(-100, 100),
    st.tuples(st.floats(0, 100), st.booleans(), st.sampled_from((math.inf, 3.0))),
    st.integers(),
)
@settings(max_examples=30)
def test_whatever_runs_the_interval_is_in_order_and_the_same_twice(runs, waiting, per_s, slack, more, seed):
    lead, yields, stops = more
    held = [Held(1, tenant, CPU, ran, Lasting(known), yields) for tenant, ran, known in runs]
    asks = ((CPU, waiting // 2), (LARGE, waiting - waiting // 2))
    rivals = [Rival(tenant, waiting, per_s, share_of(tenant, held, (1000 * len(held),)), asks=asks) for tenant in (1, 2, 3)]
    asked = scene(*held, cpus=len(held), rivals=rivals, slack_s=slack, urgent=0.2, lead_s=lead, stops_s=stops, level=0.3)
    found = foresee(asked, random.Random(seed))
    assert found == foresee(asked, random.Random(seed))
    if found is not None:
        assert 0 <= found.low <= found.middle <= found.high < math.inf


# What waits, what comes and who makes room

@given(st.floats(0.05, 1000), st.integers())
@settings(max_examples=20)
def test_what_will_come_is_what_came_give_or_take_the_chance_that_was_in_the_count(per_s, seed):
    luck = random.Random(seed)
    drawn = sorted(to_come(per_s, luck) for _ in range(2000))
    off = 1 / math.sqrt(per_s * RATE_S + 1)
    assert abs(sum(drawn) / 2000 / per_s - 1) < 0.2 * off
    assert drawn[100] < per_s * (1 - off), "one in twenty is further below"
    assert drawn[1900] > per_s * (1 + off), "and one in twenty further above"
    assert drawn[0] > 0


@given(st.floats(0, 1e-300), st.integers())
def test_of_a_rate_next_to_nothing_nothing_comes(per_s, seed):
    found = foresee(scene(Held(1, 1, CPU, 30.0, HUNDRED), rivals=[Rival(1, 0, per_s, 1.0)]), random.Random(seed))
    assert found is not None
    assert round(found.middle) == 70


def test_large_ones_before_it_that_find_no_room_do_not_hold_it_up():
    held = [Held(1, 1, CPU, float(ran), HUNDRED) for ran in (90, 10)]
    large, small = ([Rival(1, 1, 0.0, 1.0, asks=((need, 1),))] for need in (LARGE, CPU))
    passes, behind = start(scene(*held, cpus=2, rivals=large)), start(scene(*held, cpus=2, rivals=small))
    assert passes is not None
    assert behind is not None
    assert (round(passes.middle), round(behind.middle)) == (10, 90)


def test_once_smaller_ones_took_as_much_behind_it_a_node_is_kept_for_a_large_one():
    held = [Held(1, 2, CPU, ran, Lasting((10.0,) * 2000)) for ran in (0.0, 5.0)]
    rivals = [Rival(1, 0, 0.0, 0.0), Rival(2, 100, 0.0, 1.0, asks=((CPU, 100),))]
    found = start(scene(*held, cpus=2, need=LARGE, rivals=rivals, level=0.5))
    assert found is not None
    assert found.high < 40, "one of the hundred after the other would begin where one ends"


def test_an_urgent_task_takes_the_room_of_one_that_may_be_stopped():
    found = start(scene(Held(1, 2, CPU, 0.0, HUNDRED, yields=True), stops_s=3.0))
    assert found is not None
    assert 3 < found.low < found.middle < 10
    nobody = start(scene(Held(1, 2, CPU, 0.0, HUNDRED), stops_s=3.0))
    assert nobody is not None
    assert round(nobody.middle) == 100


def test_what_comes_with_less_time_still_passes_one_that_is_due_only_because_the_lead_is_long():
    held = [Held(1, 1, CPU, float(n), Lasting((10.0,) * 2000)) for n in range(10)]
    known = {"cpus": 10, "rivals": [Rival(1, 20, 0.8, 1.0, 20)], "urgent": 1.0, "lead_s": 600.0}
    late, fresh = (start(scene(*held, slack_s=slack, **known)) for slack in (-599.0, -1.0))
    assert late is not None
    assert fresh is not None
    assert late.middle < 30 < 50 < fresh.middle


def test_further_than_is_looked_it_goes_on_as_in_the_time_before():
    held = Held(1, 1, CPU, 0.0, Lasting((10.0,) * 2000))
    rivals = [Rival(0, 0, 0.08, 0.0), Rival(1, 299, 0.0, 1.0, 299)]  # of equal shares the first is served
    found = start(scene(held, rivals=rivals, level=0.0))
    assert found is not None
    assert 8_000 < found.middle < 25_000, "300 tasks of 10 s in a fifth of the fleet"


def test_of_tasks_that_take_no_time_any_number_before_it_takes_next_to_none():
    found = start(scene(Held(1, 1, CPU, 0.0, Lasting((1e-9,) * 20_000)), rivals=[Rival(1, 2000, 0.0, 1.0, 2000)]))
    assert found is not None
    assert found.middle < 5


@given(st.lists(st.tuples(st.lists(st.floats(0.01, 1000)), st.floats(1, 3600), st.floats(0, 5000)), max_size=20))
def test_what_runs_ends_in_order_and_by_its_cap_or_its_history(runs):
    held = [Held(1, 1, CPU, ran, Lasting(tuple(sorted(times)), cap)) for times, cap, ran in runs]
    ends = ends_of(held)
    assert list(ends) == sorted(ends)
    assert len(ends) == len(runs)
    longest = max((max(times, default=0.0) if ran < max(times, default=0.0) else cap for times, cap, ran in runs), default=0.0)
    assert all(0 <= end <= longest for end in ends)


def test_where_all_is_known_nine_of_ten_begin_within_the_interval_and_not_nearly_all():
    """One place, n tasks before it, all of them as long as 200 earlier ones: nothing is left to guess but luck."""

    def within(waiting: int, seed: int) -> bool:
        luck = random.Random(seed)
        lasting = Lasting(tuple(sorted(luck.expovariate(0.1) for _ in range(200))), 600.0)
        found = foresee(scene(Held(1, 1, CPU, 0.0, lasting), waiting=waiting), luck)
        assert found is not None
        return found.low <= sum(luck.expovariate(0.1) for _ in range(waiting + 1)) <= found.high

    cases = [(waiting, seed) for waiting in (1, 3, 10) for seed in range(160)]
    assert 0.88 < sum(within(*case) for case in cases) / len(cases) < 0.965
