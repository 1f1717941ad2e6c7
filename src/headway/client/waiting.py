"""Many waits, few requests: everyone who waits for a task shares the calls of `POST /v1/tasks/wait`.

A call is held by the server until one of its tasks is final. Tasks that are added meanwhile go into a call of their
own; when CALLS are under way, the one with the fewest tasks is taken back and its tasks join the new one, so that ten
thousand waits that begin one by one cost a few held requests and not ten thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from headway.errors import NotFound
from headway.wire.views.tasks import TaskView

CALLS = 4
MOST_IDS = 5000  # in one call
HELD_S = 20.0
IDS_PER_SECOND = 50_000  # of asking again: with many tasks left, wait a moment for more of them to finish


class Waited(msgspec.Struct):
    """The answer: what is final, and what is not."""

    done: list[TaskView]
    pending: list[str]


Ask = Callable[[list[str], float], Awaitable[Waited]]


class _Watch:
    """One task that somebody waits for."""

    __slots__ = ("call", "future", "id", "interested")

    def __init__(self, task_id: str, future: asyncio.Future[TaskView]) -> None:
        self.id = task_id
        self.future = future
        self.interested = 0
        self.call: asyncio.Task[None] | None = None


class Waiter:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._watched: dict[str, _Watch] = {}
        self._calls: dict[asyncio.Task[None], list[_Watch]] = {}
        self._planned: asyncio.Handle | None = None

    async def final(self, task_id: str, *, also: Iterable[str] = ()) -> list[TaskView]:
        """Wait until the task is final. Its view comes first, then those of `also` that are final by then."""
        watches = [self._watch(each) for each in dict.fromkeys((task_id, *also))]
        try:
            first = await asyncio.shield(watches[0].future)
            return [first, *(w.future.result() for w in watches[1:] if w.future.done() and not w.future.exception())]
        finally:
            for watch in watches:
                self._leave(watch)

    def close(self) -> None:
        for call in self._calls:
            call.cancel()
        for watch in self._watched.values():
            if not watch.future.done():
                watch.future.set_exception(ConnectionError("the client was closed"))
                watch.future.exception()  # whoever waits gets it; with nobody waiting it is no accident
        self._watched.clear()

    def _watch(self, task_id: str) -> _Watch:
        watch = self._watched.get(task_id)
        if watch is None:
            watch = self._watched[task_id] = _Watch(task_id, asyncio.get_running_loop().create_future())
            self._plan()
        watch.interested += 1
        return watch

    def _leave(self, watch: _Watch) -> None:
        watch.interested -= 1
        if not watch.interested and self._watched.get(watch.id) is watch:
            del self._watched[watch.id]

    def _plan(self, delay: float = 0.0) -> None:
        """Begin a call soon: everything that is asked in this turn of the loop shares it."""
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_later(delay, self._begin)

    def _begin(self) -> None:
        self._planned = None
        idle = [watch for watch in self._watched.values() if watch.call is None]
        if not idle:
            return
        if len(self._calls) >= CALLS:
            smallest = min(self._calls, key=lambda call: len(self._calls[call]))
            idle += self._taken_back(smallest)
        self._start(idle[:MOST_IDS])
        if len(idle) > MOST_IDS and len(self._calls) < CALLS:
            self._plan()

    def _start(self, watches: list[_Watch]) -> None:
        call = asyncio.ensure_future(self._hold(watches))
        self._calls[call] = watches
        for watch in watches:
            watch.call = call
        call.add_done_callback(self._ended)

    def _taken_back(self, call: asyncio.Task[None]) -> list[_Watch]:
        call.cancel()
        watches = self._calls.pop(call)
        for watch in watches:
            watch.call = None
        return [watch for watch in watches if self._watched.get(watch.id) is watch]

    def _ended(self, call: asyncio.Task[None]) -> None:
        if call not in self._calls:
            return  # taken back
        for watch in self._calls.pop(call):
            watch.call = None
        left = sum(1 for watch in self._watched.values() if watch.call is None)
        if left:
            self._plan(delay=0.0 if left == 1 else min(0.02, left / IDS_PER_SECOND))

    async def _hold(self, watches: list[_Watch]) -> None:
        try:
            waited = await self._ask([watch.id for watch in watches], HELD_S)
        except NotFound as error:
            if len(watches) == 1:
                self._fail(watches, error)
            else:  # one unknown task must not end the wait for the others
                middle = len(watches) // 2
                await asyncio.gather(self._hold(watches[:middle]), self._hold(watches[middle:]))
        except Exception as error:  # the waits end with it, whatever it is
            self._fail(watches, error)
        else:
            for view in waited.done:
                watch = self._watched.pop(view.id, None)
                if watch is not None and not watch.future.done():
                    watch.future.set_result(view)

    def _fail(self, watches: list[_Watch], error: Exception) -> None:
        for watch in watches:
            if self._watched.get(watch.id) is watch:
                del self._watched[watch.id]
            if not watch.future.done():
                watch.future.set_exception(error)
                watch.future.exception()
