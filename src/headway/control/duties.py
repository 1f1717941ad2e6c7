"""The loop around every duty, written once: run while we lead, wait for a wake-up or the interval, survive what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg

from headway.control.leader import Leader
from headway.errors import HeadwayError, StaleEpoch, Unavailable
from headway.logs import log

PAUSE_S = 0.5  # after a failure


@dataclass
class Loop:
    """Runs one duty. `run_once` returns how many seconds it is content to wait; 0 means there is more to do now."""

    duty: str
    leader: Leader
    run_once: Callable[[], Awaitable[float]]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    step_down: Callable[[], None] = lambda: None
    _led: bool = False

    async def run(self) -> None:
        while True:
            self.wake.clear()
            rest = await self._turn() if self.leader.leads(self.duty) else self._stand_by()
            if rest > 0:
                try:
                    async with asyncio.timeout(rest):
                        await self.wake.wait()
                except TimeoutError:
                    pass
            else:
                await asyncio.sleep(0)

    def _stand_by(self) -> float:
        """Another server may lead now: what we knew as the leader is out of date, and nobody here shall go by it."""
        if self._led:
            self._led = False
            self.step_down()
        return PAUSE_S

    async def _turn(self) -> float:
        self._led = True
        try:
            return await self.run_once()
        except StaleEpoch:
            log("duty.deposed", level="warning", duty=self.duty)
            self.step_down()
        except Unavailable as error:
            log("duty.waits", level="warning", duty=self.duty, error=str(error))
        except (HeadwayError, asyncpg.PostgresError) as error:
            log("duty.failed", level="error", duty=self.duty, error=repr(error))
        return PAUSE_S
