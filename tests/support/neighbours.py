"""How much slower a steady task becomes beside a hostile one: turn by turn, alone and beside it (H11).

The neighbours count their steps into a file, so what is compared is work done, by time that passes; turns are short and many, so that what
else goes on upon the machine meets both alike.
"""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.domain.resources import Resources
from tests.support.confined import MIB, python, shell
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

ROOM = Resources(cpus_milli=500, memory=128 * MIB, disk=64 * MIB)
OWN = Resources(cpus_milli=500, memory=128 * MIB, disk=256 * MIB)
SETTLE_S = 0.3  # after a change, before the count begins

_COUNT = """
import mmap, os, struct
fd = os.open({path!r}, os.O_RDWR | os.O_CREAT, 0o666); os.ftruncate(fd, 8)
shared, n = mmap.mmap(fd, 8), 0
def did():
    global n
    n += 1; struct.pack_into("q", shared, 0, n)
"""
COMPUTES = _COUNT + "while True:\n  sum(range(2000)); did()"
WRITES = _COUNT + """
file, piece, at = os.open("data", os.O_RDWR | os.O_CREAT), bytes(65536), 0
while True:
    os.pwrite(file, piece, at % 2**24); os.fdatasync(file); at += 65536; did()
"""
NEIGHBOURS = {"computes": COMPUTES, "writes": WRITES}

HOSTILE: dict[str, tuple[str, ...]] = {
    "fork bomb": python("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"),
    "memory hog": python("x = []\nwhile True: x.append(bytearray(2**20))"),
    "disk filler": python("import os\nfd = os.open('f', 65)\nwhile True: os.write(fd, bytes(2**20))"),
    "many small files": python("n = 0\nwhile True:\n  open(f'f{n}', 'w').write('x'); n += 1"),
    "output flood": shell("cat /dev/zero"),
    "descriptor hog": python("import os\nwhile True:\n  try: os.dup(1)\n  except OSError: pass"),
    "busy threads": python("import os\nfor _ in range(8):\n  if not os.fork():\n    while True: pass\nos.wait()"),
}


@dataclass
class Compared:
    """Steps a second of the neighbour, in the turns alone and in those beside the hostile task."""

    alone: list[float]
    beside: list[float]

    @property
    def slower(self) -> float:
        """0.25: a quarter slower. Of the sums: a turn in which the machine stood still counts for little."""
        return 1 - statistics.mean(self.beside) / statistics.mean(self.alone)

    def __str__(self) -> str:
        alone, beside = statistics.mean(self.alone), statistics.mean(self.beside)
        return f"alone {alone:8.0f}/s  beside {beside:8.0f}/s  {self.slower:+6.1%} slower"


@contextmanager
def neighbour(server: ScriptedServer, kind: str, counter: Path) -> Iterator[None]:
    counter.unlink(missing_ok=True)
    ref = server.order(server.define(command=python(NEIGHBOURS[kind].format(path=str(counter))), resources=OWN))
    until(lambda: counter.exists() and _count(counter) > 0, what="the neighbour begins")
    try:
        yield
    finally:
        server.cancel(ref, grace_s=0)
        server.wait(lambda: ref in server.finished)


def compare(server: ScriptedServer, hostile: str, level: str, counter: Path, *, turns: int, seconds: float) -> Compared:
    """With the neighbour running: so many turns alone, and so many beside the hostile task, which is started anew whenever it has ended."""
    definition = server.define(command=HOSTILE[hostile], isolation=level, resources=ROOM)
    found = Compared([], [])
    for _ in range(turns):
        time.sleep(SETTLE_S)
        found.alone.append(_rate(counter, seconds, lambda: None))
        ref = server.order(definition)

        def again() -> None:
            nonlocal ref
            if ref in server.finished:
                ref = server.order(definition)

        _rate(counter, SETTLE_S, again)
        found.beside.append(_rate(counter, seconds, again))
        if ref not in server.finished:
            server.cancel(ref, grace_s=0)
            server.wait(lambda ref=ref: ref in server.finished)
    return found


def _rate(counter: Path, seconds: float, meanwhile) -> float:  # type: ignore[no-untyped-def]
    began, before = time.monotonic(), _count(counter)
    while time.monotonic() - began < seconds:
        time.sleep(0.02)
        meanwhile()
    return (_count(counter) - before) / (time.monotonic() - began)


def _count(counter: Path) -> int:
    """Through the same mapping: what `read` copies byte by byte may be half of one number and half of the next."""
    with counter.open("rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            return 0
        with mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ) as shared:
            return int(struct.unpack_from("q", shared, 0)[0])
