"""A peer whose machine died, or that a network has cut off, is noticed: also by who only waits for it."""

from __future__ import annotations

import socket

_IDLE_S, _AGAIN_S, _TIMES = 15, 5, 3


def keep_alive(sock: socket.socket | None, *, unanswered_s: float = 0.0) -> None:
    """After 30 s of silence it is gone; the probes also keep a router in between from forgetting the connection. `unanswered_s`: what
    was sent and is confirmed by nobody for so long ends it too, where the kernel would go on trying for a quarter of an hour."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": _IDLE_S, "TCP_KEEPINTVL": _AGAIN_S, "TCP_KEEPCNT": _TIMES}
    if unanswered_s:
        options["TCP_USER_TIMEOUT"] = round(unanswered_s * 1000)
    for option, value in options.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
