"""Lists for the hot statements, packed as PostgreSQL reads arrays.

asyncpg asks of every element whether it is a list itself, which costs more than to encode it: 0.26 µs an element of a `bigint[]`, 0.15 in
the domain of ours that takes these bytes as they are, and next to nothing for what all rows share. A hot task sends ten elements.
Only hot connections know the domains by this way (store/database.py); on the others they are arrays like all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

DOMAINS = ("longs", "ints", "moments", "byte_strings")

_HEADER = struct.Struct(">iiIii").pack  # dimensions, whether there are nulls, type of the elements, how many, the first index
_EMPTY = struct.Struct(">iiI").pack
_LENGTH = struct.Struct(">i").pack
_LONG = struct.Struct(">q").pack
_INT = _LENGTH
_OF_LONG, _OF_INT, _NULL = _LENGTH(8), _LENGTH(4), _LENGTH(-1)
_INT8, _INT4, _BYTEA, _TIMESTAMPTZ = 20, 23, 17, 1184  # as pg_type counts them
_EPOCH_MS = 946_684_800_000  # PostgreSQL counts from 2000-01-01


def longs(values: Sequence[int]) -> bytes:
    """A `bigint[]`."""
    if not values:
        return _EMPTY(0, 0, _INT8)
    try:
        return _HEADER(1, 0, _INT8, len(values), 1) + _OF_LONG + _OF_LONG.join(map(_LONG, values))
    except struct.error:
        raise ValueError(f"{_outside(values, 63)} is no number of 64 bits") from None


def ints(values: Sequence[int]) -> bytes:
    """An `int[]`; of attempts, nodes and shapes most lists say the same thing again and again."""
    if not values:
        return _EMPTY(0, 0, _INT4)
    header = _HEADER(1, 0, _INT4, len(values), 1)
    try:
        if values.count(values[0]) == len(values):
            return header + (_OF_INT + _INT(values[0])) * len(values)
        return header + _OF_INT + _OF_INT.join(map(_INT, values))
    except struct.error:
        raise ValueError(f"{_outside(values, 31)} is no number of 32 bits") from None


def moments(unix_ms: Sequence[int]) -> bytes:
    """A `timestamptz[]`, from milliseconds since 1970."""
    if not unix_ms:
        return _EMPTY(0, 0, _TIMESTAMPTZ)
    values = [(ms - _EPOCH_MS) * 1000 for ms in unix_ms]
    try:
        return _HEADER(1, 0, _TIMESTAMPTZ, len(values), 1) + _OF_LONG + _OF_LONG.join(map(_LONG, values))
    except struct.error:
        raise ValueError(f"{_outside(values, 63)} is no number of 64 bits") from None


def byte_strings(values: Sequence[bytes | None]) -> bytes:
    """A `bytea[]` with its nulls; without any other value it is empty, which `unnest` fills up with nulls."""
    nulls = values.count(None)
    if nulls == len(values):
        return _EMPTY(0, 0, _BYTEA)
    return _HEADER(1, int(nulls > 0), _BYTEA, len(values), 1) + b"".join(_elements(values))


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]


def _outside(values: Sequence[int], bits: int) -> int:
    return next(value for value in values if not -(2**bits) <= value < 2**bits)


def _elements(values: Sequence[bytes | None]) -> Iterator[bytes]:
    for value in values:
        if value is None:
            yield _NULL
        else:
            yield _LENGTH(len(value))
            yield value


def unpacked(data: bytes) -> tuple[int, ...]:
    """Numbers of 64 bits that a statement answered with, one behind the other."""
    return struct.unpack(f">{len(data) // 8}q", data)
