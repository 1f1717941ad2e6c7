"""The synchronous face: Client and Handle do what AsyncClient and AsyncHandle do, in a thread with an event loop.

Nothing is decided here. Each method is made from the asynchronous one by `blocking`, `streaming` or `handing_out`.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

import uvloop

from headway.client import core
from headway.client.context import Suspended
from headway.client.core import AsyncClient
from headway.client.handles import AsyncHandle, no_data
from headway.client.inside import REQUEUE
from headway.errors import InvalidInput
from headway.wire.views.explanations import Explanation
from headway.wire.views.tasks import LogLine, TaskView

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", covariant=True)

_active: ContextVar[Client | None] = ContextVar("headway_client", default=None)


class LoopThread:
    """An event loop in a thread of its own, for as long as a Client is open."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="headway-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it there and wait here. An interrupt (Ctrl-C) here cancels it there."""
        if problem := self._unfit():
            work.close()
            raise RuntimeError(problem)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except Suspended as pause:
            if pause.program:
                raise SystemExit(REQUEUE) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def _unfit(self) -> str | None:
        """Why a call would wait for ever."""
        if not self._thread.is_alive():
            return "this Client is closed, or was made before a fork: make a new one"
        if threading.current_thread() is self._thread:
            return "a callback in the client's own thread cannot wait for it: use another thread"
        return None

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Whatever is under way is cancelled first: who waits for it in another thread would wait for ever."""
        if self._thread.is_alive():
            self.run(_cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


def blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    """The same call, waited for."""

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.thread.run(method(self.aio, *args, **kwargs))

    return call


def streaming(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[R]],
) -> Callable[Concatenate[Client, P], Iterator[R]]:
    """The same items, each waited for."""

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self.each(method(self.aio, *args, **kwargs))

    return call


def handing_out(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, list[AsyncHandle[Any]]]],
) -> Callable[Concatenate[Client, P], list[Handle[Any]]]:
    """The same call, waited for, with handles of this face."""

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> list[Handle[Any]]:
        return [Handle(self, handle) for handle in self.thread.run(method(self.aio, *args, **kwargs))]

    return call


class Handle(Generic[T]):
    """A submitted task. See AsyncHandle, which this is the blocking face of."""

    def __init__(self, client: Client, handle: AsyncHandle[T]) -> None:
        self._client = client
        self.aio = handle

    @property
    def id(self) -> str:
        return self.aio.id

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    def __reduce__(self) -> NoReturn:
        no_data()

    def result(self, timeout: float | None = None) -> T:
        """The value, waited for. TaskFailed or TaskCancelled when the task ended without one, TimeoutError when it is
        not final within `timeout` seconds."""
        return self.aio.value(self.wait(timeout))

    def wait(self, timeout: float | None = None) -> TaskView:
        """Wait until the task is final, however it ended."""
        # What is known already needs no trip to the other thread (0.1 ms, ten thousand times in a loop over a map).
        return self.aio.known() or self._client.thread.run(self.aio.wait(timeout))

    def view(self) -> TaskView:
        return self._client.thread.run(self.aio.view())

    def state(self) -> str:
        return self._client.thread.run(self.aio.state())

    @property
    def predicted_start(self) -> datetime.datetime | None:
        return self.aio.predicted_start

    @property
    def warning(self) -> str | None:
        return self.aio.warning

    def explain(self) -> Explanation:
        return self._client.thread.run(self.aio.explain())

    def change(self, **fields: Any) -> TaskView:
        return self._client.thread.run(self.aio.change(**fields))

    def cancel(self) -> TaskView:
        return self._client.thread.run(self.aio.cancel())

    def pause(self) -> TaskView:
        return self._client.thread.run(self.aio.pause())

    def resume(self) -> TaskView:
        return self._client.thread.run(self.aio.resume())

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        return self._client.each(self.aio.logs(follow=follow))


