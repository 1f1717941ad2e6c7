"""How far ahead of what runs each node is supplied, by how it took what it was given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headway.policy.pace import Pace
from headway.policy.rest import Rest
from headway.policy.room import Rooms


class Supply:
    def __init__(self, rooms: Callable[[], Rooms], wake: Callable[[], None]) -> None:
        self._rooms, self._wake = rooms, wake
        self.paces: dict[int, Pace] = {}
        self.rests: dict[int, Rest] = {}

    def finished(self, node: int, count: int) -> None:
        """So many attempts ended on a node that is known."""
        now = time.monotonic()
        pace, there = self.paces.setdefault(node, Pace()), self._rooms()[node]
        pace.finished(count, now, held=there.held, at_once=there.at_once)
        if there.ahead != (ahead := pace.ahead(now)):
            there.ahead = ahead
            self._rooms().gained(node)

    def ahead(self) -> int:
        """How many tasks all nodes lack of what they should hold; those that finished nothing for a while lack nothing."""
        now, lacking = time.monotonic(), 0
        for node, there in self._rooms().items():
            if there.ahead > there.held:
                there.ahead = self.paces[node].ahead(now)
                lacking += max(there.ahead - there.held, 0)
        return lacking

    def returned(self, node: int) -> None:
        """A node that is known gave back what it had not begun: nothing ahead of what runs there, and nothing at all for a while."""
        self.paces.setdefault(node, Pace()).stalled()
        there = self._rooms()[node]
        there.ahead = 0
        if rest := self.rests.setdefault(node, Rest()).returned(time.monotonic()):
            there.rests = True
            self._rooms().gained(node)
            asyncio.get_running_loop().call_later(rest, self._rested, node)

    def _rested(self, node: int) -> None:
        there = self._rooms().get(node)
        if there is not None:
            there.rests = False
            self._rooms().gained(node)
            self._wake()
