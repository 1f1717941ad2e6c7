"""What one tenant may hold of the connections for people's questions: its slow searches leave some for others (L4 E5)."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from headway.errors import Unavailable


class Share:
    """One tenant's. More than it has room for wait in a line of their own, where they are in nobody else's way."""

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)

    async def enter(self, timeout: float) -> None:
        """Unavailable when there is no room for so long."""
        try:
            async with asyncio.timeout(timeout):
                await self._room.acquire()
        except TimeoutError:
            raise Unavailable(
                "searches of your tenant keep its part of the connections to the database busy",
                retry_after=1.0, hint="ask for less at once, or for less: a shorter time, a state, a tree",
            ) from None  # fmt: skip

    def leave(self) -> None:
        self._room.release()


class Shares:
    """Two thirds of `size` connections for each, at least one; who asks for nothing has none."""

    def __init__(self, size: int) -> None:
        self._most = max(size * 2 // 3, 1)
        self._shares: WeakValueDictionary[int, Share] = WeakValueDictionary()

    def of(self, tenant: int) -> Share:
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = Share(self._most)
        return share
