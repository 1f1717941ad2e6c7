"""Programs that are being started.

Until the kernel has loaded a program, the thread that starts it stands still, and on a busy machine it waits for its turn before. The
supervisor waits for most of those it gives to the threads together, and goes on while the last of them begin: programs that have ended
are looked after meanwhile, and both cores have something to do. It waits for most, because its own work and that of the threads need the
same interpreter: not waiting at all cost 120-190 µs of CPU for each program, waiting for seven in ten 10-35.

So a program may have ended before it is known to have begun. Whatever was seen while a start was under way may belong to it: `turn`
tells which starts were.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from headway.agent.descriptors import ring
from headway.agent.handing import Call, Semaphore
from headway.agent.spawn import Launch, call_for
from headway.agent.starter import Run, Starter

BESIDE = 0.3  # this part of a turn begins beside what the supervisor does next
AT_FIRST = len(os.sched_getaffinity(0)) + 1


class Turn:
    """Programs that are given to the threads together.

    A few are handed out at first, and each thread hands out one more before it starts its own: all woken at once, they would only wait for
    the interpreter, each with two switches of context for nothing.
    """

    def __init__(self, number: int, programs: Sequence[Launch], done: deque[Launch], woken: int) -> None:
        self._work = deque((program, *call_for(program)) for program in programs)
        for program in programs:
            program.turn = number
        self._waiting = list(range(len(programs)))
        self._beside = int(len(programs) * BESIDE)
        self._most = Semaphore()
        self._done, self._woken = done, woken

    def begin(self) -> None:
        """Returns when most of them have begun or failed."""
        for _ in range(AT_FIRST):
            self._hand_out()
        self._most.wait()

    def _hand_out(self) -> None:
        try:
            program, calls, call = self._work.popleft()
        except IndexError:
            return
        calls.put((partial(self._start, call), partial(self._began, program)))

    def _start(self, call: Call) -> None:
        self._hand_out()
        call()

    def _began(self, program: Launch) -> None:
        self._done.append(program)
        left = self._waiting.pop()
        if left == self._beside:
            self._most.post()
        if left == 0 and self._beside:
            ring(self._woken)


class Starts:
    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._alone: dict[int, Launch] = {}  # slot -> what its compiled code is at
        self._done: deque[Launch] = deque()  # filled by the threads
        self._left: dict[int, int] = {}  # turn -> how many of it have not been taken out of there
        self.turn = 0  # the newest
        self.woken = starter.bell  # readable when all of a turn have begun, or as many have come back as were listened for
        self._poll = select.poll()
        self._poll.register(self.woken, select.POLLIN)

    def give(self, programs: Sequence[Launch]) -> None:
        """Start them, side by side, and wait for most of those that need the interpreter for it."""
        if not programs:
            return
        self.turn += 1
        self._left[self.turn] = len(programs)
        others = [program for program in programs if not program.alone]
        for program in programs:
            if program.alone:
                self._give_alone(program)
        if others:
            Turn(self.turn, others, self._done, self.woken).begin()

    def _give_alone(self, program: Launch) -> None:
        slot = program.slot
        assert slot is not None
        program.turn = self.turn
        group = slot.group.folder if slot.group is not None and slot.group.place is not None else ""
        if error := self._starter.give(slot.compiled, program.argv, program.env, program.workdir, group):
            program.run = Run(error=error)
            self._done.append(program)
        else:
            self._alone[slot.number] = program

    def listen_for(self, count: int) -> bool:
        """Whether so many have come back by now; if not, they are told when they have."""
        return self._starter.listen_for(count)

    def take(self) -> list[Launch]:
        """Those that have begun or failed since the last call."""
        found = [self._done.popleft() for _ in range(len(self._done))]
        for slot, run in self._starter.take():
            program = self._alone.pop(slot)
            program.run = run
            found.append(program)
        for program in found:
            self._left[program.turn] -= 1
            if not self._left[program.turn]:
                del self._left[program.turn]
        return found

    def wait(self, begun: Callable[[], None]) -> None:
        """Until none is under way; `begun` takes what has begun."""
        begun()
        if self._left:
            with self._starter.hurry():
                self._wait(begun)

    def _wait(self, begun: Callable[[], None]) -> None:
        while self._left:
            if not self.listen_for(1):
                self._poll.poll()
            self.hush()
            begun()

    def hush(self) -> None:
        """The wake-up was heard."""
        try:
            os.eventfd_read(self.woken)
        except BlockingIOError:
            return

    def over(self, turn: int) -> bool:
        """Whether all starts of this turn, and of those before it, are over."""
        return not self._left or next(iter(self._left)) > turn
