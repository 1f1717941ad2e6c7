"""What a task is, without its input: a Definition, interned by content, and the edges to other tasks.

What a user says is in spec.py; define.py makes the one out of the other.
"""

from __future__ import annotations

import shlex
from enum import IntEnum

import msgspec

from headway.domain import queues
from headway.domain.content import Content
from headway.domain.notify import Notify
from headway.domain.resources import DEFAULT_TIER, TIERS, Resources
from headway.domain.stages import Stage
from headway.domain.waiting import Patience


class Category(IntEnum):
    URGENT = 0
    DELAYABLE = 1
    PERIODIC = 2


class When(IntEnum):
    """What an edge waits for."""

    SUCCEEDED = 0
    DONE = 1  # however it ended
    FAILED = 2


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    interval_ms: int = 10_000
    backoff: float = 2.0
    max_ms: int = 300_000
    jitter: float = 0.1
    node_losses: int = 3


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task is, without its input: one row for all tasks that share it."""

    name: str
    command: tuple[str, ...] = ()
    executable: str = ""
    function: str = ""
    interpreter: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    workdir: str = ""
    codec: str = "json"
    resources: Resources = TIERS[DEFAULT_TIER]
    tier: str = ""
    category: Category = Category.DELAYABLE
    attempts: int = 1
    retry: Retry = Retry()
    cap_ms: int = 600_000
    tolerance_ms: int = 60_000
    content: Content = Content()
    isolation: str = ""  # empty: none
    network: tuple[str, ...] = ()
    tenant: int = 0  # whose it is, when it is isolated from the tasks of others or has a file of its own to log to
    queue: str = ""  # the one it names
    off_peak: queues.OffPeak = queues.OffPeak.ALLOWED
    preemptible: bool | None = None
    patience: Patience = Patience()
    notify: tuple[Notify, ...] = ()
    with_results: bool = False  # its order carries the results of what it waited for
    stages: tuple[Stage, ...] = ()

    @property
    def rules(self) -> queues.Rules:
        """Where and when it may run."""
        return queues.rules(self.category.name.lower(), self.queue, self.off_peak, self.preemptible)

    @property
    def what(self) -> str:
        """What it runs, in one line that a shell would understand."""
        if self.content.image:
            return " ".join((self.content.image, *(self.content.commands or map(shlex.quote, self.args))))
        if self.function:
            return self.function
        if self.stages:
            return " → ".join(stage.name for stage in self.stages)
        return shlex.join((*self.command, *self.args) if self.command else (self.executable, *self.args))


class Edge(msgspec.Struct, frozen=True):
    """`task` (a name in the same request, or an id) must end before this one begins."""

    task: str | int
    when: When = When.SUCCEEDED


def encode(definition: Definition) -> bytes:
    """The canonical bytes whose hash is the definition's identity."""
    return msgspec.json.encode(definition, order="deterministic")


def decode(body: bytes | str) -> Definition:
    return msgspec.json.decode(body, type=Definition)
