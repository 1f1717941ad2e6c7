"""Putting together what goes up to a server, from pieces that are already encoded."""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from headway.agent.excess import OUTCOMES, said
from headway.agent.link import Part, Report
from headway.agent.masking import Words
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Excess, Exchange, Finished, Progress, Ref, encode_msgpack

ENDS = ("finished", "returned")
REMEMBERED = 20_000  # attempts whose end is kept after a server has answered it: a database that fails over may lose what it had
REMEMBERED_BYTES = 2**21
NO_MORE = (errno.EFBIG, errno.EDQUOT)  # what the kernel answers at a limit of one file, and of a folder (walls)
_NO_MORE = [word for number in NO_MORE for word in (os.strerror(number), errno.errorcode[number])]  # as languages tell of it
_NO_MORE_ENCODED = [word.encode() for word in _NO_MORE]
_ARRAY32 = struct.Struct(">BI")
_MAP16 = struct.Struct(">BH")


def error_text(info: ErrorInfo) -> str:
    """The JSON of an error, whatever characters a program put into it."""
    clean = ErrorInfo(_clean(info.type), _clean(info.message), _clean(info.traceback), info.excess)
    return msgspec.json.encode(clean).decode()


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")  # PostgreSQL stores no NUL


def items(values: list[Any]) -> bytes:
    """The encoded elements of a list, without the list's own header."""
    size = len(values)
    return encode_msgpack(values)[1 if size < 16 else 3 if size < 65536 else 5 :]


def rows(encoded: bytes, count: int) -> list[Any]:
    """What `items` was made from."""
    found: list[Any] = msgspec.msgpack.decode(_ARRAY32.pack(0xDD, count) + encoded)
    return found


def without_secrets(encoded: bytes, count: int, words: Words) -> bytes:
    """The same ends, with errors that tell no secret: exceptions like to repeat what they were given."""
    ends = _ends(encoded, count)
    for end in ends:
        if end.error is not None:
            end.error = _masked(end.error, words)
    return items(ends)


def tells_of_full(encoded: bytes, count: int) -> bool:
    """Whether one of these ends could be for the disk limit."""
    return any(word in encoded for word in _NO_MORE_ENCODED) and any(map(_could_be_for_full, _ends(encoded, count)))


def of_full(encoded: bytes, count: int, excess: Excess) -> bytes:
    """The same ends, of functions in a folder that takes no more: those that failed for that did so for their limit."""
    ends = _ends(encoded, count)
    for end in ends:
        if _could_be_for_full(end):
            end.outcome = OUTCOMES[excess.what]
            end.error = error_text(ErrorInfo(*said(excess), _traceback(end.error), excess))
    return items(ends)


def _ends(encoded: bytes, count: int) -> list[Finished]:
    return [msgspec.convert(row, Finished) for row in rows(encoded, count)]


def _could_be_for_full(end: Finished) -> bool:
    return end.outcome == Outcome.ERROR and any(word in (end.error or "") for word in _NO_MORE)


def _traceback(error: str | None) -> str:
    try:
        return msgspec.json.decode(error or "", type=ErrorInfo).traceback
    except msgspec.DecodeError:  # of a runner that says what it likes
        return ""


def _masked(error: str, words: Words) -> str:
    try:
        said = msgspec.json.decode(error, type=ErrorInfo)
    except msgspec.DecodeError:  # of a runner that says what it likes
        return words.in_text(error)
    return error_text(ErrorInfo(said.type, words.in_text(said.message), words.in_text(said.traceback), said.excess))


def compose(head: Exchange, parts: Iterable[Part]) -> bytes:
    """The Exchange `head` with the lists of `parts`, which it must not have itself. Parts of one field are joined."""
    fields: dict[str, list[Part]] = {}
    for part in parts:
        fields.setdefault(part.field, []).append(part)
    encoded = encode_msgpack(head)
    body = bytearray(_MAP16.pack(0xDE, _size(encoded) + len(fields)))  # the head's own header may have no room for more entries
    body += encoded[1 if encoded[0] < 0xDE else 3 :]
    for field, pieces in fields.items():
        body += encode_msgpack(field)
        body += _ARRAY32.pack(0xDD, sum(piece.count for piece in pieces))
        for piece in pieces:
            body += piece.items
    return bytes(body)


