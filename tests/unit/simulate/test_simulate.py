"""The simulator loses nothing, repeats itself, and shows what the policy is for (issue: order and fairness)."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.main import main
from headway.errors import InvalidInput
from headway.simulate.load import Arrival, Load, generate, recorded
from headway.simulate.outcome import Fleet, fair_parts
from headway.simulate.report import drawing, rows
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
    assert world.loans.on == {node: {} for node in world.loans.on}


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
    fifo, ours = (
        smallest(policy, Fleet(nodes=6, cpus=2.0), lambda: generate(load), missed=0.02) for policy in ("fifo", "headway")
    )
    assert ours.fleet.nodes <= fifo.fleet.nodes
    assert World("headway", fifo.fleet).run(generate(load)).missed < fifo.missed / 2


@pytest.mark.parametrize("nodes", [1, 5, 60])
def test_the_smallest_fleet_is_enough_and_one_node_less_is_not_wherever_the_search_begins(nodes):
    arrivals = list(generate(Load(tasks=800, tenants=10, hours=4.0, mean_s=200.0)))
    tried: list[int] = []
    found = smallest("fifo", Fleet(nodes=nodes, cpus=2.0), lambda: tried.append(1) or arrivals, missed=0.02)
    assert found.missed <= 0.02
    assert World("fifo", Fleet(nodes=found.fleet.nodes - 1, cpus=2.0)).run(arrivals).missed > 0.02
    assert len(tried) <= 8


def arrival(at: float, seconds: float, shape: int, *, tenant: int = 1, tolerance: float = 5.0) -> Arrival:
    return Arrival(at, at + tolerance, seconds, tenant, shape)


def test_a_large_task_among_small_ones_gets_a_node_kept():
    small = [arrival(0.2 * n, 3.0 + n % 7, 4, tenant=2 + n % 3, tolerance=600.0) for n in range(600)]
    large = arrival(30.0, 1.0, 9, tolerance=1.0)
    outcome = World("headway", Fleet(nodes=2, cpus=2.0)).run(sorted([*small, large]))
    assert outcome.waits["delayable"].quantile(1.0) > 300, "there were always small ones"
    assert outcome.waits["periodic"].quantile(1.0) < 60


def test_the_urgent_task_of_a_tenant_above_its_part_stops_one_of_its_own():
    own = [arrival(0.0, 1000.0, 6, tolerance=3600.0) for _ in range(3)]
    other = arrival(0.0, 1000.0, 6, tenant=2, tolerance=3600.0)
    urgent = arrival(100.0, 10.0, 3)
    world = World("headway", Fleet(nodes=1, cpus=8.0))
    outcome = world.run([*own, other, urgent])
    assert outcome.stopped == 1
    assert outcome.waits["urgent"].missed == 0


def test_one_pause_serves_one_urgent_task_after_another():
    long = arrival(0.0, 1000.0, 4, tolerance=3600.0)
    urgent = [arrival(100.0 + n / 10, 10.0, 1) for n in range(2)]
    outcome = World("headway", Fleet(nodes=1, cpus=0.5)).run([long, *urgent])
    assert outcome.stopped == 1
    assert outcome.waits["urgent"].quantile(1.0) == pytest.approx(15, abs=2)


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
    assert drawing(outcomes).svg().count(b"<polyline") == 2 * len(POLICIES)
