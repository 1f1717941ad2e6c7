"""The reaper duty: a node silent for too long is lost, and its tasks go on elsewhere (I1)."""

from __future__ import annotations

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

TICK_S = 0.5
_SEEN = query("node.seen")
_LOSE = query("node.lose")
_HELD = query("task.held_by")
_STRAGGLERS = query("node.stragglers")


@dataclass
class Reaper:
    database: Database
    leader: Leader
    definitions: Definitions
    fleet: Fleet
    bus: Bus
    lost_s: float

    def __post_init__(self) -> None:
        self.watch = Watch(self.lost_s, longest_tick_s=max(3 * TICK_S, self.lost_s / 2))

    async def run_once(self) -> float:
        effects = Effects()
        names: list[tuple[str, int]] = []

        async def work(connection: Connection) -> None:
            effects.clear()
            names.clear()
            await self.leader.fence(connection, "reaper")
            seen = dict(await connection.fetch(_SEEN))
            silent = self.watch.tick(seen, time.monotonic())
            if silent:
                for row in await connection.fetch(_LOSE, silent, [seen[node] for node in silent]):
                    count = await lose_tasks(connection, row["id"], row["name"], self.definitions, effects)
                    names.append((row["name"], count))

            for row in await connection.fetch(_STRAGGLERS):
                await lose_tasks(connection, row["id"], row["name"], self.definitions, effects)

        await self.database.transact(work)
        for name, count in names:
            telemetry.node_lost(name, count)
        if names:
            await self.fleet.refresh()  # before the planner hears of the tasks: it must not give them back to the lost node
            self.bus.fleet()
        tell(self.bus, effects)
        return TICK_S


async def lose_tasks(connection: Connection, node: int, name: str, definitions: Definitions, effects: Effects) -> int:
    """Every attempt this node answered for has ended with it."""
    held = await connection.fetch(_HELD, node)
    now_ms = round((await connection.fetchval("select extract(epoch from clock_timestamp())::float8")) * 1000)
    text = msgspec.json.encode(ErrorInfo("NodeLost", f"node {name} stopped answering")).decode()
    reports = [(node, Finished(r["id"], r["attempt"], Outcome.NODE_LOST, 0, now_ms, error=text)) for r in held]
    waited_for: list[tuple[int, State]] = await failures(connection, reports, definitions, effects)
    await settle(connection, waited_for, effects)
    return len(held)
