"""Putting together what goes up to a server, from pieces that are already encoded."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from headway.agent.link import Part, Report
from headway.wire.exchange import ErrorInfo, Exchange, encode_msgpack

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
    """The supervisor's news, kept until a server has answered them."""

    def __init__(self) -> None:
        self._number = 0
        self._parts: list[Part] = []
        self._unanswered: deque[Report] = deque()

    def add(self, field: str, values: list[Any]) -> None:
        self._parts.append(Part(field, len(values), items(values)))

    def add_encoded(self, field: str, count: int, encoded: bytes) -> None:
        self._parts.append(Part(field, count, encoded))

    def take(self) -> Report | None:
        """What is new since the last call, as one numbered report."""
        if not self._parts:
            return None
        self._number += 1
        report = Report(self._number, self._parts)
        self._parts = []
        self._unanswered.append(report)
        return report

    @property
    def next_number(self) -> int:
        """Of the report that takes along what was added last."""
        return self._number + 1

    def answered(self, number: int) -> None:
        while self._unanswered and self._unanswered[0].number <= number:
            self._unanswered.popleft()

    def unanswered(self) -> list[Report]:
        """For an exchange side that has just started."""
        return list(self._unanswered)

    @property
    def clear(self) -> bool:
        return not self._parts and not self._unanswered

    def refs(self) -> list[tuple[int, int]]:
        """The attempts whose end is not yet known to a server: they are still held."""
        found: list[tuple[int, int]] = []
        for parts in (*(report.parts for report in self._unanswered), self._parts):
            for part in parts:
                if part.field in ("finished", "returned"):
                    found += [(row[0], row[1]) for row in _rows(part)]
        return found


def _rows(part: Part) -> list[Any]:
    rows: list[Any] = msgspec.msgpack.decode(_ARRAY32.pack(0xDD, part.count) + part.items)
    return rows
