"""`concurrent.futures.Executor` on a cluster: code written for a process pool runs on Headway unchanged.

    with Executor(attempts=3) as pool:
        sizes = list(pool.map(os.path.getsize, paths))

submit() returns at once. Calls made while a request is under way go into the next one together, so that a loop of ten
thousand submits costs a few bulk requests. Every future is completed by the one thread of the client.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from headway.client import calling, face, outcomes
from headway.client.decorator import Task, checked
from headway.client.handles import AsyncHandle

P = ParamSpec("P")
T = TypeVar("T")

MOST_IN_ONE_REQUEST = 5000
NOT_BEGUN = frozenset({"blocked", "scheduled", "ready"})


class TaskFuture(concurrent.futures.Future[T]):
    """A future that knows its task. `cancel()` works until the task is handed to a node."""

    def __init__(self, executor: Executor, spec: dict[str, Any], kind: Any) -> None:
        super().__init__()
        self.spec = spec
        self.kind = kind
        self.handle: AsyncHandle[T] | None = None  # None until it is submitted
        self._executor = executor

    def cancel(self) -> bool:
        """Whether the task will not run: it was not begun, and now it never will be."""
        if self.done():
            return self.cancelled()
        return self._executor.client.thread.run(self._executor.cancel(self))

    def forget(self) -> bool:
        """Mark it cancelled and wake who waits for it."""
        return super().cancel() and not self.set_running_or_notify_cancel()


class Executor(concurrent.futures.Executor):
    """Runs functions as tasks. Options are the fields of a task, as for @task; the active client is the default."""

    def __init__(self, client: face.Client | None = None, **options: Any) -> None:
        self.client = client or face.active()
        self._options = dict(checked(options))
        self._unsent: list[TaskFuture[Any]] = []
        self._pending: set[TaskFuture[Any]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._followers: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Submit a call. The future fails with ConnectionError when the server could not be reached."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: TaskFuture[T] = TaskFuture(self, *self._spec(fn, args, kwargs))
        self.client.thread.loop.call_soon_threadsafe(self._take, future)
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1) -> Iterator[T]:
        """As the built-in map, in parallel. `chunksize` is of no use here: calls travel in bulk anyway."""
        return super().map(fn, *iterables, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        pending = self.client.thread.run(self._all_pending())
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            concurrent.futures.wait(pending)

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
            try:
                handles = await self.client.aio.submit_many([future.spec for future in batch])
            except Exception as error:  # the futures tell it to their owners
                for future in batch:
                    self._settle(future, error)
                continue
            for future, handle in zip(batch, handles, strict=True):
                future.handle = handle
                self._followers.add(follower := asyncio.ensure_future(self._follow(future, handle)))
                follower.add_done_callback(self._followers.discard)

    async def _follow(self, future: TaskFuture[Any], handle: AsyncHandle[Any]) -> None:
        try:
            value = outcomes.value(await handle.wait(), future.kind)
        except Exception as error:  # as above
            self._settle(future, error)
        else:
            self._settle(future, None, value)

    def _settle(self, future: TaskFuture[Any], error: Exception | None, value: Any = None) -> None:
        self._pending.discard(future)
        if future.done():
            return  # cancelled meanwhile
        if isinstance(error, outcomes.TaskCancelled):
            future.forget()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    async def cancel(self, future: TaskFuture[Any]) -> bool:
        if future in self._unsent:
            self._unsent.remove(future)
            self._pending.discard(future)
            return future.forget()
        if future.handle is None or (await future.handle.state()) not in NOT_BEGUN:
            return False
        if (await future.handle.cancel()).state != "cancelled":
            return False  # it was handed out in this very moment: it ends soon, and the future then tells how
        self._pending.discard(future)
        return future.done() or future.forget()

    async def _all_pending(self) -> list[TaskFuture[Any]]:
        return list(self._pending)
