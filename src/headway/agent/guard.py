"""What an isolated runner may say. It runs code of somebody we do not trust, which can write into its socket as well as the runner can.

Every message is checked before it is believed: it must be of a known form, and may speak only of the tasks in the runner's own batch.
Nothing is decoded before it is known how much it can become: a message full of empty lists takes fifty times its size in memory, and one
of lists in lists more of the stack than there is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Finished, Order, is_json

LARGEST = 64 * 2**20  # of one message
MOST = 2**50  # milliseconds of CPU time, and bytes: no task of one node uses as much
PIECES = 2**16  # of output in it
_OUTCOMES = frozenset({Outcome.SUCCEEDED, Outcome.ERROR, Outcome.TRY_LATER, Outcome.REQUEUED, Outcome.SUSPENDED, Outcome.NOT_STARTABLE})
_Said = list[tuple[int, int, int, bytes]]
_finished = msgspec.msgpack.Decoder(list[Finished]).decode
_error = msgspec.json.Decoder(ErrorInfo).decode
_FORMS: dict[str, tuple[Any, ...]] = {
    "did": (str, int, bytes, int, int, bool, _Said),
    "said": (str, _Said, tuple[int, int, float, float, str] | None),
    "back": (str, int),
    "token": (str,),
    "ready": (str,),
}
_DECODERS = {kind: tuple(msgspec.msgpack.Decoder(part) for part in form) for kind, form in _FORMS.items()}
_BEGINNINGS = frozenset(0x90 + len(form) for form in _FORMS.values())  # the first byte of a list says how long it is
_parts = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...]).decode
_word = msgspec.msgpack.Decoder(str).decode


class Forged(Exception):
    """A runner said what it cannot know or must not say."""


def checked(body: bytes, batch: Sequence[Order]) -> list[Any]:
    """The message, if a runner with this batch may say it."""
    try:
        if body[0] not in _BEGINNINGS:
            raise ValueError("it is no list of a few things")
        raw = _parts(body)
        parts = [_decoded(decoder, part) for decoder, part in zip(_DECODERS[_word(raw[0])], raw, strict=True)]
        if parts[0] == "did":
            _check_finished(parts[1], parts[2], batch)
            _check_times(*parts[3:5])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise Forged(f"a message of no known form ({error})") from None
    own = {(order.id, order.attempt) for order in batch}
    outputs = parts[6] if parts[0] == "did" else parts[1] if parts[0] == "said" else []
    if any((task, attempt) not in own or stream not in (1, 2) for task, attempt, stream, _ in outputs):
        raise Forged("output of a task that is not its own")
    if parts[0] == "said" and parts[2] is not None and parts[2][:2] not in own:
        raise Forged("progress of a task that is not its own")
    if parts[0] == "back" and not 0 <= parts[1] <= len(batch):
        raise Forged("it gives back what it never had")
    return parts


def _check_times(*taken_ns: int) -> None:
    """What others are predicted by."""
    if min(taken_ns) < 0 or max(taken_ns) >= 2**63:
        raise Forged("a time that cannot be")


def _decoded(decoder: msgspec.msgpack.Decoder[Any], part: msgspec.Raw) -> Any:
    if decoder.type == _Said and _length(memoryview(part)) > PIECES:
        raise Forged("output in too many pieces")
    return decoder.decode(part)


def _length(encoded: memoryview) -> int:
    """Of a list in MessagePack."""
    if encoded[0] == 0xDD:
        return int.from_bytes(encoded[1:5], "big")
    return int.from_bytes(encoded[1:3], "big") if encoded[0] == 0xDC else encoded[0] & 0x0F


def _check_finished(count: int, items: bytes, batch: Sequence[Order]) -> None:
    if not 0 < count <= len(batch):  # a sign of life without an end would put the end of all patience off, again and again
        raise Forged("no end, or more than it has tasks")
    rows = _finished(struct.pack(">BI", 0xDD, count) + items)
    if any((row.id, row.attempt) != (of.id, of.attempt) for row, of in zip(rows, batch, strict=False)):
        raise Forged("the end of a task that is not its own")
    if any(row.outcome not in _OUTCOMES for row in rows):
        raise Forged("an end that is not a runner's to tell")
    for row in rows:
        if row.error is not None:
            _error(row.error)
        if row.result is not None and not is_json(row.result):
            raise Forged("a result that is no JSON, or nested too deeply")
        used = (row.cpu_ms or 0, row.max_memory or 0, row.read_bytes or 0, row.written_bytes or 0)
        if min(used) < 0 or max(used) >= MOST or not -(2**31) <= (row.exit_code or 0) < 2**31:
            raise Forged("a number that cannot be")
