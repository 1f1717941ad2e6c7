"""What runs now and how long it will: the part of the scene that policy.forecast looks at and policy.promise counts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.control.definitions import Definitions
from headway.control.predictions import Predictions
from headway.policy.forecast import MOST_RUNNING, Held, Lasting
from headway.policy.prediction import Model
from headway.policy.room import need_of
from headway.store.database import Database
from headway.store.queries import query

MOST_TENANTS = 20  # whose history is looked up; of others only the caps are known

_HELD = query("explain.held")


@dataclass
class Scenes:
    database: Database
    definitions: Definitions
    predictions: Predictions

    async def held(self, nodes: list[int]) -> list[Held] | None:
        """What these nodes hold; None when it is too much to look at one by one."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_HELD, nodes, MOST_RUNNING + 1)
        if len(rows) > MOST_RUNNING:
            return None
        await self.definitions.load_shapes(row["shape"] for row in rows)
        models = await self._models(rows)
        return [
            Held(
                row["node"], row["tenant"], need_of(self.definitions.shapes[row["shape"]]), row["ran_s"],
                _lasting(models.get((row["tenant"], row["definition"])), row), self.definitions.rules[row["shape"]].preemptible,
            )
            for row in rows
        ]  # fmt: skip

    async def _models(self, rows: list[Any]) -> dict[tuple[int, int], Model | None]:
        """What is known of each kind of work that runs, by tenant and definition."""
        known = await self.definitions.load(row["definition"] for row in rows)
        kinds: dict[int, dict[int, str]] = {}
        for row in rows:
            if row["definition"] in known and (row["tenant"] in kinds or len(kinds) < MOST_TENANTS):
                kinds.setdefault(row["tenant"], {})[row["definition"]] = row["name"] or known[row["definition"]].definition.name
        found: dict[tuple[int, int], Model | None] = {}
        for tenant, asked in kinds.items():
            models = await self.predictions.models(tenant, [(known[number].definition, name) for number, name in asked.items()])
            found |= {(tenant, number): model for number, model in zip(asked, models, strict=True)}
        return found


def _lasting(model: Model | None, row: Any) -> Lasting:
    return Lasting(model.times(row["size"], row["node"]) if model is not None else (), row["cap_ms"] / 1000)
