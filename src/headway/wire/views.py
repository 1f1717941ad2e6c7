"""What the API answers, as structs: one model for JSON, OpenAPI, the client and the CLI.

Ids are decimal strings in JSON (JavaScript cannot hold 63 bits); times are ISO 8601 in UTC.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from headway.wire.exchange import ErrorInfo


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


class TreeTaskView(msgspec.Struct):
    id: str
    name: str
    state: str
    level: int
    progress: ProgressView | None = None
    exit_code: int | None = None
    error: ErrorInfo | None = None


class LevelView(msgspec.Struct):
    """What is left on a level, and when it is expected to end. `spared` were skipped because nobody needed them."""

    level: int
    total: int
    left: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    spared: int = 0
    expired: int = 0
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None  # when the last task on it ended, so far
    expected_end_at: datetime.datetime | None = None


class TreeView(msgspec.Struct):
    """A tree. Of a large one, the first tasks and the lowest levels that have something left are shown."""

    id: str
    name: str
    state: str
    created_at: datetime.datetime
    levels: list[LevelView]
    tasks: list[TreeTaskView]
    total: int = 0
    left: int = 0
    height: int = 0  # number of levels, also of those not shown
    strict: bool = False
    ended_at: datetime.datetime | None = None
    expected_end_at: datetime.datetime | None = None


class NeighbourView(msgspec.Struct):
    """A task before or behind another: how many steps away, and what kind of edge leads there."""

    id: str
    name: str
    state: str
    steps: int
    when: str
    level: int | None = None


class EdgeView(msgspec.Struct):
    upstream: str
    downstream: str
    when: str


class EdgePage(msgspec.Struct):
    edges: list[EdgeView]
    next: str | None = None


class LevelPage(msgspec.Struct):
    levels: list[LevelView]
    next: str | None = None  # `from` of the next page


class PathTaskView(msgspec.Struct):
    id: str
    name: str
    state: str
    level: int | None
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    run_s: float | None = None
    waited_s: float | None = None  # for room, after its dependencies were done


class CriticalPath(msgspec.Struct):
    """The chain that decides when a tree ends, first task first."""

    tasks: list[PathTaskView]
    run_s: float
    shortened: bool = False  # only the end of a very long one is shown


class TreeSummary(msgspec.Struct):
    id: str
    name: str
    tenant: str
    state: str
    created_at: datetime.datetime
    total: int
    left: int
    height: int
    ended_at: datetime.datetime | None = None


class TreePage(msgspec.Struct):
    """`GET /v1/trees`; `next` is the cursor of the next page."""

    trees: list[TreeSummary]
    next: str | None = None


class FiringView(msgspec.Struct):
    """One moment of a schedule, and what became of it."""

    at: datetime.datetime
    fired_at: datetime.datetime
    kind: str  # calendar | trigger | backfill
    state: str  # waiting | started | skipped | missed | replaced | impossible
    run: str | None = None  # the id of its task, or of its tree
    run_state: str | None = None
    missed: int = 0  # further firings that it stands for
    note: str | None = None


class ScheduleView(msgspec.Struct):
    """A schedule. `past` and `work` only when one is asked for."""

    name: str
    tenant: str
    state: str  # active | paused | finished
    schedule: float | str
    timezone: str
    start: float | str | None
    end: float | str | None
    jitter: float | str
    overlap: str
    misfire: str
    tasks: int  # tasks of one run
    next: list[datetime.datetime]
    last_at: datetime.datetime | None
    created_at: datetime.datetime
    changed_at: datetime.datetime
    problem: str | None = None
    past: list[FiringView] = []
    work: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class SchedulePage(msgspec.Struct):
    schedules: list[ScheduleView]
    next: str | None = None


class AppliedView(msgspec.Struct):
    """What applying a schedule did."""

    name: str
    change: str  # created | changed | unchanged
    next_at: datetime.datetime | None


class Backfilled(msgspec.Struct):
    """The moments that are now made up for."""

    count: int
    firings: list[datetime.datetime]


class PredictionView(msgspec.Struct):
    """What a run is expected to take: half of them less than `seconds`, nine of ten between `low` and `high`."""

    seconds: float
    low: float
    high: float
    runs: int  # how many earlier runs it was learned from
    law: str  # how it grows with the size: constant | log n | n | n log n | n^2
    sure: str  # guess | rough | good
    memory: int | None = None  # bytes that 95 of 100 runs did not exceed


class PathView(msgspec.Struct):
    """The chain of tasks that decides how long all of them take, however many machines there are."""

    tasks: list[str]
    seconds: float
    low: float
    high: float
    known: int  # tasks of the chain that have run often enough to say


class PredictionsView(msgspec.Struct):
    tasks: dict[str, PredictionView | None]  # by name; null: it never ran
    critical_path: PathView


class NodeView(msgspec.Struct):
    id: int
    name: str
    state: str  # up | draining | lost | gone
    cpus: float
    memory: int
    disk: int
    labels: dict[str, str]
    running: int
    allocated: ResourcesView
    seen_at: datetime.datetime | None
    version: str
    region: str = ""


class QueueView(msgspec.Struct):
    """A queue: its tasks and its rules. Those of delayable and periodic that are due are shown in urgent."""

    name: str
    ready: int
    scheduled: int
    blocked: int
    running: int
    oldest_ready_s: float | None
    due: int = 0  # of the ready ones: their start_by is near or past
    missed: int = 0  # handed out more than a second after their start_by
    state: str = "open"  # open | paused | closed
    reason: str = ""  # why it is closed
    runs: str = "always"
    hours: list[str] = []
    timezone: str = "UTC"


class ShareView(msgspec.Struct):
    """What a tenant holds of the fleet: the largest part of any resource, divided by its weight, over about a minute."""

    tenant: str
    share: float
    waits: bool = False


class PeakView(msgspec.Struct):
    """One time of peak, and what was put off: at one moment `held_cpus` more would have been needed to start it all at once."""

    began_at: datetime.datetime
    ended_at: datetime.datetime | None
    utilisation: float
    capacity_cpus: float
    held_tasks: int
    held_cpus: float
    held_cpu_seconds: float


class Reason(msgspec.Struct):
    """One reason why a task does not run, and what would remove it."""

    code: str
    text: str
    remedy: str = ""
    until: datetime.datetime | None = None


class Estimate(msgspec.Struct):
    """When it will probably start; nine times in ten between `low` and `high`."""

    at: datetime.datetime
    low: datetime.datetime
    high: datetime.datetime


class OrderView(msgspec.Struct):
    """A ready task's place and what decides it, in the order in which it counts."""

    ahead: int  # of its tenant's own tasks; at most 10,000 are counted
    due: bool  # its start_by is near or past
    entitled: bool  # its tenant holds less than its part of the fleet
    share: float
    level: float  # the share everyone who waits could have
    tenants_before: int  # tenants that wait and hold less
    start_by: datetime.datetime
    execution_cap_s: float


