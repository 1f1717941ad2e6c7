"""Waiting for tasks: what handles return and raise, and how few requests it takes."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import json
import pickle
from typing import Any

import pytest

from headway import AsyncClient, Client, errors
from headway.client.outcomes import TaskCancelled
from tests.support.scripted_api import accepted, problem, routes, task_view
from tests.support.scripted_http import Request, serving, serving_in_thread

TOKEN = "hw_tenant_x"


class Tasks:
    """The wait call of a server, with tasks that end when the test says so."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, Any]] = {}
        self.changed = asyncio.Event()
        self.asked: list[list[str]] = []
        self.arrived: asyncio.Queue[list[str]] = asyncio.Queue()
        self.unknown: set[str] = set()

    def end(self, *ids: str, **fields: Any) -> None:
        for task_id in ids:
            self.ended[task_id] = task_view(task_id, **{"result": int(task_id) * 10, **fields})
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait(self, request: Request) -> Any:
        ids = json.loads(request.body)["ids"]
        self.asked.append(ids)
        self.arrived.put_nowait(ids)
        if self.unknown.intersection(ids):
            return problem(404, "not_found")
        while not (done := [self.ended[i] for i in ids if i in self.ended]):
            await self.changed.wait()
        return {"done": done, "pending": [i for i in ids if i not in self.ended]}

    def answer(self) -> Any:
        known = {f"GET /v1/tasks/{i}": lambda r, i=i: task_view(str(i), "running") for i in range(100)}
        return routes({"POST /v1/tasks/wait": self.wait, "POST /v1/tasks": self.accept, **known})

    def accept(self, request: Request) -> Any:
        body = json.loads(request.body)
        if "inputs" in body:
            ids = [str(i) for i in body["inputs"]]
            return {"ids": ids, "count": len(ids)}
        return accepted("1")


async def test_awaiting_a_handle_gives_its_result() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        handle = await client.submit(function="m:f")
        tasks.end("1")
        assert await handle == 10


async def test_a_thousand_handles_that_wait_together_share_one_request() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        handles = await client.submit_inputs({"function": "m:f"}, range(1000))
        tasks.end(*map(str, range(1000)))
        assert await asyncio.gather(*handles) == [i * 10 for i in range(1000)]
    assert len(tasks.asked) == 1


async def test_results_read_one_after_another_are_asked_for_together() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        handles = await client.submit_inputs({"function": "m:f"}, range(2500))
        tasks.end(*map(str, range(2500)))
        assert [await handle.result() for handle in handles] == [i * 10 for i in range(2500)]
    assert len(tasks.asked) == 3


async def test_waits_that_begin_one_by_one_hold_only_a_few_requests() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        waits = []
        for i in range(40):
            waits.append(asyncio.create_task(client.handle(i).result()))
            await tasks.arrived.get()
        assert len(client.waiter._calls) <= 4
        tasks.end(*map(str, range(40)))
        assert await asyncio.gather(*waits) == [i * 10 for i in range(40)]


async def test_a_task_that_ends_later_does_not_hold_up_one_that_ended() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        slow = asyncio.create_task(client.handle(1).result())
        quick = asyncio.create_task(client.handle(2).result())
        tasks.end("2")
        assert await quick == 20
        assert not slow.done()
        tasks.end("1")
        assert await slow == 10


async def test_one_unknown_task_does_not_end_the_wait_for_the_others() -> None:
    tasks = Tasks()
    tasks.unknown = {"3"}
    tasks.end("1", "2", "4")
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        found = await asyncio.gather(*(client.handle(i).result() for i in range(1, 5)), return_exceptions=True)
    assert isinstance(found[2], errors.NotFound)
    assert [found[0], found[1], found[3]] == [10, 20, 40]


async def test_a_wait_that_times_out_says_which_task_and_leaves_nothing_behind() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        with pytest.raises(TimeoutError, match="task 9 is not final"):
            await client.handle(9).result(timeout=0.05)
        assert not client.waiter._watched
        tasks.end("9")
        assert await client.handle(9).result(timeout=60) == 90


