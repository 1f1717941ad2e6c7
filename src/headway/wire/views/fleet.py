"""The fleet and its load: nodes, queues, shares, peaks, numbers of now."""

from __future__ import annotations

import datetime

import msgspec

from headway.wire.views.tasks import ResourcesView


class NodeView(msgspec.Struct):
    id: int
    name: str
    state: str  # up | draining | quarantined | lost | gone
    cpus: float
    memory: int
    disk: int
    labels: dict[str, str]
    running: int
    allocated: ResourcesView
    seen_at: datetime.datetime | None
    version: str
    region: str = ""
    trouble: str = ""  # why it is in quarantine, or that it is ending
    clock_s: float = 0.0  # how far its clock is ahead of the database's


class QueueView(msgspec.Struct):
    """A queue: its tasks and its rules. Those of delayable and periodic that are due are shown in urgent."""

    name: str
    ready: int
    scheduled: int
    blocked: int
    running: int
    oldest_ready_s: float | None
    due: int = 0  # of the ready ones: their start_by is near or past
    missed: int | None = 0  # handed out more than a second after their start_by; null for a tenant: it is counted over all
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
    """One time of peak, and what was put off: at one moment `held_cpus` more would have been needed to start it all at once.

    `held_cpu_seconds` is how many cpus, times how long each was put off: by the length of the peak, the mean of `held_cpus`.
    """

    began_at: datetime.datetime
    ended_at: datetime.datetime | None
    utilisation: float
    capacity_cpus: float
    held_tasks: int
    held_cpus: float
    held_cpu_seconds: float


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
    trouble: str = ""  # why the database did not take something in the last minute
