"""63-bit ids: milliseconds, then the submitter's number, then a sequence (A4).

    | 41 bits: ms since 2025 | 10 bits: number | 12 bits: sequence |

Uniqueness does not rest on any clock. A submitter may only use milliseconds it has *reserved* in the database for its number, and
each reservation begins after the one before it; so a crash, a clock that steps back, or two servers that believe they own one
number cannot make the same id twice. The clock only decides how far ids run ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
NUMBER_BITS = 10
SEQUENCE_BITS = 12
NUMBERS = 1 << NUMBER_BITS
PER_MS = 1 << SEQUENCE_BITS
DAY_MS = 86_400_000
MAX_ID = (1 << 63) - 1


def make(ms: int, number: int, sequence: int) -> int:
    return ((ms - EPOCH_MS) << (NUMBER_BITS + SEQUENCE_BITS)) | (number << SEQUENCE_BITS) | sequence


def ms_of(task_id: int) -> int:
    """Unix milliseconds at which the id was made."""
    return (task_id >> (NUMBER_BITS + SEQUENCE_BITS)) + EPOCH_MS


def number_of(task_id: int) -> int:
    """The number of the submitter that made it."""
    return (task_id >> SEQUENCE_BITS) & (NUMBERS - 1)


def first_id_of(ms: int) -> int:
    """The smallest id of that millisecond: the border of a day's partition."""
    return max(ms - EPOCH_MS, 0) << (NUMBER_BITS + SEQUENCE_BITS)


class Exhausted(Exception):
    """The reserved milliseconds are used up: reserve more."""


@dataclass
class Ids:
    """Makes ids for one submitter inside its reservation (after_ms, until_ms]."""

    number: int
    after_ms: int
    until_ms: int
    sequence: int = PER_MS

    def take(self, count: int, now_ms: int) -> list[int]:
        """`count` ids in rising order, none ever given before; Exhausted (and none given) when the reservation is too short."""
        ms, sequence = self.after_ms, self.sequence
        if now_ms > ms:
            ms, sequence = now_ms, 0
        elif sequence >= PER_MS:
            ms, sequence = ms + 1, 0
        last = ms + (sequence + count - 1) // PER_MS
        if last > self.until_ms:
            raise Exhausted
        made: list[int] = []
        while count:
            chunk = min(count, PER_MS - sequence)
            base = make(ms, self.number, sequence)
            made.extend(range(base, base + chunk))
            sequence += chunk
            count -= chunk
            if count:
                ms, sequence = ms + 1, 0
        self.after_ms, self.sequence = ms, sequence
        return made

    def extend(self, after_ms: int, until_ms: int) -> None:
        """Go on in a new reservation (after_ms, until_ms], which lies wholly after the old one."""
        if after_ms > self.after_ms:
            self.after_ms, self.sequence = after_ms, PER_MS
        self.until_ms = until_ms
