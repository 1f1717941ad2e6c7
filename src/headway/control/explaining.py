"""Gathers what policy.explain judges: the task's row, its queue, its tenant's shares and quotas, every node's room (E8).

Works on any server: what only the leading planner knows, it publishes (see control.outlook).
"""

from __future__ import annotations

import asyncio
import datetime
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headway.control.clock import Clock
from headway.control.definitions import Definitions
from headway.control.fleet import Fleet
from headway.control.outlook import Outlook, PlanState, TenantState
from headway.control.planner import Planner
from headway.control.queues import Queues
from headway.control.scenes import Scenes
from headway.domain.identity import ms_of
from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import Resources, fits
from headway.domain.waiting import ON_MAX_WAIT
from headway.policy.explain import Answer, Ended, Facts, Listed, earlier, explain, spent, stood_still
from headway.policy.fairness import over_quota
from headway.policy.forecast import Held, Rival, Scene, share_of
from headway.policy.peak import judge
from headway.policy.placement import Gate
from headway.policy.preemption import PATIENCE_S
from headway.policy.room import Kept, NodeRoom, Refusal, need_of, refuse
from headway.policy.waiting import Waiter, waits_since
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo
from headway.wire.views.explanations import Estimate, Explanation, LimitedWait, OrderView, Reason

COUNTED = 10_000
SLOWEST = 0.001  # tasks a second: a tenant with fewer is no rival
_AHEAD = query("explain.ahead")
_BLOCKERS = query("explain.blockers")
_LIST_DUE = query("explain.list_due")
_SILENCE = query("explain.silence")
_BENEFICIARY = query("preemption.of")
_ALLOCATED = query("task.allocated")
_HELD = query("queue.held_by_tenant")
_ATTEMPTS = query("read.attempts")
_PAUSES = query("control.pauses_of")
_PAST = query("explain.past")
_KNOWN = query("read.known")


@dataclass(frozen=True)
class _Past:
    """What a waiting task brings along."""

    last: Ended | None
    saved_at: datetime.datetime | None
    limit: LimitedWait | None


