"""The client: every call of the API, once, asynchronously. `Client` (face.py) is a thin synchronous face over it.
Submitting and waiting are here; the other calls are in task_calls, tree_calls, schedule_calls and fleet_calls.

    async with AsyncClient() as hw:
        handle = await hw.submit(command=["convert", "a.png", "a.jpg"], attempts=3)
        await handle

Submitting one task is safe to repeat: it gets an idempotency key when the caller gave none, so that after a lost
connection the same request can be sent again and gives the first task back. A bulk does not: a key is a row in the
database, and one for each task of a bulk would cost about as much as the tasks. After a loss in the middle of a bulk
the caller gets the ConnectionError and decides; with `key="..."` each task gets the key "<key>/<its number>", and the
bulk is as safe to repeat as one task (docs/decisions/0004-repeating-requests.md).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from headway import config
from headway.client import context, inside
from headway.client.calls import BULK_TIMEOUT, Spec, encode, merged, said
from headway.client.connection import Connection
from headway.client.discovery import find
from headway.client.fleet_calls import FleetCalls
from headway.client.handles import AsyncHandle, Group
from headway.client.schedule_calls import ScheduleCalls
from headway.client.task_calls import TaskCalls
from headway.client.tree_calls import TreeCalls
from headway.client.waiting import Waited, Waiter
from headway.errors import Unavailable
from headway.wire.views.tasks import Accepted, AcceptedMany, TaskView

LOOK = 1000  # tasks whose ends are asked for in one request

_active: ContextVar[AsyncClient | None] = ContextVar("headway_async_client", default=None)


class AsyncClient(TaskCalls, TreeCalls, ScheduleCalls, FleetCalls):
    """A connection to Headway. Without arguments it finds its server as the command line does (discovery.py).

    `patience`: for how many seconds to keep trying while the server is away or busy.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, tls_ca: str | None = None, patience: float = 30.0
    ) -> None:
        settings = config.load()
        place = find(settings, url=url, token=token)
        if place is None:
            context.check_loaded()
            raise Unavailable(
                f"no server is named, and no `headway up` runs in {settings.data_dir}",
                hint="start one with `headway up`, or set HEADWAY_URL and HEADWAY_TOKEN",
            )
        urls = [each.strip() for each in place.url.split(",") if each.strip()]
        self._to = Connection(urls, token=place.token, tls_ca=tls_ca or settings.tls_ca, patience=patience)
        self.inside = inside.of(place.token)  # set when this client belongs to a running task
        self.waiter = Waiter(self._wait_call)
        self._before: AsyncClient | None = None

    @property
    def url(self) -> str:
        return self._to.url

    async def __aenter__(self) -> AsyncClient:
        self._before = _active.get()
        _active.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        _active.set(self._before)
        await self.close()

    async def close(self) -> None:
        self.waiter.close()
        await self._to.close()

    async def become(self, connection: Connection) -> None:
        """Go on under another connection: a warm process serves one task after another."""
        await self.close()
        self._to, self.waiter = connection, Waiter(self._wait_call)

    # -- submitting

    async def submit(self, spec: Spec | None = None, /, **fields: Any) -> AsyncHandle[Any]:
        """Submit one task, given as a TaskSpec, a mapping, or the fields of one. It is durable when this returns."""
        accepted = await self.accept(merged(spec, fields))
        return AsyncHandle(self, accepted.id, accepted=accepted)

    async def accept(self, spec: Spec) -> Accepted:
        """Submit one task; the answer tells whether an idempotency key gave an earlier task back (`created`)."""
        task = said(spec)
        body = encode(task)
        if self.inside is None:
            return await self._accept(task, body, f"auto-{secrets.token_hex(12)}")
        with self.inside.claim([body]) as (key,):
            accepted = await self._accept(task, body, key)
        self.inside.submitted([accepted.id])
        return accepted

    async def _accept(self, task: Mapping[str, Any], body: bytes, key: str) -> Accepted:
        headers = {"idempotency-key": key} if task.get("idempotency_key") is None else {}
        return await self._to.ask("POST", "/v1/tasks", Accepted, body=body, headers=headers, repeatable=True)

    async def submit_many(self, specs: Iterable[Spec], *, key: str | None = None, kind: Any = None) -> list[AsyncHandle[Any]]:
        """Submit many tasks in one request: all or none of them. `after` may name others of them."""
        listed = [said(spec) for spec in specs]
        if key is not None:
            listed = [merged(spec, {"idempotency_key": f"{key}/{i}"}) for i, spec in enumerate(listed)]
        elif self.inside is not None:
            with self.inside.claim(encode(spec) for spec in listed) as keys:
                named = [merged({"idempotency_key": own}, spec) for own, spec in zip(keys, listed, strict=True)]
                return await self._submit_bulk(named, len(listed), keyed=True, kind=kind)
        return await self._submit_bulk(listed, len(listed), keyed=key is not None, kind=kind)

    async def submit_inputs(
        self, task: Spec, inputs: Iterable[Any], *, key: str | None = None, kind: Any = None
    ) -> list[AsyncHandle[Any]]:
        """Submit the same task over each of these inputs, all or none."""
        listed = list(inputs)
        if key is not None or self.inside is not None:
            return await self.submit_many((merged(task, {"input": each}) for each in listed), key=key, kind=kind)
        return await self._submit_bulk({"task": said(task), "inputs": listed}, len(listed), keyed=False, kind=kind)

    async def _submit_bulk(self, bulk: Any, count: int, *, keyed: bool, kind: Any) -> list[AsyncHandle[Any]]:
        if not count:
            return []
        accepted = await self._to.ask("POST", "/v1/tasks", AcceptedMany, body=encode(bulk), repeatable=keyed, timeout=BULK_TIMEOUT)
        if self.inside is not None:
            self.inside.submitted(accepted.ids)
        return self._handles(accepted.ids, kind, accepted)

    def _handles(self, ids: Sequence[str], kind: Any = None, accepted: AcceptedMany | None = None) -> list[AsyncHandle[Any]]:
        group = Group(ids)
        return [AsyncHandle(self, each, kind=kind, group=group, index=i, accepted=accepted) for i, each in enumerate(ids)]

    # -- waiting

    def handle(self, task_id: str | int) -> AsyncHandle[Any]:
        """A handle on a task submitted elsewhere."""
        return AsyncHandle(self, str(task_id), foreign=True)

    async def wait(self, ids: Iterable[str | int], *, timeout: float | None = None) -> list[TaskView]:
        """Wait until all of these tasks are final; their views in the same order."""
        asked = [str(task_id) for task_id in ids]
        try:
            async with asyncio.timeout(timeout) as limit:
                return [(await handle.wait(timeout)) for handle in self._handles(asked)]
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"not all of {len(asked)} tasks are final after {timeout} s") from None

    async def result(self, task_id: str | int, *, timeout: float | None = None) -> Any:
        """The result of a task, waited for; TaskFailed when it ends without one."""
        return await self.handle(task_id).result(timeout)

    async def ended(self, ids: Sequence[str]) -> dict[str, TaskView]:
        """Those of these tasks that are final now."""
        found: dict[str, TaskView] = {}
        for start in range(0, len(ids), LOOK):
            answer = await self._wait_call(ids[start : start + LOOK], 0.0)
            found |= {view.id: view for view in answer.done}
        return found

    async def _wait_call(self, ids: Sequence[str], held_s: float) -> Waited:
        body = encode({"ids": ids, "timeout": held_s})
        return await self._to.ask("POST", "/v1/tasks/wait", Waited, body=body, timeout=held_s + 30.0, repeatable=True)


def active() -> AsyncClient | None:
    """The AsyncClient whose `async with` surrounds the caller."""
    return _active.get()
