"""Hot statements read by the index meant for them, on a filled table, whatever the statistics say (L1).

Each is prepared on a connection with the settings of the hot pool, so that the plan seen is the generic one that servers use, and run
for real inside a transaction that is rolled back: what it read is counted, not estimated.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import msgspec
import pytest

from headway.domain.identity import first_id_of
from headway.store import partitions
from headway.store.database import Database
from headway.store.queries import query
from tests.support.databases import Databases, run

TASKS = 50_000
TENANTS, SHAPES, NODES = 5, 3, 20
HERE = 1_000  # tasks held by one node at most
DAY = datetime.date(2026, 3, 1)
FIRST = first_id_of(int(datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC).timestamp() * 1000))
BATCH = 40
TREE = 7  # all of the tasks, and two that are gone

# Of every ten tasks six are ready, one is blocked by the leased one after it, one is scheduled (half of those are due), two are leased.
_FILL = f"""
insert into task (id, start_by, eligible_at, leased_at, tenant, definition, shape, cap_ms, attempt, blocked_on, node, state, category,
    has_dependants, input)
select {FIRST} + n, now() + (n * 7919 % 100000) * interval '1 ms', now() + case when n % 20 = 7 then '-1 hour' else '1 hour' end::interval,
    case when n % 10 > 7 then now() end, 1 + n % {TENANTS}, 1, 1 + n % {SHAPES}, 60000, case when n % 10 > 7 then 1 else 0 end,
    case when n % 10 = 6 then 1 else 0 end, case when n % 10 > 7 then 1 + n / 10 % {NODES} end,
    case n % 10 when 6 then 0 when 7 then 1 when 8 then 3 when 9 then 3 else 2 end, 1, n % 10 = 8, '\\x7b7d'
