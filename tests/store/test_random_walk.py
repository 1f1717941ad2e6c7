"""Everything at once, by chance: servers that die in the middle of an answer, nodes that repeat, forget, fall silent and come back,
programs that submit subtasks, claim effects and save their state, and people who do all that people can do. Afterwards every acknowledged
task has ended once, nothing is left over, everybody was told, and the servers believe what the database says
(F1-F4 A3 A6 C1-C6 D2 D3 E5-E9 H7-H10 I1 I2 J6).

HEADWAY_WALK_SEEDS=100-300 walks other ways than CI does, HEADWAY_WALK_STEPS longer ones.
"""

from __future__ import annotations

import os

import pytest

from headway.control import allowances, counting, exchanges, expanding, planner, removing, sessions, tree_actions
from tests.support.walk.walking import Walk
from tests.support.walk.world import world

STEPS = int(os.environ.get("HEADWAY_WALK_STEPS", "50"))


def seeds() -> list[int]:
    """Those of CI, or as it was asked for."""
    first, _, last = os.environ.get("HEADWAY_WALK_SEEDS", "1-2").partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at again after seconds is looked at sooner: a walk lasts only some seconds, and more happens in it."""
    for module, name, seconds in (
        (exchanges, "RECONCILE_S", 0.5), (sessions, "REPEAT_S", 0.3), (expanding, "SUSPENDED_S", 0.5), (allowances, "FULL_RETRY_S", 0.2),
        (removing, "ENDING_S", 0.2), (tree_actions, "LEFT_S", 0.5), (planner, "RESCAN_S", 1.0), (counting, "ALL_S", 2.0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)


@pytest.mark.parametrize("seed", seeds())
async def test_after_any_walk_all_has_ended_once_nothing_is_left_and_everybody_was_told(dsn: str, seed: int) -> None:
    async with world(dsn, seed) as made:
        walk = Walk(made)
        await walk.go(STEPS)
        await walk.calm_down()
        await walk.check()