@dataclass
class Explaining:
    database: Database
    clock: Clock
    definitions: Definitions
    queues: Queues
    fleet: Fleet
    planner: Planner
    outlook: Outlook
    scenes: Scenes
    fence_s: float
    lost_s: float

    async def explain(self, row: Any, scope: int | None) -> Explanation:
        """Why the task of this row (of the view of all tasks) is where it is, for a tenant (`scope`) or an administrator."""
        state = State(row["state"])
        created = datetime.datetime.fromtimestamp(ms_of(row["id"]) / 1000, datetime.UTC)
        eligible = None if state is State.BLOCKED else row["eligible_at"]
        now, paused_s = self.clock.now(), 0.0
        if row["started_at"] is not None:
            async with self.database.reads() as connection:
                pauses = await connection.fetch(_PAUSES, row["id"], row["attempt"])
            paused_s = stood_still(((one["stopped"], one["done_at"]) for one in pauses), row["ended_at"] or now)
        waited_until = row["ended_at"] if state is State.EXPIRED else row["leased_at"]
        times = spent(
            created, eligible, waited_until, row["started_at"], row["ended_at"], now,
            paused_s=paused_s, earlier_s=await self._earlier_s(row) if row["attempt"] else 0.0,
        )  # fmt: skip
        found = Explanation(str(row["id"]), state.word, "", spent=times)
        if state in (State.LEASED, State.RUNNING) or state.final:
            found.summary = _summary(row, state, times)
            if state is State.FAILED:
                again = f"headway logs {row['id']} tells more, headway retry {row['id']} sends it again"
                found.reasons = [Reason("failed", _briefly(row["error"]), again)]
            if not state.final:
                await self._add_silence(row, found)
            return found
        plan, past = await self.outlook.read(), await self._past(row)
        facts = await self._facts(row, state, plan, past, scope)
        _fill(found, await asyncio.to_thread(explain, facts), facts)  # futures take a while
        found.checkpoint_at, found.limit = past.saved_at, past.limit
        if state is State.READY:
            share = plan.tenants[row["tenant"]].share if row["tenant"] in plan.tenants else 0.0
            found.order = OrderView(
                facts.ahead, facts.due, facts.entitled, share, plan.level, facts.tenants_before, row["start_by"], row["cap_ms"] / 1000
            )
        return found

    async def _past(self, row: Any) -> _Past:
        async with self.database.reads() as connection:
            past = await connection.fetchrow(_PAST, row["id"])
        last = limit = None
        if past["attempt"] is not None:
            last = Ended(past["attempt"], Outcome(past["outcome"]), past["node"] or "", _briefly(past["error"]))
        if past["limit_ms"] is not None and row["state"] in (State.SCHEDULED, State.READY):
            waiter = Waiter(
                State(row["state"]), row["eligible_at"].timestamp(), past["since"], row["requeues"], past["limit_ms"] / 1000, past["keep"],
                past["warned"],
            )  # fmt: skip
            over_at = datetime.datetime.fromtimestamp(waits_since(waiter) + waiter.limit_s, datetime.UTC)
            limit = LimitedWait(over_at, ON_MAX_WAIT[past["keep"]], past["warned"])
        return _Past(last, past["saved_at"], limit)

    async def _facts(self, row: Any, state: State, plan: PlanState, past: _Past, scope: int | None) -> Facts:
        known = await self.definitions.load([row["definition"]])
        await self.definitions.load_shapes([row["shape"]])
        definition, rules = known[row["definition"]].definition, self.definitions.rules[row["shape"]]
        asked, now, tenant = definition.resources, self.clock.now(), row["tenant"]
        in_order = state in (State.SCHEDULED, State.READY)  # it is, or will be
        async with self.database.hot() as connection:
            blockers = await connection.fetch(_BLOCKERS, row["id"], 100) if state is State.BLOCKED else []
            before = await self._before(connection, row, plan) if in_order else {}
            listed = await connection.fetchrow(_LIST_DUE, row["id"]) if state is State.BLOCKED else None
            lends = (row["id"], row["attempt"], row["node"])
            beneficiary = await connection.fetchval(_BENEFICIARY, *lends) if state is State.PAUSED else None
            quota = await self._quota(connection, tenant, asked) if in_order else []
            rooms = await self._rooms(connection, plan) if in_order else []
            if scope is not None:
                rooms, beneficiary = await self._discreet(connection, scope, rooms, beneficiary)
        ahead = sum(before.values())
        refusals: list[Refusal] = [found for room in rooms if (found := refuse(asked, room)) is not None]
        own = plan.tenants.get(tenant)
        share = own.share if own is not None else 0.0
        due = row["start_by"] <= now + datetime.timedelta(seconds=plan.lead_of(row["shape"]))
        waits = in_order and (quota or ahead or len(refusals) == len(rooms))
        moment = max(now, row["eligible_at"]) if state is State.SCHEDULED else now
        return Facts(
            state=state,
            now=now,
            eligible_at=row["eligible_at"],
            start_by=row["start_by"],
            asked=asked,
            # Nobody knows whether it will be peak when its time has come.
            verdict=judge(rules, self.queues.get(rules.queue), peak=plan.peak and moment == now, keep=plan.keep, now=moment),
            quota=quota,
            refusals=refusals,
            nodes=len(rooms),
            kept=next((room.name for room in rooms if room.kept is not None and room.kept.task == row["id"]), None),
            ahead=ahead,
            due=due,
            entitled=share < plan.level,
            tenants_before=sum(1 for t, one in plan.tenants.items() if t != tenant and one.waiting and one.share < share),
            rate_per_s=_rate(plan, tenant),
            scene=await self._scene(row, asked, rooms, plan, before, at_quota=bool(quota)) if waits else None,
            luck=random.Random(row["id"]),  # the same question has the same answer
            task=row["id"],
            queue=rules.queue,
            lead_s=plan.lead_of(row["shape"]),
            blockers=[(r["id"], r["name"], State(r["state"]).word) for r in blockers],
            held=row["hold_at"] is not None if "hold_at" in row else False,
            beneficiary=beneficiary,
            listed=None if listed is None else Listed(listed["waits"] or "", listed["waits_until"]),
            cancelling=row["cancel_at"] is not None,
            last=past.last,
            used=row["failures"] + row["resource_failures"],
            attempts=definition.attempts,
        )

    async def _discreet(
        self, connection: Connection, tenant: int, rooms: list[NodeRoom], beneficiary: int | None
    ) -> tuple[list[NodeRoom], int | None]:
        """The same for the eyes of a tenant: tasks of others have no number."""
        asked = {room.kept.task for room in rooms if room.kept is not None} | ({beneficiary} if beneficiary is not None else set())
        own = {found["id"] for found in await connection.fetch(_KNOWN, list(asked), tenant)} if asked else set()
        rooms = [
            replace(room, kept=Kept(room.kept.asked, 0)) if room.kept is not None and room.kept.task not in own else room for room in rooms
        ]
        return rooms, beneficiary if beneficiary is None or beneficiary in own else 0

    async def _before(self, connection: Connection, row: Any, plan: PlanState) -> dict[int, int]:
        """Tasks of its tenant that go before it, by shape."""
        stands = row["start_by"] - datetime.timedelta(seconds=plan.early.get(row["shape"], 0.0))
        early = [*plan.early], [*plan.early.values()]
        rows = await connection.fetch(_AHEAD, row["tenant"], stands, row["cap_ms"], row["id"], COUNTED, *early)
        found = {one["shape"]: one["count"] for one in rows if one["count"]}
        await self.definitions.load_shapes(found)
        return {shape: count for shape, count in found.items() if shape == row["shape"] or not self._is_closed(shape, plan)}

    def _is_closed(self, shape: int, plan: PlanState) -> bool:
        """Whether its queue holds tasks of this shape back: they go before nobody."""
        rules = self.definitions.rules[shape]
        verdict = judge(rules, self.queues.get(rules.queue), peak=plan.peak, keep=False, now=self.clock.now())
        return verdict.gate is Gate.CLOSED

    async def _scene(
        self, row: Any, asked: Resources, rooms: Sequence[NodeRoom], plan: PlanState, before: dict[int, int], *, at_quota: bool
    ) -> Scene | None:
        """What it meets; None where that is too much to look at one by one."""
        open_rooms = [room for room in rooms if not room.closed]
        fitting = [room for room in open_rooms if fits(asked, room.capacity)]
        held = await self.scenes.held([room.id for room in open_rooms]) if open_rooms else None
        if held is None:
            return None
        left_s = (row["start_by"] - self.clock.now()).total_seconds()
        capacity = tuple(map(sum, zip(*(room.capacity.amounts() for room in open_rooms), strict=True)))
        tenants = {t: one for t, one in plan.tenants.items() if one.waiting or one.rate > SLOWEST}
        tenants[row["tenant"]] = _own(row, plan, before)
        await self.definitions.load_shapes({shape for one in tenants.values() for shape in one.asks})
        rivals = [self._rival(t, one, held, capacity, at_quota=at_quota and t == row["tenant"]) for t, one in tenants.items()]
        return Scene(
            need=need_of(asked),
            tenant=row["tenant"],
            free=[(room.id, tuple(room.free)) for room in fitting],
            capacity=capacity,
            held=held,
            rivals=rivals,
            slack_s=left_s - plan.lead_of(row["shape"]),
            lead_s=plan.lead_s,
            level=plan.level,
            urgent=plan.urgent,
            due_first=plan.due_first,
            fill=plan.fill if plan.keep else 1.0,
            stops_s=max(left_s, 0.0) + PATIENCE_S if self.definitions.rules[row["shape"]].urgent else math.inf,
        )

    def _rival(self, tenant: int, state: TenantState, held: Sequence[Held], capacity: Sequence[int], *, at_quota: bool) -> Rival:
        claim = self.planner.claim_of(tenant)
        stretch = 1.0 / claim.weight
        most = float(claim.max_running) if claim.max_running is not None else math.inf
        if at_quota:  # of whatever kind: it gets one for each that it gives back
            most = min(most, sum(1 for one in held if one.tenant == tenant))
        share = share_of(tenant, held, capacity) * stretch
        asks = tuple((need_of(self.definitions.shapes[shape]), count) for shape, count in state.asks.items())
        return Rival(tenant, state.waiting, state.rate, share, min(state.due, state.waiting), stretch, most, asks)

    async def _quota(self, connection: Connection, tenant: int, asked: Any) -> list[str]:
        claim = self.planner.claim_of(tenant)
        if claim.max_running is None and not claim.limits:
            return []
        rows = await connection.fetch(_HELD, tenant)
        await self.definitions.load_shapes(row["shape"] for row in rows)
        amounts = [0] * 6
        for row in rows:
            for i, amount in need_of(self.definitions.shapes[row["shape"]]):
                amounts[i] += amount * row["count"]
        return over_quota(claim, sum(row["count"] for row in rows), amounts, need_of(asked))

    async def _rooms(self, connection: Connection, plan: PlanState) -> list[NodeRoom]:
        """Every node with its room: the planner's own books if we keep them, else counted from the database."""
        if self.planner.leading_epoch >= 0:
            return list(self.planner.rooms.values())
        rooms = {n.id: NodeRoom(n.id, n.name, n.capacity, closed=n.closed) for n in self.fleet.nodes.values()}
        rows = await connection.fetch(_ALLOCATED, list(rooms))
        await self.definitions.load_shapes(row["shape"] for row in rows)
        for row in rows:
            rooms[row["node"]].allocate(need_of(self.definitions.shapes[row["shape"]]), row["count"])
        await self.definitions.load_shapes(kept.shape for kept in plan.kept.values())
        for node, kept in plan.kept.items():
            if node in rooms:
                rooms[node].kept = Kept(self.definitions.shapes[kept.shape], kept.task)
        return list(rooms.values())

    async def _earlier_s(self, row: Any) -> float:
        """The time earlier attempts took."""
        async with self.database.reads() as connection:
            earlier = await connection.fetch(_ATTEMPTS, row["id"])
        spans = [r["ended_at"] - r["started_at"] for r in earlier if r["started_at"] is not None and r["ended_at"] is not None]
        return math.fsum(span.total_seconds() for span in spans)

    async def _add_silence(self, row: Any, found: Explanation) -> None:
        """A node that stopped answering may have ended what it holds already: that it runs there is no longer known."""
        async with self.database.reads() as connection:
            silent_s = await connection.fetchval(_SILENCE, row["node"])
        if silent_s is not None and silent_s >= self.fence_s:
            text = f"node {row['node_name']} has not answered for {silent_s:.1f} s"
            found.reasons = [Reason("silent_node", text, f"it answers again, or is lost after {self.lost_s:g} s and another runs the task")]
            found.summary = f"{text}; {found.summary}"


