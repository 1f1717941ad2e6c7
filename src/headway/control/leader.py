"""Leases on duties. A server leads a duty while it holds the row in `duty`; a takeover raises the epoch (I2)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headway import telemetry
from headway.errors import StaleEpoch
from headway.logs import log
from headway.store.database import Connection, Database
from headway.store.queries import query

DUTIES = ("planner", "timekeeper", "reaper", "archivist", "bounded_waiting", "dispatcher")
_TAKE = query("duty.take")
_HAND_ON = query("duty.hand_on")
_FENCE = query("duty.fence")


@dataclass
class Leader:
    """Which duties this server leads, and under which epoch."""

    database: Database
    holder: str
    lease_s: float
    epochs: dict[str, int] = field(default_factory=dict)
    _until: float = 0.0  # monotonic: when the leases run out, counted from before they were asked for

    async def renew(self) -> set[str]:
        """Renew what is held, take what is free; returns the duties gained just now."""
        asked = time.monotonic()
        async with self.database.cold() as connection:
            rows = await connection.fetch(_TAKE, list(DUTIES), self.holder, self.lease_s)
        held = {row["name"]: row["epoch"] for row in rows}
        gained = {name for name, epoch in held.items() if self.epochs.get(name) != epoch}
        for name in DUTIES:
            if (name in held) != (name in self.epochs):
                telemetry.leads(name, name in held)
                log("duty.taken" if name in held else "duty.lost", duty=name, epoch=held.get(name))
        self.epochs = held
        self._until = asked + self.lease_s
        return gained

    def leads(self, duty: str) -> bool:
        return duty in self.epochs and time.monotonic() < self._until

    def remaining_s(self) -> float:
        return self._until - time.monotonic()

    def epoch(self, duty: str) -> int:
        return self.epochs.get(duty, -1)

    async def fence(self, connection: Connection, duty: str) -> None:
        """The first statement of a duty's transaction: raises StaleEpoch when another server leads."""
        if await connection.fetchval(_FENCE, duty, self.epoch(duty)) is None:
            self.epochs.pop(duty, None)
            raise StaleEpoch(f"another server leads {duty}")

    async def hand_on(self) -> None:
        """Let others take over at once."""
        self.epochs.clear()
        async with self.database.cold() as connection:
            await connection.execute(_HAND_ON, self.holder)
