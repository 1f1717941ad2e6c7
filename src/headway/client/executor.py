"""`concurrent.futures.Executor` on a cluster: code written for a process pool runs on Headway unchanged.

    with Executor(attempts=3) as pool:
        sizes = list(pool.map(os.path.getsize, paths))

submit() returns at once. Calls made while a request is under way go into the next one together, so that a loop of ten
thousand submits costs a few bulk requests. Every future is completed by the one thread of the client. A program that ends
without shutdown() stores what it has submitted first; the tasks then run without it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from headway.client import calling, face, outcomes
from headway.client.decorator import Task, checked
from headway.client.handles import AsyncHandle
from headway.errors import TaskFailed

P = ParamSpec("P")
T = TypeVar("T")

MOST_IN_ONE_REQUEST = 5000
CANCELS = 32  # under way at once: the time in which a request must be answered counts from its beginning
OF_POOLS = frozenset({"max_workers", "mp_context", "initializer", "initargs", "max_tasks_per_child", "thread_name_prefix"})
NOT_BEGUN = frozenset({"blocked", "scheduled", "ready"})

_open: weakref.WeakSet[Executor] = weakref.WeakSet()


class TaskFuture(concurrent.futures.Future[T]):
    """A future that knows its task. `cancel()` works until the task is handed to a node."""

    def __init__(self, executor: Executor, spec: dict[str, Any], kind: Any) -> None:
        super().__init__()
        self.spec = spec
        self.kind = kind
        self.handle: AsyncHandle[T] | None = None  # None until it is submitted
        self.asked = False  # somebody has looked how it ended, or waits to
        self._executor = executor

    def result(self, timeout: float | None = None) -> T:
        self.asked = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.asked = True
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Whether the task will not run: it was not begun, and now it never will be."""
        if self.done():
            return self.cancelled()
        return self._executor.client.thread.run(self._executor.cancel(self))

    def forget(self) -> bool:
        """Mark it cancelled and wake who waits for it."""
        return super().cancel() and not self.set_running_or_notify_cancel()