def _briefly(error: str | None) -> str:
    """The kind of an error and the first line of what it says."""
    if error is None:
        return ""
    info = msgspec.json.decode(error, type=ErrorInfo)
    first = next(iter(info.message.strip().splitlines()), "")[:120]
    return ": ".join(part for part in (info.type, first) if part)


def _fill(found: Explanation, answer: Answer, facts: Facts) -> None:
    found.summary = answer.summary
    found.earlier = earlier(facts.last) if facts.last is not None else ""
    found.reasons = [Reason(cause.code, cause.text, cause.remedy, cause.until) for cause in answer.causes]
    if answer.start is not None:
        moments = [facts.now + datetime.timedelta(seconds=s) for s in (answer.start.middle, answer.start.low, answer.start.high)]
        found.estimate = Estimate(*moments)


def _own(row: Any, plan: PlanState, before: dict[int, int]) -> TenantState:
    """The task's own tenant: only what goes before it counts."""
    own, ahead = plan.tenants.get(row["tenant"], TenantState()), sum(before.values())
    return TenantState(own.share, own.rate, ahead, min(own.due, ahead), asks=before)


def _rate(plan: PlanState, tenant: int) -> float:
    """How fast tasks of this tenant are handed out: as measured, or its part of what the fleet ends."""
    own = plan.tenants.get(tenant)
    if own is not None and own.rate > SLOWEST:
        return own.rate
    waiting = sum(1 for one in plan.tenants.values() if one.waiting)
    return plan.drain_per_s / max(waiting, 1)


def _summary(row: Any, state: State, times: dict[str, float]) -> str:
    took = ", ".join(f"{seconds:.3g} s {word}" for word, seconds in times.items() if seconds >= 0.0005)
    where = f" on {row['node_name']}" if row["node_name"] else ""
    if state is State.LEASED:
        return f"it was handed to {row['node_name'] or 'its node'} and begins there as soon as it can"
    if state is State.RUNNING:
        return f"it runs{where}; it took {took}" if took else f"it runs{where}"
    how = f"{'was' if state in (State.CANCELLED, State.SKIPPED) else 'has'} {state.word}"
    why = f": {error}" if (error := _briefly(row["error"])) else ""
    return f"it {how}{why}; it took {took or 'no time'}"
