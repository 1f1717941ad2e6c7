"""Which edges an ended task satisfies (C5)."""

from __future__ import annotations

import pytest

from headway.domain.lifecycle import FINAL, State
from headway.domain.task import When
from headway.policy.release import satisfied


@pytest.mark.parametrize("state", FINAL)
def test_who_waits_for_the_end_is_content_with_any_and_nobody_is_told_of_success_and_failure_at_once(state):
    found = satisfied(state)
    assert When.DONE in found
    assert (When.SUCCEEDED in found) == (state is State.SUCCEEDED)
    assert (When.FAILED in found) == (state in (State.FAILED, State.EXPIRED))
