"""What an isolated runner may say. It runs code of somebody we do not trust, which can write into its socket as well as the runner can.

Every message is checked before it is believed: it must be of a known form, and may speak only of the tasks in the runner's own batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Finished, Order

LARGEST = 64 * 2**20  # of one message
_OUTCOMES = frozenset({Outcome.SUCCEEDED, Outcome.ERROR, Outcome.TRY_LATER, Outcome.REQUEUED, Outcome.SUSPENDED, Outcome.NOT_STARTABLE})
_Said = list[tuple[int, int, int, bytes]]
_finished = msgspec.msgpack.Decoder(list[Finished]).decode
_decode = msgspec.msgpack.Decoder().decode
_FORMS: dict[str, Any] = {
    "did": tuple[str, int, bytes, int, int, bool, _Said],
    "said": tuple[str, _Said, tuple[int, int, float, float, str] | None],
    "back": tuple[str, int],
    "token": tuple[str],
    "ready": tuple[str],
}


class Forged(Exception):
    """A runner said what it cannot know or must not say."""


def checked(body: bytes, batch: Sequence[Order]) -> list[Any]:
    """The message, if a runner with this batch may say it."""
    try:
        message = _decode(body)
        form = _FORMS[message[0]]
        parts = msgspec.convert(message, form)
        if parts[0] == "did":
            _check_finished(parts[1], parts[2], batch)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise Forged(f"a message of no known form ({error})") from None
    own = {(order.id, order.attempt) for order in batch}
    outputs = parts[6] if parts[0] == "did" else parts[1] if parts[0] == "said" else []
    if any((task, attempt) not in own or stream not in (1, 2) for task, attempt, stream, _ in outputs):
        raise Forged("output of a task that is not its own")
    if parts[0] == "said" and parts[2] is not None and parts[2][:2] not in own:
        raise Forged("progress of a task that is not its own")
    if parts[0] == "back" and not 0 <= parts[1] <= len(batch):
        raise Forged("it gives back what it never had")
    return list(message)


def _check_finished(count: int, items: bytes, batch: Sequence[Order]) -> None:
    rows = _finished(struct.pack(">BI", 0xDD, count) + items)
    if count > len(batch) or any((row.id, row.attempt) != (of.id, of.attempt) for row, of in zip(rows, batch, strict=False)):
        raise Forged("the end of a task that is not its own")
    if any(row.outcome not in _OUTCOMES for row in rows):
        raise Forged("an end that is not a runner's to tell")
