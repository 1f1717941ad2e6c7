"""The reaper duty: a node silent for too long is lost, and its tasks go on elsewhere (I1)."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import time
import urllib.parse
from collections.abc import Callable
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

LONGEST_TICK_S = 1.0  # and at the moment itself in which a silent node is lost
_SEEN = query("node.seen")
_LOSE = query("node.lose")
_HELD = query("task.held_by")
_HOLDERS = query("duty.holders")
_NAMES = query("node.names")


@dataclass
class Reaper:
    database: Database
    leader: Leader
    definitions: Definitions
    fleet: Fleet
    bus: Bus
    holder: str
    own_url: Callable[[], str]
    lost_s: float
    hold_s: float
    _epoch: int = -1
    _cautious: bool = True  # a former leader's agents may have been told to hold on

    def __post_init__(self) -> None:
        self.tick_s = min(LONGEST_TICK_S, self.lost_s / 5)
        self.watch = Watch(self.lost_s, longest_tick_s=self.lost_s / 2)

    async def run_once(self) -> float:
        """One look; only when somebody is silent or left tasks behind is anything written."""
        if await self._must_wait():
            return self.tick_s
        async with self.database.hot() as connection:
            rows = await connection.fetch(_SEEN)
        seen = {row["id"]: row["seen_at"] for row in rows if row["live"]}
        silent = self.watch.tick(seen, time.monotonic())
        stragglers = [row["id"] for row in rows if not row["live"]]
        if silent or stragglers:
            await self._lose({node: seen[node] for node in silent}, stragglers)
        return self.watch.rest(self.tick_s)

    async def _must_wait(self) -> bool:
        """After a takeover: a server that is cut off from the database, and believed to be alone, tells its agents to hold on. Until it is
        known to be dead, or that time is over, a silent node may be one of those, and its tasks must not be given away."""
        if self._epoch != self.leader.epoch("reaper"):
            self._epoch, self._cautious = self.leader.epoch("reaper"), True
        if self._cautious:
            async with self.database.hot() as connection:
                holders = await connection.fetch(_HOLDERS, self.holder, self.hold_s + self.lost_s, self.leader.lease_s * 0.8)
            self._cautious = any([await may_live(row["name"], row["url"], self.own_url()) for row in holders])
        return self._cautious

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
        tell(self.bus, effects)


async def may_live(machine: str, url: str, own_url: str) -> bool:
    """Whether a silent server may still be running: only a refused connection, or our own address, proves that it is not.

    A server that listens on all addresses, or on loopback, has told one that is its own on every machine: from another one it says
    nothing, and what answers or refuses there is somebody else.
    """
    parts = urllib.parse.urlsplit(url)
    is_here = machine == socket.gethostname()
    if is_here and url == own_url:
        return False
    if not is_here and _is_everywhere(parts.hostname or ""):
        return True
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port), 1.0)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    return True


def _is_everywhere(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("", "localhost")
    return address.is_unspecified or address.is_loopback


async def lose_tasks(connection: Connection, node: int, name: str, definitions: Definitions, effects: Effects) -> int:
    """Every attempt this node answered for has ended with it."""
    held = await connection.fetch(_HELD, node)
    now_ms = round((await connection.fetchval("select extract(epoch from clock_timestamp())::float8")) * 1000)
    text = msgspec.json.encode(ErrorInfo("NodeLost", f"node {name} stopped answering")).decode()
    reports = [(node, Finished(r["id"], r["attempt"], Outcome.NODE_LOST, 0, now_ms, error=text)) for r in held]
    waited_for: list[tuple[int, State]] = await failures(connection, reports, definitions, effects)
    await settle(connection, waited_for, effects)
    return len(held)
