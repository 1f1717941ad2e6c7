"""What a task prints: live pieces, a limit for each attempt, and lines that report progress (H9).

The first half of the limit is shipped as it comes. After that the newest half is kept back, and what falls between
the two is cut; the cut is marked by a line. So the beginning and the end of a flood both survive.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection

from headway.agent.loggers import Tee
from headway.agent.masking import Mask
from headway.agent.spools import Spool
from headway.wire.exchange import Output, Progress

PIECE = 32 * 1024
STDOUT, STDERR = 1, 2
_PROGRESS = re.compile(rb"^headway progress ([0-9.eE+-]+)(?:/([0-9.eE+-]+))?[ \t]*([^\r\n]*)", re.MULTILINE)
_PREFIX = b"headway progress "
LINE = 4096  # a progress line longer than this is not one


_HIDES_NOTHING = Mask(())


class Capture:
    """The output of one attempt."""

    def __init__(
        self,
        task: int,
        attempt: int,
        limit: int,
        secrets: Collection[str] = (),
        tee: Tee | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.task, self.attempt = task, attempt
        self._tee, self._spool = tee, spool
        self.mask = Mask(secrets) if secrets else _HIDES_NOTHING
        self._half = max(limit // 2, 1)
        self._shipped = 0
        self._sequence = 0
        self._tail: deque[tuple[int, int, bytes]] = deque()
        self._tail_size = 0
        self._cut = 0
        self._line = b""  # of stdout, unfinished, when it may become a progress line
        self._begun: dict[int, bytes] = {}  # by stream: a character of which only the first bytes have come
        self.stderr_tail = b""

    def feed(self, stream: int, data: bytes, at_ms: int) -> tuple[list[Output], Progress | None]:
        """What to ship now, and the last progress said in it."""
        if self.mask:
            data = self.mask.hide(stream, data)
        if stream in self._begun:
            data = self._begun.pop(stream) + data
        if (whole := whole_characters(data)) < len(data):
            data, self._begun[stream] = data[:whole], data[whole:]
        return self._feed(stream, data, at_ms)

    def _feed(self, stream: int, data: bytes, at_ms: int) -> tuple[list[Output], Progress | None]:
        progress = self._progress(data) if stream == STDOUT else None
        noted: list[Output] = []
        if self._tee is not None and data:
            self._tee.send(stream, data, at_ms)
            noted = self._pieces(STDERR, self._tee.take_note(), at_ms)
        if self._spool is not None and data:
            self._spool.write(data)
        if stream == STDERR:
            self.stderr_tail = (self.stderr_tail + data)[-LINE:]
        room = max(self._half - self._shipped, 0)
        ready = data if len(data) <= room else data[: whole_characters(data[:room])]
        shipped = noted + self._pieces(stream, ready, at_ms)
        if rest := data[len(ready) :]:
            self._shipped = max(self._shipped, self._half)  # what comes now stays behind what is kept
            self._keep(stream, rest, at_ms)
        return shipped, progress

    def close(self, at_ms: int) -> list[Output]:
        """The kept end, with a line for what was cut before it."""
        found: list[Output] = []
        for stream in (STDOUT, STDERR) if self.mask or self._begun else ():
            found += self._feed(stream, self._begun.pop(stream, b"") + self.mask.rest(stream), at_ms)[0]
        if self._cut:
            found += self._pieces(STDERR, f"\n[headway: {self._cut} bytes of output were cut here]\n".encode(), at_ms)
        for stream, at, data in self._tail:
            found += self._pieces(stream, data, at)
        self._tail.clear()
        if self._tee is not None:
            self._sequence += 1  # kept for a line on what its logger did not get
            self._tee.ended(self._sequence, at_ms)
        if self._spool is not None:
            self._spool.close(cut=self._cut > 0)
        return found

    def _pieces(self, stream: int, data: bytes, at_ms: int) -> list[Output]:
        found = []
        self._shipped += len(data)
        while data:
            size = len(data) if len(data) <= PIECE else whole_characters(data[:PIECE])
            self._sequence += 1
            found.append(Output(self.task, self.attempt, self._sequence, stream, at_ms, data[:size]))
            data = data[size:]
        return found

    def _keep(self, stream: int, data: bytes, at_ms: int) -> None:
        if len(data) > self._half:
            self._cut += len(data) - self._half
            data = data[-self._half :]
        self._tail.append((stream, at_ms, data))
        self._tail_size += len(data)
        while self._tail_size > self._half:
            first_stream, first_at, first = self._tail.popleft()
            over = self._tail_size - self._half
            self._cut += min(over, len(first))
            self._tail_size -= min(over, len(first))
            if over < len(first):
                self._tail.appendleft((first_stream, first_at, first[over:]))

    def _progress(self, data: bytes) -> Progress | None:
        if not self._line and _PREFIX not in data and b"headway" not in data[-LINE:]:
            return None
        text = self._line + data
        whole, newline, last = text.rpartition(b"\n")
        self._line = last if len(last) <= LINE and _PREFIX.startswith(last[: len(_PREFIX)]) else b""
        return parse_progress(self.task, self.attempt, whole) if newline else None


def whole_characters(data: bytes) -> int:
    """How many bytes come before a character of UTF-8 that is only begun at the end: each piece is read as text by itself."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first of two, three or four bytes
            return len(data) - back if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else len(data)
    return len(data)


def parse_progress(task: int, attempt: int, text: bytes) -> Progress | None:
    """The last progress line of the text: `headway progress 40/100 resizing`."""
    found = None
    for match in _PROGRESS.finditer(text):
        try:
            done, total = float(match[1]), float(match[2] or b"1")
        except ValueError:
            continue
        found = Progress(task, attempt, done, total, match[3].decode(errors="replace").replace("\0", "").strip()[:200])
    return found