class Executor(concurrent.futures.Executor):
    """Runs functions as tasks. Options are the fields of a task, as for @task; the active client is the default.

    A future fails with TaskFailed that is also what the function raised, when that class is loaded here: `except ValueError` and
    `except TaskFailed` both catch a ValueError."""

    def __init__(self, client: face.Client | None = None, **options: Any) -> None:
        if (pools := sorted(OF_POOLS & options.keys())) or not isinstance(client, face.Client | None):
            given = f"{pools[0]}=..." if pools else f"{client!r} in the place of a client"
            raise TypeError(f"Executor does not take {given}: how many calls run at once, and where, is the fleet's; leave it out")
        self.client = client or face.active()
        self._options = dict(checked(options))
        self._unsent: list[TaskFuture[Any]] = []
        self._pending: set[TaskFuture[Any]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._followers: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lost: list[TaskFuture[Any]] = []  # they could not be submitted
        _open.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Submit a call. The future fails with ConnectionError when the server could not be reached."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: TaskFuture[T] = TaskFuture(self, *self._spec(fn, args, kwargs))
        self.client.thread.loop.call_soon_threadsafe(self._take, future)
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1) -> Iterator[T]:
        """As the built-in map, in parallel. `chunksize` is of no use here: calls travel in bulk anyway."""
        end = None if timeout is None else time.monotonic() + timeout
        futures = [self.submit(fn, *arguments) for arguments in zip(*iterables, strict=False)]
        return self._in_order(futures, end)

    def _in_order(self, futures: list[concurrent.futures.Future[T]], end: float | None) -> Iterator[T]:
        """Who leaves the loop early, or does not get a result in time, has no use for the rest."""
        futures.reverse()
        try:
            while futures:
                yield futures[-1].result(None if end is None else end - time.monotonic())
                futures.pop()
        finally:
            if futures and self.client.thread.is_open:
                self.client.thread.run(self._cancel_all([each for each in futures if isinstance(each, TaskFuture)]))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if not self.client.thread.is_open:
            return  # which has ended every future
        pending = self.client.thread.run(self._all_pending())
        if cancel_futures:
            self.client.thread.run(self._cancel_all(pending))
        if wait:
            concurrent.futures.wait(pending)

    def store(self) -> list[TaskFuture[Any]]:
        """Wait until everything that was submitted is stored; what could not be, and nobody knows it, is returned."""
        if self.client.thread.is_open:
            self.client.thread.run(self._sent())
        return [future for future in self._lost if not future.asked]

    def _spec(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[dict[str, Any], Any]:
        if isinstance(fn, Task):
            codec, (encoded,) = fn.encode([(args, kwargs)])
            return {**self._options, **fn.spec(codec, input=encoded)}, fn.kind
        codec, (encoded,) = calling.encode_calls([(args, kwargs)], self._options.get("codec"))
        name = calling.function_name(fn)
        return {**self._options, "function": name, "codec": codec, "input": encoded}, calling.return_kind(fn)

    # -- in the client's thread

    def _take(self, future: TaskFuture[Any]) -> None:
        self._unsent.append(future)
        self._pending.add(future)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._unsent:
            batch, self._unsent = self._unsent[:MOST_IN_ONE_REQUEST], self._unsent[MOST_IN_ONE_REQUEST:]
            with self._told_to(*batch), self._noted(batch):
                handles = await self.client.aio.submit_many([future.spec for future in batch])
                for future, handle in zip(batch, handles, strict=True):
                    future.handle = handle
                    self._followers.add(follower := asyncio.ensure_future(self._follow(future, handle)))
                    follower.add_done_callback(self._followers.discard)

    async def _follow(self, future: TaskFuture[Any], handle: AsyncHandle[Any]) -> None:
        with self._told_to(future):
            value = outcomes.value(await handle.wait(), future.kind)
            self._pending.discard(future)
            if not future.done():  # cancelled meanwhile
                future.set_result(value)

    @contextlib.contextmanager
    def _noted(self, batch: list[TaskFuture[Any]]) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._lost = [future for future in self._lost if not future.asked] + batch
            raise

    @contextlib.contextmanager
    def _told_to(self, *futures: TaskFuture[Any]) -> Iterator[None]:
        """What goes wrong is told to the owners of the futures."""
        try:
            yield
        except asyncio.CancelledError:
            self._fail([*futures, *self._unsent], ConnectionError("the client was closed"))
            self._unsent.clear()
            raise
        except Exception as error:  # whatever it is, it is theirs
            self._fail(futures, error)

    def _fail(self, futures: Iterable[TaskFuture[Any]], error: Exception) -> None:
        self._pending.difference_update(futures)
        for future in futures:
            if future.done():
                continue  # cancelled meanwhile
            if isinstance(error, outcomes.TaskCancelled):
                future.forget()
            else:
                future.set_exception(outcomes.as_raised(error) if isinstance(error, TaskFailed) else error)

    async def cancel(self, future: TaskFuture[Any]) -> bool:
        if future in self._unsent:
            self._unsent.remove(future)
            self._pending.discard(future)
            return future.forget()
        await self._sent()
        if future.done() or future.handle is None:
            return future.cancelled()
        if (await future.handle.state()) not in NOT_BEGUN:
            return False
        if (await future.handle.cancel()).state != "cancelled":
            return False  # it was handed out in this very moment: it ends soon, and the future then tells how
        self._pending.discard(future)
        return future.done() or future.forget()

    async def _cancel_all(self, futures: Iterable[TaskFuture[Any]]) -> None:
        """Those that have not begun. What was not sent is forgotten at once: one by one, thousands would take long to find."""
        unwanted = {each for each in futures if not each.done()}
        unsent = unwanted.intersection(self._unsent)
        self._unsent = [each for each in self._unsent if each not in unsent]
        self._pending -= unsent
        for each in unsent:
            each.forget()
        few = asyncio.Semaphore(CANCELS)

        async def cancel(future: TaskFuture[Any]) -> None:
            async with few:
                await self.cancel(future)

        await asyncio.gather(*map(cancel, unwanted - unsent))

    async def _sent(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def _all_pending(self) -> list[TaskFuture[Any]]:
        return list(self._pending)


@atexit.register
def _store_all() -> None:
    """A process pool runs what it was given before the program ends. Here it is enough that it is stored."""
    for executor in list(_open):
        if lost := executor.store():
            print(f"headway: {len(lost)} calls were not submitted: {lost[0].exception()}", file=sys.stderr)
