"""A cable between two network namespaces that a test may make slow, lossy, or cut: drops, as real ones do, and never a reset.

The near end is the namespace in which the test itself runs from now on, with all it starts; what is started inside `with cable.far():`
runs at the other end. Packets pass through a thread of the test process, so that no module of the kernel is needed but `tun`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

NEAR, FAR = "10.9.9.1", "10.9.9.2"
_NEW_NETWORK = 0x4000_0000
_TUNSETIFF, _TUN, _NO_HEAD = 0x400454CA, 0x0001, 0x1000
_SYN = 0x02
_LIBC = ctypes.CDLL(None, use_errno=True)


class Cable:
    """What it does to packets may be changed at any time."""

    def __init__(self) -> None:
        self.delay_s = self.jitter_s = 0.0
        self.loss = 0.0
        self.cut = False
        self.longest = 0  # bytes: longer packets vanish, and nobody is told
        self.forgets_s = 0.0  # a router in between forgets a connection that was silent for so long
        self.forgotten = 0  # packets of such
        self._luck = random.Random(1)
        self._seen: dict[bytes, float] = {}
        self._forgot_at = 0.0
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()

    def open(self) -> None:
        self._before = _here()
        self._ends: list[int] = []
        self._spaces: list[int] = []
        try:
            for address in (FAR, NEAR):
                self._make_end(address)
        except BaseException:
            _enter(self._before)
            raise
        self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _make_end(self, address: str) -> None:
        """In a new namespace, which is ours from then on."""
        _check(_LIBC.unshare(_NEW_NETWORK))
        self._spaces.append(_here())
        self._ends.append(_tun())
        for words in ("link set lo up", f"addr add {address}/24 dev tun0", "link set tun0 up"):
            subprocess.run(["ip", *words.split()], check=True)

    def close(self) -> None:
        _enter(self._before)
        os.close(self._stop[1])
        self._thread.join()
        for fd in (*self._ends, *self._spaces, self._stop[0], self._before):
            os.close(fd)

    def forget(self) -> None:
        """The router in between starts anew: it knows none of the connections that there are."""
        self._forgot_at = time.monotonic()

    @contextlib.contextmanager
    def far(self) -> Iterator[None]:
        """What is started in here lives at the other end."""
        _enter(self._spaces[0])
        try:
            yield
        finally:
            _enter(self._spaces[1])

    def _carry(self) -> None:
        while True:
            wait = max(self._under_way[0][0] - time.monotonic(), 0.0) if self._under_way else None
            ready, _, _ = select.select([*self._ends, self._stop[0]], [], [], wait)
            if self._stop[0] in ready:
                return
            for end in ready:
                self._take(os.read(end, 65536), self._ends[1 - self._ends.index(end)])
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(self._under_way)
                os.write(end, packet)

    def _take(self, packet: bytes, end: int) -> None:
        if self.cut or self._luck.random() < self.loss or self._is_forgotten(packet) or 0 < self.longest < len(packet):
            return
        due = time.monotonic() + self.delay_s + self._luck.uniform(-self.jitter_s, self.jitter_s)
        heapq.heappush(self._under_way, (due, next(self._numbers), end, packet))

    def _is_forgotten(self, packet: bytes) -> bool:
        if packet[0] >> 4 != 4 or packet[9] != 6:  # not TCP over version 4
            return False
        head = (packet[0] & 15) * 4
        ends = (packet[12:16] + packet[head : head + 2], packet[16:20] + packet[head + 2 : head + 4])
        key = min(ends) + max(ends)  # the same for both ways
        now, last = time.monotonic(), self._seen.get(key, 0.0)
        if packet[head + 13] & _SYN or (now - last < self.forgets_s if self.forgets_s else last > self._forgot_at):
            self._seen[key] = now
            return False
        self.forgotten += 1
        return True


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        pytest.skip("making network namespaces needs root, the program ip and /dev/net/tun")
    made = Cable()
    try:
        made.open()
    except PermissionError as error:
        pytest.skip(f"making network namespaces is not allowed here: {error}")
    try:
        yield made
    finally:
        made.close()


def _here() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(space: int) -> None:
    _check(_LIBC.setns(space, _NEW_NETWORK))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _tun() -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH14x", b"tun0", _TUN | _NO_HEAD))
    return end