def _size(encoded: bytes) -> int:
    """How many entries a MessagePack map has."""
    return encoded[0] & 0x0F if encoded[0] < 0xDE else int(_MAP16.unpack_from(encoded)[1])


class Outbox:
    """The supervisor's news, kept until a server has answered them; how attempts left is remembered a while longer."""

    def __init__(self) -> None:
        self._number = 0
        self._parts: list[Part] = []
        self.count = 0  # of what is new
        self._progress: dict[Ref, Progress] = {}  # the newest of each attempt
        self._unanswered: deque[Report] = deque()
        self._answered: deque[Part] = deque()
        self._answered_count = self._answered_bytes = 0

    def add(self, field: str, values: list[Any]) -> None:
        self.add_encoded(field, len(values), items(values))

    def add_encoded(self, field: str, count: int, encoded: bytes) -> None:
        self._parts.append(Part(field, count, encoded))
        self.count += count

    def add_progress(self, progress: Progress) -> None:
        """Told with the next news, or at the next tick: who says it a thousand times between two has said it once."""
        self._progress[progress.id, progress.attempt] = progress

    def tick(self) -> None:
        if self._progress:
            self.add("progress", list(self._progress.values()))
            self._progress.clear()

    def take(self) -> Report | None:
        """What is new since the last call, as one numbered report."""
        if not self._parts:
            return None
        self.tick()
        self._number += 1
        report = Report(self._number, self._parts)
        self._parts, self.count = [], 0
        self._unanswered.append(report)
        return report

    @property
    def next_number(self) -> int:
        """Of the report that takes along what was added last."""
        return self._number + 1

    def answered(self, number: int) -> None:
        while self._unanswered and self._unanswered[0].number <= number:
            for part in self._unanswered.popleft().parts:
                if part.field in ENDS:
                    self._remember(part)

    def _remember(self, part: Part) -> None:
        self._answered.append(part)
        self._answered_count += part.count
        self._answered_bytes += len(part.items)
        while self._answered_count > REMEMBERED or self._answered_bytes > REMEMBERED_BYTES:
            oldest = self._answered.popleft()
            self._answered_count -= oldest.count
            self._answered_bytes -= len(oldest.items)

    def tell_again(self, refs: list[Ref], now_ms: int) -> None:
        """How these attempts left here. One nobody remembers has run, and runs once more: its result is lost."""
        on_their_way = set(self.refs())
        wanted = [ref for ref in refs if ref not in on_their_way]
        known = self._known(set(wanted))
        for ref in wanted:
            field, row = known.get(ref) or ("finished", _forgotten(ref, now_ms))
            self.add(field, [row])

    def _known(self, wanted: set[Ref]) -> dict[Ref, tuple[str, Any]]:
        return {(row[0], row[1]): (part.field, row) for part in self._answered for row in _rows(part) if (row[0], row[1]) in wanted}

    def unanswered(self) -> list[Report]:
        """For an exchange side that has just started."""
        return list(self._unanswered)

    @property
    def clear(self) -> bool:
        return not self._parts and not self._progress and not self._unanswered

    def refs(self) -> list[Ref]:
        """The attempts whose end is not yet known to a server: they are still held."""
        parts = [part for report in self._unanswered for part in report.parts] + self._parts
        return [(row[0], row[1]) for part in parts if part.field in ENDS for row in _rows(part)]


def _rows(part: Part) -> list[Any]:
    rows: list[Any] = msgspec.msgpack.decode(_ARRAY32.pack(0xDD, part.count) + part.items)
    return rows


def _forgotten(ref: Ref, now_ms: int) -> Finished:
    info = ErrorInfo("ReportLost", "it has ended here, and what was told of it was lost")
    return Finished(*ref, Outcome.PRE_EMPTED, now_ms, now_ms, error=error_text(info))
