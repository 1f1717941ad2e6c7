"""When a waiting task will probably start (E8): a number of possible futures of what runs, what waits and what will come.

In each future every running task ends some time after now, as runs of its kind did, or at the latest at its cap. Its room goes to who is
next in the order: tenants by share, what is due before what can wait; a node is kept for a large task that small ones pass, and somebody
makes room for an urgent one. New tasks come about as fast as they lately did. The luck is an input, so the same question has the same
answer.
"""

from __future__ import annotations

import functools
import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Protocol

from headway.policy.room import Need

FUTURES = (12, 40)  # at least and at most
MOST_RUNNING = 300  # with more, ends come so evenly that rates say the same at less cost
MOST_BEFORE = 750  # with more, rates say it at less cost
MOST_RIVALS = 50
MOST_EVENTS = 6_000  # in all futures together: about a tenth of a second
SOONEST_S = 0.05  # after an end: a report, a round of planning, the way to the agent
PATIENT_S = 60.0  # how long others can wait, when nothing is known of it
WIDER = 1.1  # futures know less than they seem to: by how much their spread is taken wider, checked on simulated starts (decision 0016)
SMALLEST_S = 0.5  # differences below it say nothing
YOUNG_S = 1.0  # what has run for less says nothing yet about how long it will
RAREST = 0.05  # at least so many of those that come go before it
RATE_S = 60.0  # rates were counted over about so long
YIELDS = 0.5  # how often somebody makes room for an urgent task at the first look, counted in simulated starts
YIELDS_S = 3.0  # else about so long after it


class Luck(Protocol):
    """Numbers drawn by the caller, as random.Random draws them."""

    def random(self) -> float: ...
    def expovariate(self, lambd: float) -> float: ...


