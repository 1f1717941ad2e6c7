"""Lists of tasks with filters: the one query whose shape depends on what is asked. Newest first, a page at a time.

Every filter is a fixed piece of SQL with parameters; each of the three homes of a task is asked for one page in the order of its own
primary key, so the cost does not grow with the history behind the page. The tasks of a tree are found by its runs of ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.store.database import Connection

_COLUMNS = (
    "t.id, t.start_by, t.eligible_at, t.leased_at, t.started_at, {ended} as ended_at, {cancel} as cancel_at, t.tree, t.size, "
    "{memory} as max_memory, t.tenant, t.definition, t.shape, t.cap_ms, t.attempt, {blocked} as blocked_on, t.node, t.level, "
    "{exit} as exit_code, {cpu} as cpu_ms, t.state, t.category, {outcome} as outcome, t.failures, t.resource_failures, t.node_losses, "
    "t.requeues, t.name, t.labels, {error} as error"
)
_HOT = _COLUMNS.format(
    ended="null::timestamptz", cancel="t.cancel_at", memory="null::bigint", blocked="t.blocked_on", exit="null::int", cpu="null::int",
    outcome="null::smallint", error="null::text",
)  # fmt: skip
_COLD = _COLUMNS.format(
    ended="t.ended_at", cancel="null::timestamptz", memory="t.max_memory", blocked="0", exit="t.exit_code", cpu="t.cpu_ms",
    outcome="t.outcome", error="t.error",
)  # fmt: skip
_HOMES = {"task": (_HOT, range(6)), "dead_letter": (_COLD, (7,)), "task_history": (_COLD, (6, 8, 9, 10))}


@dataclass
class Filter:
    """What to list; None means any."""

    tenant: int | None = None
    states: list[int] | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    node: int | None = None
    text: str | None = None
    tree: int | None = None
    category: int | None = None
    before: int | None = None  # the cursor: ids below it
    after_id: int | None = None
    below_id: int | None = None
    limit: int = 50


async def page(connection: Connection, wanted: Filter) -> list[Any]:
    """One page of tasks, newest first."""
    values: list[Any] = []
    conditions = _conditions(wanted, values)
    values.append(wanted.limit)
    limit = f"${len(values)}"
    if wanted.tree is not None:
        values.append(wanted.tree)
    parts = []
    for home, (columns, states) in _HOMES.items():
        if wanted.states is not None and not set(wanted.states) & set(states):
            continue
        error = "null::text" if home == "task" else "t.error"
        where = " and ".join(c.replace("{error}", error) for c in conditions) or "true"
        found = f"select {columns}, d.body, d.name as definition_name from {home} t join definition d on d.id = t.definition where {where}"
        last = f"order by t.id desc limit {limit}"
        if wanted.tree is None:
            parts.append(f"({found} {last})")
        else:  # run by run, from the newest: a page of a large tree reads no more than a page
            runs = f"select first, last from tree_part where tree = ${len(values)} order by first desc"
            inside = f"{found} and t.id between p.first and p.last {last}"
            parts.append(f"(select t.* from ({runs}) p cross join lateral ({inside}) t limit {limit})")
    if not parts:
        return []
    sql = (
        "select t.*, p.done, p.total, p.text, n.name as node_name, w.name as tenant_name from (select u.* from ("
        + " union all ".join(parts)
        + f") u order by u.id desc limit {limit}) t join tenant w on w.id = t.tenant "
        "left join progress p on p.task = t.id left join node n on n.id = t.node order by t.id desc"
    )
    rows: list[Any] = await connection.fetch(sql, *values)
    return rows


def _conditions(wanted: Filter, values: list[Any]) -> list[str]:
    """The filter as SQL, its values appended in the order of their parameters."""

    def given(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    found = []
    if wanted.tenant is not None:
        found.append(f"t.tenant = {given(wanted.tenant)}")
    if wanted.states is not None:
        found.append(f"t.state = any ({given(wanted.states)}::smallint[])")
    if wanted.name is not None:
        found.append(f"coalesce(t.name, d.name) like {given(_pattern(wanted.name))}")
    for key, value in wanted.labels.items():
        found.append(f"t.labels ->> {given(key)} = {given(value)}")
    if wanted.node is not None:
        found.append(f"t.node = {given(wanted.node)}")
    if wanted.category is not None:
        found.append(f"t.category = {given(wanted.category)}::smallint")
    if wanted.text is not None:
        like = given(f"%{_escaped(wanted.text)}%")
        found.append(
            f"(coalesce(t.name, d.name) ilike {like} or d.body ilike {like} or t.labels::text ilike {like} or {{error}} ilike {like})"
        )
    for sign, bound in (("<", wanted.before), ("<", wanted.below_id), (">=", wanted.after_id)):
        if bound is not None:
            found.append(f"t.id {sign} {given(bound)}")
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _pattern(name: str) -> str:
    """A name, in which * stands for anything."""
    return _escaped(name).replace("*", "%")
