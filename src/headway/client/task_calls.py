"""Calls about tasks: look, steer, send along, save, and what became of the dead."""

from __future__ import annotations

import datetime
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from headway.client.calls import BULK_TIMEOUT, Calls, encode, segment, task_path
from headway.client.connection import Patience, with_query
from headway.errors import Unavailable
from headway.wire.views.answers import Changed
from headway.wire.views.explanations import Explanation
from headway.wire.views.tasks import AttemptView, DeadGroup, LogLine, Page, TaskView


class TaskCalls(Calls):
    """Of one task, or of those that a filter lets through."""

    async def get(self, task_id: str | int, *, wait: float | None = None) -> TaskView:
        """Everything known about a task; with `wait`, held until it is final or so many seconds are over."""
        timeout = 30.0 + (wait or 0.0)
        return await self._to.ask("GET", task_path(task_id), TaskView, query={"wait": wait}, timeout=timeout)

    async def page(self, /, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        """One page of tasks, newest first. Filters: state, name, label ("k=v" or a mapping), node, q (text), since,
        until, tree, category; state and label may be lists."""
        query = {**as_query(filters), "limit": limit, "cursor": cursor}
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
        return await self._to.ask("GET", task_path(task_id, "attempts"), list[AttemptView])

    async def logs(
        self, task_id: str | int, *, follow: bool = False, attempt: int | None = None, stream: str | None = None
    ) -> AsyncIterator[LogLine]:
        """The output of a task as it was written, in pieces; with `follow` until it ends, also when the server restarts meanwhile."""
        query = {"follow": int(follow), "attempt": attempt, "stream": stream}
        after, came, patience = None, False, Patience(self._to.patience)
        while True:
            try:
                async for line in self._to.lines(task_path(task_id, "logs"), {**query, "after": after}):
                    if line:
                        entry = msgspec.json.decode(line, type=LogLine)
                        after, came, patience = entry.position, True, Patience(self._to.patience)
                        yield entry
                return
            except (ConnectionError, TimeoutError, Unavailable) as error:
                if came and after is None:
                    raise
                await self._to.after_loss(error, patience, again=follow)

    async def explain(self, task_id: str | int) -> Explanation:
        """Why a task does not run, what would start it, and when it will probably start; of one that ended, where its time went."""
        return await self._to.ask("GET", task_path(task_id, "explain"), Explanation)

    async def change(self, task_id: str | int, /, **fields: Any) -> TaskView:
        """Change some fields of a task that no node has yet: `change(task_id, delay_tolerance=0)`."""
        return await self._to.ask("PATCH", task_path(task_id), TaskView, body=encode(fields))

    async def cancel(self, task_id: str | int) -> TaskView:
        """Ask for the end of a task. One that runs ends a little later: wait for it to know."""
        return await self._to.ask("POST", task_path(task_id, "cancel"), TaskView, repeatable=True)

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
        path, repeatable = task_path(task_id, word), word != "signal"
        return await self._to.ask(
            "POST", path, TaskView, query={"wait": wait}, body=body, timeout=30.0 + wait, repeatable=repeatable
        )

    async def retry(self, task_id: str | int, *, edit: Mapping[str, Any] | None = None) -> TaskView:
        """Send a dead letter again, with some of its fields changed if asked."""
        body = encode({"edit": edit}) if edit else b""
        return await self._to.ask("POST", task_path(task_id, "retry"), TaskView, body=body)

    async def once(self, task_id: str | int, body: bytes) -> dict[str, Any]:
        """A step of a claim, from inside the task (client/once.py). The same step again changes nothing."""
        return await self._to.ask("POST", task_path(task_id, "once"), dict[str, Any], body=body, repeatable=True)

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
        await self._to.ask("PUT", f"/v1/secrets/{segment(name)}", dict[str, Any], body=encode({"value": value}), repeatable=True)

    async def secrets(self) -> list[dict[str, Any]]:
        """The names of secrets and when they were last set."""
        return await self._to.ask("GET", "/v1/secrets", list[dict[str, Any]])

    async def remove_secret(self, name: str) -> None:
        await self._to.ask("DELETE", f"/v1/secrets/{segment(name)}", dict[str, Any], repeatable=True)

    async def save_checkpoint(self, task_id: str | int, content: bytes) -> None:
        """Durable when it returns."""
        await self._to.send("PUT", task_path(task_id, "checkpoint"), body=content, repeatable=True, timeout=BULK_TIMEOUT)

    async def last_checkpoint(self, task_id: str | int) -> bytes:
        """The value that a task saved last; NotFound when it has saved none."""
        return (await self._to.send("GET", task_path(task_id, "checkpoint"), timeout=BULK_TIMEOUT)).body

    async def dead_letters(self, /, *, limit: int = 50, cursor: str | None = None, **filters: Any) -> Page:
        query = {**as_query(filters), "limit": limit, "cursor": cursor}
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


def as_query(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Filters as the query writes them: labels as k=v, moments in ISO 8601."""
    found = dict(filters)
    if isinstance(label := found.get("label"), Mapping):
        found["label"] = [f"{name}={value}" for name, value in label.items()]
    for name in ("since", "until"):
        if isinstance(moment := found.get(name), datetime.datetime):
            found[name] = moment.isoformat()
    return found
