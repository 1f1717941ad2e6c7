"""TCP ports for tasks: reserved while the task runs, given to it as HEADWAY_PORTS and PORT (G1).

Several agents of a machine may have the same ports to give, and a task need not listen on its own at once. So a port that is given is also
claimed by the name of a socket that exists as long as its holder, and where the port does: in this network namespace.
"""

from __future__ import annotations

import socket
import sys
from collections import deque


class Ports:
    def __init__(self, first: int, count: int) -> None:
        self._free = deque(range(first, first + count))
        self._claims: dict[int, socket.socket] = {}

    def take(self, wanted: int) -> tuple[int, ...]:
        """Ports that nobody listens on now; OSError when there are not enough."""
        found: list[int] = []
        for _ in range(len(self._free)):
            if len(found) == wanted:
                break
            port = self._free.popleft()
            if _is_free(port) and self._claim(port):
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
        for port in ports:
            if (claim := self._claims.pop(port, None)) is not None:
                claim.close()

    def _claim(self, port: int) -> bool:
        """Whether no other agent has it. Names that are no files are Linux's own."""
        if sys.platform != "linux":
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0headway-port-{port}")
        except OSError:
            claim.close()
            return False
        self._claims[port] = claim
        return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