from generate_series(0, {TASKS - 1}) n;
insert into edge (upstream, downstream) select id + 2, id from task where state = 0;
insert into node (id, name, boot, capacity, state) select n, 'node-' || n, 'boot', '{{}}', case when n < {NODES} then 0 else 1 end
from generate_series(1, {NODES + 5}) n;
update duty set holder = 'test', epoch = 1, expires_at = 'infinity';
insert into tree_part (tree, level, first, last) values ({TREE}, 0, {FIRST}, {FIRST + TASKS - 1}), ({TREE}, 1, 1, 1), ({TREE}, 2, 2, 2);
insert into tree_level (tree, level, total) values ({TREE}, 0, {TASKS}), ({TREE}, 1, 1);
"""


def ids(state_digit: int, count: int = BATCH) -> list[int]:
    """Ids of tasks whose number ends in this digit, spread over the table."""
    return [FIRST + n for n in range(state_digit, TASKS, TASKS // count)]


READY, BLOCKED, SCHEDULED, LEASED = ids(0), ids(6), ids(7), ids(8)


def node_of(task: int) -> int:
    return 1 + (task - FIRST) // 10 % NODES


@dataclass(frozen=True)
class Case:
    """A statement, its values, the indexes it may read by, and how many rows of them it may look at."""

    name: str
    values: tuple[Any, ...]
    indexes: set[str]
    reads: int
    returns: int | None = None


def each(value: Any) -> list[Any]:
    return [value] * BATCH


SHAPES_OF_READY = [1 + (task - FIRST) % SHAPES for task in READY]
NODES_OF_LEASED = [node_of(task) for task in LEASED]
PLACES_OF_LEASED = {((task - FIRST) % TENANTS, (task - FIRST) % SHAPES, node_of(task)) for task in LEASED}  # an answer tells each once
# They are released together, and their tolerance is what they were stored with.
KINDS_OF_BLOCKED = {((task - FIRST) % TENANTS, (task - FIRST) % SHAPES, (task - FIRST) * 7919 % 100_000) for task in BLOCKED}
NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
GROUPS = [(tenant, shape) for tenant in range(1, TENANTS + 1) for shape in range(1, SHAPES + 1)]
CASES = [
    Case("task.lease", (READY, each(1), 1, SHAPES_OF_READY, [1]), {"task_pkey"}, BATCH, BATCH),
    Case("task.lease", (READY, each(1), 99, SHAPES_OF_READY, [1]), {"task_pkey"}, 0, 0),
    Case("task.start", (LEASED, each(1), NODES_OF_LEASED, each(1)), {"task_pkey"}, BATCH),
    Case("task.give_back", (LEASED, each(1), NODES_OF_LEASED), {"task_pkey"}, BATCH, BATCH),
    Case("task.succeed", (LEASED, each(1), NODES_OF_LEASED, each(NOW), each(NOW), each(b"1"), each(None), each(None), each(None)),
         {"task_pkey"}, BATCH, len(PLACES_OF_LEASED)),
    Case("task.lock", (LEASED,), {"task_pkey"}, BATCH, BATCH),
    Case("task.retry", (LEASED, each(2), each(NOW), each(NOW), each(1), each(0), each(0), each(0)), {"task_pkey"}, BATCH, BATCH),
    Case("task.end_without_success", (READY, each(8), each(None), each("{}"), each(None), each(None), each(NOW), each(None), each(None)),
         {"task_pkey"}, BATCH, BATCH),
    Case("task.fail", (LEASED, each(1), each("{}"), each(1), each(NOW), each(NOW), each(1), each(1), each("f"), each(1), each(0),
         each(0)), {"task_pkey"}, BATCH, BATCH),
    Case("task.cancel_waiting", (READY,), {"task_pkey"}, BATCH, BATCH),
    Case("task.wish_cancel", (LEASED,), {"task_pkey"}, 2 * BATCH, BATCH),
    Case("task.mark_upstream", (READY[::5], 1), {"task_pkey"}, 2 * BATCH, BATCH // 5),
    Case("task.orders_of", (7,), {"task_node"}, HERE),
    Case("task.held_by", (7,), {"task_node"}, HERE),
    Case("task.allocated", ([7],), {"task_node"}, HERE, 2 * SHAPES),
    Case("task.allocated", (list(range(1, NODES + 1)),), {"task_node"}, NODES * HERE, NODES * 2 * SHAPES),
    Case("task.come_due", (1, BATCH), {"task_due", "task_pkey"}, 2 * BATCH, BATCH),
    Case("task.come_due", (99, BATCH), {"task_due", "task_pkey"}, 0, 0),
    Case("task.next_due", (), {"task_due"}, 1, 1),
    # Before version 18 the rows of each loop are rounded up: the last one, which finds nothing, counts too.
    Case("task.groups", (), {"task_ready"}, len(GROUPS) + 1, len(GROUPS)),
    Case("edge.release", (LEASED, [0], 0, 2**63 - 1, 10_000, LEASED[0], LEASED[-1]), {"edge_20260301_pkey", "task_pkey"}, 3 * BATCH,
         len(KINDS_OF_BLOCKED)),
    Case("edge.doomed", (LEASED, [2], 0, 2**63 - 1), {"edge_20260301_pkey", "task_pkey"}, 2 * BATCH, BATCH),
    Case("edge.lock_doomed", (BLOCKED,), {"task_pkey"}, BATCH, BATCH),
    Case("edge.chunk_end", (LEASED[0], 0, 5), {"edge_20260301_pkey"}, 1, 1),
    Case("node.seen", (), {"task_node"}, 1, NODES),
    Case("queue.promote", (READY, 1), {"task_pkey"}, 2 * BATCH, BATCH),
    Case("queue.promote", (READY, 99), {"task_pkey"}, 0, 0),
    Case("queue.depths", (2, 1_000, BATCH, NOW, [1], [5.0]), {"task_ready"}, (3 * BATCH + 4) * SHAPES, SHAPES),
    Case("queue.held_by_tenant", (4,), {"task_node"}, NODES * HERE, SHAPES),
    Case("queue.not_ready", (3, BATCH), {"task_due", "task_held_back"}, 2 * BATCH),
    Case("allowance.waiting", ([2, 3], [BATCH, 2 * BATCH]), {"task_ready", "task_held_back", "task_put_aside"}, 6 * BATCH, 2),
    Case("allowance.used", (3, BATCH), {"task_ready", "task_held_back", "task_put_aside", "task_node"}, 3 * BATCH + NODES * HERE),
    Case("allowance.ready", ([2, 3], BATCH, [1]), {"task_ready"}, 2 * SHAPES * (BATCH + 2), 2),
    Case("tree.live_ids", (TREE, BATCH), {"task_pkey"}, BATCH, BATCH),
    Case("tree.level_end", (TREE, 0, FIRST, BATCH), {"task_pkey"}, BATCH, 1),
    Case("tree.release_level", (TREE, 0, FIRST, BATCH), {"task_pkey"}, 2 * BATCH + BATCH // 10, BATCH // 10),
    Case("tree.to_cancel", (TREE, 3, 0, BATCH), {"task_pkey"}, BATCH, BATCH),
    Case("tree.to_cancel", (TREE, 0, FIRST + 100, BATCH), {"task_pkey"}, BATCH, BATCH),
    Case("tree.begun", (TREE,), {"task_node", "task_pkey"}, HERE + 1 + 10, 1),
    Case("explain.held", ([7], 301), {"task_node"}, 301, 301),
    Case("explain.ahead", (1, NOW, 0, 0, BATCH, [1], [5.0]), {"task_ready"}, SHAPES * (BATCH + 2), SHAPES),
]  # fmt: skip


@pytest.fixture(scope="module", params=["never analysed", "analysed when empty", "analysed", "drained before", "empty before"])
def filled(request: pytest.FixtureRequest, postgres: Databases) -> Iterator[str]:
    """A database with 50,000 tasks; the planner knows nothing of them, the wrong thing, or all."""
    dsn = postgres.clone()
    run(_fill(dsn, request.param))
    yield dsn
    postgres.drop(dsn)


async def _make_days(dsn: str, *, month: bool = False) -> None:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    try:
        for back in range(0, 30 if month else 1, 5):
            await partitions.ensure(connection, DAY - datetime.timedelta(days=back))
        await partitions.ensure(connection, await connection.fetchval("select current_date"))  # events of now
    finally:
        await connection.close()


async def _fill(dsn: str, statistics: str) -> None:
    await _make_days(dsn)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    try:
        if statistics == "analysed when empty":
            await connection.execute("analyze")
        await connection.execute(_FILL)
        if statistics == "analysed":
            await connection.execute("analyze")
        if statistics == "empty before":  # the vacuum found nothing at all, and kept the pages
            await connection.execute("update pg_class set relpages = 1494, reltuples = 0 where oid = 'task'::regclass")
            await connection.execute("update pg_class set relpages = 219, reltuples = 0 where oid = 'task_pkey'::regclass")
        if statistics == "drained before":  # as a vacuum leaves a table whose tasks have ended: pages, and hardly a row in them
            await connection.execute("analyze")
            await connection.execute("update pg_class set relpages = 300, reltuples = 2 where oid = 'task'::regclass")
    finally:
        await connection.close()


@dataclass
class Seen:
    """What a statement read and returned."""

    returned: int
    scans: list[dict[str, Any]] = field(default_factory=list)

    def of(self, *relations: str) -> list[dict[str, Any]]:
        return [scan for scan in self.scans if scan["Relation Name"] in relations]


PREPARED_EARLY = [
    Case("edge.release", (LEASED, [0], 0, 2**63 - 1, 10_000, LEASED[0], LEASED[-1]), set(), 3 * BATCH,
         len(KINDS_OF_BLOCKED)),
    Case("edge.doomed", (LEASED, [2], 0, 2**63 - 1), set(), 2 * BATCH, BATCH),
    Case("edge.results", (BLOCKED,), set(), 3 * BATCH),
    Case("edge.result_sizes", (BLOCKED,), set(), 2 * BATCH),
    Case("subtask.would_wait_for_ever", (LEASED, BLOCKED, 10_000), set(), 2 * BATCH, BATCH),
    Case("task.lease", (READY, each(1), 1, SHAPES_OF_READY, [1]), set(), BATCH, BATCH),
    Case("task.succeed", (LEASED, each(1), NODES_OF_LEASED, each(NOW), each(NOW), each(b"1"), each(None), each(None), each(None)),
         set(), BATCH, len(PLACES_OF_LEASED)),
]  # fmt: skip


@pytest.mark.parametrize("before", ["never used", "drained and vacuumed"])
async def test_statements_prepared_when_there_was_nothing_read_no_more_later(postgres, before):
    """Servers keep the plan they made at their start, when the partitions of the coming days were empty and those of a month were there, or
    after a vacuum that found nothing left."""
    dsn = postgres.clone()
    await _make_days(dsn, month=True)
    if before == "drained and vacuumed":
        await _drain(dsn)
    database = Database(dsn)
    await database.open()
    async with database.hot() as connection:
        for number, case in enumerate(PREPARED_EARLY):
            await connection.execute(f"prepare hot{number} as {query(case.name)}")
            await _rolled_back(connection, f"execute hot{number}({', '.join(map(literal, case.values))})")
        await _fill(dsn, "never analysed")
        for number, case in enumerate(PREPARED_EARLY):
            seen = await _explained(connection, f"hot{number}({', '.join(map(literal, case.values))})")
            read = [looked_at(scan) for scan in seen.scans if scan["Relation Name"].startswith(("task", "edge"))]
            assert (case.name, sum(read)) <= (case.name, case.reads)
            assert case.returns is None or (case.name, seen.returned) == (case.name, case.returns)
    await database.close()
    postgres.drop(dsn)


async def _drain(dsn: str) -> None:
    await _fill(dsn, "analysed")
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    await connection.execute("delete from task; delete from edge; delete from node; delete from tree_part; delete from tree_level")
    await connection.execute("vacuum analyze task")
    await connection.close()


async def _rolled_back(connection: Any, statement: str) -> Any:
    transaction = connection.transaction()
    await transaction.start()
    found = await connection.fetchval(statement)
    await transaction.rollback()
    return found


async def explain(dsn: str, name: str, values: tuple[Any, ...]) -> Seen:
    database = Database(dsn)
    await database.open()
    try:
        async with database.hot() as connection:
            await connection.execute(f"prepare hot as {query(name)}")
            return await _explained(connection, f"hot({', '.join(map(literal, values))})" if values else "hot")
    finally:
        await database.close()


async def _explained(connection: Any, call: str) -> Seen:
    text = await _rolled_back(connection, f"explain (analyze, buffers, format json) execute {call}")
    plan = msgspec.json.decode(text)[0]["Plan"]
    seen = Seen(round(plan["Actual Rows"] * plan["Actual Loops"]))
    _collect(plan, seen.scans)
    return seen


def _collect(node: dict[str, Any], scans: list[dict[str, Any]]) -> None:
    if (
        "Scan" in node["Node Type"] and "Relation Name" in node and node["Actual Loops"] > 0
    ):  # other partitions are pruned as it runs
        scans.append(node)
    for child in node.get("Plans", ()):
        _collect(child, scans)


def literal(value: Any) -> str:
    if isinstance(value, list):
        return "'{" + ",".join("null" if item is None else f'"{_word(item)}"' for item in value) + "}'"
    return f"'{_word(value)}'"


def _word(value: Any) -> str:
    text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return text.replace("\\", "\\\\").replace('"', '\\"')


def looked_at(scan: dict[str, Any]) -> int:
    """Rows the scan touched, those it threw away included."""
    return round((scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.returns}")
async def test_a_hot_statement_reads_by_its_index_and_no_more_than_it_needs(filled, case):
    seen = await explain(filled, case.name, case.values)
    scans = [scan for scan in seen.scans if scan["Relation Name"] == "task" or scan["Relation Name"].startswith("edge")]
    assert scans or not case.reads
    assert {scan.get("Index Name", scan["Node Type"]) for scan in scans} <= case.indexes
    assert sum(map(looked_at, scans)) <= case.reads
    if case.returns is not None:
        assert seen.returned == case.returns


@pytest.mark.parametrize("limit", [1, 32, 200])
async def test_the_heads_of_groups_are_read_from_the_ready_index_and_nothing_else_is_looked_at(filled, limit):
    connection = await asyncpg.connect(filled, server_settings={"search_path": "headway"})
    cursor = await connection.fetchval("select min(start_by) + interval '50 s' from task")
    await connection.close()
    columns = [[tenant for tenant, _ in GROUPS], [shape for _, shape in GROUPS]]
    fresh = ["0001-01-01 00:00+00"] * (len(GROUPS) - 1)
    seen = await explain(filled, "task.heads", (*columns, [*fresh, cursor], [0] * len(GROUPS), [0] * len(GROUPS), limit))
    assert seen.returned == limit * len(GROUPS)
    (scan,) = seen.of("task")
    assert scan["Index Name"] == "task_ready"
    assert looked_at(scan) == seen.returned
    # A few pages down the tree for each group, then at worst a page of the heap for each row.
    pages = scan["Shared Hit Blocks"] + scan["Shared Read Blocks"]
    assert pages <= seen.returned + 6 * len(GROUPS)


async def test_heads_behind_a_cursor_do_not_read_what_lies_before_it(filled):
    connection = await asyncpg.connect(filled, server_settings={"search_path": "headway"})
    key = await connection.fetchrow(
        "select start_by, cap_ms, id from task where state = 2 and tenant = 1 and shape = 1 order by 1, 2, 3 offset 1900 limit 1"
    )
    await connection.close()
    seen = await explain(filled, "task.heads", ([1], [1], [key["start_by"]], [key["cap_ms"]], [key["id"]], 20))
    (scan,) = seen.of("task")
    assert (seen.returned, looked_at(scan)) == (20, 20)
    assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] <= 20 + 6
