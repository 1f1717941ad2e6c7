"""Admission: many requests, one COPY, acknowledged after the commit (A1 A2 A5 A6).

Requests queue up while a batch is being committed; the next batch takes all of them. A batch that PostgreSQL refuses is tried
again request by request, so that one bad request never fails its neighbours. A client that hangs up does not cancel a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from headway import telemetry
from headway.control.allowances import Allowance, Allowances
from headway.control.batch import Batch, Request, store_batch, store_plain
from headway.control.bus import Bus
from headway.control.clock import Clock
from headway.control.draft import Draft
from headway.control.express import Express
from headway.control.fleet import Fleet
from headway.control.identity import IdSource
from headway.control.lanes import Lanes
from headway.control.subtasks import Parent
from headway.domain.lifecycle import State
from headway.errors import HeadwayError, InvalidInput, LimitExceeded, TooLarge, Unavailable
from headway.logs import log
from headway.store.database import GONE, Database
from headway.store.queries import query

BATCH_TASKS = 1_500  # enough to amortise a commit; more would hold up everything else while its rows are made
_FIND = query("read.exists")
_EXISTING = query("key.existing")
_FORESEEN = (HeadwayError, asyncpg.PostgresError, ValueError)


@dataclass
class Receipt:
    """What a submitter is told: the ids in the order of the request."""

    ids: list[int]
    created: list[bool]
    state: int
    start_by_us: int
    tree: int | None = None


@dataclass
class Admission:
    """The queue in front of the store, bounded in bytes."""

    database: Database
    clock: Clock
    ids: IdSource
    fleet: Fleet
    bus: Bus
    express: Express
    allowances: Allowances
    queue_bytes: int
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.lanes = Lanes(self._commit, lambda request: len(request.drafts), BATCH_TASKS)

    async def submit(
        self,
        tenant: int,
        drafts: Sequence[Draft],
        *,
        tree: str | None = None,
        strict: bool = False,
        parent: Parent | None = None,
        key: tuple[str, bytes] | None = None,
    ) -> Receipt:
        """Store the drafts, all or nothing, and return once they are durable. With a parent they are its subtasks. `key`: of the whole
        tree, with the hash of what was asked for."""
        self.fleet.check_satisfiable(draft.interned for draft in drafts)
        weight = sum(draft.weight() for draft in drafts)
        if self._bytes and self._bytes + weight > self.queue_bytes:
            raise Unavailable("too many submissions are waiting for the database", retry_after=1.0)
        if tenant in self.allowances.limited:
            self._check_fans(tenant, drafts)
        began = self.allowances.monotonic()
        try:
            allowance = await self.allowances.take(tenant, len(drafts))
        except (LimitExceeded, TooLarge):
            if parent is None and tree is None and (known := await self._repeated(tenant, drafts)):
                return Receipt(known, [False] * len(known), State.READY, 0)
            raise
        done = asyncio.get_running_loop().create_future()
        request = Request(tenant, drafts, tree, done, strict, parent=parent)
        if key is not None:
            request.key, request.key_hash = key
        if allowance is not None:
            done.add_done_callback(lambda _: self._stored(allowance, request, len(drafts), began))
        self._bytes += weight
        self.lanes.add(request)
        try:
            await request.done
        finally:
            self._bytes -= weight
        return Receipt(request.ids, request.created, request.state, request.start_by_us, request.tree)

    def _check_fans(self, tenant: int, drafts: Sequence[Draft]) -> None:
        """A list that could never be carried out at once is refused now, not when its turn comes."""
        for draft in drafts:
            if draft.fan is not None and (why := self.allowances.never(tenant, draft.fan.count)):
                raise InvalidInput(f"for_each: {why.detail}", field="for_each", hint="split the list, or ask for a larger subscription")

    async def _repeated(self, tenant: int, drafts: Sequence[Draft]) -> list[int] | None:
        """The tasks that these drafts are repeats of, if all of them are: what is there already breaks no limit (A6)."""
        keys = [draft.key for draft in drafts]
        if None in keys:
            return None
        async with self.database.cold() as connection:
            rows = {row["key"]: row for row in await connection.fetch(_EXISTING, [tenant] * len(keys), keys)}
        if any(draft.key not in rows or rows[draft.key]["hash"] != draft.key_hash for draft in drafts):
            return None
        return [rows[key]["task"] for key in keys]

    def _stored(self, allowance: Allowance, request: Request, count: int, began: float) -> None:
        """Tell what became of a request that room was taken for. Only what was stored, or may have been, is paid for."""
        allowance.stored(count)
        if request.done.cancelled():
            return
        error = request.done.exception()
        if error is None:
            spent = request.created.count(True)
        else:
            spent = count if isinstance(error, Unavailable) or not isinstance(error, HeadwayError) else 0
        allowance.took_for_nothing(count - spent, began, self.allowances.monotonic())

    async def _commit(self, requests: list[Request]) -> None:
        try:
            batch, leased = await self._store(requests)
        except Unavailable as error:
            _fail(requests, error)
        except Exception as error:  # whatever it is, each of them is answered
            if len(requests) == 1:
                log("admission.refused", error=repr(error), exc_info=None if isinstance(error, _FORESEEN) else error)
                _fail(requests, error if isinstance(error, HeadwayError) else HeadwayError("the database refused the tasks"))
                return
            for request in requests:
                await self._commit([request])
        else:
            self._tell(batch, leased)

    async def _store(self, requests: list[Request]) -> tuple[Batch, bool]:
        """What was stored, and whether a node has it already."""
        batch = Batch(requests, await self.ids.take(sum(len(r.drafts) + bool(r.tree_name) for r in requests)), self.clock.now_us())
        leased = False
        try:
            leased = await self.express.store(batch)
            if not leased:
                await self._store_ordinarily(batch)
        except (Unavailable, *GONE):
            # The connection went away; perhaps after the COMMIT arrived. Only the database knows.
            if not await self._was_committed(batch):
                raise
        except _FORESEEN:
            raise
        except Exception as error:  # nobody knows where: what is stored must not be stored again
            if not await self._was_committed(batch):
                raise
            log("admission.failed", level="error", exc_info=error)
        return batch, leased

    def _tell(self, batch: Batch, leased: bool) -> None:
        batch.settle()
        if not leased:
            self.bus.ready(batch.ready())
        if batch.scheduled:
            self.bus.scheduled()
        telemetry.submitted(sum(r.created.count(True) for r in batch.requests))

    async def _store_ordinarily(self, batch: Batch) -> None:
        if batch.plain:
            async with self.database.hot() as connection:
                await store_plain(connection, batch)
        else:
            await self.database.transact(lambda connection: store_batch(connection, batch))

    async def _was_committed(self, batch: Batch) -> bool:
        for pause in (0.05, 0.2, 0.5, 1.0, 2.0):
            await asyncio.sleep(pause)
            try:
                async with self.database.cold() as connection:
                    return bool(await connection.fetchval(_FIND, batch.probe()))
            except Unavailable:
                continue
        raise Unavailable(
            "the database went away while the tasks were being stored", hint="submit again with the same idempotency key"
        )


def _fail(requests: list[Request], error: HeadwayError) -> None:
    for request in requests:
        if not request.done.done():
            request.done.set_exception(error)
            request.done.exception()  # a client that hung up does not make this an unhandled error
