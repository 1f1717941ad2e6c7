"""Sends messages to endpoints; every server does (J6).

A message is claimed by moving its time on, so that a server that dies with it only delays it: delivered at least once. A bounded
number is on the way at once, and few of them to one endpoint, so that a slow one does not hold up the others.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from headway import telemetry
from headway.control.clock import Clock
from headway.control.posting import Posted, post
from headway.control.sealing import Seal
from headway.control.webhooks import sealed_in
from headway.domain.addresses import Network
from headway.errors import ConfigError, Unavailable
from headway.logs import log
from headway.policy.webhook import next_try, signature
from headway.store.database import Database
from headway.store.queries import query

LOOK_S = 5.0
PAUSE_S = 0.5  # after the database failed
EACH = 8  # messages on the way to one endpoint before others go first

_CLAIM = query("webhook.claim")
_NEXT = query("webhook.next_due")
_DELIVERED = query("webhook.delivered")
_FAILED = query("webhook.failed")


@dataclass
class Deliveries:
    database: Database
    clock: Clock
    seal: Seal
    allowed: Sequence[Network]
    timeout_s: float
    concurrency: int
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: Counter[int] = field(default_factory=Counter)  # by endpoint
    _sending: set[asyncio.Task[None]] = field(default_factory=set)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    rest = await self._start_due()
                except (Unavailable, asyncpg.PostgresError) as error:
                    log("webhooks.wait", level="warning", error=str(error))
                    rest = PAUSE_S
                try:
                    async with asyncio.timeout(rest):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._sending:
                task.cancel()

    async def _start_due(self) -> float:
        """Begin to send what is due and may be sent; returns how long to wait for more."""
        room, each = self.concurrency - len(self._sending), max(min(EACH, self.concurrency // 3), 1)
        full = [webhook for webhook, count in self._busy.items() if count >= each]
        if room <= 0:
            return LOOK_S
        async with self.database.cold() as connection:
            rows = await connection.fetch(_CLAIM, min(room, each), self.timeout_s * 2 + 5, full)
            if not rows:
                due: float | None = await connection.fetchval(_NEXT)
                return LOOK_S if due is None else min(max(due, 0.05), LOOK_S)
        for row in rows:
            self._busy[row["webhook"]] += 1
            task = asyncio.get_running_loop().create_task(self._send(row))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        self._wake.set()
        return LOOK_S

    async def _send(self, row: Any) -> None:
        try:
            posted = await self._post(row)
            await self._settle(row, posted)
        except (Unavailable, asyncpg.PostgresError) as error:
            log("webhook.unsettled", level="warning", message=row["message"], error=str(error))  # it is sent once more
        finally:
            self._busy[row["webhook"]] -= 1
            if self._busy[row["webhook"]] <= 0:
                del self._busy[row["webhook"]]
            self._wake.set()

    async def _post(self, row: Any) -> Posted:
        body, now = row["body"].encode(), int(self.clock.now().timestamp())
        try:
            secrets = [self._opened(row, secret) for secret in (row["secret"], row["old_secret"]) if secret]
        except (Unavailable, ConfigError) as error:  # never sent unsigned; the next try may be a server's that has the key
            log("webhook.not_signed", level="error", message=row["message"], error=str(error))
            return Posted(None, str(error))
        headers = {
            "webhook-id": row["message"],
            "webhook-timestamp": str(now),
            "webhook-signature": signature(row["message"], now, body, secrets),
        }
        return await post(row["url"], body, headers, allowed=self.allowed, timeout=self.timeout_s)

    def _opened(self, row: Any, secret: str) -> str:
        return self.seal.open_text(
            secret, sealed_in(row["tenant"], row["name"]), called=f"the secret of the webhook {row['name']!r}"
        )

    async def _settle(self, row: Any, posted: Posted) -> None:
        async with self.database.cold() as connection:
            if posted.good:
                await connection.execute(_DELIVERED, row["id"], posted.status)
                telemetry.delivered("delivered")
                return
            delay = next_try(row["attempts"], posted.status, wait_s=posted.wait_s, luck=random.random())
            await connection.execute(_FAILED, row["id"], posted.status, posted.error, delay)
        telemetry.delivered("dead" if delay is None else "failed")
        if delay is None:
            log("webhook.dead", level="warning", message=row["message"], error=posted.error)
