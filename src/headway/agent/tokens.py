"""What a running task needs to talk to a server as itself: where it is, and the token of its attempt (C4)."""

from __future__ import annotations

from headway.agent.sandbox import AUTHORITY, DOOR
from headway.agent.scratch import read_plain
from headway.domain.isolation import through_door
from headway.domain.task import Definition
from headway.wire import task_token
from headway.wire.exchange import Order

Way = tuple[str, str | None]  # where the server is, and the authority to know it by


class Tokens:
    """Makes tokens with the key that came with the registration; without one, tasks have none. An isolated task without the node's
    network reaches the server through the door."""

    def __init__(self, url: str = "", tls_ca: str | None = None) -> None:
        self._url, self._tls_ca = url, tls_ca
        self.key = b""

    def way(self, definition: Definition) -> Way:
        """As its tasks see it."""
        if through_door(definition):
            return f"unix:/etc/{DOOR}", None
        inside = definition.isolation == "sandbox" and self._tls_ca
        return self._url, f"/etc/{AUTHORITY}" if inside else self._tls_ca

    def place(self, task: int, attempt: int, way: Way | None) -> tuple[str, str, str | None]:
        """For a function of a warm runner."""
        url, tls_ca = way or (self._url, self._tls_ca)
        return url, task_token.make(self.key, task, attempt), tls_ca

    def environment(self, order: Order, directory: str, definition: Definition) -> dict[str, str]:
        """For a program. What its author set himself comes before it."""
        if not self.key:
            return {}
        url, token, tls_ca = self.place(order.id, order.attempt, self.way(definition))
        env = {"HEADWAY_URL": url, "HEADWAY_TOKEN": token, "HEADWAY_SUBTASKS": f"{directory}/subtasks"}
        if tls_ca:
            env["HEADWAY_TLS_CA"] = tls_ca
        return env


def waits_for(directory: str) -> list[int]:
    """The subtasks that a program said it waits for, before it ended with exit code 85 (client/inside.py)."""
    try:
        lines = (read_plain(f"{directory}/subtasks", 2**22) or b"").decode(errors="replace").splitlines()
    except OSError:
        return []
    words = [line.removeprefix("waits ").strip() for line in lines if line.startswith("waits ")]
    return sorted({int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 19})
