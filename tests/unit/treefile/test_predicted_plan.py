"""A plan with predicted times: the critical path is the chain that takes longest, and what never ran is said."""

from __future__ import annotations

from headway.treefile import load
from headway.treefile.drawing import critical_path, mermaid, plan_json, text

TREE = load(
    "n:\n  root: {command: x, after: [short, many]}\n  short: {command: x, after: slow}\n  slow: {command: x}\n"
    "  many: {command: y, for_each: [1, 2]}\n"
)[0]


def test_the_longest_chain_is_by_time_when_times_are_known():
    assert critical_path(TREE) == ["slow", "short", "root"]
    times = {"slow": 1.0, "short": 1.0, "many": 90.0, "root": 5.0}
    assert critical_path(TREE, times) == ["many", "root"]
    drawn = text(TREE, times)
    assert "critical path: many → root" in drawn
    assert "predicted: about 1m35s" in drawn
    assert "level 1 (2 at the same time, about 1m30s)" in drawn
    assert "× 2" in drawn
    assert "class t3,t0 critical" in mermaid([TREE], {"n": times})


def test_what_never_ran_is_said_and_left_out_of_the_sum():
    drawn = text(TREE, {"slow": 60.0, "short": 60.0})
    assert "predicted: about 2m, and 1 task that never ran" in drawn


def test_json_keeps_its_shape_and_adds_what_is_known():
    plain = plan_json([TREE])["trees"][0]
    assert set(plain) == {"name", "tasks", "critical_path"}
    known = plan_json([TREE], {"n": {"slow": 2.0}})["trees"][0]
    assert known["tasks"][2] == {"name": "slow", "level": 0, "after": [], "predicted_s": 2.0}
    assert known["predicted_s"] == 2.0
