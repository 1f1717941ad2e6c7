"""Bulks as most are: tasks that say little more than a function and an input, and the same of it a hundred times.

A list of tasks is read twice as quickly when what they have in common is not taken apart again: its text is compared with what was read
before, and only what is a task's own (name, input, one dependency) becomes values. Whatever says more, is wrong, or is seen for the first
time is read as always (control/draft.py), which knows every field and all the words for what is wrong with them.

Of a field that a task says twice the last counts, both ways; what it said first is looked at the long way only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headway.control.definitions import Interned

KEPT = 20_000
LONGEST = 1_000  # bytes of a text that is kept
_NOTHING = msgspec.Raw()


class UsualSpec(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A task of which few things are said, and those that decide its definition as the text they came in."""

    function: msgspec.Raw = _NOTHING
    command: msgspec.Raw = _NOTHING
    args: msgspec.Raw = _NOTHING
    resources: msgspec.Raw = _NOTHING
    attempts: msgspec.Raw = _NOTHING
    execution_cap: msgspec.Raw = _NOTHING
    delay_tolerance: msgspec.Raw = _NOTHING
    queue: msgspec.Raw = _NOTHING
    category: msgspec.Raw = _NOTHING
    name: str | None = None
    after: str = ""
    input: msgspec.Raw = _NOTHING

    def text(self) -> bytes:
        """What it says of its definition. There is no NUL in JSON, so no two of them are the same by accident."""
        return b"\0".join(
            (self.function, self.command, self.args, self.resources, self.attempts, self.execution_cap, self.delay_tolerance,
             self.queue, self.category)
        )  # fmt: skip


_decode = msgspec.json.Decoder(list[UsualSpec]).decode


def usual(body: bytes) -> list[UsualSpec] | None:
    """The tasks of such a bulk; None when it is another, or wrong."""
    try:
        if not body.isascii():
            body.decode()  # the texts of inputs are not looked at below
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Usual:
    """What was read before, by tenant and text."""

    def __init__(self) -> None:
        self.edition = 0  # rises when the same words may mean another task
        self._known: dict[int, dict[bytes, Interned]] = {}
        self._count = 0

    def clear(self) -> None:
        self.edition += 1
        self._known, self._count = {}, 0

    def known(self, tenant: int, specs: Sequence[UsualSpec]) -> list[Interned] | None:
        """What these are, if all of them are known."""
        known = self._known.get(tenant, {})
        try:
            return [known[spec.text()] for spec in specs]
        except KeyError:
            return None

    def learn(self, tenant: int, specs: Sequence[UsualSpec], found: Sequence[Interned], edition: int) -> None:
        """What they turned out to be; `edition`: when that was begun to be looked up."""
        if edition != self.edition:
            return
        new: dict[bytes, Interned] = {}
        for spec, interned in zip(specs, found, strict=True):
            if len(text := spec.text()) <= LONGEST:
                new[text] = interned
            if len(new) > KEPT:
                return  # a list like no other: it would take the place of those that are
        if self._count > KEPT:
            self._known, self._count = {}, 0
        known = self._known.setdefault(tenant, {})
        before = len(known)
        known.update(new)
        self._count += len(known) - before
