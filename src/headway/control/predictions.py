"""What is known about earlier runs: a bounded sample fed from the events, models learned from it (K3)."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.control.bus import Bus
from headway.control.definitions import Definitions
from headway.control.leader import Leader
from headway.domain.task import Definition
from headway.policy.prediction import FEW, Model, Run, learn
from headway.store.database import Connection, Database
from headway.store.queries import query

EVENTS = 400  # read in one round; when there are more, the rest is left out of the sample
OF_EVENT = 10  # tasks taken of one event, where few ended
RUNS = 1_000  # kept in one round at the most, but one of each event: under full load more of them say nothing new
KEPT = 200  # runs of one kind of work
HEAL_S = 60.0  # how often to look although nobody said that anything ended
FRESH_S = 30.0  # how long a model is used without looking again
MODELS = 50_000

# What decides how long a run takes. Attempts, queue, tolerance and the like do not, so changing them loses no history.
_WORK = ("command", "executable", "function", "interpreter", "args", "image", "commands", "stages", "env", "codec")

_NEWS = query("prediction.news")
_MOVE_ON = query("prediction.move_on")
_SKIP_AHEAD = query("prediction.skip_ahead")
_FINISHED = query("prediction.finished")
_KEEP = query("prediction.keep")
_TRIM = query("prediction.trim")
_OF_WORK = query("prediction.runs_of_work")
_OF_NAMES = query("prediction.runs_of_names")


def work_of(tenant: int, definition: Definition) -> int:
    """The number of what a definition runs."""
    parts = {name: getattr(definition, name) for name in _WORK if hasattr(definition, name)}
    digest = hashlib.blake2b(msgspec.json.encode((tenant, parts), order="deterministic"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass
class Sampler:
    """Keeps the sample fed: part of the timekeeper's duty."""

    database: Database
    leader: Leader
    definitions: Definitions
    bus: Bus
    _ended: bool = True  # something did, since the last look
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self.bus.on_ended.append(lambda _: self._note())
        self.bus.on_remote.append(self._note)

    def _note(self) -> None:
        self._ended = True

    async def run_once(self) -> int:
        """Read what ended since the last time; returns how many runs were kept."""
        if not self._ended and time.monotonic() - self._looked < HEAL_S:
            return 0
        self._ended, self._looked = False, time.monotonic()
        async with self.database.cold() as connection:
            news = await connection.fetch(_NEWS, EVENTS, OF_EVENT)
            each = max(RUNS // max(len(news), 1), 1)
            ids = [task for row in news for task in row["tasks"][:each]]
            rows = await connection.fetch(_FINISHED, ids) if ids else []
        if not news:
            return 0
        known = await self.definitions.load(row["definition"] for row in rows)
        works = {
            (tenant, number): work_of(tenant, known[number].definition)
            for tenant, number in {(row["tenant"], row["definition"]) for row in rows} if number in known
        }  # fmt: skip
        kept = [
            (works[(row["tenant"], row["definition"])], row["id"], row["tenant"], row["seconds"], row["size"],
             row["max_memory"], row["node"], row["name"])
            for row in rows if row["definition"] in known
        ]  # fmt: skip

        async def work(connection: Connection) -> None:
            await self.leader.fence(connection, "timekeeper")
            if kept:
                await connection.execute(_KEEP, *map(list, zip(*sorted(kept), strict=True)))
                await connection.execute(_TRIM, list({row[0] for row in kept}), KEPT)
            if len(news) == EVENTS:
                await connection.execute(_SKIP_AHEAD)
            else:
                await connection.execute(_MOVE_ON, news[-1]["xid"], news[-1]["seq"])

        await self.database.transact(work)
        return len(kept)


@dataclass
class Predictions:
    """Models of kinds of work, kept for a while."""

    database: Database
    _models: dict[Any, tuple[float, Model | None]] = field(default_factory=dict)

    async def models(self, tenant: int, asked: Sequence[tuple[Definition | None, str]]) -> list[Model | None]:
        """A model for each definition; where it has run too rarely, or there is none, for tasks of that name."""
        works = [None if definition is None else work_of(tenant, definition) for definition, _ in asked]
        await self._learn({work for work in works if work is not None}, _OF_WORK)
        found = [None if work is None else self._models[work][1] for work in works]
        few = [at for at, model in enumerate(found) if model is None or model.runs < FEW]
        names = {(tenant, asked[at][1]) for at in few}
        await self._learn(names, _OF_NAMES)
        for at in few:
            by_name = self._models[(tenant, asked[at][1])][1]
            if by_name is not None and by_name.runs > (found[at].runs if found[at] else 0):  # type: ignore[union-attr]
                found[at] = by_name
        return found

    def forget(self) -> None:
        self._models.clear()

    async def _learn(self, keys: set[Any], sql: str) -> None:
        now = time.monotonic()
        missing = [key for key in keys if key not in self._models or now - self._models[key][0] > FRESH_S]
        if not missing:
            return
        runs: dict[Any, list[Run]] = defaultdict(list)
        async with self.database.cold() as connection:
            if sql is _OF_WORK:
                rows = [(row["work"], row) for row in await connection.fetch(sql, missing, KEPT)]
            else:
                tenant, names = missing[0][0], [name for _, name in missing]
                rows = [((tenant, row["name"]), row) for row in await connection.fetch(sql, tenant, names, KEPT)]
        for key, row in rows:
            runs[key].append(Run(row["seconds"], row["size"], row["node"], row["max_memory"]))
        learned = await asyncio.to_thread(lambda: {key: learn(runs[key][::-1]) for key in missing})
        if len(self._models) > MODELS:
            self._models.clear()
        for key, model in learned.items():
            self._models[key] = (now, model)
