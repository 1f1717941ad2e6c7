"""The reaper duty: a node silent for too long is lost, and its tasks go on elsewhere (I1)."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass

import msgspec

from headway import telemetry
from headway.control.bus import Bus
from headway.control.definitions import Definitions
from headway.control.fleet import Fleet
from headway.control.leader import Leader
from headway.control.record import failures
from headway.control.settle import Effects, settle, tell
from headway.domain.lifecycle import Outcome, State
from headway.policy.liveness import Watch
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo, Finished

LONGEST_TICK_S = 0.5
_SEEN = query("node.seen")
_LOSE = query("node.lose")
_HELD = query("task.held_by")
_NAMES = query("node.names")


@dataclass
class Reaper:
    database: Database
    leader: Leader
    definitions: Definitions
    fleet: Fleet
    bus: Bus
    lost_s: float

    def __post_init__(self) -> None:
        self.tick_s = min(LONGEST_TICK_S, self.lost_s / 10)
        self.watch = Watch(self.lost_s, longest_tick_s=max(3 * self.tick_s, self.lost_s / 2))

    async def run_once(self) -> float:
        """One look; only when somebody is silent or left tasks behind is anything written."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_SEEN)
        seen = {row["id"]: row["seen_at"] for row in rows if row["live"]}
        silent = self.watch.tick(seen, time.monotonic())
        stragglers = [row["id"] for row in rows if not row["live"]]
        if silent or stragglers:
            await self._lose({node: seen[node] for node in silent}, stragglers)
        return self.tick_s

    async def _lose(self, silent: dict[int, datetime.datetime], stragglers: list[int]) -> None:
        effects = Effects()
        lost: list[tuple[str, int]] = []

        async def work(connection: Connection) -> None:
            effects.clear()
            lost.clear()
            await self.leader.fence(connection, "reaper")
            rows = await connection.fetch(_LOSE, list(silent), list(silent.values())) if silent else []
            for row in rows:
                lost.append((row["name"], await lose_tasks(connection, row["id"], row["name"], self.definitions, effects)))
            for row in await connection.fetch(_NAMES, stragglers):
                await lose_tasks(connection, row["id"], row["name"], self.definitions, effects)

        await self.database.transact(work)
        for name, count in lost:
            telemetry.node_lost(name, count)
        await self.fleet.refresh()  # before the planner hears of the tasks: it must not give them back to the lost node
        self.bus.fleet()
        tell(self.bus, effects)


async def lose_tasks(connection: Connection, node: int, name: str, definitions: Definitions, effects: Effects) -> int:
    """Every attempt this node answered for has ended with it."""
    held = await connection.fetch(_HELD, node)
    now_ms = round((await connection.fetchval("select extract(epoch from clock_timestamp())::float8")) * 1000)
    text = msgspec.json.encode(ErrorInfo("NodeLost", f"node {name} stopped answering")).decode()
    reports = [(node, Finished(r["id"], r["attempt"], Outcome.NODE_LOST, 0, now_ms, error=text)) for r in held]
    waited_for: list[tuple[int, State]] = await failures(connection, reports, definitions, effects)
    await settle(connection, waited_for, effects)
    return len(held)
