"""Calls about trees."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable

from headway.client.calls import BULK_TIMEOUT, STREAM_TIMEOUT, Calls, Spec, encode, said, segment
from headway.client.connection import read, with_query
from headway.client.waiting import HELD_S
from headway.domain.tree import EAGER
from headway.wire.views.tasks import AcceptedMany
from headway.wire.views.trees import TreePage, TreeView


class TreeCalls(Calls):
    """Of whole trees."""

    async def submit_tree(self, name: str, tasks: Iterable[Spec], *, levels: str = EAGER, key: str | None = None) -> AcceptedMany:
        """Submit named tasks that wait for each other (`after`), as one tree. `levels="strict"`: each level waits for the one below.
        The same `key` gives the first tree back; without one it gets a key of its own, so that a lost answer can be asked for again."""
        body = encode({"name": name, "tasks": [said(task) for task in tasks], "levels": levels})
        headers = {"idempotency-key": key or f"auto-{secrets.token_hex(12)}"}
        return await self._to.ask(
            "POST", "/v1/trees", AcceptedMany, body=body, headers=headers, repeatable=True, timeout=BULK_TIMEOUT
        )

    async def stream_tree(self, name: str, tasks: Iterable[Spec], *, levels: str = EAGER) -> AcceptedMany:
        """The same for trees of any size; their ids are not answered."""
        body = b"\n".join(encode(said(task)) for task in tasks)
        query = {"name": name, "levels": levels}
        return await self._to.ask("POST", "/v1/trees/stream", AcceptedMany, query=query, body=body, timeout=STREAM_TIMEOUT)

    async def tree(self, tree_id: str | int) -> TreeView:
        return await self._to.ask("GET", f"/v1/trees/{segment(tree_id)}", TreeView)

    async def watch_tree(self, tree_id: str | int) -> AsyncIterator[TreeView]:
        """The tree now and after each change, until all of its tasks are final."""
        seen = None
        while True:
            target = with_query(f"/v1/trees/{segment(tree_id)}", {"wait": HELD_S, "seen": seen})
            response = await self._to.send("GET", target, timeout=HELD_S + 30.0)
            if response.headers.get("etag") == seen is not None:
                continue  # the time was over and nothing had changed
            seen = response.headers.get("etag")
            view = read(response, TreeView)
            yield view
            if all(level.left == 0 for level in view.levels):
                return

    async def wait_tree(self, tree_id: str | int, timeout: float | None = None) -> TreeView:
        """The tree when all of it has ended, however. TimeoutError when it has not within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout) as limit:
                async for view in self.watch_tree(tree_id):
                    last = view
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"tree {tree_id} has not ended after {timeout:g} s") from None
        return last

    async def trees(self, *, name: str | None = None, limit: int = 50, cursor: str | None = None) -> TreePage:
        """Trees, newest first."""
        return await self._to.ask("GET", "/v1/trees", TreePage, query={"name": name, "limit": limit, "cursor": cursor})

    async def retry_tree(self, tree_id: str | int) -> TreeView:
        """Run what failed of a tree again, and what was skipped behind it."""
        return await self._to.ask("POST", f"/v1/trees/{segment(tree_id)}/retry", TreeView, timeout=STREAM_TIMEOUT)

    async def cancel_tree(self, tree_id: str | int) -> TreeView:
        return await self._to.ask("POST", f"/v1/trees/{segment(tree_id)}/cancel", TreeView, timeout=STREAM_TIMEOUT, repeatable=True)
