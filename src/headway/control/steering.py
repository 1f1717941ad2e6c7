"""Pause, resume and signal tasks that exist (H7).

A pause is a wish in a column, `hold_at`, and holds in every state: a waiting task leaves the order at once; one that others must
end before waits for a person too; one on a node is frozen there, and is paused when the node says so. An attempt that ends while
the wish stands (its node is lost, it was given back) leaves the task paused. What a node must do is a row that is repeated to it
until it answers, so it does not matter which server, or which side of the agent, dies in between.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from headway.control.bus import Bus
from headway.control.notices import tell as tell_event
from headway.control.settle import Effects, tell
from headway.domain.lifecycle import State
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.database import Connection, Database
from headway.store.queries import query

LOOK_S = 0.25  # how often to look for answers that another server wrote
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "ALRM", "WINCH")

_LOOK = query("control.look")
_PAUSE_WAITING = query("control.pause_waiting")
_HOLD_BLOCKED = query("control.hold_blocked")
_HOLD = query("control.hold")
_UNHOLD = query("control.unhold")
_RELEASE_HELD = query("control.release_held")
_RESUME_WAITING = query("control.resume_waiting")
_ASK = query("control.ask")
_ANSWERS = query("control.answers")
_BENEFICIARY = query("preemption.of")


@dataclass
class Steering:
    database: Database
    bus: Bus
    _waiting: set[asyncio.Event] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bus.on_answered.append(lambda _: self._wake())
        self.bus.on_answered_elsewhere.append(self._wake)

    async def pause(self, task: int, tenant: int | None) -> int | None:
        """Record the wish and do what can be done at once; returns the number of what a node must do, if one must."""
        return await self._change(task, tenant, _pause)

    async def resume(self, task: int, tenant: int | None) -> int | None:
        """Take the wish back; returns the number of what a node must do, if one must."""
        return await self._change(task, tenant, _resume)

    async def signal(self, task: int, tenant: int | None, name: str) -> int:
        """Send a signal to the program of a running task; returns the number under which its node answers."""
        name = name.upper().removeprefix("SIG")
        if name not in SIGNALS:
            hint = {"KILL": "use cancel", "STOP": "use pause", "CONT": "use resume"}.get(name, f"one of {', '.join(SIGNALS)}")
            raise InvalidInput(f"signal: {name[:20]!r} cannot be sent", field="signal", hint=hint)

        async def work(connection: Connection, row: Any, effects: Effects) -> Any:
            if row["state"] not in (State.LEASED, State.RUNNING):
                raise Conflict(f"task {task} is {State(row['state']).word}", hint="only a running program can be sent a signal")
            return await ask(connection, row, "signal", name)

        number = await self._change(task, tenant, work)
        assert number is not None
        return number

    async def _change(self, task: int, tenant: int | None, decide: Any) -> int | None:
        effects = Effects()

        async def work(connection: Connection) -> Any:
            effects.clear()
            row = await connection.fetchrow(_LOOK, [task], tenant)
            if row is None:
                raise NotFound(f"there is no task {task} that could be changed", hint="it may have ended already")
            if not row["cap_ms"]:
                raise Conflict(f"task {task} stands for a `for_each`", hint="pause or resume the tasks it is made of")
            if row["cancel_at"] is not None:
                raise Conflict(f"task {task} is being cancelled")
            return await decide(connection, row, effects)

        asked = await self.database.transact(work)
        tell(self.bus, effects)
        if asked is None:
            return None
        self.bus.control([asked["node"]])
        number: int = asked["number"]
        return number

    async def answer(self, number: int, seconds: float) -> str | None:
        """What the node answered; None when it has not within this time."""
        deadline = time.monotonic() + seconds
        wake = asyncio.Event()
        self._waiting.add(wake)
        try:
            while True:
                wake.clear()
                async with self.database.cold() as connection:
                    rows = await connection.fetch(_ANSWERS, [number])
                left = deadline - time.monotonic()
                if rows:
                    answer: str = rows[0]["answer"]
                    return answer
                if left <= 0:
                    return None
                try:
                    async with asyncio.timeout(min(left, LOOK_S)):
                        await wake.wait()
                except TimeoutError:
                    pass
        finally:
            self._waiting.discard(wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()


async def ask(connection: Connection, row: Any, word: str, argument: str = "") -> Any:
    """Put down what the node of a held task shall do."""
    return await connection.fetchrow(_ASK, [row["id"]], [row["attempt"]], [row["node"]], [word], [argument])


async def _pause(connection: Connection, row: Any, effects: Effects) -> Any:
    task, state = [row["id"]], State(row["state"])
    if state in (State.SCHEDULED, State.READY):
        await tell_event(connection, "task.paused", await connection.fetch(_PAUSE_WAITING, task), effects)
    elif state is State.BLOCKED:
        await tell_event(connection, "task.paused", await connection.fetch(_HOLD_BLOCKED, task), effects)
    elif row["hold_at"] is None:
        await connection.execute(_HOLD, task)
        # One that is out of the way of another stays there. Any other that stands still is on its way to go on, and is stopped again.
        if state is not State.PAUSED or not await _lends(connection, row):
            return await ask(connection, row, "pause")
    return None


async def _resume(connection: Connection, row: Any, effects: Effects) -> Any:
    task, state = [row["id"]], State(row["state"])
    if row["node"] is None and state in (State.PAUSED, State.BLOCKED):
        rows = await connection.fetch(_RESUME_WAITING if state is State.PAUSED else _RELEASE_HELD, task)
        effects.now_ready([found for found in rows if found["state"] == State.READY])
        effects.scheduled |= any(found["state"] == State.SCHEDULED for found in rows)
        await tell_event(connection, "task.resumed", rows, effects)
        return None
    if row["hold_at"] is None:
        if state is State.PAUSED and await _lends(connection, row):
            raise Conflict(f"task {row['id']} made room for a more urgent one", hint="it goes on by itself when there is room again")
        return None  # it runs, or is on its way to
    await connection.execute(_UNHOLD, task)
    if await _lends(connection, row):
        return None  # it goes on when there is room again
    return await ask(connection, row, "resume")


async def _lends(connection: Connection, row: Any) -> bool:
    return await connection.fetchval(_BENEFICIARY, row["id"], row["attempt"], row["node"]) is not None