@dataclass(frozen=True)
class Start:
    """Seconds from now, with an interval that should hold nine times in ten."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Lasting:
    """How long runs of one kind take: as earlier ones did; without any, as likely 1 to 2 s as 10 to 20, up to the cap."""

    times: tuple[float, ...] = ()  # in order
    cap_s: float = 600.0

    def rest(self, ran_s: float, luck: Luck) -> float:
        """How much longer one takes that has run for so long. After n known runs one in n + 1 is unlike all of them."""
        after = bisect_right(self.times, ran_s)
        at = after + int(luck.random() * (len(self.times) - after + 1))
        if at < len(self.times):
            return self.times[at] - ran_s
        so_far = max(ran_s, YOUNG_S)
        whole = so_far * math.exp(luck.random() * math.log(max(self.cap_s / so_far, 1.0)))
        return max(whole - ran_s, 0.0)

    @property
    def usual(self) -> float:
        """How long they take on average."""
        return max(fmean(self.times) if self.times else math.sqrt(YOUNG_S * max(self.cap_s, YOUNG_S)), 0.001)

    def half_rest(self, ran_s: float) -> float:
        """How much longer half of those take that have run for so long."""
        after = bisect_right(self.times, ran_s)
        if after < len(self.times):
            return self.times[(after + len(self.times)) // 2] - ran_s
        so_far = max(ran_s, YOUNG_S)
        return max(math.sqrt(so_far * max(self.cap_s, so_far)) - ran_s, 0.0)


@dataclass(frozen=True)
class Held:
    """A task that a node holds."""

    node: int
    tenant: int
    need: Need
    ran_s: float
    lasting: Lasting
    yields: bool = False  # it may be stopped for an urgent task


def ends_of(held: Sequence[Held]) -> tuple[float, ...]:
    """When each will probably have ended, in order."""
    return tuple(sorted(one.lasting.half_rest(one.ran_s) for one in held))


def share_of(tenant: int, held: Sequence[Held], capacity: Sequence[int]) -> float:
    """The largest part of any resource of the fleet that it holds."""
    amounts = [0] * len(capacity)
    for one in held:
        if one.tenant == tenant:
            for i, amount in one.need:
                amounts[i] += amount
    return max((amount / whole for amount, whole in zip(amounts, capacity, strict=True) if whole), default=0.0)


def to_come(per_s: float, luck: Luck) -> float:
    """A rate that may lie behind one that was counted: after 100 tasks in a minute, 90 to 110 come in the next one.

    On a fleet that is nearly full this decides: with 95 % of it asked for, a tenth more is a backlog that grows.
    """
    spread = 1 / math.sqrt(per_s * RATE_S + 1)
    normal = sum(luck.random() for _ in range(12)) - 6
    return per_s * math.exp(spread * normal - spread * spread / 2)


@dataclass(frozen=True)
class Rival:
    """A tenant: what waits of it (of the asking one: before the task), and how many come in a second."""

    tenant: int
    waiting: int
    per_s: float
    share: float
    due: int = 0  # of those that wait
    stretch: float = 1.0  # its share by its part of the fleet: one by its weight
    most: float = math.inf  # tasks it may hold
    asks: Sequence[tuple[Need, int]] = ()  # needs of those that wait, and about how many have each; nothing: not known, as what runs


@dataclass(frozen=True)
class Scene:
    """What a task meets that finds no room."""

    need: Need
    tenant: int
    free: Sequence[tuple[int, tuple[int, ...]]]  # of every node that could take it and accepts tasks
    capacity: tuple[int, ...]  # of the fleet
    held: Sequence[Held]
    rivals: Sequence[Rival]
    slack_s: float = 0.0  # until it is due; until then later ones may overtake it. Below zero: for how long it has been
    lead_s: float = 0.0  # how long others that are due have been, at most
    level: float = 1.0  # a tenant that holds less goes first with what is due
    urgent: float = 0.0  # part of the tasks to come that are due at once
    due_first: bool = False  # at peak: what is due goes before what can wait, whoever holds more
    fill: float = 1.0  # what can wait takes the fleet up to here only
    stops_s: float = math.inf  # until it may stop others: of an urgent task

    @functools.cached_property
    def flow(self) -> float:
        """How much of the rates is believed: in the long run no more come than end."""
        ends = len(self.held) ** 2 / sum(one.lasting.usual for one in self.held)
        comes = sum(rival.per_s for rival in self.rivals)
        return min(1.0, ends / comes) if comes > 0 else 1.0

    @property
    def small(self) -> bool:
        before = sum(rival.waiting for rival in self.rivals)
        return bool(self.held) and before <= MOST_BEFORE and len(self.rivals) <= MOST_RIVALS


def foresee(scene: Scene, luck: Luck) -> Start | None:
    """When it starts in the middle of the futures, and between which moments in nine of ten; None when it never does in some."""
    found: list[float] = []
    events = 0
    while len(found) < FUTURES[0] or (len(found) < FUTURES[1] and events < MOST_EVENTS):
        future = _Future(scene, luck)
        found.append(future.start())
        events += future.events_seen
    found.sort()
    low, middle, high = (found[int(part * (len(found) - 1))] for part in (0.02, 0.5, 0.96))
    if high == math.inf:
        return None
    if not any(rival.waiting or rival.per_s > 0 for rival in scene.rivals):
        return Start(middle, low, high)  # only what runs decides
    logs = [math.log(at + SMALLEST_S) for at in found if at < math.inf]
    mean, spread = fmean(logs), WIDER * 1.645 * pstdev(logs)
    return Start(middle, min(low, max(math.exp(mean - spread) - SMALLEST_S, 0.0)), max(high, math.exp(mean + spread) - SMALLEST_S))


_Task = tuple[float, Need]  # when it is due, and what it asks for
_Room = dict[Need, tuple[int, bool]]


@dataclass
class _Queue:
    """A rival in one future: its tasks that wait, the first to be due first, and what it holds."""

    rival: Rival
    share: float
    tasks: list[_Task]
    held: int = 0


class _Future:
    def __init__(self, scene: Scene, luck: Luck) -> None:
        self.scene, self.luck = scene, luck
        self.now, self.events_seen = 0.0, 0
        self.free = {node: list(free) for node, free in scene.free}
        self.used = list(scene.capacity)
        for free in self.free.values():
            for i, amount in enumerate(free):
                self.used[i] -= max(amount, 0)
        self.per_s = {rival.tenant: scene.flow * to_come(rival.per_s, luck) for rival in scene.rivals}
        # How long others can wait at most is not known: so long that, of those that come now, any part may go before this one. It falls as
        # its own time comes nearer.
        self.patience = max(scene.slack_s + scene.lead_s, PATIENT_S) / max(luck.random(), RAREST)
        self.queues = {rival.tenant: _Queue(rival, rival.share, self._tasks(rival)) for rival in scene.rivals}
        self.own = self.queues[scene.tenant]
        self.events: list[tuple[float, int, int | None, int, Need]] = []  # (when, number, node or None for an arrival, tenant, need)
        self.needs = {scene.need, *(one.need for one in scene.held), *(need for rival in scene.rivals for need, _ in rival.asks)}
        self.before_it, self.given = len(self.own.tasks), 0  # of its tenant: what stood before it, and what began since
        self.kept: int | None = None  # a node, for a large task
        self.kept_for: Need = ()
        self.took = 0.0  # what smaller ones got behind it
        self._number = 0
        for one in scene.held:
            self._event(one.lasting.rest(one.ran_s, luck), one.node, one.tenant, one.need)
            if one.tenant in self.queues:
                self.queues[one.tenant].held += 1
        for rival in scene.rivals:
            self._next_arrival(rival)

    def start(self) -> float:
        """When it begins: by its place in the order, or in the room of one that is stopped for it."""
        yields = self.scene.stops_s
        if yields < math.inf and self.luck.random() >= YIELDS:
            yields += self.luck.expovariate(1 / YIELDS_S)
        if not any(one.yields for one in self.scene.held):
            yields = math.inf
        for self.events_seen in range(MOST_EVENTS // FUTURES[0]):
            if self._hand_out():
                return self.now + SOONEST_S * (1 + self.luck.random())
            if not self.events or self.events[0][0] > yields:
                return yields + SOONEST_S * (1 + self.luck.random())
            self.now, _, node, tenant, need = heapq.heappop(self.events)
            if node is None:
                self._arrive(self.queues[tenant])
            else:
                self._hold(node, tenant, need, -1)
        return self._further()

    def _further(self) -> float:
        """When it begins if all goes on as in the time that was looked at: those before it become fewer at the same pace, and once it is
        due only urgent ones still pass it."""
        before, slack, passed = len(self.own.tasks) + 1, max(self.scene.slack_s - self.now, 0.0), max(self.now, SOONEST_S)
        fewer = (self.before_it + 1 - before) / passed
        if fewer * slack >= before:
            return self.now + before / fewer
        pace = max(self.given, 1) / passed * max(1 - self.scene.urgent, 0.1)
        return self.now + slack + (before - fewer * slack) / pace

    # What happens

    def _tasks(self, rival: Rival) -> list[_Task]:
        longest = self.scene.slack_s if rival.tenant == self.scene.tenant else max(self.patience - self.scene.lead_s, 0.0)
        last = min(longest, 0.0)  # when the last that is due was
        dues = sorted(last - self.luck.random() * self.scene.lead_s for _ in range(rival.due))
        dues += sorted(self.luck.random() * longest for _ in range(rival.waiting - rival.due))
        return list(zip(dues, self._needs(rival, len(dues)), strict=True))

    def _needs(self, rival: Rival, count: int) -> list[Need]:
        """What those that wait ask for, in some order: among them are more large ones than among those that run."""
        known = [need for need, some in rival.asks for _ in range(some)]
        found = []
        for _ in range(count):
            if not known:
                found.append(self._need())
                continue
            at = int(self.luck.random() * len(known))
            known[at], known[-1] = known[-1], known[at]
            found.append(known.pop())
        return found

    def _need(self) -> Need:
        """What a task asks for of which nothing is known: as one that runs."""
        held = self.scene.held
        return held[int(self.luck.random() * len(held))].need

    def _event(self, after: float, node: int | None, tenant: int, need: Need) -> None:
        self._number += 1
        heapq.heappush(self.events, (self.now + after, self._number, node, tenant, need))

    def _next_arrival(self, rival: Rival) -> None:
        if (per_s := self.per_s[rival.tenant]) > 0:
            self._event(self.luck.expovariate(per_s), None, rival.tenant, ())

    def _arrive(self, queue: _Queue) -> None:
        self._next_arrival(queue.rival)
        patience = 0.0 if self.luck.random() < self.scene.urgent else self.patience * self.luck.random()
        if queue is self.own:
            left = self.scene.slack_s + self.scene.lead_s - self.now
            if patience >= left:
                return  # it stands behind ours
        insort(queue.tasks, (self.now + patience - self.scene.lead_s, self._need()))

    def _hold(self, node: int, tenant: int, need: Need, count: int) -> None:
        free, part, capacity = self.free.get(node), 0.0, self.scene.capacity
        for i, amount in need:
            if free is not None:
                free[i] -= amount * count
                self.used[i] += amount * count
            if capacity[i] and (more := amount / capacity[i]) > part:
                part = more
        if (queue := self.queues.get(tenant)) is not None:
            queue.held += count
            queue.share = max(queue.share + part * count * queue.rival.stretch, 0.0)

    # What is decided

    def _hand_out(self) -> bool:
        """Give away what is free now, in order; whether the task itself was next."""
        while room := self._room():
            firsts = ((queue, self._first(queue, room)) for queue in self.queues.values())
            ranked = [(self._rank(queue, at), queue.rival.tenant, at) for queue, at in firsts if at is not None]
            if not ranked:
                return False
            _, tenant, at = min(ranked)
            queue = self.queues[tenant]
            if at == len(queue.tasks):
                return True
            need = queue.tasks.pop(at)[1]
            self.given += queue is self.own
            self._keep(need, room)
            self._begin(room[need][0], tenant, need)
        return False

    def _keep(self, given: Need, room: _Room) -> None:
        """A node is kept for the first in the order that was passed by smaller ones which took as much as it asks for."""
        if given == self.kept_for:
            self.kept_for, self.kept, self.took = (), None, 0.0
        if self.kept is not None:
            return
        short = min((found for queue in self.queues.values() if (found := self._short(queue, room)) is not None), default=None)
        if short is None or (whole := self._part(short[1])) <= (part := self._part(given)):
            return
        self.took += part
        if self.took >= whole:
            self.kept_for = short[1]
            self.kept = max(self.free, key=lambda node: min(self.free[node][i] / amount for i, amount in short[1]))

    def _short(self, queue: _Queue, room: _Room) -> _Task | None:
        """The first that is due, of a tenant below its part, and finds no room."""
        if queue.share >= self.scene.level:
            return None
        for due, need in queue.tasks:
            if due > self.now:
                return None
            if need not in room:
                return (due, need)
        own = queue is self.own and self.scene.slack_s <= self.now and self.scene.need not in room
        return (self.scene.slack_s, self.scene.need) if own else None

    def _part(self, need: Need) -> float:
        return max((amount / whole for i, amount in need if (whole := self.scene.capacity[i])), default=0.0)

    def _first(self, queue: _Queue, room: _Room) -> int | None:
        """Which task of a rival there is room for; behind all of the own tenant's stands the task itself."""
        if queue.held >= queue.rival.most:
            return None
        for at, (due, need) in enumerate(queue.tasks):
            if (there := room.get(need)) is not None and (there[1] or due <= self.now):
                return at
        there = room.get(self.scene.need) if queue is self.own else None
        return len(queue.tasks) if there is not None and (there[1] or self.scene.slack_s <= self.now) else None

    def _begin(self, node: int, tenant: int, need: Need) -> None:
        self._hold(node, tenant, need, 1)
        lasting = self.scene.held[int(self.luck.random() * len(self.scene.held))].lasting
        self._event(lasting.rest(0.0, self.luck), node, tenant, need)

    def _rank(self, queue: _Queue, at: int) -> tuple[int, float]:
        """Where the task of a queue stands, as policy.placement has it."""
        when = queue.tasks[at][0] if at < len(queue.tasks) else self.scene.slack_s
        if when > self.now:
            return (2, queue.share)
        return (0, when) if queue.share < self.scene.level else (1 if self.scene.due_first else 2, queue.share)

    def _room(self) -> _Room:
        """The needs that find a node now, with the node, and whether also what can wait may have it."""
        found: _Room = {}
        fill, used, capacity = self.scene.fill, self.used, self.scene.capacity
        for need in self.needs:
            for node, free in self.free.items():
                if (node != self.kept or need == self.kept_for) and all(free[i] >= amount for i, amount in need):
                    found[need] = (node, fill >= 1 or all(used[i] < fill * capacity[i] for i, _ in need))
                    break
        return found