class Client:
    """A connection to Headway. Without arguments it finds its server as the command line does.

    with Client() as hw:
        print(hw.submit(command="echo hello").wait().state)
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, tls_ca: str | None = None, patience: float = 30.0
    ) -> None:
        self.aio = AsyncClient(url, token, tls_ca=tls_ca, patience=patience)
        self.thread = LoopThread()
        self._before: Client | None = None

    @property
    def url(self) -> str:
        return self.aio.url

    def __enter__(self) -> Client:
        self._before = _active.get()
        _active.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.set(self._before)
        self.close()

    def close(self) -> None:
        if not self.thread.loop.is_closed():
            self.thread.run(self.aio.close())
            self.thread.stop()

    def each(self, items: AsyncIterator[R]) -> Iterator[R]:
        """Items that come one by one. Leaving the loop early hangs up."""
        try:
            while True:
                try:
                    yield self.thread.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            closing = getattr(items, "aclose", None)
            if closing is not None and not self.thread.loop.is_closed():
                self.thread.run(closing())

    def submit(self, spec: Any = None, /, **fields: Any) -> Handle[Any]:
        """Submit one task, given as a TaskSpec, a mapping, or the fields of one. It is durable when this returns."""
        return Handle(self, self.thread.run(self.aio.submit(spec, **fields)))

    def handle(self, task_id: str | int) -> Handle[Any]:
        """A handle on a task submitted elsewhere."""
        return Handle(self, self.aio.handle(task_id))

    submit_many = handing_out(AsyncClient.submit_many)
    submit_inputs = handing_out(AsyncClient.submit_inputs)
    submit_tree = blocking(AsyncClient.submit_tree)
    stream_tree = blocking(AsyncClient.stream_tree)
    apply = blocking(AsyncClient.apply)
    apply_many = blocking(AsyncClient.apply_many)
    schedules = blocking(AsyncClient.schedules)
    schedule = blocking(AsyncClient.schedule)
    pause_schedule = blocking(AsyncClient.pause_schedule)
    resume_schedule = blocking(AsyncClient.resume_schedule)
    trigger = blocking(AsyncClient.trigger)
    backfill = blocking(AsyncClient.backfill)
    stop_backfill = blocking(AsyncClient.stop_backfill)
    predict = blocking(AsyncClient.predict)
    delete_schedule = blocking(AsyncClient.delete_schedule)
    get = blocking(AsyncClient.get)
    wait = blocking(AsyncClient.wait)
    result = blocking(AsyncClient.result)
    page = blocking(AsyncClient.page)
    iterate = streaming(AsyncClient.iterate)
    attempts = blocking(AsyncClient.attempts)
    logs = streaming(AsyncClient.logs)
    explain = blocking(AsyncClient.explain)
    change = blocking(AsyncClient.change)
    cancel = blocking(AsyncClient.cancel)
    pause = blocking(AsyncClient.pause)
    resume = blocking(AsyncClient.resume)
    signal = blocking(AsyncClient.signal)
    retry = blocking(AsyncClient.retry)
    upload = blocking(AsyncClient.upload)
    set_secret = blocking(AsyncClient.set_secret)
    secrets = blocking(AsyncClient.secrets)
    remove_secret = blocking(AsyncClient.remove_secret)
    dead_letters = blocking(AsyncClient.dead_letters)
    dead_groups = blocking(AsyncClient.dead_groups)
    retry_dead = blocking(AsyncClient.retry_dead)
    purge_dead = blocking(AsyncClient.purge_dead)
    tree = blocking(AsyncClient.tree)
    watch_tree = streaming(AsyncClient.watch_tree)
    wait_tree = blocking(AsyncClient.wait_tree)
    trees = blocking(AsyncClient.trees)
    retry_tree = blocking(AsyncClient.retry_tree)
    cancel_tree = blocking(AsyncClient.cancel_tree)
    nodes = blocking(AsyncClient.nodes)
    node = blocking(AsyncClient.node)
    drain = blocking(AsyncClient.drain)
    undrain = blocking(AsyncClient.undrain)
    remove_node = blocking(AsyncClient.remove_node)
    queues = blocking(AsyncClient.queues)
    stats = blocking(AsyncClient.stats)
    tiers = blocking(AsyncClient.tiers)
    limits = blocking(AsyncClient.limits)
    whoami = blocking(AsyncClient.whoami)
    webhooks = blocking(AsyncClient.webhooks)
    create_webhook = blocking(AsyncClient.create_webhook)
    delete_webhook = blocking(AsyncClient.delete_webhook)
    rotate_webhook = blocking(AsyncClient.rotate_webhook)
    deliveries = blocking(AsyncClient.deliveries)
    replay_webhook = blocking(AsyncClient.replay_webhook)
    events = streaming(AsyncClient.events)


_default: Client | None = None
_default_lock = threading.Lock()


def active() -> Client:
    """The Client whose `with` surrounds the caller; else one for the whole process, made when it is first needed."""
    global _default
    found = _active.get()
    if found is not None:
        return found
    from headway.client import subtasks  # it needs this module itself

    if (inside := subtasks.client()) is not None:
        return inside
    if core.active() is not None and _in_a_loop():
        raise InvalidInput(
            "an AsyncClient is active here: a call that blocks would stop its event loop, and go to another client",
            hint="`await f.aio(...)` submits one call, `await client.submit_inputs(f.spec(), [[1], [2]])` many",
        )
    with _default_lock:
        if _default is None:
            _default = Client()
        return _default


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _forget() -> None:
    """A forked child has the object but not its thread."""
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(items: AsyncIterator[R]) -> R:
    return await anext(items)
