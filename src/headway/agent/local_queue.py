"""What an agent was ordered to run and has not begun, in order, by shape of resources.

Servers keep an agent a little ahead of what fits, so that it never waits for them. Whatever fits is started in the
order of arrival; a later task may pass one that does not fit, but only PASSES times, so that a large task is not
starved by small ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from headway.domain.task import Definition
from headway.wire.exchange import Order

Amounts = tuple[int, ...]
PASSES = 1000  # starts of later tasks while the oldest does not fit
GROUPS = 256  # kept though empty; every look at the queue goes through all of them
UNKNOWN_S = 1.0  # what we assume of a function that never ran here: such go out one by one
WEIGHT = 0.3  # of the newest duration in the moving average
TINY_S = 0.0002  # a function that usually takes no longer is soon through, and what is around it takes longer
OUTLIER = 0.03  # of a longer one in what is usual: a busy core stops a runner for milliseconds in the middle of a tiny function
FEW = 8  # measurements, after which a function is no longer new: first calls meet cold caches


@dataclass(slots=True)
class Estimate:
    """How long one function takes, as a moving average."""

    seconds: float | None = None
    usual: float = UNKNOWN_S  # the least of the first few; then it falls as the average does and rises slowly
    measured: int = 0

    def learn(self, seconds: float) -> None:
        self.measured += 1
        if self.seconds is None:
            self.seconds = self.usual = seconds
            return
        self.seconds += WEIGHT * (seconds - self.seconds)
        longer = seconds - self.usual
        self.usual += longer * (OUTLIER if longer > 0 else 1.0 if self.measured <= FEW else WEIGHT)

    @property
    def tiny(self) -> bool:
        return self.usual <= TINY_S

    @property
    def brief(self) -> bool:
        """Tiny, or new: most of those are, and who has one that is not is stuck soon."""
        return self.measured < FEW or self.tiny

    @property
    def predicted(self) -> float:
        """What the next one will take. Of tiny functions the average says how busy the machine is: batches made by it would be smallest
        when a runner comes to its turn most seldom."""
        return self.usual if self.tiny else UNKNOWN_S if self.seconds is None else self.seconds


@dataclass(slots=True)
class Recipe:
    """A definition as this agent uses it."""

    definition: Definition
    need: Amounts
    cap_s: float
    kind: str  # of the runners that may call it; empty: a program
    estimate: Estimate


@dataclass(slots=True)
class Group:
    """Waiting orders of one kind and one shape."""

    kind: str
    need: Amounts
    orders: deque[Order] = field(default_factory=deque)
    arrivals: deque[list[int]] = field(default_factory=deque)  # [number of the first, how many] for each run of arrivals
    passed: int = 0
    taken: int = 0  # orders started in all: when it stands still, the group is stalled


class LocalQueue:
    """Groups of waiting orders, the oldest head first."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, Amounts], Group] = {}
        self._arrivals = 1

    def group(self, recipe: Recipe) -> Group:
        key = (recipe.kind, recipe.need)
        found = self.groups.get(key)
        if found is None:
            if len(self.groups) >= GROUPS:  # most are of tenants that were here once
                self.groups = {key: group for key, group in self.groups.items() if group.orders}
            found = self.groups[key] = Group(recipe.kind, recipe.need)
        return found

    def add(self, group: Group, orders: Collection[Order]) -> None:
        """A run of arrivals of one group."""
        group.orders.extend(orders)
        group.arrivals.append([self._arrivals, len(orders)])
        self._arrivals += 1

    def put_back(self, group: Group, orders: Collection[Order]) -> None:
        """Orders that were handed on and came back go first again."""
        if orders:
            group.orders.extendleft(reversed(list(orders)))
            group.arrivals.appendleft([0, len(orders)])

    def next(self, free: Amounts, skip: Collection[int] = ()) -> Group | None:
        """The group to start from: the oldest head that fits, unless one before it was passed too often. One that is to be skipped waits
        for something else than room, as for its runner, and nobody waits for that with it."""
        waiting = [group for group in self.groups.values() if group.orders]
        if len(waiting) > 1:
            waiting.sort(key=lambda group: group.arrivals[0][0])
        for group in waiting:
            if id(group) not in skip and fits(group.need, free):
                return group
            if group.passed >= PASSES and id(group) not in skip:
                return None
        return None

    def took(self, group: Group, count: int) -> None:
        """`count` orders of the group were started: account for arrivals, and for those that were passed."""
        head = group.arrivals[0][0]
        for other in self.groups.values():
            if other.orders and other is not group and other.arrivals[0][0] < head:
                other.passed += count
        group.passed = 0
        group.taken += count
        while count:
            run = group.arrivals[0]
            part = min(count, run[1])
            count -= part
            run[1] -= part
            if not run[1]:
                group.arrivals.popleft()

    def remove(self, wanted: set[int]) -> list[Order]:
        """Take these task ids out, wherever they are."""
        removed: list[Order] = []
        for group in self.groups.values():
            gone = [order for order in group.orders if order.id in wanted]
            if gone:
                removed += gone
                self._replace(group, [order for order in group.orders if order.id not in wanted])
        return removed

    def take_out(self, group: Group) -> list[Order]:
        """Every waiting order of a group."""
        orders = list(group.orders)
        group.orders.clear()
        group.arrivals.clear()
        return orders

    def empty(self) -> list[Order]:
        """Take everything out."""
        removed = list(self)
        self.groups.clear()
        return removed

    def _replace(self, group: Group, orders: list[Order]) -> None:
        """Of a group in which something waits."""
        first = group.arrivals[0][0]
        group.orders = deque(orders)
        group.arrivals = deque([[first, len(orders)]] if orders else [])

    def __iter__(self) -> Iterator[Order]:
        for group in self.groups.values():
            yield from group.orders

    def __len__(self) -> int:
        return sum(len(group.orders) for group in self.groups.values())


def fits(need: Amounts, free: Amounts) -> bool:
    """Written out, as the two below: asked several times for each program that is started."""
    a, b, c, d, e, f = need
    u, v, w, x, y, z = free
    return a <= u and b <= v and c <= w and d <= x and e <= y and f <= z


def minus(free: Amounts, need: Amounts) -> Amounts:
    a, b, c, d, e, f = need
    u, v, w, x, y, z = free
    return u - a, v - b, w - c, x - d, y - e, z - f


def plus(free: Amounts, need: Amounts) -> Amounts:
    a, b, c, d, e, f = need
    u, v, w, x, y, z = free
    return u + a, v + b, w + c, x + d, y + e, z + f