async def test_closing_the_client_ends_the_waits() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server:
        client = AsyncClient(server.url, TOKEN)
        waiting = asyncio.create_task(client.handle(1).result())
        await tasks.arrived.get()
        await client.close()
        with pytest.raises(ConnectionError, match="closed"):
            await waiting


async def test_a_wait_survives_a_server_that_goes_away_and_comes_back() -> None:
    tasks = Tasks()
    async with serving(tasks.answer()) as server, AsyncClient(server.url, TOKEN) as client:
        waiting = asyncio.create_task(client.handle(1).result())
        await tasks.arrived.get()
        await server.drop_connections()
        await tasks.arrived.get()
        tasks.end("1")
        assert await waiting == 10


def test_a_callback_in_the_clients_thread_that_would_wait_for_itself_is_refused() -> None:
    with finished() as server, Client(server.url, TOKEN) as client:
        called: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def callback() -> None:
            try:
                called.set_result(client.get(1))
            except RuntimeError as error:
                called.set_exception(error)

        client.thread.loop.call_soon_threadsafe(callback)
        with pytest.raises(RuntimeError, match="cannot wait for it"):
            called.result(5)


def test_a_closed_client_says_so() -> None:
    client = Client("http://127.0.0.1:9", TOKEN)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.stats()


async def test_a_closed_async_client_opens_nothing_again() -> None:
    async with serving(routes({"POST /v1/tasks": lambda r: accepted()})) as server:
        async with AsyncClient(server.url, TOKEN) as client:
            handle = await client.submit(command="true")
        await client.close()
        for call in (client.submit(command="true"), handle.wait(), anext(aiter(client.events())), anext(aiter(handle.logs()))):
            with pytest.raises(RuntimeError, match="this AsyncClient is closed: make a new one"):
                await call
    assert len(server.requests) == 1


async def test_waiting_for_a_task_that_does_not_exist_ends_at_once() -> None:
    unknown = routes({"GET /v1/tasks/123": lambda r: problem(404, "not_found")})
    async with serving(unknown) as server, AsyncClient(server.url, TOKEN) as client:
        with pytest.raises(errors.NotFound):
            await client.result(123)


def finished(**fields: Any) -> Any:
    view = task_view("1", **fields)
    waited = {"done": [view], "pending": []}
    return serving_in_thread(routes({"POST /v1/tasks/wait": lambda r: waited, "GET /v1/tasks/1": lambda r: view}))


def test_a_failed_task_raises_with_the_story_of_its_failure() -> None:
    error = {"type": "ValueError", "message": "bad size", "traceback": "Traceback ...\nValueError: bad size"}
    with (
        finished(state="failed", outcome="error", error=error, node="n1") as server,
        Client(server.url, TOKEN) as client,
        pytest.raises(errors.TaskFailed, match=r"task 1 \(job\) failed: ValueError: bad size") as caught,
    ):
        client.handle(1).result()
    assert (caught.value.type, caught.value.message) == ("ValueError", "bad size")
    assert "Traceback" in caught.value.traceback
    assert "on node n1" in caught.value.__notes__[0]


def test_a_cancelled_task_raises_what_cancelled_futures_raise() -> None:
    with finished(state="cancelled") as server, Client(server.url, TOKEN) as client:
        with pytest.raises(TaskCancelled, match="was cancelled"):
            client.handle(1).result()
        with pytest.raises(concurrent.futures.CancelledError):
            client.handle(1).result()


@pytest.mark.parametrize(("state", "words"), [("skipped", "was skipped"), ("expired", "expired")])
def test_a_task_that_never_ran_has_no_result(state: str, words: str) -> None:
    with (
        finished(state=state) as server,
        Client(server.url, TOKEN) as client,
        pytest.raises(errors.TaskFailed, match=words),
    ):
        client.handle(1).result()


def test_a_pickled_result_is_unpickled() -> None:
    encoded = base64.b64encode(pickle.dumps({1, 2})).decode()
    with finished(result=encoded, codec="pickle") as server, Client(server.url, TOKEN) as client:
        assert client.handle(1).result() == {1, 2}


def test_no_result_is_none() -> None:
    with finished() as server, Client(server.url, TOKEN) as client:
        assert client.handle(1).result() is None
