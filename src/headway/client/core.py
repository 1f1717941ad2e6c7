"""The client: every call of the API, once, asynchronously. `Client` (face.py) is a thin synchronous face over it.

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
import datetime
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

import msgspec

from headway import config
from headway.client import inside
from headway.client.connection import Connection, Patience, read, with_query
from headway.client.discovery import find
from headway.client.handles import AsyncHandle, Group
from headway.client.streams import events_of
from headway.client.waiting import HELD_S, Waited, Waiter
from headway.domain.spec import TaskSpec
from headway.domain.tree import EAGER
from headway.errors import Unavailable
from headway.wire.views.answers import Changed
from headway.wire.views.events import DeliveryView, EventView, WebhookView
from headway.wire.views.fleet import NodeView, QueueView, Stats
from headway.wire.views.predictions import PredictionsView
from headway.wire.views.schedules import AppliedView, Backfilled, FiringView, SchedulePage, ScheduleView
from headway.wire.views.tasks import Accepted, AcceptedMany, AttemptView, DeadGroup, LogLine, Page, ResourcesView, TaskView
from headway.wire.views.trees import TreePage, TreeView

Spec = TaskSpec | Mapping[str, Any]

LOOK = 1000  # tasks whose ends are asked for in one request
STREAM_TIMEOUT = 900.0  # of a tree of millions of tasks
BULK_TIMEOUT = 120.0  # a bulk of tens of megabytes may wait for its commit behind others

_active: ContextVar[AsyncClient | None] = ContextVar("headway_async_client", default=None)


class AsyncClient:
    """A connection to Headway. Without arguments it finds its server as the command line does (discovery.py).

    `patience`: for how many seconds to keep trying while the server is away or busy.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, tls_ca: str | None = None, patience: float = 30.0
    ) -> None:
        settings = config.load()
        place = find(settings, url=url, token=token)
        if place is None:
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
        return AsyncHandle(self, (await self.accept(merged(spec, fields))).id)

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

    async def submit_tree(self, name: str, tasks: Iterable[Spec], *, levels: str = EAGER) -> AcceptedMany:
        """Submit named tasks that wait for each other (`after`), as one tree. `levels="strict"`: each level waits for the one below."""
        body = encode({"name": name, "tasks": [said(task) for task in tasks], "levels": levels})
        return await self._to.ask("POST", "/v1/trees", AcceptedMany, body=body, timeout=BULK_TIMEOUT)

    async def stream_tree(self, name: str, tasks: Iterable[Spec], *, levels: str = EAGER) -> AcceptedMany:
        """The same for trees of any size; their ids are not answered."""
        body = b"\n".join(encode(said(task)) for task in tasks)
        query = {"name": name, "levels": levels}
        return await self._to.ask("POST", "/v1/trees/stream", AcceptedMany, query=query, body=body, timeout=STREAM_TIMEOUT)

    async def _submit_bulk(self, bulk: Any, count: int, *, keyed: bool, kind: Any) -> list[AsyncHandle[Any]]:
        if not count:
            return []
        accepted = await self._to.ask("POST", "/v1/tasks", AcceptedMany, body=encode(bulk), repeatable=keyed, timeout=BULK_TIMEOUT)
        if self.inside is not None:
            self.inside.submitted(accepted.ids)
        return self._handles(accepted.ids, kind)

    def _handles(self, ids: Sequence[str], kind: Any = None) -> list[AsyncHandle[Any]]:
        group = Group(ids)
        return [AsyncHandle(self, each, kind=kind, group=group, index=i) for i, each in enumerate(ids)]

    # -- asking about tasks

    def handle(self, task_id: str | int) -> AsyncHandle[Any]:
        """A handle on a task submitted elsewhere."""
        return AsyncHandle(self, str(task_id), foreign=True)

    async def get(self, task_id: str | int, *, wait: float | None = None) -> TaskView:
        """Everything known about a task; with `wait`, held until it is final or so many seconds are over."""
        timeout = 30.0 + (wait or 0.0)
        return await self._to.ask("GET", _task(task_id), TaskView, query={"wait": wait}, timeout=timeout)

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

    async def page(self, /, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """One page of tasks, newest first. Filters: state, name, label ("k=v" or a mapping), node, q (text), since,
        until, tree, category; state and label may be lists."""
        query = {**_filters(filters), "limit": limit, "cursor": cursor}
        return await self._to.ask("GET", "/v1/tasks", Page, query=query)

    async def iterate(self, /, *, size: int = 500, **filters: Any) -> AsyncIterator[TaskView]:
        """Every task that the filters of page() let through, page by page."""
        cursor = None
        while True:
            found = await self.page(limit=size, cursor=cursor, **filters)
            for view in found.tasks:
                yield view
            cursor = found.next
            if cursor is None:
                return

    async def attempts(self, task_id: str | int) -> list[AttemptView]:
        return await self._to.ask("GET", _task(task_id, "attempts"), list[AttemptView])

    async def logs(
        self, task_id: str | int, *, follow: bool = False, attempt: int | None = None, stream: str | None = None
    ) -> AsyncIterator[LogLine]:
        """The output of a task, line by line; with `follow` until it ends."""
        query = {"follow": int(follow), "attempt": attempt, "stream": stream}
        async for line in self._to.lines(_task(task_id, "logs"), query):
            if line:
                yield msgspec.json.decode(line, type=LogLine)

    # -- changing tasks

    async def cancel(self, task_id: str | int) -> TaskView:
        """Ask for the end of a task. One that runs ends a little later: wait for it to know."""
        return await self._to.ask("POST", _task(task_id, "cancel"), TaskView, repeatable=True)

    async def pause(self, task_id: str | int, *, wait: float = 10.0) -> TaskView:
        """Keep a waiting task from starting, or freeze a running one; returns when its node has, or after `wait` seconds."""
        return await self._steer(task_id, "pause", wait)

    async def resume(self, task_id: str | int, *, wait: float = 10.0) -> TaskView:
        """Let a paused task go on."""
        return await self._steer(task_id, "resume", wait)

    async def signal(self, task_id: str | int, name: str, *, wait: float = 10.0) -> TaskView:
        """Send a signal ("USR1", "HUP" ...) to the program of a running task."""
        return await self._steer(task_id, "signal", wait, encode({"signal": name}))

    async def _steer(self, task_id: str | int, word: str, wait: float, body: bytes = b"") -> TaskView:
        path, repeatable = _task(task_id, word), word != "signal"
        return await self._to.ask(
            "POST", path, TaskView, query={"wait": wait}, body=body, timeout=30.0 + wait, repeatable=repeatable
        )

    async def retry(self, task_id: str | int, *, edit: Mapping[str, Any] | None = None) -> TaskView:
        """Send a dead letter again, with some of its fields changed if asked."""
        body = encode({"edit": edit}) if edit else b""
        return await self._to.ask("POST", _task(task_id, "retry"), TaskView, body=body)

    async def once(self, task_id: str | int, body: bytes) -> dict[str, Any]:
        """A step of a claim, from inside the task (client/once.py). The same step again changes nothing."""
        return await self._to.ask("POST", _task(task_id, "once"), dict[str, Any], body=body, repeatable=True)

    # -- content

    async def upload(self, path: str | os.PathLike[str]) -> str:
        """Send a file along; what this returns is an `executable` (or an archive) of tasks."""
        with open(path, "rb") as file:
            content = file.read()
        name = os.path.basename(os.fspath(path))
        target = with_query("/v1/uploads", {"name": name})
        answer = await self._to.ask("POST", target, dict[str, Any], body=content, repeatable=True, timeout=BULK_TIMEOUT)
        return str(answer["executable"])

    async def set_secret(self, name: str, value: str) -> None:
        """Set a secret of this tenant; nobody can read it back."""
        await self._to.ask("PUT", f"/v1/secrets/{_segment(name)}", dict[str, Any], body=encode({"value": value}), repeatable=True)

    async def secrets(self) -> list[dict[str, Any]]:
        """The names of secrets and when they were last set."""
        return await self._to.ask("GET", "/v1/secrets", list[dict[str, Any]])

    async def remove_secret(self, name: str) -> None:
        await self._to.ask("DELETE", f"/v1/secrets/{_segment(name)}", dict[str, Any], repeatable=True)

    # -- checkpoints, of the running task that this client belongs to

    async def save_checkpoint(self, task_id: str | int, content: bytes) -> None:
        """Durable when it returns."""
        await self._to.send("PUT", _task(task_id, "checkpoint"), body=content, repeatable=True, timeout=BULK_TIMEOUT)

    async def last_checkpoint(self, task_id: str | int) -> bytes:
        """The value that a task saved last; NotFound when it has saved none."""
        return (await self._to.send("GET", _task(task_id, "checkpoint"), timeout=BULK_TIMEOUT)).body

    # -- dead letters

    async def dead_letters(self, /, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        query = {**_filters(filters), "limit": limit, "cursor": cursor}
        return await self._to.ask("GET", "/v1/dead-letters", Page, query=query)

    async def dead_groups(self) -> list[DeadGroup]:
        """Dead letters grouped by what they died of."""
        return await self._to.ask("GET", "/v1/dead-letters", list[DeadGroup], query={"group": 1})

    async def retry_dead(self, /, *, edit: Mapping[str, Any] | None = None, **which: Any) -> Changed:
        """Send dead letters again: `ids=[...]`, `fingerprint=...`, `name=...` or `all=True`."""
        body = encode({**which, "edit": edit} if edit else which)
        return await self._to.ask("POST", "/v1/dead-letters/retry", Changed, body=body)

    async def purge_dead(self, /, **which: Any) -> Changed:
        """Delete dead letters for good, named as for retry_dead()."""
        return await self._to.ask("POST", "/v1/dead-letters/purge", Changed, body=encode(which), repeatable=True)

    # -- schedules

    async def apply(self, name: str, /, *, task: Spec | None = None, tasks: Iterable[Spec] | None = None, **when: Any) -> AppliedView:
        """Make a schedule what this says; the same again changes nothing. `task`, or the `tasks` of a tree; `schedule` (0, seconds,
        "daily", cron ...), `timezone`, `start`, `end`, `jitter`, `overlap`, `misfire`."""
        body: dict[str, Any] = {**when}
        if task is not None:
            body["task"] = said(task)
        if tasks is not None:
            body["tasks"] = [said(each) for each in tasks]
        return await self._to.ask("PUT", _schedule(name), AppliedView, body=encode(body), timeout=BULK_TIMEOUT)

    async def apply_many(self, schedules: Iterable[Mapping[str, Any]]) -> list[AppliedView]:
        """Apply many schedules, each a mapping as apply() takes it, with its name; all or none."""
        body = encode(list(schedules))
        return await self._to.ask("POST", "/v1/schedules", list[AppliedView], body=body, repeatable=True, timeout=BULK_TIMEOUT)

    async def schedules(self) -> list[ScheduleView]:
        """All of them, with the next firing of each."""
        found: list[ScheduleView] = []
        cursor: str | None = None
        while True:
            page = await self._to.ask("GET", "/v1/schedules", SchedulePage, query={"limit": 1000, "cursor": cursor})
            found += page.schedules
            cursor = page.next
            if cursor is None:
                return found

    async def schedule(self, name: str, *, next: int = 5, past: int = 10) -> ScheduleView:
        """One schedule with its next firings and its past ones."""
        return await self._to.ask("GET", _schedule(name), ScheduleView, query={"next": next, "past": past})

    async def pause_schedule(self, name: str) -> ScheduleView:
        return await self._to.ask("POST", _schedule(name, "pause"), ScheduleView, repeatable=True)

    async def resume_schedule(self, name: str) -> ScheduleView:
        return await self._to.ask("POST", _schedule(name, "resume"), ScheduleView, repeatable=True)

    async def trigger(self, name: str) -> FiringView:
        """Run it now; `run` of the answer is the id of its task or tree."""
        return await self._to.ask("POST", _schedule(name, "trigger"), FiringView)

    async def backfill(
        self, name: str, since: datetime.datetime | str, until: datetime.datetime | str, *, overlap: str = "queue"
    ) -> Backfilled:
        """Make up for the moments from `since` on and before `until` that did not run."""
        body = encode({"since": _moment(since), "until": _moment(until), "overlap": overlap})
        return await self._to.ask("POST", _schedule(name, "backfill"), Backfilled, body=body, repeatable=True)

    async def delete_schedule(self, name: str) -> Changed:
        return await self._to.ask("DELETE", _schedule(name), Changed)

    async def predict(self, tasks: Iterable[Spec]) -> PredictionsView:
        """What these tasks are expected to take, one by one and as a tree, from earlier runs."""
        return await self._to.ask("POST", "/v1/predictions", PredictionsView, body=encode({"tasks": [said(task) for task in tasks]}))

    # -- trees, nodes, numbers

    async def tree(self, tree_id: str | int) -> TreeView:
        return await self._to.ask("GET", f"/v1/trees/{_segment(tree_id)}", TreeView)

    async def watch_tree(self, tree_id: str | int) -> AsyncIterator[TreeView]:
        """The tree now and after each change, until all of its tasks are final."""
        seen = None
        while True:
            target = with_query(f"/v1/trees/{_segment(tree_id)}", {"wait": HELD_S, "seen": seen})
            response = await self._to.send("GET", target, timeout=HELD_S + 30.0)
            if response.headers.get("etag") == seen is not None:
                continue  # the time was over and nothing had changed
            seen = response.headers.get("etag")
            view = read(response, TreeView)
            yield view
            if all(level.left == 0 for level in view.levels):
                return

    async def trees(self, *, name: str | None = None, limit: int = 50, cursor: str | None = None) -> TreePage:
        """Trees, newest first."""
        return await self._to.ask("GET", "/v1/trees", TreePage, query={"name": name, "limit": limit, "cursor": cursor})

    async def retry_tree(self, tree_id: str | int) -> TreeView:
        """Run what failed of a tree again, and what was skipped behind it."""
        return await self._to.ask("POST", f"/v1/trees/{_segment(tree_id)}/retry", TreeView, timeout=STREAM_TIMEOUT)

    async def cancel_tree(self, tree_id: str | int) -> TreeView:
        return await self._to.ask("POST", f"/v1/trees/{_segment(tree_id)}/cancel", TreeView, timeout=STREAM_TIMEOUT, repeatable=True)

    async def nodes(self) -> list[NodeView]:
        return await self._to.ask("GET", "/v1/nodes", list[NodeView])

    async def node(self, node: str | int) -> NodeView:
        return await self._to.ask("GET", f"/v1/nodes/{_segment(node)}", NodeView)

    async def drain(self, node: str | int) -> NodeView:
        """Let a node finish what it runs and give it nothing new."""
        return await self._to.ask("POST", f"/v1/nodes/{_segment(node)}/drain", NodeView, repeatable=True)

    async def undrain(self, node: str | int) -> NodeView:
        return await self._to.ask("POST", f"/v1/nodes/{_segment(node)}/undrain", NodeView, repeatable=True)

    async def queues(self) -> list[QueueView]:
        return await self._to.ask("GET", "/v1/queues", list[QueueView])

    async def stats(self) -> Stats:
        return await self._to.ask("GET", "/v1/stats", Stats)

    async def tiers(self) -> dict[str, ResourcesView]:
        return await self._to.ask("GET", "/v1/tiers", dict[str, ResourcesView])

    async def whoami(self) -> dict[str, str]:
        return await self._to.ask("GET", "/v1/whoami", dict[str, str])

    async def webhooks(self) -> list[WebhookView]:
        return await self._to.ask("GET", "/v1/webhooks", list[WebhookView])

    async def create_webhook(self, name: str, url: str, /, **fields: Any) -> WebhookView:
        """A new endpoint (`events=["failed", ...]`); its secret is in the answer and cannot be asked for later."""
        return await self._to.ask("POST", "/v1/webhooks", WebhookView, body=encode({"name": name, "url": url, **fields}))

    async def delete_webhook(self, name: str) -> Changed:
        return await self._to.ask("DELETE", f"/v1/webhooks/{_segment(name)}", Changed)

    async def rotate_webhook(self, name: str) -> WebhookView:
        """A new secret; for a day messages are signed with the old one too."""
        return await self._to.ask("POST", f"/v1/webhooks/{_segment(name)}/rotate", WebhookView)

    async def deliveries(self, name: str, *, state: str | None = None) -> list[DeliveryView]:
        return await self._to.ask("GET", f"/v1/webhooks/{_segment(name)}/deliveries", list[DeliveryView], query={"state": state})

    async def replay_webhook(self, name: str, /, **which: Any) -> Changed:
        """Send messages again: `messages=[...]`, `dead=True` or `since=...`."""
        return await self._to.ask("POST", f"/v1/webhooks/{_segment(name)}/replay", Changed, body=encode(which))

    async def events(self, *, after: str | None = None) -> AsyncIterator[EventView]:
        """Facts as they happen. After a lost connection it goes on behind the last one seen; none is left out."""
        patience = Patience(self._to.patience)
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
            try:
                async for event in events_of(self._to.lines("/v1/events", None, **headers)):
                    patience = Patience(self._to.patience)
                    after = event.id
                    yield event
                trouble: Exception = ConnectionError("the server ended the stream of events")
            except (ConnectionError, TimeoutError, Unavailable) as error:
                trouble = error
            await patience.pause(trouble)

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


def merged(spec: Spec | None, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task with some of its fields changed."""
    if isinstance(spec, TaskSpec):
        spec = said(spec)
    return {**(spec or {}), **fields}


def said(spec: Spec) -> Mapping[str, Any]:
    """The fields that a task says. An input that is not there must not be: empty Raw is encoded as no JSON at all."""
    if not isinstance(spec, TaskSpec):
        return spec
    given = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {name: value for name, value in given.items() if value != getattr(_NOTHING_SAID, name)}


_NOTHING_SAID = TaskSpec()
encode = msgspec.json.Encoder().encode


def _task(task_id: str | int, *rest: str) -> str:
    return "/".join(("/v1/tasks", _segment(task_id), *rest))


def _schedule(name: str, *rest: str) -> str:
    return "/".join(("/v1/schedules", _segment(name), *rest))


def _moment(at: datetime.datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()


def _segment(name: str | int) -> str:
    return quote(str(name), safe="")


def _filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Filters as the query writes them: labels as k=v, moments in ISO 8601."""
    found = dict(filters)
    if isinstance(label := found.get("label"), Mapping):
        found["label"] = [f"{name}={value}" for name, value in label.items()]
    for name in ("since", "until"):
        if isinstance(moment := found.get(name), datetime.datetime):
            found[name] = moment.isoformat()
    return found
