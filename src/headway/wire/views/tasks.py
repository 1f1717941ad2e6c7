"""A task: what is known of it, its attempts, its output, and the answers to submitting it."""

from __future__ import annotations

import datetime

import msgspec

from headway.wire.exchange import ErrorInfo

UNTOLD = -1


class ResourcesView(msgspec.Struct, omit_defaults=True):
    cpus: float
    memory: int
    disk: int
    iops: int = 0
    bandwidth: int = 0
    ports: int = 0
    labels: dict[str, str] = {}
    tier: str = ""


class UsageView(msgspec.Struct):
    wall_s: float | None = None
    cpu_s: float | None = None
    max_memory: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


class ProgressView(msgspec.Struct):
    done: float
    total: float
    text: str = ""


class TaskView(msgspec.Struct):
    """One task, wherever it is in its life."""

    id: str
    name: str
    tenant: str
    state: str
    category: str
    what: str
    labels: dict[str, str]
    attempt: int
    attempts: int
    execution_cap_s: float
    created_at: datetime.datetime
    eligible_at: datetime.datetime
    start_by: datetime.datetime
    leased_at: datetime.datetime | None = None
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    node: str | None = None
    outcome: str | None = None
    exit_code: int | None = None
    error: ErrorInfo | None = None
    # Only when asked for (GET one task), else null; a pickled value is base64 in a string. Not `Raw | None`: msgspec
    # would then refuse to decode anything but null.
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    codec: str = "json"
    resources: ResourcesView | None = None
    usage: UsageView | None = None
    progress: ProgressView | None = None
    tree: str | None = None
    blocked_on: int = 0
    cancelling: bool = False
    paused_since: datetime.datetime | None = None  # since when somebody wants it paused; it is when its state says so
    failures: dict[str, int] = {}  # by blame: task, resource, node, requeues
    isolation: str = "none"
    queue: str | None = None  # the one it names
    max_wait_s: float | None = None
    on_max_wait: str | None = None  # expire | keep, when there is a limit
    parent: str | None = None  # the running task that submitted it
    stages: list[str] = []  # names, in order
    stages_done: int = 0
    checkpoint_at: datetime.datetime | None = None  # when its newest checkpoint was saved
    checkpoint_size: int | None = None
    subtasks: list[str] = []  # what it submitted itself, in the order of ids; only when asked for, the first 1,000


class AttemptView(msgspec.Struct):
    attempt: int
    outcome: str | None  # None while it runs
    node: str | None
    leased_at: datetime.datetime | None
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    exit_code: int | None = None
    error: ErrorInfo | None = None
    usage: UsageView | None = None


class Page(msgspec.Struct):
    """`GET /v1/tasks`; `next` is the cursor of the next page."""

    tasks: list[TaskView]
    next: str | None = None


class Waited(msgspec.Struct):
    """`POST /v1/tasks/wait`: what is final, and the ids of what is not."""

    done: list[TaskView]
    pending: list[str]


class Saved(msgspec.Struct):
    """Whether a checkpoint is saved; if not, its chunks are to be sent first."""

    saved: bool


class Accepted(msgspec.Struct):
    """The answer to one submitted task."""

    id: str
    state: str
    start_by: datetime.datetime
    created: bool = True  # False: the idempotency key gave the first task back
    predicted_start: datetime.datetime | None = None  # null when nothing is known to predict it from
    warning: str | None = None  # says so when that is after start_by


class AcceptedMany(msgspec.Struct):
    """The answer to a bulk: ids in the order of the request."""

    ids: list[str]
    count: int
    tree: str | None = None
    predicted_start: datetime.datetime | None = None  # of the last one
    warning: str | None = None


class LogLine(msgspec.Struct):
    attempt: int
    stream: str  # stdout | stderr
    at: datetime.datetime
    text: str  # bytes that are no UTF-8 are replaced; the raw bytes by ?raw=1
    sequence: int = UNTOLD  # within its attempt: ?after=ATTEMPT-SEQUENCE goes on behind it

    @property
    def position(self) -> str | None:
        """What `after` takes to go on behind it; None when the server is an older one that does not tell."""
        return None if self.sequence == UNTOLD else f"{self.attempt}-{self.sequence}"


class DeadGroup(msgspec.Struct):
    """Dead letters that died of the same error."""

    fingerprint: str
    name: str
    type: str
    message: str
    count: int
    first_at: datetime.datetime
    last_at: datetime.datetime
    example: str  # a task id
