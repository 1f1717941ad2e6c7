"""The supervisor's event loop: an epoll, callbacks for file descriptors, and a wake-up for signals."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable

HELD = {signal.SIGCHLD}  # told only while waiting for something to happen: each would interrupt what is being done
READ, HANG_UP = select.EPOLLIN, select.EPOLLHUP | select.EPOLLERR


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    def on_signals(self, numbers: tuple[int, ...], callback: Callable[[set[int]], None]) -> None:
        """Call back from the loop, not from the middle of anything, with the signals that came."""
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _heard)
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        self.add(self._wake_read.fileno(), lambda: callback(set(self._wake_read.recv(4096))))

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        self._callbacks[fd] = callback
        self._epoll.register(fd, READ)

    def pause(self, fd: int) -> None:
        self._epoll.modify(fd, 0)

    def resume(self, fd: int) -> None:
        self._epoll.modify(fd, READ)

    def want_write(self, fd: int, on: bool) -> None:
        self._epoll.modify(fd, READ | select.EPOLLOUT if on else READ)

    def remove(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def poll(self, timeout: float | None, *, deaf: bool = False) -> None:
        """Wait, then call back for what is ready. A callback may remove what comes after it. Deaf: not for ends of children."""
        if not deaf:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        ready = self._epoll.poll(timeout)
        if not deaf:
            signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        for fd, _ in ready:
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()


def _heard(number: int, frame: object) -> None:
    """The wake-up descriptor tells the loop."""
