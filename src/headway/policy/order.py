"""Which ready task goes next: the earliest start_by, then the shorter cap, then the older id (E1).

Tasks wait in the database. For each group (same tenant, same shape) only a short head is kept in memory, with a cursor behind it:
the front of the order is never read again, because dead index entries pile up there while somebody holds a snapshot open
(measured: 48,000 tasks/s fell below 8,000).
"""

from __future__ import annotations

import datetime
import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

Group = tuple[int, int]  # (tenant, shape)
Key = tuple[datetime.datetime, int, int]  # (start_by, cap_ms, id): the order itself

BEGINNING: Key = (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), 0, 0)
HEAD_LIMIT = 4000  # tasks of one group kept in memory; the rest stays in the database
ALL_HEADS = 300_000  # tasks of all groups together, some 50 MB
LEAST_HEAD = 16
LOW_HEAD = 64  # a head with fewer known tasks is read on
AFTER_ALL = 2**63  # behind every id and every cap
_COMPACT = 1000  # handed-out keys that may stay at the front of the list before it is cut


def head_limit(groups: int) -> int:
    """How many tasks of one group are kept in memory while there are so many groups."""
    return min(max(ALL_HEADS // max(groups, 1), LEAST_HEAD), HEAD_LIMIT)


@dataclass
class Head:
    """The known front of one group: every ready task up to `cursor` is in `keys[taken:]` or was handed out."""

    keys: list[Key] = field(default_factory=list)
    taken: int = 0
    cursor: Key = BEGINNING
    more: bool = True  # the database may have tasks behind the cursor
    news: int = 0  # how often it was told of tasks it must read: what was being read then may miss them

    def __len__(self) -> int:
        return len(self.keys) - self.taken

    def first(self) -> Key | None:
        return self.keys[self.taken] if self.taken < len(self.keys) else None

    def waiting(self) -> Iterator[Key]:
        """Everything known that has not been handed out, in order."""
        return itertools.islice(self.keys, self.taken, None)

    def add(self, keys: list[Key], groups: int = 1) -> None:
        """Tasks that became ready, in order. They are kept only when nothing unknown can lie before them, and when this group, one of
        so many, has room for them."""
        if not self.more and keys[0] > self.cursor and len(self) + len(keys) <= head_limit(groups):
            self.keys.extend(keys)
            self.cursor = keys[-1]
            return
        self.look_again_from(keys[0])

    def look_again_from(self, key: Key) -> None:
        """There may be ready tasks from `key` on: lower the cursor to just before it; what was known behind it is read again."""
        self.more = True
        self.news += 1
        if key <= self.cursor:
            del self.keys[bisect_left(self.keys, key, lo=self.taken) :]
            self.cursor = (key[0], key[1], key[2] - 1)

    def refill(self, keys: list[Key], *, asked: int, news: int | None = None) -> None:
        """What the database had behind the cursor, read when `news` was the count of news (now, if not given)."""
        self.keys.extend(keys)
        if keys:
            self.cursor = keys[-1]
        self.more = len(keys) >= asked or news not in (None, self.news)

    def run_before(self, bound: Key | None) -> int:
        """How many of the front may go before `bound` (at least one: the caller saw that the first does).

        Equal start_by and cap is a tie: ids do not decide between groups, so a run is as long as the tie lets it.
        """
        if bound is None:
            return len(self)
        return max(bisect_left(self.keys, (bound[0], bound[1], AFTER_ALL), lo=self.taken) - self.taken, 1)

    def take(self, count: int) -> list[Key]:
        took = self.keys[self.taken : self.taken + count]
        self.taken += len(took)
        if self.taken > _COMPACT or self.taken == len(self.keys):
            del self.keys[: self.taken]
            self.taken = 0
        return took

    def rescan(self) -> None:
        """Forget everything and read again from the beginning."""
        self.keys.clear()
        self.taken = 0
        self.cursor = BEGINNING
        self.more = True
