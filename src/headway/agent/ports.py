"""TCP ports for tasks: reserved while the task runs, given to it as HEADWAY_PORTS and PORT (G1)."""

from __future__ import annotations

import socket
from collections import deque


class Ports:
    def __init__(self, first: int, count: int) -> None:
        self._free = deque(range(first, first + count))

    def take(self, wanted: int) -> tuple[int, ...]:
        """Ports that nobody listens on now; OSError when there are not enough."""
        found: list[int] = []
        for _ in range(len(self._free)):
            if len(found) == wanted:
                break
            port = self._free.popleft()
            if _is_free(port):
                found.append(port)
            else:
                self._free.append(port)  # somebody else's for now
        if len(found) < wanted:
            self.give_back(found)
            raise OSError(f"{wanted} TCP ports are needed and only {len(found)} of this node's are free")
        return tuple(found)

    def give_back(self, ports: tuple[int, ...] | list[int]) -> None:
        """To the end of the line: whoever still talks to the old task finds nobody for a while."""
        self._free.extend(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
