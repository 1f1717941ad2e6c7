"""Calls about the installation: nodes, queues, numbers, webhooks, events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headway.client.calls import Calls, encode, segment
from headway.client.connection import Patience
from headway.client.streams import events_of
from headway.errors import Unavailable
from headway.wire.views.answers import Changed
from headway.wire.views.events import DeliveryView, EventView, WebhookView
from headway.wire.views.fleet import NodeView, QueueView, Stats
from headway.wire.views.tasks import ResourcesView
from headway.wire.views.tenants import LimitsView


class FleetCalls(Calls):
    """Of what runs the tasks, and of what it tells."""

    async def nodes(self) -> list[NodeView]:
        return await self._to.ask("GET", "/v1/nodes", list[NodeView])

    async def node(self, node: str | int) -> NodeView:
        return await self._to.ask("GET", f"/v1/nodes/{segment(node)}", NodeView)

    async def drain(self, node: str | int) -> NodeView:
        """Let a node finish what it runs and give it nothing new."""
        return await self._to.ask("POST", f"/v1/nodes/{segment(node)}/drain", NodeView, repeatable=True)

    async def undrain(self, node: str | int) -> NodeView:
        return await self._to.ask("POST", f"/v1/nodes/{segment(node)}/undrain", NodeView, repeatable=True)

    async def remove_node(self, node: str | int) -> Changed:
        """Forget a node that is lost or gone, and for which no task shall wait."""
        return await self._to.ask("DELETE", f"/v1/nodes/{segment(node)}", Changed)

    async def queues(self) -> list[QueueView]:
        return await self._to.ask("GET", "/v1/queues", list[QueueView])

    async def stats(self) -> Stats:
        return await self._to.ask("GET", "/v1/stats", Stats)

    async def tiers(self) -> dict[str, ResourcesView]:
        return await self._to.ask("GET", "/v1/tiers", dict[str, ResourcesView])

    async def limits(self) -> LimitsView:
        """What your tenant may use, uses, and has left."""
        return await self._to.ask("GET", "/v1/limits", LimitsView)

    async def whoami(self) -> dict[str, str]:
        return await self._to.ask("GET", "/v1/whoami", dict[str, str])

    async def webhooks(self) -> list[WebhookView]:
        return await self._to.ask("GET", "/v1/webhooks", list[WebhookView])

    async def create_webhook(self, name: str, url: str, /, **fields: Any) -> WebhookView:
        """A new endpoint (`events=["failed", ...]`); its secret is in the answer and cannot be asked for later."""
        return await self._to.ask("POST", "/v1/webhooks", WebhookView, body=encode({"name": name, "url": url, **fields}))

    async def delete_webhook(self, name: str) -> Changed:
        return await self._to.ask("DELETE", f"/v1/webhooks/{segment(name)}", Changed)

    async def rotate_webhook(self, name: str) -> WebhookView:
        """A new secret; for a day messages are signed with the old one too."""
        return await self._to.ask("POST", f"/v1/webhooks/{segment(name)}/rotate", WebhookView)

    async def deliveries(self, name: str, *, state: str | None = None) -> list[DeliveryView]:
        return await self._to.ask("GET", f"/v1/webhooks/{segment(name)}/deliveries", list[DeliveryView], query={"state": state})

    async def replay_webhook(self, name: str, /, **which: Any) -> Changed:
        """Send messages again: `messages=[...]`, `dead=True` or `since=...`."""
        return await self._to.ask("POST", f"/v1/webhooks/{segment(name)}/replay", Changed, body=encode(which))

    async def events(self, *kinds: str, after: str | None = None) -> AsyncIterator[EventView]:
        """Facts as they happen, of these kinds (`"failed"`, `"killed"`, `"finished"`) or all. After a lost connection it goes on behind the
        last one seen; none is left out."""
        patience, query = Patience(self._to.patience), {"kind": ",".join(kinds)} if kinds else None
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
            try:
                async for event in events_of(self._to.lines("/v1/events", query, **headers)):
                    patience = Patience(self._to.patience)
                    after = event.id
                    yield event
                trouble: Exception = ConnectionError("the server ended the stream of events")
            except (ConnectionError, TimeoutError, Unavailable) as error:
                trouble = error
            await self._to.after_loss(trouble, patience, again=True)
