"""When a waiting task will probably start (E8): a number of possible futures of what runs, what waits and what will come.

In each future every running task ends some time after now, as runs of its kind did, or at the latest at its cap. Its room goes to who is
next in the order: tenants by share, what is due before what can wait. New tasks come as fast as they lately did. The luck is an input, so
the same question has the same answer.
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
MOST_BEFORE = 300
MOST_RIVALS = 50
MOST_EVENTS = 6_000  # in all futures together: about a tenth of a second
SOONEST_S = 0.05  # after an end: a report, a round of planning, the way to the agent
PATIENT_S = 60.0  # how long others can wait, when nothing is known of it
WIDER = 1.3  # futures know less than they seem to: by how much their spread is taken wider, set on simulated starts (decision 0016)
SMALLEST_S = 0.5  # differences below it say nothing
YOUNG_S = 1.0  # what has run for less says nothing yet about how long it will


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


@dataclass(frozen=True)
class Scene:
    """What a task meets that finds no room."""

    need: Need
    tenant: int
    free: Sequence[tuple[int, tuple[int, ...]]]  # of every node that could take it and accepts tasks
    capacity: tuple[int, ...]  # of the fleet
    held: Sequence[Held]
    rivals: Sequence[Rival]
    slack_s: float = 0.0  # until it is due; until then later ones may overtake it
    level: float = 1.0  # a tenant that holds less goes first with what is due
    urgent: float = 0.0  # part of the tasks to come that are due at once
    due_first: bool = False  # at peak: what is due goes before what can wait, whoever holds more
    fill: float = 1.0  # what can wait takes the fleet up to here only

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
        self.before = luck.random()  # how many of its tenant's tasks to come go before it
        self.patience = 2 * max(scene.slack_s, PATIENT_S) * luck.random()  # of tasks of which it is not known
        self.queues = {rival.tenant: _Queue(rival, rival.share, self._tasks(rival)) for rival in scene.rivals}
        self.own = self.queues[scene.tenant]
        self.events: list[tuple[float, int, int | None, int, Need]] = []  # (when, number, node or None for an arrival, tenant, need)
        self.needs = {scene.need, *(one.need for one in scene.held)}
        self._number = 0
        for one in scene.held:
            self._event(one.lasting.rest(one.ran_s, luck), one.node, one.tenant, one.need)
            if one.tenant in self.queues:
                self.queues[one.tenant].held += 1
        for rival in scene.rivals:
            self._next_arrival(rival)

    def start(self) -> float:
        for self.events_seen in range(MOST_EVENTS // FUTURES[0]):
            if self._hand_out():
                return self.now + SOONEST_S * (1 + self.luck.random())
            if not self.events:
                return math.inf
            self.now, _, node, tenant, need = heapq.heappop(self.events)
            if node is None:
                self._arrive(self.queues[tenant])
            else:
                self._hold(node, tenant, need, -1)
        return 2 * self.now  # further than is looked: at least as long again

    # What happens

    def _tasks(self, rival: Rival) -> list[_Task]:
        longest = self.scene.slack_s if rival.tenant == self.scene.tenant else self.patience
        dues = [0.0] * rival.due + sorted(self.luck.random() * longest for _ in range(rival.waiting - rival.due))
        return [(due, self._need()) for due in dues]

    def _need(self) -> Need:
        """What a task asks for of which nothing is known: as one that runs."""
        held = self.scene.held
        return held[int(self.luck.random() * len(held))].need

    def _event(self, after: float, node: int | None, tenant: int, need: Need) -> None:
        self._number += 1
        heapq.heappush(self.events, (self.now + after, self._number, node, tenant, need))

    def _next_arrival(self, rival: Rival) -> None:
        if rival.per_s > 0:
            self._event(self.luck.expovariate(rival.per_s * self.scene.flow), None, rival.tenant, ())

    def _arrive(self, queue: _Queue) -> None:
        self._next_arrival(queue.rival)
        patience = 0.0 if self.luck.random() < self.scene.urgent else self.patience * self.luck.random()
        if queue is self.own:
            left = self.scene.slack_s - self.now
            if patience and self.luck.random() < self.before:
                patience = left * self.luck.random()
            if patience >= left:
                return  # it stands behind ours
        insort(queue.tasks, (self.now + patience, self._need()))

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
            order = sorted((self._rank(queue), tenant) for tenant, queue in self.queues.items() if queue.tasks or queue is self.own)
            for _, tenant in order:
                queue = self.queues[tenant]
                at = self._first(queue, room) if queue.held < queue.rival.most else None
                if at is None:
                    continue
                if at == len(queue.tasks):
                    return True
                need = queue.tasks.pop(at)[1]
                self._begin(room[need][0], tenant, need)
                break
            else:
                return False
        return False

    def _first(self, queue: _Queue, room: _Room) -> int | None:
        """Which task of a rival there is room for; behind all of the own tenant's stands the task itself."""
        for at, (due, need) in enumerate(queue.tasks):
            if (there := room.get(need)) is not None and (there[1] or due <= self.now):
                return at
        there = room.get(self.scene.need) if queue is self.own else None
        return len(queue.tasks) if there is not None and (there[1] or self.scene.slack_s <= self.now) else None

    def _begin(self, node: int, tenant: int, need: Need) -> None:
        self._hold(node, tenant, need, 1)
        lasting = self.scene.held[int(self.luck.random() * len(self.scene.held))].lasting
        self._event(lasting.rest(0.0, self.luck), node, tenant, need)

    def _rank(self, queue: _Queue) -> tuple[bool, bool, float]:
        due = (queue.tasks[0][0] if queue.tasks else self.scene.slack_s) <= self.now
        return (not (due and queue.share < self.scene.level), not (due and self.scene.due_first), queue.share)

    def _room(self) -> _Room:
        """The needs that find a node now, with the node, and whether also what can wait may have it."""
        found: _Room = {}
        fill, used, capacity = self.scene.fill, self.used, self.scene.capacity
        for need in self.needs:
            for node, free in self.free.items():
                if all(free[i] >= amount for i, amount in need):
                    found[need] = (node, fill >= 1 or all(used[i] < fill * capacity[i] for i, _ in need))
                    break
        return found
