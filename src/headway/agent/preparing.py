"""Orders that wait for what they need: fetched files, installed packages, built programs, images (H5).

They hold no resources and their cap does not count. The shell prepares; when it says that a definition is prepared, its orders go
into the queue like any other, and when it cannot be, they are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.agent.signals import Prepare, Prepared
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Order

if TYPE_CHECKING:
    from headway.agent.machine import Machine


class Preparing:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._waiting: dict[int, list[Order]] = {}

    def keep(self, orders: list[Order]) -> list[Order]:
        """Keep those that need preparation and ask for it; returns the others."""
        others, needed = list[Order](), self.machine.recipes.to_prepare
        asked: dict[int, None] = {}
        for order in orders:
            if order.definition in needed:
                self._waiting.setdefault(order.definition, []).append(order)
                asked[order.definition] = None
            else:
                others.append(order)
        self.machine.out += [Prepare(number, self.machine.recipes[number].definition) for number in asked]
        return others

    def done(self, s: Prepared) -> None:
        orders = self._waiting.pop(s.definition, [])
        if not s.error:
            self.machine.enqueue(orders)
            return
        outcome = Outcome.TRY_LATER if s.no_room else Outcome.NOT_STARTABLE  # a full disk is no fault of the task
        for order in orders:
            self.machine.tell(order, outcome, ErrorInfo("PreparationFailed", s.error, s.log))

    def remove(self, wanted: set[int]) -> list[Order]:
        """Take these task ids out. What they waited for is prepared all the same: the next one needs it too."""
        removed: list[Order] = []
        for number, orders in self._waiting.items():
            removed += [order for order in orders if order.id in wanted]
            self._waiting[number] = [order for order in orders if order.id not in wanted]
        return removed

    def empty(self) -> list[Order]:
        removed = list(self)
        self._waiting.clear()
        return removed

    def __iter__(self) -> Iterator[Order]:
        for orders in self._waiting.values():
            yield from orders
