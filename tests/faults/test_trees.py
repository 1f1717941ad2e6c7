"""Trees through power cuts: levels, fan-out and results are right afterwards, and every task succeeded once (C2 F2)."""

from __future__ import annotations

import time
from typing import Any

from headway import Client
from tests.support.upped import upped

ITEMS = 12
SPECS: list[dict[str, Any]] = [
    {"name": "list", "command": ["sh", "-c", f"sleep 0.2; seq -s, 1 {ITEMS} | sed 's/.*/[&]/' > $HEADWAY_RESULT"]},
    {
        "name": "work",
        "for_each": {"result_of": "list"},
        "command": ["sh", "-c", "sleep 0.1; cat $HEADWAY_INPUT > $HEADWAY_RESULT"],
        "resources": {"cpus": 0.25, "memory": "16MiB", "disk": "16MiB"},
    },
    {"name": "beside", "command": ["sleep", "0.1"], "after": ["list"]},
    {
        "name": "last",
        "command": ["sh", "-c", "cp $HEADWAY_DEPENDENCIES $HEADWAY_RESULT"],
        "after": ["work", "beside"],
        "with_results": True,
    },
]


def test_a_strict_tree_with_a_fan_out_survives_power_cuts_at_any_moment(tmp_path):
    trees: list[str] = []
    for round_ in range(3):
        with upped(tmp_path) as running:
            with Client(running.url, running.token) as client:
                if not trees:
                    trees = [client.submit_tree(f"t{n}", SPECS, levels="strict").tree or "" for n in range(2)]
                wait_until_something_ended(client, trees[0], round_ + 1)
            running.kill_everything()
    with upped(tmp_path) as running, Client(running.url, running.token) as client:
        for tree in trees:
            for view in client.watch_tree(tree):
                last = view
            assert last.state == "succeeded", last
            assert [(level.total, level.succeeded) for level in last.levels] == [(1, 1), (ITEMS + 2, ITEMS + 2), (1, 1)]
            tasks = list(client.iterate(tree=tree))
            assert len(tasks) == ITEMS + 4
            root = next(task for task in tasks if task.name == "last")
            assert client.result(root.id) == {"work": list(range(1, ITEMS + 1)), "beside": None}
            below = max(task.ended_at for task in tasks if task.name in ("beside", "work"))
            assert root.started_at is not None
            assert root.started_at >= below


def wait_until_something_ended(client: Client, tree: str, count: int) -> None:
    """A cut that comes before anything has happened tests nothing."""
    deadline = time.monotonic() + 60
    for view in client.watch_tree(tree):
        if view.total - view.left >= count or time.monotonic() > deadline:
            return