class Explanation(msgspec.Struct):
    """Why a task is where it is (E8)."""

    id: str
    state: str
    summary: str
    reasons: list[Reason] = []
    order: OrderView | None = None
    estimate: Estimate | None = None
    spent: dict[str, float] = {}  # seconds, by what it did


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


class Stats(msgspec.Struct):
    """Numbers of now. `submitted`, `finished` are totals since this server started."""

    states: dict[str, int]
    nodes: dict[str, int]
    queues: list[QueueView]
    finished_per_s: float
    submitted_per_s: float
    servers: int
    leaders: dict[str, str]  # duty -> server
    version: str
    free_cpus: float = 0.0
    total_cpus: float = 0.0
    utilisation: float = 0.0
    peak: bool = False
    top_k: int = 0  # most tasks handed out in one round
    drain_per_s: float = 0.0
    promoted: int = 0
    shares: list[ShareView] = []  # the largest; a tenant sees its own
    jain: dict[str, float] = {}  # by cost class


class EventView(msgspec.Struct):
    """One fact on the stream (`GET /v1/events`, SSE): the SSE id resumes after it."""

    id: str
    kind: str  # one of domain.events.KINDS
    tenant: str
    at: datetime.datetime
    tasks: list[str] = []
    data: dict[str, Any] = {}


class WebhookView(msgspec.Struct):
    """One endpoint. The secret is shown when it is made or changed, and never again."""

    name: str
    url: str
    events: list[str]
    enabled: bool
    tenant: str | None  # None: hears of all tenants
    created_at: datetime.datetime
    waiting: int  # messages, 1,000 at most
    dead: int
    implicit: bool = False  # made by a task's `notify`
    secret: str | None = None


class DeliveryView(msgspec.Struct):
    """One message to one endpoint."""

    id: str
    message: str
    kind: str
    task: str | None
    state: str  # due | delivered | dead
    attempts: int
    created_at: datetime.datetime
    due_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    status: int | None
    error: str | None


class Changed(msgspec.Struct):
    """The answer to bulk actions."""

    changed: int
    ids: list[str] = []


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    field: str | None = None
    retry_after: float | None = None
    instance: str | None = None


class TenantView(msgspec.Struct):
    """A tenant and what it subscribed to, in the words of `PATCH /v1/tenants/{tenant}`."""

    id: int
    name: str
    created_at: datetime.datetime
    subscription: dict[str, Any]


class TenantPage(msgspec.Struct):
    tenants: list[TenantView]
    next: str | None = None


class LimitView(msgspec.Struct):
    """One limit: null where there is none."""

    limit: float | None
    used: float
    left: float | None


class LimitsView(msgspec.Struct):
    """What a tenant may use, uses, and has left (E6). Counts stop at 100,000 tasks of a state."""

    tenant: str
    running: LimitView
    waiting: LimitView
    cpus: LimitView
    memory: LimitView
    submissions: LimitView  # of the burst, now
    rate_per_hour: float | None
    subscription: dict[str, Any]


class KeyView(msgspec.Struct):
    """A key, without itself: that is shown once, when it is made."""

    id: int
    role: str
    tenant: str | None
    name: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None = None
    revoked_at: datetime.datetime | None = None


class KeyPage(msgspec.Struct):
    keys: list[KeyView]
    next: str | None = None


class NewKeyView(msgspec.Struct):
    """A key just made. The token is not kept: this is the only time it is shown."""

    id: int
    token: str
    role: str
    tenant: str | None
    name: str
    expires_at: datetime.datetime | None


class AuditView(msgspec.Struct):
    """One deed of a person or a program. `result` is `begun` when the server died in the middle of it."""

    id: str
    at: datetime.datetime
    actor: str
    role: str
    tenant: str | None
    action: str
    target: str
    result: str
    before: Any = None
    after: Any = None


class AuditPage(msgspec.Struct):
    entries: list[AuditView]
    next: str | None = None
