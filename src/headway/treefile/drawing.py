"""A plan to look at: in the terminal, as Mermaid, as DOT, and as JSON for programs. Pure: trees in, text out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.domain.define import define
from headway.domain.graph import longest_path
from headway.domain.schedule import describe
from headway.domain.task import Edge, When
from headway.domain.tenant import ANYWHERE
from headway.domain.units import duration_text
from headway.treefile.model import Tree, TreeTask

MOST_EDGES = 10  # named in a line; JSON, Mermaid and DOT have all
WIDTH = 60  # of what a task runs; the rest of the line belongs to its name and edges


Times = Mapping[str, float]  # seconds that tasks are expected to take, by name; those that never ran are not there
_NO_TIMES: Times = {}
_NO_TREES: Mapping[str, Times] = {}


def critical_path(tree: Tree, times: Times = _NO_TIMES) -> list[str]:
    """The longest chain of tasks. Without a history every task weighs the same; with one, what never ran weighs as the average."""
    usual = sum(times.values()) / len(times) if times else 1.0
    return longest_path(tree.after, {task.name: times.get(task.name, usual) for task in tree.tasks})


def plan_json(trees: Iterable[Tree], times: Mapping[str, Times] = _NO_TREES) -> dict[str, Any]:
    """The fixed shape of `plan FILE -o json`; predicted times where history knows them."""
    return {"trees": [_tree_json(tree, times.get(tree.name, _NO_TIMES)) for tree in trees]}


def _tree_json(tree: Tree, times: Times) -> dict[str, Any]:
    path = critical_path(tree, times)
    found: dict[str, Any] = {
        "name": tree.name,
        "tasks": [{"name": task.name, "level": task.level, "after": task.upstream, **_predicted(task, times)} for task in tree.tasks],
        "critical_path": path,
    }
    if times:
        found["predicted_s"] = round(sum(times.get(name, 0.0) for name in path), 3)
    return found


def _predicted(task: TreeTask, times: Times) -> dict[str, float]:
    return {"predicted_s": round(times[task.name], 3)} if task.name in times else {}


def heading(tree: Tree) -> str:
    """A tree in a line."""
    kind = ", strict" if tree.strict else ""
    return f"{tree.name}: {_count(len(tree.tasks), 'task')} on {_count(len(tree.levels), 'level')}{kind}"


def text(tree: Tree, times: Times = _NO_TIMES) -> str:
    """Levels from the first that runs to the root; `*` marks the critical path. Times are those that history predicts."""
    path = critical_path(tree, times)
    critical = set(path)
    width = max((len(task.name) for task in tree.tasks), default=0)
    lines = [heading(tree)]
    for level, tasks in tree.levels.items():
        notes = [f"{len(tasks)} at the same time"] if len(tasks) > 1 else []
        if known := [times[task.name] for task in tasks if task.name in times]:
            notes.append(f"about {duration_text(max(known))}")
        lines.append(f"\nlevel {level}" + (f" ({', '.join(notes)})" if notes else ""))
        lines += [_line(task, width, critical=task.name in critical) for task in tasks]
    lines.append(f"\ncritical path: {' → '.join(path)}")
    if times:
        unknown = sum(name not in times for name in path)
        never = f", and {_count(unknown, 'task')} that never ran" if unknown else ""
        lines.append(f"predicted: about {duration_text(sum(times.get(name, 0.0) for name in path))}{never}")
    if tree.schedule:
        lines.append(f"schedule: {describe(tree.schedule)}")
    return "\n".join(lines)


def mermaid(trees: Sequence[Tree], times: Mapping[str, Times] = _NO_TREES) -> str:
    """A flow chart that GitHub and most wikis draw. A chart begins once, so several trees are parts of one."""
    if len(trees) == 1:
        return "\n".join(["flowchart BT", *_chart(trees[0], times.get(trees[0].name, _NO_TIMES), "")])
    lines = ["flowchart BT"]
    for number, tree in enumerate(trees):
        prefix = f"tree{number}"
        inside = _chart(tree, times.get(tree.name, _NO_TIMES), prefix)
        lines += [f'  subgraph {prefix}["{_escape(_one_line(tree.name))}"]', *(f"  {line}" for line in inside), "  end"]
    return "\n".join(lines)


def _chart(tree: Tree, times: Times, prefix: str) -> list[str]:
    ids = {task.name: f"{prefix}t{number}" for number, task in enumerate(tree.tasks)}
    lines = [f"  %% {_one_line(tree.name)}"]
    for level, tasks in tree.levels.items():
        lines.append(f'  subgraph {prefix}level{level}["level {level}"]')
        lines += [f'    {ids[task.name]}["{_escape(task.name)}"]' for task in tasks]
        lines.append("  end")
    for task in tree.tasks:
        for edge in _inner(task):
            arrow = "-->" if edge.when == When.SUCCEEDED else f"-. {edge.when.name.lower()} .->"
            lines.append(f"  {ids[str(edge.task)]} {arrow} {ids[task.name]}")
    if critical := critical_path(tree, times):
        lines.append("  classDef critical stroke-width:3px")
        lines.append(f"  class {','.join(ids[name] for name in critical)} critical")
    return lines


def dot(tree: Tree, times: Times = _NO_TIMES) -> str:
    """For Graphviz: one rank a level, the critical path bold."""
    critical = set(critical_path(tree, times))
    lines = [f"digraph {_quote(tree.name)} {{", "  rankdir=BT;", "  node [shape=box];"]
    for tasks in tree.levels.values():
        lines.append("  { rank=same; " + " ".join(f"{_quote(task.name)};" for task in tasks) + " }")
    lines += [f"  {_quote(name)} [style=bold];" for name in tree.after if name in critical]
    for task in tree.tasks:
        for edge in _inner(task):
            kind = "" if edge.when == When.SUCCEEDED else f' [style=dashed, label="{edge.when.name.lower()}"]'
            lines.append(f"  {_quote(str(edge.task))} -> {_quote(task.name)}{kind};")
    lines.append("}")
    return "\n".join(lines)


def _line(task: TreeTask, width: int, *, critical: bool) -> str:
    what = _one_line(define(task.spec, ANYWHERE).what)
    if (many := task.spec.for_each) is not None:
        what += f"  × {len(many)}" if isinstance(many, list) else f"  × each of {many.result_of}"
    what = what if len(what) <= WIDTH else what[: WIDTH - 1] + "…"
    waits = ", ".join(_edge(edge) for edge in task.after[:MOST_EDGES])
    if (more := len(task.after) - MOST_EDGES) > 0:
        waits += f" and {more:,} more"
    return f"  {'*' if critical else ' '} {task.name:<{width}}  {what}" + (f"  ← {waits}" if waits else "")


def _edge(edge: Edge) -> str:
    return str(edge.task) if edge.when == When.SUCCEEDED else f"{edge.task} ({edge.when.name.lower()})"


def _inner(task: TreeTask) -> list[Edge]:
    return [edge for edge in task.after if isinstance(edge.task, str)]


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _one_line(words: str) -> str:
    return " ".join(words.split())


def _escape(words: str) -> str:
    return words.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def _quote(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)
