"""When to look at what a task has written into its own folders (G3). Run by the process of disk_watch.

Few file systems let the kernel hold a folder's bytes (walls). On the others somebody looks: when next, follows
from the room that is left and the speed at which memory takes writes. Close to its limit a task is held (disk_hold): then it can write only
between two looks, and these may take long. Where a folder has so many entries that looking takes long, only what is new in it is counted,
and what its processes say they wrote, until these together could be too much.

A crowd of processes is another matter: asking them all takes longer than filling a disk, and so does stopping them one by one. Close to
its limit a crowd is frozen while it is looked at (disk_freeze). When that is due, follows from what the kernel says came into its memory
(disk_filling).
"""

from __future__ import annotations

import math
import time

from headway.agent.disk_count import ENTRY, Nameless, Seen, count, count_again, count_new, unchanged, written

TYPE_CHECKING = False  # as in headway/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.agent.disk_filling import Filling
    from headway.agent.disk_freeze import Standstill
    from headway.agent.disk_guard import Guard
    from headway.agent.disk_hold import Hold, Holder

FASTEST = 16 * 2**30  # bytes a second: more than the 11 GiB that two CPUs were seen to write into the page cache
MAKING = 400 * 2**20  # bytes a second of empty files, as they are counted: a hundred thousand files
MAKING_PART = 2  # times what a task was seen to make it may make, if that is more
MARGIN = 0.01  # of the limit: what may be written between two looks when there is no room left
SPARE = 0.02  # the same of one that does not write: it is not held where this is as much as is written while a look is late
SHORTEST_S, LONGEST_S = 0.0002, 0.1
SLOW, SLOW_S = 64 * 2**20, 0.001  # one that writes less than this a second is not looked at more often: it may live close to its limit
WALLED_S = 0.03  # between two looks at one that cannot get away
DEAR_S = 0.002  # a look that takes longer is not taken every time
FEW = 1000  # entries: with no more, a look at a fast writer is never too dear: what processes say they wrote is behind by a MiB for each
PART = 0.1  # of the time may go into dear looks, and into looks at one that is held and does not write
NEAR, NEAR_PART = 64 * 2**20, 8  # one that writes is held when it has less room than this, another with an eighth of its limit left
LOOKS = 2  # and one that makes files, when it has less room than what it may make during so many dear looks
HELD_S = 0.1  # at least
ASLEEP_S = 0.00002  # who has used less of a CPU has written nothing
CROWD = 32  # processes: more take a millisecond to be asked or stopped
CROWD_NAMES = 100  # a quarter of a millisecond
CROWD_NEAR = 256 * 2**20  # of room: with more a crowd is looked at like everybody
UNTOLD = 48 * 2**20  # what may be written in the tick of the kernel's clock (4 ms) before it says that somebody runs, twice


