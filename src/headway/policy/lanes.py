"""Lanes: who waits with tasks of one shape, best first.

An entry of a lane is one flat tuple, because heaps compare it about ten times for each task that is planned. Between lanes the order goes
by where a task stands: at its `start_by`, or as much earlier as rooms of its lane's size are rare. All of a lane moves together, so its own
order never changes by that, and nothing has to be noted anew.
"""

from __future__ import annotations

import datetime
import heapq
from dataclasses import dataclass, field

from headway.policy.order import AFTER_ALL, BEGINNING, Head, Key

DUE = -1e6  # before every share: a due task of a tenant that holds less than it is entitled to
SOONER = -1e3  # added to the share of a tenant whose task is due, at peak: before what can wait
Entry = tuple[float, Key, int, int]  # (DUE or the tenant's share, its first task, tenant, shape)
Top = tuple[float, datetime.datetime, Key, int, int]  # an entry among those of other lanes: the same, with where its task stands


@dataclass
class Lane:
    """The tenants that wait with tasks of one shape."""

    order: list[Entry] = field(default_factory=list)
    noted: dict[int, Entry] = field(default_factory=dict)  # the entry of each tenant that counts
    dues: list[tuple[Key, int]] = field(default_factory=list)  # when they become due
    awaited: dict[int, Key] = field(default_factory=dict)  # the entry of each tenant in `dues` that counts
    parked: set[int] = field(default_factory=set)  # not due, while only that may go
    tenants: dict[int, Head] = field(default_factory=dict)  # everyone with a known task
    early: datetime.timedelta | None = None  # how much before its start_by a task of this lane stands
    horizon: datetime.datetime = BEGINNING[0]  # what has a start_by up to here is due

    def move(self, horizon: datetime.datetime, early: datetime.timedelta | None) -> None:
        """What stands before `horizon` is due, and tasks stand so much before their start_by."""
        self.early = early
        self.horizon = horizon + early if early else horizon

    def stands(self, entry: Entry) -> Top:
        """The entry among those of other lanes."""
        first = entry[1]
        return (entry[0], first[0] - self.early if self.early else first[0], first, entry[2], entry[3])

    def meets(self, top: Top) -> Key:
        """Where in this lane the task of another one stands. Equal start_by and cap is a tie: ids do not decide between groups."""
        return (top[1] + self.early if self.early else top[1], top[2][1], AFTER_ALL)

    def due(self, head: Head) -> int:
        """How many of the tasks at the front of a head are due."""
        return head.run_before((self.horizon, AFTER_ALL, AFTER_ALL)) if head.keys[head.taken][0] <= self.horizon else 0

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
