"""Lanes: who waits with tasks of one shape, best first.

An entry of a lane is one flat tuple, because heaps compare it about ten times for each task that is planned.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from headway.policy.order import Head, Key

DUE = -1e6  # before every share: a due task of a tenant that holds less than it is entitled to
SOONER = -1e3  # added to the share of a tenant whose task is due, at peak: before what can wait
Entry = tuple[float, Key, int, int]  # (DUE or the tenant's share, its first task, tenant, shape)


@dataclass
class Lane:
    """The tenants that wait with tasks of one shape."""

    order: list[Entry] = field(default_factory=list)
    noted: dict[int, Entry] = field(default_factory=dict)  # the entry of each tenant that counts
    dues: list[tuple[Key, int]] = field(default_factory=list)  # when they become due
    awaited: dict[int, Key] = field(default_factory=dict)  # the entry of each tenant in `dues` that counts
    parked: set[int] = field(default_factory=set)  # not due, while only that may go
    tenants: dict[int, Head] = field(default_factory=dict)  # everyone with a known task

    def note(self, entry: Entry) -> None:
        """An entry that may be better than what was noted."""
        tenant = entry[2]
        before = self.noted.get(tenant)
        if before is None or entry < before:
            self.noted[tenant] = entry
            heapq.heappush(self.order, entry)
            self.parked.discard(tenant)
            if len(self.order) > 64 + 4 * len(self.noted):
                self.order = list(self.noted.values())
                heapq.heapify(self.order)

    def drop(self, tenant: int) -> None:
        self.noted.pop(tenant, None)

    def wait_until_due(self, tenant: int, first: Key) -> None:
        before = self.awaited.get(tenant)
        if before is None or first < before:
            self.awaited[tenant] = first
            heapq.heappush(self.dues, (first, tenant))
