"""Estimated starts follow from what runs: the next end, the order, quotas, and what will come (E8)."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.policy.forecast import Held, Lasting, Rival, Scene, foresee, share_of

CPU = ((0, 1000),)
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
    st.floats(0, 100),
    st.integers(),
)
@settings(max_examples=30)
def test_whatever_runs_the_interval_is_in_order_and_the_same_twice(runs, waiting, per_s, slack, seed):
    held = [Held(1, tenant, CPU, ran, Lasting(known)) for tenant, ran, known in runs]
    rivals = [Rival(tenant, waiting, per_s, share_of(tenant, held, (1000 * len(held),))) for tenant in (1, 2, 3)]
    asked = scene(*held, cpus=len(held), rivals=rivals, slack_s=slack, urgent=0.2)
    found = foresee(asked, random.Random(seed))
    assert found == foresee(asked, random.Random(seed))
    if found is not None:
        assert 0 <= found.low <= found.middle <= found.high < math.inf
