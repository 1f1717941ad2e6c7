"""Orders that a node has yet to acknowledge: each is told, and told again after a while, until the node says that it has it.

They come and go by the ten thousand a second, and a reply may wait while thousands are on their way: an order is looked at when it is
added, told and acknowledged, and nothing here goes through all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headway.wire.exchange import Order, Ref


class Outstanding:
    def __init__(self) -> None:
        self._by_task: dict[int, Order] = {}  # of each task the highest attempt: a lower one is nobody's any more
        self._new: deque[Order] = deque()  # not told yet
        self._told: deque[tuple[float, list[Order]]] = deque()  # when, and what, the last one first

    def __bool__(self) -> bool:
        return bool(self._by_task)

    def __iter__(self) -> Iterator[Order]:
        return iter(self._by_task.values())

    def add(self, orders: Iterable[Order]) -> None:
        by_task = self._by_task
        for order in orders:
            known = by_task.get(order.id)
            if known is None or known.attempt < order.attempt:
                by_task[order.id] = order
                self._new.append(order)

    def acknowledge(self, refs: Iterable[Ref]) -> None:
        by_task = self._by_task
        for task, attempt in refs:
            order = by_task.get(task)
            if order is not None and order.attempt == attempt:
                del by_task[task]
        self._forget()

    def due(self, before: float) -> bool:
        """Whether there is something to tell: what is new, or was told `before` then for the last time."""
        return bool(self._new or (self._told and self._told[0][0] <= before))

    def take(self, most: int, now: float, before: float) -> list[Order]:
        """What is due, the oldest first."""
        found: list[Order] = []
        if self._told and self._told[0][0] <= before:
            found = [order for order in reversed(self._told.popleft()[1]) if self._lacks(order)]
        while self._new and len(found) < most:
            order = self._new.popleft()
            if self._lacks(order):
                found.append(order)
        if found:
            self._told.append((now, found[::-1]))
        self._forget()
        return found

    def _lacks(self, order: Order) -> bool:
        return self._by_task.get(order.id) is order

    def _forget(self) -> None:
        """So that what is first, of the new and of those told, is something the node lacks."""
        while self._new and not self._lacks(self._new[0]):
            self._new.popleft()
        while self._told:
            batch = self._told[0][1]
            while batch and not self._lacks(batch[-1]):
                batch.pop()
            if batch:
                return
            self._told.popleft()
