"""The judge at the end of every fault test. What it holds:

- every acknowledged task has exactly one final state: one row over history and dead letters, none left in the hot table
- no finish twice: exactly one final event for each of them
- no two attempts of a task overlap in time, neither in the database nor in the journal that the runs wrote themselves
- an idempotency key made one task, however often it was sent
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from headway.domain.lifecycle import State

FINAL_EVENTS = [f"task.{state.word}" for state in State if state.final]
SLACK_MS = 2  # agents report whole milliseconds

_LOST = """
select a.id from unnest($1::bigint[]) as a (id)
where not exists (select from headway.task where id = a.id)
    and not exists (select from headway.task_history where id = a.id)
    and not exists (select from headway.dead_letter where id = a.id)
"""
_LEFT = "select id, state from headway.task where id = any ($1::bigint[])"
_TWICE = """
select id, count(*) as homes from (
    select id from headway.task union all select id from headway.task_history union all select id from headway.dead_letter
) homes group by id having count(*) > 1
"""
_FINISHES = """
select a.id, count(e.id) as finishes from unnest($1::bigint[]) as a (id)
left join (select unnest(tasks) as id from headway.event where kind = any ($2::text[])) e on e.id = a.id
group by a.id having count(e.id) <> 1
"""
_ATTEMPTS = """
select task as id, attempt, coalesce(started_at, leased_at) as begin, ended_at as end from headway.attempt where task = any ($1::bigint[])
union all
select id, attempt, coalesce(started_at, leased_at), ended_at from headway.task_history
where id = any ($1::bigint[]) and attempt > 0 and leased_at is not null
union all
select id, attempt, coalesce(started_at, leased_at), ended_at from headway.dead_letter
where id = any ($1::bigint[]) and attempt > 0 and leased_at is not null
"""
_KEYS = "select key, count(*) as tasks from headway.task_anywhere where key is not null group by tenant, key having count(*) > 1"


@dataclass(frozen=True)
class Violation:
    """One broken promise, about one task (or key)."""

    kind: str
    about: str
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.about}: {self.words}"


@dataclass
class Run:
    """One execution of an attempt, as far as its journal tells."""

    task: int
    attempt: int
    pid: int
    begin: int
    end: int
    ended: bool = False

    def __str__(self) -> str:
        how = "ended" if self.ended else "last seen"
        return f"attempt {self.attempt} (process {self.pid}) {self.begin / 1e9:.3f} to {self.end / 1e9:.3f} ({how})"


async def check(dsn: str, acknowledged: Collection[int], journal: Path | None = None) -> list[Violation]:
    """Everything that is wrong; an empty list is a good run."""
    connection = await asyncpg.connect(dsn)
    try:
        found = await _check_database(connection, list(acknowledged))
    finally:
        await connection.close()
    return found + (check_journal(read_journal(journal)) if journal is not None and journal.exists() else [])


async def assert_sound(dsn: str, acknowledged: Collection[int], journal: Path | None = None) -> None:
    violations = await check(dsn, acknowledged, journal)
    shown = "\n  ".join(str(violation) for violation in violations[:20])
    assert not violations, f"{len(violations)} violations over {len(acknowledged)} acknowledged tasks:\n  {shown}"


async def _check_database(connection: Any, ids: list[int]) -> list[Violation]:
    found = [Violation("lost", str(r["id"]), "acknowledged and nowhere") for r in await connection.fetch(_LOST, ids)]
    found += [
        Violation("unfinished", str(r["id"]), f"still {State(r['state']).word}") for r in await connection.fetch(_LEFT, ids)
    ]
    found += [Violation("two homes", str(r["id"]), f"{r['homes']} rows") for r in await connection.fetch(_TWICE)]
    found += [
        Violation("finishes", str(r["id"]), f"{r['finishes']} final events, not 1")
        for r in await connection.fetch(_FINISHES, ids, FINAL_EVENTS)
    ]
    found += _overlaps_in_rows(await connection.fetch(_ATTEMPTS, ids))
    found += [Violation("key", r["key"], f"made {r['tasks']} tasks") for r in await connection.fetch(_KEYS)]
    return found


def _overlaps_in_rows(rows: Iterable[Any]) -> list[Violation]:
    by_task: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_task[row["id"]].append(row)
    found = []
    for task, attempts in by_task.items():
        attempts.sort(key=lambda row: row["attempt"])
        for earlier, later in itertools.pairwise(attempts):
            if earlier["attempt"] == later["attempt"]:
                found.append(Violation("attempt twice", str(task), f"attempt {later['attempt']} ended twice"))
            elif (earlier["end"] - later["begin"]).total_seconds() * 1000 > SLACK_MS:
                words = f"attempt {earlier['attempt']} ended {earlier['end']}, attempt {later['attempt']} began {later['begin']}"
                found.append(Violation("overlap in rows", str(task), words))
    return found


def read_journal(path: Path) -> list[Run]:
    """The runs of a journal, in the order in which they began."""
    runs: dict[tuple[int, int, int], Run] = {}
    for line in path.read_text().splitlines():
        what, task, attempt, pid, moment = line.split()
        key = (int(task), int(attempt), int(pid))
        if what == "start":
            # One process never runs the same attempt twice, unless somebody ordered it twice.
            while key in runs:
                key = (key[0], key[1], key[2] + 2**40)
            runs[key] = Run(int(task), int(attempt), int(pid), int(moment), int(moment))
            continue
        while (key[0], key[1], key[2] + 2**40) in runs:
            key = (key[0], key[1], key[2] + 2**40)
        run = runs[key]
        run.end, run.ended = int(moment), what == "end"
    return sorted(runs.values(), key=lambda run: run.begin)


def check_journal(runs: Iterable[Run]) -> list[Violation]:
    """Overlapping runs of a task, and attempts that were run more than once."""
    by_task: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(run)
    found = []
    for task, its in by_task.items():
        last = its[0]
        seen = {last.attempt}
        for run in its[1:]:
            if run.begin <= last.end:
                found.append(Violation("overlap", str(task), f"{last} and {run}"))
            if run.attempt in seen:
                found.append(Violation("run twice", str(task), f"{run} was run before: {', '.join(map(str, its))}"))
            elif run.attempt < last.attempt:
                found.append(Violation("fence", str(task), f"{run} began after {last}"))
            seen.add(run.attempt)
            last = max(last, run, key=lambda r: r.end)
    return found
