"""The simulator loses nothing, repeats itself, and shows what the policy is for (issue: order and fairness)."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.main import main
from headway.errors import InvalidInput
from headway.simulate.load import Load, generate, recorded
from headway.simulate.outcome import Fleet, fair_parts
from headway.simulate.report import rows, svg
from headway.simulate.search import smallest
from headway.simulate.world import POLICIES, World

DAY = Load(tasks=3_000, tenants=30, hours=6.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_task_begins_once_and_room_is_given_back(policy):
    world = World(policy, Fleet(nodes=2))
    outcome = world.run(generate(DAY))
    assert sum(waits.count for waits in outcome.waits.values()) == DAY.tasks
    assert (world.waiting, world.runs) == ({}, {})
    assert world.board.rooms.used == [0] * 6
    assert world.evenness.holding == {}


def test_the_same_seed_gives_the_same_day_and_another_seed_another():
    assert list(generate(DAY)) == list(generate(DAY))
    assert list(generate(DAY)) != list(generate(Load(tasks=3_000, tenants=30, hours=6.0, seed=2)))


def test_the_day_has_its_peak_at_four_times_its_trough():
    arrivals = [one.at for one in generate(Load(tasks=40_000, tenants=10))]
    night, noon = (sum(1 for at in arrivals if abs(at - hour * 3600) < 3600) for hour in (1, 12))
    assert 3.0 < noon / night < 5.0


def test_no_urgent_task_is_late_while_capacity_suffices():
    outcome = World("headway", Fleet(nodes=6)).run(generate(DAY))
    assert outcome.waits["urgent"].missed == 0


def test_headway_needs_no_larger_fleet_than_fifo_for_the_same_misses():
    load = Load(tasks=4_000, tenants=30, hours=12.0, mean_s=90.0)
    needed = {
        policy: smallest(policy, Fleet(nodes=6, cpus=2.0), lambda: generate(load), missed=0.02).fleet.nodes
        for policy in ("headway", "fifo")
    }
    assert needed["headway"] < needed["fifo"]


@given(st.dictionaries(st.integers(1, 8), st.floats(0, 10)), st.dictionaries(st.integers(1, 8), st.floats(0, 10)))
def test_fair_parts_divide_what_is_held_and_nobody_gets_more_than_it_asks_for(holding, wanting):
    parts = fair_parts(holding, wanting)
    assert sum(parts.values()) == pytest.approx(sum(holding.values()), abs=1e-6)
    for tenant, part in parts.items():
        assert part <= holding.get(tenant, 0) + wanting.get(tenant, 0) + 1e-9


def test_a_history_is_replayed_under_another_fleet():
    task = {
        "tenant": "a", "category": "delayable", "eligible_at": "2026-01-01T00:00:00+00:00", "start_by": "2026-01-01T00:01:00+00:00",
        "started_at": "2026-01-01T00:00:01+00:00", "ended_at": "2026-01-01T00:00:11+00:00", "resources": {"tier": "premium"},
    }  # fmt: skip
    arrivals = recorded(json.dumps({"tasks": [task] * 5}).splitlines())
    assert [one.seconds for one in arrivals] == [10.0] * 5
    outcome = World("headway", Fleet(nodes=1, cpus=2.0)).run(arrivals)
    assert outcome.waits["delayable"].quantile(1.0) == pytest.approx(41, rel=0.15), "one after another: the fifth waits for four"
    with pytest.raises(InvalidInput):
        recorded(["[]"])


def test_the_command_prints_a_table_and_draws(tmp_path, capsys):
    plot = tmp_path / "day.svg"
    assert main(["simulate", "--tasks", "500", "--nodes", "2", "--tenants", "5", "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert all(policy in printed for policy in POLICIES)
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert main(["simulate", "--policy", "lottery"]) == 64 or "lottery" in capsys.readouterr().err


def test_the_report_has_a_row_for_each_policy():
    outcomes = [World(policy, Fleet(nodes=3)).run(generate(Load(tasks=300, tenants=3, hours=1.0))) for policy in POLICIES]
    assert [row[0] for row in rows(outcomes)] == ["POLICY", *POLICIES]
    assert svg(outcomes).count("<polyline") == 2 * len(POLICIES)
