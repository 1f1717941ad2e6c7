"""The kinds of events: what can be streamed, and sent to webhooks (J6).

A filter names kinds in full (`task.failed`), without their first word (`failed`), by `*`, or `finished` for every way to end.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headway.errors import InvalidInput

KINDS: dict[str, str] = {
    "task.succeeded": "finished well",
    "task.failed": "out of attempts, now a dead letter",
    "task.cancelled": "a person or a program ended it",
    "task.skipped": "a dependency did not end as it needed",
    "task.expired": "waited beyond its limit",
    "task.cap_warning": "reached its execution cap; it was asked to end and will be killed soon",
    "task.killed": "an attempt was ended for what it used; says what was used and what was allowed",
    "task.waiting_too_long": "will soon have waited beyond its limit",
    "task.promoted": "moved to urgent, because its tolerance runs out",
    "task.preempted": "paused, or ended and queued again, to make room",
    "task.paused": "frozen on its node, or kept from starting",
    "task.resumed": "goes on, or waits for room again",
    "task.checkpointed": "saved its state",
    "webhook.test": "sent when somebody asks for it",
}
FINISHED = ("task.succeeded", "task.failed", "task.cancelled", "task.skipped", "task.expired")


def kinds_of(words: Iterable[str], field: str) -> tuple[str, ...]:
    """The kinds behind the words of a filter, sorted; an error names what was meant."""
    found: set[str] = set()
    for word in words:
        if word == "finished":
            found.update(FINISHED)
        elif word in ("*", "task.*"):
            found.update(kind for kind in KINDS if kind.startswith("task."))
        elif (kind := word if "." in word else f"task.{word}") in KINDS:
            found.add(kind)
        else:
            raise _unknown(word, field)
    return tuple(sorted(found))


def _unknown(word: str, field: str) -> InvalidInput:
    short = [kind.removeprefix("task.") for kind in KINDS]
    near = difflib.get_close_matches(word.removeprefix("task."), [*short, "finished"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"one of finished, {', '.join(short)}"
    return InvalidInput(f"{field}: there is no event {word[:40]!r}", field=field, hint=hint)
