"""Tasks by chance: each field that decides about the life of a task, alone and together with others."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.support.engine import function


def tasks(chance: random.Random) -> list[dict[str, Any]]:
    """The tasks of one request; later ones may wait for earlier ones."""
    return [task(chance, n) for n in range(chance.choice((1, 1, 2, 5, 12)))]


def task(chance: random.Random, n: int) -> dict[str, Any]:
    if chance.random() < 0.1:
        return function(name=f"n{n}", idempotency_key=f"{chance.choice('abc')}{n}", input=chance.choice((1, 2)))
    fields: dict[str, Any] = {"name": f"{chance.choice(('n',) * 6 + ('p', 'pp'))}{n}"}
    fields["resources"] = chance.choice(({"cpus": 0.5}, {"cpus": 1}, {"cpus": 2}, "basic", "regular"))
    fields |= {
        "attempts": chance.choice((1, 2, 3)),
        "retry": {"interval": chance.choice((0, 0.05)), "node_losses": chance.choice((0, 3))},
    }
    fields |= _time(chance)
    if n and chance.random() < 0.5:
        fields["after"] = [{"task": f"{n - 1 - chance.randrange(n)}", "when": chance.choice(("succeeded", "done", "failed"))}]
    fan = chance.random()
    if fan < 0.06:
        fields["for_each"] = list(range(chance.randrange(5)))
    elif fan < 0.12 and n:
        fields.pop("after", None)
        fields["for_each"] = {"result_of": str(chance.randrange(n))}
    return function(**fields)


def _time(chance: random.Random) -> dict[str, Any]:
    """How long it may wait and run, and when."""
    fields: dict[str, Any] = {"delay_tolerance": chance.choice((0, 1, 3600))}
    what = chance.random()
    if what < 0.1:
        fields["at"] = time.time() + chance.random()
    elif what < 0.25:
        fields |= {"max_wait": chance.choice((0.2, 1.0)), "on_max_wait": chance.choice(("expire", "keep"))}
    elif what < 0.35:
        fields |= {"execution_cap": "20h", "category": "delayable"}  # may be stopped for others
    elif what < 0.45:
        fields |= {"category": "urgent", "execution_cap": "2s"}
        del fields["delay_tolerance"]
    elif what < 0.5:
        fields["on_late"] = "refuse"
    return fields


def named(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Positions of a request become names: what is waited for must be called what it is called there."""
    names = [spec["name"] for spec in specs]
    for spec in specs:
        for edge in spec.get("after", ()):
            edge["task"] = names[int(edge["task"])]
        if isinstance(spec.get("for_each"), dict):
            spec["for_each"] = {"result_of": names[int(spec["for_each"]["result_of"])]}
    return specs


def schedule(chance: random.Random, name: str) -> dict[str, Any]:
    """A schedule that fires every second or two."""
    said: dict[str, Any] = {"name": name, "schedule": chance.choice((1, 2)), "misfire": chance.choice(("skip", "one", "all"))}
    said["overlap"] = chance.choice(("skip", "queue", "replace", "allow"))
    if chance.random() < 0.5:
        return {**said, "task": function(name="s", attempts=chance.choice((1, 2)), retry={"interval": 0})}
    parts = [function(name="s0"), function(name="s1", after=["s0"]), function(name="s2", after=[{"task": "s1", "when": "done"}])]
    return {**said, "tasks": parts, "levels": chance.choice(("eager", "strict"))}
