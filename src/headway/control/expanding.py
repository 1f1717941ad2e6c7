"""Carries out `for_each`: a task that stands for many becomes them, and ends when they have (C1).

It is a durable follow-up of the finish that made it due, taken up by the timekeeper. The mark is taken away in the transaction
that stores the tasks, so whoever dies in between, there is one of each; and the row of the task is locked, so that a cancel
comes before or after, never in the middle.

What a list makes is submitted like everything else: it takes tokens and room from the tenant's subscription (A3 E6), and waits for
them; a list that could never have them fails its task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.control import bounded_waiting
from headway.control.allowances import Allowances
from headway.control.batch import copy_edges, copy_tasks
from headway.control.clock import Clock
from headway.control.definitions import Definitions, Interned
from headway.control.identity import IdSource
from headway.control.levels import add_parts
from headway.control.record import fail_waiting
from headway.control.settle import Effects, end_waiting, settle
from headway.control.taken import Taken
from headway.domain import fanout
from headway.domain.checks import NAME_LIMIT
from headway.domain.lifecycle import State
from headway.domain.task import Definition, When
from headway.errors import Forbidden, InvalidInput, LimitExceeded
from headway.logs import log
from headway.store import copy
from headway.store.database import Connection, is_passing
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

MOST_RESULTS = 4 * 2**20  # bytes: as much as one task may result in
SUSPENDED_S = 30.0  # the longest until a list that had to wait, or failed in a way nobody foresaw, is looked at again
_NEXT = query("fanout.next")
_LOCK = query("fanout.lock")
_SETTLED = query("fanout.settled")
_EXPANDED = query("fanout.expanded")
_WAITS = query("fanout.waits")
_HOLD = query("fanout.hold")
_RESULT_OF = query("fanout.result_of")
_SIZE = query("fanout.size")
_NOT_WELL = query("fanout.not_well")
_RESULTS = query("fanout.results")
_GATHER = query("fanout.gather")


@dataclass
class Expander:
    definitions: Definitions
    ids: IdSource
    clock: Clock
    allowances: Allowances
    _later: dict[int, float] = field(default_factory=dict)  # tasks whose tenant is at its limit, or that failed here, until when

    def next_look_s(self) -> float:
        """Seconds until a list that had to wait is looked at again."""
        return max(0.0, min(self._later.values(), default=math.inf) - self.allowances.monotonic())

    async def next(self, connection: Connection, taken: Taken) -> Effects | None:
        """Expand or gather one that is due, in the caller's transaction; None when there is none."""
        now = self.allowances.monotonic()
        self._later = {task: until for task, until in self._later.items() if until > now}
        fan = await connection.fetchrow(_NEXT, list(self._later))
        if fan is None:
            return None
        effects = Effects()
        try:
            async with connection.transaction():
                await self._carry_out(connection, fan, taken, effects)
        except Exception as error:
            if is_passing(error):
                raise
            taken.anew()
            self._later[fan["task"]] = now + SUSPENDED_S  # whatever it is, it comes of this list: the others go on without it
            log("for_each.failed", level="error", exc_info=error, task=fan["task"])
            return Effects()
        return effects

    async def _carry_out(self, connection: Connection, fan: Any, taken: Taken, effects: Effects) -> None:
        task = await connection.fetchrow(_LOCK, fan["task"])
        if task is None:  # it was cancelled or skipped meanwhile
            await connection.execute(_SETTLED, fan["task"])
        elif fan["count"] is not None:
            await self._gather(connection, fan, effects)
        else:
            await self._expand(connection, fan, task, taken, effects)

    async def _expand(self, connection: Connection, fan: Any, task: Any, taken: Taken, effects: Effects) -> None:
        template = (await self.definitions.load([task["definition"]]))[task["definition"]]
        try:
            items = await self._items(connection, fan)
            if not await self._is_allowed(connection, task, len(items), taken):
                return
            kinds = await self._kinds(task["tenant"], template, items)
            inputs = [fanout.input_of(task["input"], item, index) for index, item in enumerate(items)]
        except InvalidInput as error:
            taken.anew()
            await connection.execute(_SETTLED, fan["task"])
            ended = await fail_waiting(connection, task["id"], template, ErrorInfo("BadForEach", error.detail), effects)
            await settle(connection, ended, effects)
            return
        if not items:
            await connection.execute(_EXPANDED, fan["task"], 0, 0, 0)
            await self._gather(connection, {**fan, "first": 0, "last": 0}, effects)
            return
        ids = sorted(await self.ids.take(len(items)))
        await self._store(connection, task, ids, kinds, inputs, effects)
        await connection.execute(_HOLD, task["id"], len(ids))
        await connection.execute(_EXPANDED, task["id"], ids[0], ids[-1], len(ids))
        if task["tree"] is not None:
            effects.levels.add(task["tree"], task["level"], len(ids))
            await add_parts(connection, task["tree"], ((id, task["level"]) for id in ids))
        await settle(connection, [], effects)

    async def _is_allowed(self, connection: Connection, task: Any, count: int, taken: Taken) -> bool:
        """Take tokens and room for its tasks; when there are none now, it is looked at again later, and its row says why."""
        if why := self.allowances.never(task["tenant"], count):
            raise InvalidInput(f"for_each: {why.detail}", field="for_each")
        try:
            await taken.take(task["tenant"], count)
        except (LimitExceeded, Forbidden) as error:
            wait = error.retry_after if isinstance(error, LimitExceeded) else SUSPENDED_S
            self._later[task["id"]] = self.allowances.monotonic() + min(max(wait, 0.1), SUSPENDED_S)
            # The rate tells when there will be enough; room in the quota comes when others have begun, and nobody knows when.
            known = wait if "remaining" in error.extra else None
            await connection.execute(_WAITS, task["id"], error.detail, known)
            log("for_each.waits", task=task["id"], tasks=count, error=error.detail)
            return False
        return True

    async def _items(self, connection: Connection, fan: Any) -> list[Any]:
        if fan["source"] is None:
            return fanout.items_of(fan["items"])
        return fanout.items_of(await connection.fetchval(_RESULT_OF, fan["source"]))

    async def _kinds(self, tenant: int, template: Interned, items: list[Any]) -> list[Interned]:
        """What each of the tasks is: all the same, unless the item goes into their words."""
        words = template.definition
        if not fanout.has_place((*words.args, *words.command, *words.env.values())):
            return [template] * len(items)
        if len(items) > fanout.MOST_DIFFERENT:
            raise InvalidInput(
                f"for_each: {len(items)} items go into args, env or command, which makes so many different tasks",
                field="for_each",
                hint=f"at most {fanout.MOST_DIFFERENT}; let the item be the input",
            )
        return [await self.definitions.intern(tenant, _filled(words, item, index)) for index, item in enumerate(items)]

    async def _store(
        self, connection: Connection, task: Any, ids: list[int], kinds: list[Interned], inputs: list[bytes], effects: Effects
    ) -> None:
        now_us = self.clock.now_us()
        name = task["name"] or kinds[0].definition.name
        labels = task["labels"].encode() if task["labels"] else None
        place = copy.place_columns(task["tree"], task["level"])
        rows = [
            copy.task_row(
                id,
                copy.common_columns(
                    now_us + kind.tolerance_us, now_us, task["tenant"], kind.id, kind.shape, kind.cap_ms, 0, State.READY, kind.category, 1
                ),
                place, None, _name(name, index), labels, None, data,
            )
            for index, (id, kind, data) in enumerate(zip(ids, kinds, inputs, strict=True))
        ]  # fmt: skip
        await copy_tasks(connection, rows)
        effects.scheduled |= await bounded_waiting.remember(connection, zip(ids, kinds, strict=True))
        await copy_edges(connection, [copy.edge_row(id, task["id"], When.DONE) for id in ids])
        effects.ready += [
            (task["tenant"], kind.shape, (copy.to_datetime(now_us + kind.tolerance_us), kind.cap_ms, id))
            for id, kind in zip(ids, kinds, strict=True)
        ]

    async def _gather(self, connection: Connection, fan: Any, effects: Effects) -> None:
        """All of its tasks have ended. When they succeeded their results are its own, if they are not too much together."""
        span = fan["task"], fan["first"], fan["last"]
        ill = await connection.fetchrow(_NOT_WELL, *span)
        if ill["first"] is not None:
            await self._skip(connection, fan["task"], ill, effects)
            return
        result = None
        if await connection.fetchval(_SIZE, *span) < MOST_RESULTS:
            rows = await connection.fetch(_RESULTS, *span)
            result = b"[" + b",".join(row["result"] or b"null" for row in rows) + b"]"
        await connection.execute(_SETTLED, fan["task"])
        done = await connection.fetchrow(_GATHER, fan["task"], result)
        now_ms = self.clock.now_us() // 1000
        effects.ended.append((done["id"], State.SUCCEEDED))
        if done["tree"] is not None:
            effects.levels.end(done["tree"], done["level"], State.SUCCEEDED, ended_ms=now_ms)
        await settle(connection, [(done["id"], State.SUCCEEDED)] if done["has_dependants"] else [], effects)

    async def _skip(self, connection: Connection, task: int, ill: Any, effects: Effects) -> None:
        """One of its tasks did not succeed, so there is no list of results. To what waits for it this is a failure if that was one."""
        await connection.execute(_SETTLED, task)
        reason = ErrorInfo("DependencyFailed", f"task {ill['first']}, one of those it stands for, did not succeed")
        ended = await end_waiting(connection, [task], State.SKIPPED, [reason], effects)
        seen_as = State.FAILED if ill["failed"] else State.SKIPPED
        await settle(connection, [(one, seen_as) for one, _ in ended], effects)


def _filled(words: Definition, item: Any, index: int) -> Definition:
    def fill(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(fanout.fill(text, item, index) for text in texts)

    args, command = fill(words.args), fill(words.command)
    env = {key: fanout.fill(value, item, index) for key, value in words.env.items()}
    if any("\x00" in text for text in (*args, *command, *env.values())):
        raise InvalidInput(f"for_each: item {index} holds a NUL character", field="for_each")
    return msgspec.structs.replace(words, args=args, command=command, env=env)


def _name(base: str, index: int) -> bytes:
    end = f"[{index}]"
    return (base[: NAME_LIMIT - len(end)] + end).encode()
