"""The next larger tier of a task that ran out of memory (K2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.policy.tiers import larger

amounts = st.builds(Resources, cpus_milli=st.integers(0, 9), memory=st.integers(0, 9), disk=st.integers(0, 9))


@given(amounts, st.dictionaries(st.text("abc", min_size=1, max_size=2), amounts), st.none() | st.integers(0, 9), st.sampled_from(["", "a"]))
def test_it_is_the_smallest_with_more_memory_takes_nothing_away_and_keeps_to_the_bound(need, tiers, most, tier):
    found = larger(Definition(name="x", resources=need, tier=tier), tiers, most_memory=most)
    above = sorted(one.memory for one in tiers.values() if one.memory > need.memory)
    if not above or (most is not None and above[0] > most):
        assert found is None
        return
    assert found is not None
    assert found.resources.memory == above[0]
    assert all(new >= old for new, old in zip(found.resources.amounts(), need.amounts(), strict=True))
    assert bool(found.tier) == bool(tier), "one that asked for exact amounts still does"