class Watched:
    """One task's folders. Plain, as the imports are: the process that uses it shall be small and quick to start."""

    def __init__(
        self,
        folders: tuple[str, ...],
        limit: int,
        pids: Callable[[], list[int]],
        threads: Callable[[], list[int]] = list,
        clock: Callable[[], float | None] = lambda: None,
        *,
        walled: bool = False,
    ) -> None:
        """`clock`: the seconds of CPU that its processes have used, if somebody counts them.

        Walled: the kernel lets it write no more than a little beyond its limit (walls), so it is not held, and a look may come late.
        """
        self.folders, self.limit, self.pids, self.threads, self.clock, self.walled = folders, limit, pids, threads, clock, walled
        self.used = 0  # at the last count
        self.looked = time.monotonic()  # when that was
        self.fast_at = 0.0  # when it was a fast writer last
        self.over = False
        self.seen = Seen()  # what was there at the last look
        self.entries = 0  # of it, at the last count
        self.making = float(MAKING)  # what it may make a second
        self.hidden = 0  # and without a name
        self.nameless = Nameless()
        # The first look is when it could have written its limit: most tasks have ended by then, and cost nothing here.
        self.ask_at = time.monotonic() + min(LONGEST_S, limit / FASTEST)
        self.look_at = 0.0  # at the latest
        self.took = 0.0
        self.wrote = self.wrote_then = 0  # what its processes said at the last look, and when the one that is done in parts began
        self.grown = 0  # by what they have said since
        self.ran: float | None = None  # on a CPU, until the last count
        self.hold: Hold | None = None
        self.stands: Callable[[], bool] = lambda: True  # whether the wall does: kernels cease to count, and begin anew
        self.paused: Callable[[], bool] = lambda: False  # by signals of somebody who wants it to stand still, whatever we do
        self.frozen: Callable[[], bool] = lambda: False  # or by a freezer, or by both
        self.tell_stopped: Callable[[bool], None] = lambda stopped: None  # and whether it is held: who comes after us shall know
        self.freezer: Standstill | None = None  # where its processes can be frozen
        self.filling: Filling | None = None
        self.crowded = False  # it was, when it was asked last

    @property
    def room(self) -> int:
        return max(self.limit - self.used - self.grown, 0)

    @property
    def spare(self) -> int:
        """What it may write above its limit before anybody looks again."""
        return int(self.limit * (SPARE if self.slow and self.hold is None else MARGIN))

    @property
    def slow(self) -> bool:
        """It did not write fast lately."""
        return self.looked - self.fast_at > HELD_S

    @property
    def dear(self) -> bool:
        return self.took > DEAR_S and (self.slow or self.seen.entries > FEW or not self.seen.whole)

    def is_fast(self, used: int, time_s: float) -> bool:
        """Whether it writes fast, if it has used so much now and could write for so long since the last count."""
        return used - self.used >= SLOW * time_s

    def is_near(self, room: int, *, fast: bool) -> bool:
        """Whether it could reach its limit before we come back, were we late."""
        if self.walled:
            return False
        if not fast:
            return room < min(self.limit // NEAR_PART, NEAR if self.dear else NEAR - self.limit * SPARE)
        return room < (max(NEAR, self.making * LOOKS * self.took) if self.dear else NEAR)


def check(watched: Watched, now: float, guard: Guard, holder: Holder) -> float:
    """Look, if it is time to; returns how long it can wait."""
    if now < watched.ask_at:
        return _wait(watched, now)
    if watched.hold is not None:
        holder.stand_by(watched.hold)
    ran = watched.clock()
    acted = False
    # One whose turn to start has not come, or that has ended already, writes nothing: of a burst of small programs these are most.
    if not _sleeps(watched, ran) and (pids := watched.pids()):
        watched.walled = watched.walled and watched.stands()
        watched.crowded = _is_crowded(watched, pids)
        guard.begin(watched)
        if watched.crowded:
            due = _look_at_crowd(watched, ran, now, guard, holder)
        else:
            if watched.hold is not None:
                watched.hold.keep()
            due = _is_due(watched, pids, ran, now, guard)
            if due:
                _look(watched, pids, ran, guard)
                _look_at_what_stands(watched, guard)
        if due and watched.used > watched.limit:
            guard.end_task(watched)
        acted = guard.end()
        if watched.over:
            return LONGEST_S
        _hold_or_release(watched, holder)
    since = time.monotonic()
    pause = SHORTEST_S if acted else _pause(watched)  # what it had then is not the room it has now
    watched.ask_at = pause + (since if watched.hold is not None or watched.crowded else now)
    return _wait(watched, since)


def _sleeps(watched: Watched, ran: float | None) -> bool:
    """Whether it cannot have written anything since the last count. The kernel tells late of those that are not on our CPU."""
    if ran is None or watched.ran is None:
        return False
    return ran - watched.ran < ASLEEP_S if watched.hold is not None else ran == watched.ran and watched.room + watched.spare > UNTOLD


def _is_crowded(watched: Watched, pids: list[int]) -> bool:
    """Whether it has to stand still while it is looked at, and can be made to."""
    return watched.freezer is not None and not watched.walled and len(pids) > CROWD and watched.room <= CROWD_NEAR


def _look_at_crowd(watched: Watched, ran: float | None, now: float, guard: Guard, holder: Holder) -> bool:
    """If it may have come far enough to be looked at; returns whether it has. It goes on when the look is over."""
    if now < watched.look_at and not _has_filled(watched, ran, now):
        return False
    guard.stop(watched)
    if watched.hold is not None:
        watched.hold.keep()
    _look(watched, watched.pids(), watched.clock(), guard)
    watched.look_at = time.monotonic() + watched.took / PART
    if watched.filling is not None:
        watched.filling.begin()
    with guard.changing:  # while it stands still, nobody can be begun elsewhere meanwhile
        _hold_or_release(watched, holder)
    return True


def _has_filled(watched: Watched, ran: float | None, now: float) -> bool:
    """Whether it may have taken half of its room since the last look: by what came into memory, by names, or in few files that are known.

    To list a folder would mean to wait for somebody who makes a file there, 30 ms in which the others write."""
    most = max(watched.room / 2, watched.limit * MARGIN)
    if watched.filling is None or watched.filling.grown() > most:
        return True
    if watched.making * _time(watched, ran, now) > most and not unchanged(watched.seen):
        return True
    if watched.seen.entries > CROWD_NAMES:
        return False
    count_again(watched.seen)
    return watched.seen.total + watched.hidden - watched.used > most


def _is_due(watched: Watched, pids: list[int], ran: float | None, now: float, guard: Guard) -> bool:
    """Whether a whole look is. While looks are dear, counting what is new may do, where every name is known."""
    in_parts = watched.hold is not None and watched.seen.whole
    if not watched.dear or (now >= watched.look_at and not in_parts):
        return True
    if now >= watched.look_at:
        _look_at_part(watched, pids, now, guard)
    watched.grown = max(guard.asking(written, pids) - watched.wrote, 0)
    most = watched.limit * (1 + MARGIN)
    makes = watched.making * _time(watched, ran, now)
    if watched.used + watched.grown + makes <= most or (watched.used + watched.grown <= most and unchanged(watched.seen)):
        return False
    if not watched.seen.whole:
        return True
    count_new(watched.seen, watched.limit)
    _found(watched, watched.seen.total + watched.hidden, ran, now)
    return watched.used + watched.grown > most


def _look_at_part(watched: Watched, pids: list[int], now: float, guard: Guard) -> None:
    """Of one that is held: whoever keeps a CPU for longer than some 50 ms has to share it, so this is done in parts."""
    if not watched.seen.round:
        watched.wrote_then = guard.asking(written, pids)
    if count_again(watched.seen):
        watched.wrote, watched.hidden = watched.wrote_then, _nameless(watched, pids, guard)
        watched.look_at = now + watched.took / PART
    watched.used = watched.seen.total + watched.hidden


def _time(watched: Watched, ran: float | None, now: float) -> float:
    """For how long it could write since the last count. Of one that is held the kernel knows, and it may have waited for its CPU long."""
    if watched.hold is None or ran is None or watched.ran is None:
        return now - watched.looked
    return ran - watched.ran


def _pause(watched: Watched) -> float:
    if watched.walled:
        return max(WALLED_S, watched.took / PART)
    least = SHORTEST_S
    if watched.slow:  # it may stay close to its limit for long
        least = SLOW_S if watched.hold is None or watched.dear else min(SLOW_S, watched.took / PART)
    soon = (watched.room + watched.spare) / FASTEST
    if watched.crowded:
        soon /= 2  # then it is seen whether it took half of its room
    elif watched.hold is None and not watched.dear:
        soon -= watched.took  # it goes on while we look
    return min(LONGEST_S, max(least, SHORTEST_S, soon))


def _wait(watched: Watched, now: float) -> float:
    """Until it is looked at again; in whole milliseconds if that does no harm, so that many are looked at together."""
    wait = max(watched.ask_at - now, 0.0)
    return math.ceil(wait / SLOW_S) * SLOW_S if watched.slow and watched.hold is None else wait


def _look(watched: Watched, pids: list[int], ran: float | None, guard: Guard) -> None:
    began, cpu = time.monotonic(), time.thread_time()
    if watched.dear and watched.used + watched.grown > watched.limit:  # it shall not grow while a long look finds out whether it has to end
        guard.stop(watched)
    watched.seen = count(watched.folders, watched.limit)
    # Beyond the limit, the rest would only take time, and it goes on writing.
    watched.hidden = _nameless(watched, pids, guard) if watched.seen.total <= watched.limit else 0
    watched.grown = 0
    _found(watched, watched.seen.total + watched.hidden, ran, began)
    watched.took = time.thread_time() - cpu  # of the CPU: on a busy machine a look may also have to wait
    if watched.dear and not watched.crowded:
        watched.look_at = time.monotonic() + watched.took / PART
        watched.wrote = guard.asking(written, pids)


def _look_at_what_stands(watched: Watched, guard: Guard) -> None:
    """What a look has counted before the guard held or stopped the task is older than what that one has written."""
    while watched.used <= watched.limit and watched.seen.entries <= FEW and guard.acted():
        _look(watched, watched.pids(), watched.clock(), guard)


def _nameless(watched: Watched, pids: list[int], guard: Guard) -> int:
    """What is known only in part ends nobody. Of a crowd that stands still all are asked at once."""
    if watched.crowded:
        return guard.asking(watched.nameless.ask_all, pids)
    found = guard.asking(watched.nameless.ask, pids)
    return guard.asking(watched.nameless.ask_all, pids) if watched.seen.total + found > watched.limit else found


def _found(watched: Watched, used: int, ran: float | None, now: float) -> None:
    time_s = _time(watched, ran, now)
    fast = watched.is_fast(used, time_s)
    if time_s > SLOW_S:
        made = (watched.seen.entries - watched.entries) * ENTRY / time_s
        watched.making = max(MAKING, MAKING_PART * made, watched.making / MAKING_PART)
    watched.entries = watched.seen.entries
    watched.used, watched.ran = used, ran
    # One that is held has stood still since, and so has a crowd.
    watched.looked = now if watched.hold is None and not watched.crowded else time.monotonic()
    if fast:
        watched.fast_at = watched.looked


def _hold_or_release(watched: Watched, holder: Holder) -> None:
    near = watched.is_near(watched.room, fast=not watched.slow)
    if near and watched.hold is None and holder.able:
        watched.hold = holder.hold(watched.threads)
    elif not near and watched.hold is not None:
        holder.release(watched.hold)
        watched.hold = None
