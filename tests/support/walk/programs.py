"""What the programs of a walk do while they run: submit subtasks and wait for them, claim effects, save their state.

A program knows nothing but its attempt; what it is refused it takes as it comes. What it was promised is remembered, and a later attempt
that finds it otherwise is a violation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headway.control.checkpoints import Writer
from headway.control.subtasks import Parent
from headway.domain.lifecycle import Outcome
from headway.errors import HeadwayError
from headway.wire.exchange import Finished, Order
from tests.support.engine import done, function
from tests.support.walk.world import Gone, Violation, World

ENDS = (Outcome.SUCCEEDED,) * 6 + (Outcome.ERROR,) * 2
ENDS += (Outcome.NODE_LOST, Outcome.TRY_LATER, Outcome.RUNNER_CRASHED, Outcome.OUT_OF_MEMORY, Outcome.REQUEUED)
OVER = "select 1 from event where $1 = any (tasks) and kind in ('task.cancelled', 'task.expired', 'task.skipped') limit 1"
LISTS = (b"[1,2,3]", b"[]", b"[[]]", b'"no list"', None)


class Programs:
    """All programs of a walk, and what they were promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.saved: dict[int, int] = {}  # task -> the number it last saved, as far as that was acknowledged
        self.happened: set[tuple[int, str]] = set()  # effects whose `done` was acknowledged
        self.owners: dict[int, int] = {}

    async def work(self, order: Order) -> None:
        """Something in the middle of an attempt."""
        what = self.world.chance.choice((self._claim, self._save, self._submit))
        try:
            await what(order)
        except HeadwayError as error:
            check(error)

    async def end(self, order: Order, *, calmly: bool) -> Finished:
        """How the attempt ends: a parent ends to wait for what it submitted."""
        if (order.name or "").startswith("p"):
            try:
                children = await self._submit(order)
            except HeadwayError as error:
                check(error)
            else:
                left = await self.world.rows("select 1 from task where id = any ($1::bigint[])", children)
                if left if calmly else self.world.chance.random() < 0.6:
                    return done(order, outcome=Outcome.SUSPENDED, waits=children)
        outcome = Outcome.SUCCEEDED if calmly else self.world.chance.choice(ENDS)
        return done(order, outcome=outcome, result=None if outcome else self.world.chance.choice(LISTS))

    async def _submit(self, order: Order) -> list[int]:
        """The same subtasks in every attempt, under the same keys."""
        core, name = self.world.core(), order.name or ""
        if not name.startswith("p"):
            return []
        child = "p" if name.startswith("pp") else "c"
        specs = [function(name=f"{child}{n}", idempotency_key=f"part/{n}", attempts=1 + n) for n in range(1 + order.id % 2)]
        owner = await self._owner(order)

        async def submit() -> Any:
            drafts, _ = await core.drafts.read(owner, msgspec.json.encode(specs), ndjson=False, key=None)
            return await core.admission.submit(owner, drafts, parent=Parent(order.id, order.attempt))

        receipt = await self.world.ask(core, submit())
        self.world.known += [task for task, new in zip(receipt.ids, receipt.created, strict=True) if new]
        return list(receipt.ids)

    async def _claim(self, order: Order) -> None:
        """An effect that must not happen twice, though tasks that want it run again."""
        core, key = self.world.core(), self.world.chance.choice("abcdefgh")
        effect = (await self._owner(order), key)
        had_happened = effect in self.happened
        claimed = await self.world.ask(core, core.once.claim(order.id, order.attempt, key, again=self.world.chance.random() < 0.5))
        if had_happened and claimed.state != "done":
            raise Violation(f"the effect {effect} had happened, and {order.id}/{order.attempt} was told {claimed.state!r}")
        if claimed.state == "yours" and self.world.chance.random() < 0.6:
            await self.world.ask(core, core.once.done(order.id, order.attempt, key, None))
            if effect in self.happened:
                raise Violation(f"the effect {effect} has happened twice, the second time in {order.id}/{order.attempt}")
            self.happened.add(effect)
        elif claimed.state == "yours":
            await self.world.ask(core, core.once.release(order.id, order.attempt, key))

    async def _save(self, order: Order) -> None:
        """A checkpoint; what an earlier attempt saved is still there."""
        core, before = self.world.core(), self.saved.get(order.id, 0)
        found = await self.world.ask(core, core.checkpoints.last_value(order.id))
        came = int(found) if found is not None else 0
        if came < before and not await self._was_over(order.id):
            raise Violation(f"task {order.id} had saved {before}, and attempt {order.attempt} goes on from {came}")
        await self.world.ask(core, core.checkpoints.save_value(Writer(order.id, order.attempt), str(came + 1).encode()))
        self.saved[order.id] = max(self.saved.get(order.id, 0), came + 1)

    async def _was_over(self, task: int) -> bool:
        """Whether it had ended for good, until its tree was tried again: then nobody keeps what it saved."""
        return task in self.world.purged or bool(await self.world.rows(OVER, task))

    async def _owner(self, order: Order) -> int:
        if order.id not in self.owners:
            rows = await self.world.rows("select tenant from task_anywhere where id = $1", order.id)
            self.owners[order.id] = rows[0]["tenant"]
        return self.owners[order.id]


def check(error: HeadwayError) -> None:
    """A refusal says what is wrong with the request; an error of no kind is our own mistake."""
    if type(error) is HeadwayError:
        raise Violation(f"a server failed: {error}") from error
    if isinstance(error, Gone):
        return
