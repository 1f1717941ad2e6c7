"""A task as a user says it. The field names are the same in YAML, JSON, Python and on the command line.

What this version does not do is refused by name rather than ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headway.domain.content import ArchiveSpec
from headway.domain.fanout import ResultOf
from headway.domain.notify import NotifySpec
from headway.domain.stages import StageSpec


class AfterSpec(msgspec.Struct, forbid_unknown_fields=True):
    """An edge with a kind: {task: b, when: failed}."""

    task: str | int
    when: str = "succeeded"


class RetrySpec(msgspec.Struct, forbid_unknown_fields=True):
    interval: float | str = 10
    backoff: float = 2
    max: float | str = 300
    jitter: float = 0.1
    node_losses: int = 3


class ResourcesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Exact resources; what is left out comes from the basic tier (cpus, memory, disk) or is zero."""

    tier: str | None = None
    cpus: float | None = None
    memory: int | float | str | None = None
    disk: int | float | str | None = None
    iops: int | None = None
    bandwidth: int | float | str | None = None
    ports: int | None = None
    labels: dict[str, str] = {}


class TaskSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One task as a user writes it."""

    name: str | None = None
    labels: dict[str, str] = {}
    command: list[str] | str | None = None
    executable: str | None = None
    function: str | None = None
    args: list[str | int | float] = []
    env: dict[str, str] = {}
    workdir: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    codec: str = "json"
    interpreter: str | None = None
    image: str | None = None
    commands: list[str] | str | None = None
    checksum: str | None = None
    requires: list[str | dict[str, str]] | dict[str, Any] | str | None = None
    prepare: list[str] | str | None = None
    archives: list[str | ArchiveSpec] = []
    volumes: list[str] = []
    secrets: list[str] | dict[str, str] = []
    logger: str | None = None
    resources: str | ResourcesSpec | None = None
    category: str | None = None
    queue: str | None = None
    off_peak: str = "allowed"
    preemptible: bool | None = None
    attempts: int = 1
    retry: RetrySpec | None = None
    execution_cap: float | str | None = None
    delay_tolerance: float | str | None = None
    max_wait: float | str | None = None
    on_max_wait: str = "expire"
    on_late: str = "warn"
    after: list[str | int | AfterSpec] | str | int = []
    at: str | float | None = None
    idempotency_key: str | None = None
    size: float | None = None
    for_each: list[Any] | ResultOf | None = None
    with_results: bool = False
    isolation: str | None = None
    network: str | list[str] | None = None
    notify: list[str | NotifySpec] | str = []
    stages: list[StageSpec | str] = []


KEYWORDS = frozenset(
    [
        "name",
        "labels",
        "command",
        "executable",
        "function",
        "image",
        "commands",
        "args",
        "env",
        "input",
        "resources",
        "isolation",
        "network",
        "secrets",
        "volumes",
        "interpreter",
        "checksum",
        "requires",
        "prepare",
        "archives",
        "stages",
        "category",
        "queue",
        "attempts",
        "retry",
        "execution_cap",
        "delay_tolerance",
        "max_wait",
        "on_max_wait",
        "on_late",
        "off_peak",
        "preemptible",
        "after",
        "at",
        "schedule",
        "timezone",
        "start",
        "end",
        "overlap",
        "misfire",
        "jitter",
        "idempotency_key",
        "size",
        "notify",
        "logger",
        "subtasks",
        "sequence",
        "parallel",
        "for_each",
        "levels",
        "defaults",
        "parameters",
        "workdir",
        "codec",
        "with_results",
    ]
)
SCHEDULE_WORDS = ("schedule", "timezone", "start", "end", "jitter", "overlap", "misfire")  # beside a task or a tree, see domain.schedule
SUPPORTED = frozenset(TaskSpec.__struct_fields__)
NOT_YET = KEYWORDS - SUPPORTED
MAX_INPUT = 4 * 2**20


def raw_input(value: Any) -> msgspec.Raw:
    """A Python value as a task's input."""
    return msgspec.Raw(msgspec.json.encode(value))
