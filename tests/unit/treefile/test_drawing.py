"""A plan can be looked at: levels, what runs at the same time, the critical path (C2 J1)."""

from __future__ import annotations

from headway.treefile import load
from headway.treefile.drawing import dot, mermaid, plan_json, text

TREE = """
nightly:
  task:
    command: [report]
    schedule: daily
    fetch: {command: [fetch]}
    clean:
      command: [clean]
      download: {command: [download]}
  'alarm "x"':
    command: [mail]
    after: [{task: task, when: failed}]
"""
(NIGHTLY,) = load(TREE)


def test_the_text_shows_levels_edges_and_the_critical_path() -> None:
    assert text(NIGHTLY).splitlines() == [
        "nightly: 5 tasks on 4 levels",
        "",
        "level 0",
        "  * download   download",
        "",
        "level 1 (2 at the same time)",
        "    fetch      fetch",
        "  * clean      clean  ← download",
        "",
        "level 2",
        "  * task       report  ← fetch, clean",
        "",
        "level 3",
        '  * alarm "x"  mail  ← task (failed)',
        "",
        'critical path: download → clean → task → alarm "x"',
        "schedule: daily",
    ]


def test_the_json_has_the_documented_shape() -> None:
    assert plan_json([NIGHTLY]) == {
        "trees": [
            {
                "name": "nightly",
                "tasks": [
                    {"name": "task", "level": 2, "after": ["fetch", "clean"]},
                    {"name": "fetch", "level": 1, "after": []},
                    {"name": "clean", "level": 1, "after": ["download"]},
                    {"name": "download", "level": 0, "after": []},
                    {"name": 'alarm "x"', "level": 3, "after": ["task"]},
                ],
                "critical_path": ["download", "clean", "task", 'alarm "x"'],
            }
        ]
    }


def test_mermaid_has_a_node_for_each_task_and_marks_the_kind_of_an_edge() -> None:
    drawn = mermaid([NIGHTLY])
    assert drawn.startswith("flowchart BT\n")
    assert 't4["alarm #quot;x#quot;"]' in drawn
    assert "t3 --> t2" in drawn
    assert "t0 -. failed .-> t4" in drawn
    assert "class t3,t2,t0,t4 critical" in drawn


def test_several_trees_are_parts_of_one_mermaid_chart() -> None:
    drawn = mermaid([NIGHTLY, NIGHTLY])
    assert drawn.count("flowchart") == 1
    assert 'subgraph tree0["nightly"]' in drawn
    assert 'subgraph tree1["nightly"]' in drawn
    assert drawn.count("subgraph") == drawn.count("\n  end") + drawn.count("\n    end")
    assert "tree0t3 --> tree0t2" in drawn
    assert "tree1t3 --> tree1t2" in drawn


def test_dot_puts_a_level_on_one_rank() -> None:
    drawn = dot(NIGHTLY)
    assert '{ rank=same; "fetch"; "clean"; }' in drawn
    assert '"download" -> "clean";' in drawn
    assert '"task" -> "alarm \\"x\\"" [style=dashed, label="failed"];' in drawn


def test_a_task_that_waits_for_thousands_names_some_of_them() -> None:
    leaves = "".join(f"    leaf{n}: {{command: [echo]}}\n" for n in range(2_000))
    (tree,) = load(f"wide:\n  root:\n    command: [echo]\n{leaves}")
    root = next(line for line in text(tree).splitlines() if "root" in line and "←" in line)
    assert root.endswith("leaf9 and 1,990 more")
