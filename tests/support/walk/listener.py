"""Somebody who follows the stream of events with a cursor, from one server to the next, through all that breaks (J6)."""

from __future__ import annotations

import asyncio
from typing import Any

from headway.control.core import Core
from headway.domain.events import FINISHED
from headway.errors import HeadwayError
from tests.support.walk.programs import check
from tests.support.walk.world import World

STORED = "select xid::text as xid, seq, kind, tasks from event order by event.xid, seq"
STATES = "select id, state, tree from task_anywhere"
WORDS = {6: "task.succeeded", 7: "task.failed", 8: "task.cancelled", 9: "task.skipped", 10: "task.expired"}


class Listener:
    def __init__(self, world: World) -> None:
        self.world = world
        self.after: tuple[str, int] = ("0", 0)
        self.heard: list[Any] = []
        self._turn = asyncio.Lock()  # one ear

    async def act(self) -> None:
        async with self._turn:
            core = self.world.core()
            try:
                await self.world.ask(core, self._read(core))
            except HeadwayError as error:
                check(error)

    async def _read(self, core: Core) -> None:
        async for rows in core.following.events(None, self.after, follow=False):
            for row in rows:
                self.after = (row["xid"], row["seq"])
                self.heard.append(row)

    async def has_heard_all(self) -> bool:
        await self.act()
        stored = await self.world.rows(STORED)
        return len(self.heard) >= len(stored)

    async def wrong(self) -> list[str]:
        """What it heard twice, not at all, or in another order than it was stored; ends that were told too often or not as they were."""
        stored = [(row["xid"], row["seq"]) for row in await self.world.rows(STORED)]
        heard = [(row["xid"], row["seq"]) for row in self.heard]
        if heard != stored:
            missed, more = set(stored) - set(heard), len(heard) - len(set(heard))
            return [
                f"of {len(stored)} events {len(missed)} were not heard, {more} more than once; in order: {heard == sorted(heard)}"
            ]
        return await self._ends()

    async def _ends(self) -> list[str]:
        ends: dict[int, list[str]] = {}
        for row in self.heard:
            if row["kind"] in FINISHED:
                for task in row["tasks"]:
                    ends.setdefault(task, []).append(row["kind"])
        found = []
        for row in await self.world.rows(STATES):
            told = ends.get(row["id"], [])
            purged = row["state"] == 8 and told[-1:] == ["task.failed"]
            if told[-1:] != [WORDS[row["state"]]] and not purged:
                found.append(f"task {row['id']} is {WORDS[row['state']]}, and was told as {told}")
            elif "task.succeeded" in told[:-1] or (row["tree"] is None and len(told) > 1 + self.world.revived.get(row["id"], 0)):
                found.append(f"task {row['id']} was told to have ended too often: {told}")
        return found
