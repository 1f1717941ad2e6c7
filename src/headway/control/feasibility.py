"""Trees that cannot keep their schedule are refused when that is known at apply, and fail when it shows later (C6)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headway.control.definitions import Definitions
from headway.control.leader import Leader
from headway.control.predictions import Predictions, Sampler
from headway.domain.define import edges
from headway.domain.firings import shortest_gap
from headway.domain.schedule import Overlap, ScheduleSpec, Timing, Work, timing
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.logs import log
from headway.policy.feasibility import Path, critical_path, too_long
from headway.policy.prediction import Prediction
from headway.store.database import Connection, Database
from headway.store.queries import query

EVERY_S = 5.0
AGAIN_S = 10.0  # how long a schedule is left alone after it was checked
AT_ONCE = 20
_TO_CHECK = query("prediction.to_check")
_CHECKED = query("prediction.checked")


@dataclass
class Forecast:
    """What is predicted for the tasks of a tree."""

    after: dict[str, list[str]]
    tasks: dict[str, Prediction] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return critical_path(self.after, self.tasks)


@dataclass
class Feasibility:
    database: Database
    leader: Leader
    definitions: Definitions
    predictions: Predictions
    sampler: Sampler

    async def forecast(self, tenant: int, specs: Sequence[TaskSpec], definitions: Sequence[Definition]) -> Forecast:
        """What each task and the whole tree will take."""
        names = [spec.name or definition.name for spec, definition in zip(specs, definitions, strict=True)]
        found = Forecast(
            {
                name: [str(edge.task) for edge in edges(spec.after) if edge.task in names]
                for name, spec in zip(names, specs, strict=True)
            }
        )
        models = await self.predictions.models(tenant, list(zip(definitions, names, strict=True)))
        for name, spec, model in zip(names, specs, models, strict=True):
            if model is not None:
                found.tasks[name] = model.predict(spec.size)
        return found

    async def problem(
        self, tenant: int, when: Timing, specs: Sequence[TaskSpec], definitions: Sequence[Definition], now: datetime.datetime
    ) -> tuple[str, Path] | None:
        """Why a schedule can never be kept. One that lets its runs overlap can."""
        gap = shortest_gap(when, now)
        if gap is None or when.overlap is Overlap.ALLOW:
            return None
        forecast = await self.forecast(tenant, specs, definitions)
        text = too_long(forecast.path, forecast.tasks, gap)
        return None if text is None else (text, forecast.path)

    async def run_once(self) -> float:
        """Feed the sample, then look at schedules that fired: part of the timekeeper's duty."""
        await self.sampler.run_once()
        async with self.database.cold() as connection:
            rows = await connection.fetch(_TO_CHECK, AGAIN_S, AT_ONCE)
            if not rows:
                return EVERY_S
            now = await connection.fetchval("select clock_timestamp()")
        for row in rows:
            when = timing(msgspec.json.decode(row["spec"], type=ScheduleSpec), row["name"])
            specs = msgspec.json.decode(row["body"], type=Work).specs
            known = await self.definitions.load(row["definitions"])
            definitions = [known[number].definition for number in row["definitions"]]
            found = await self.problem(row["tenant"], when, specs, definitions, now)
            text = found[0] if found else None
            if text != row["problem"]:
                log("schedule.feasibility", level="warning" if text else "info", schedule=row["name"], problem=text or "none")
            await self._checked(row["id"], text)
        return EVERY_S

    async def _checked(self, schedule: int, problem: str | None) -> None:
        async def work(connection: Connection) -> None:
            await self.leader.fence(connection, "timekeeper")
            await connection.execute(_CHECKED, schedule, problem)

        await self.database.transact(work)
