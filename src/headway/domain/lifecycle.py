"""The life of a task, declared once.

Every UPDATE that moves a task names its event; a unit test compares the SQL with this table, the test database refuses any
other move with a trigger made from it, and docs/lifecycle.md is generated from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class State(IntEnum):
    """Where a task is; each comment says what it waits for."""

    BLOCKED = 0  # waits for its dependencies
    SCHEDULED = 1  # waits for its time, first run or retry
    READY = 2  # waits for room on a node
    LEASED = 3  # handed to a node, not begun
    RUNNING = 4  # resources allocated, the cap is counting
    PAUSED = 5  # frozen, or checkpointed and waiting
    SUCCEEDED = 6  # finished
    FAILED = 7  # out of attempts, now a dead letter
    CANCELLED = 8  # a person or a program ended it
    SKIPPED = 9  # a dependency failed
    EXPIRED = 10  # waited beyond its limit

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def final(self) -> bool:
        return self >= State.SUCCEEDED


HELD = (State.LEASED, State.RUNNING, State.PAUSED)  # states in which a node answers for the task (a paused one may have none)
WAITING = (State.BLOCKED, State.SCHEDULED, State.READY)
FINAL = tuple(s for s in State if s.final)


class Outcome(IntEnum):
    """How one attempt ended."""

    SUCCEEDED = 0
    ERROR = 1  # exit code or exception
    SIGNAL = 2
    CAP_EXCEEDED = 3
    OUT_OF_MEMORY = 4
    TOO_MANY_PROCESSES = 5
    DISK_FULL = 6
    CANCELLED = 7
    PRE_EMPTED = 8
    REQUEUED = 9  # exit 85: checkpointed, run me again
    TRY_LATER = 10  # exit 75
    NODE_LOST = 11
    RUNNER_CRASHED = 12
    NOT_STARTABLE = 13  # no interpreter, no function, preparation failed
    SUSPENDED = 14  # waits for subtasks it submitted, and holds nothing meanwhile

    @property
    def word(self) -> str:
        return self.name.lower()


class Blame(Enum):
    """Who is charged for an attempt that did not succeed; each has its own budget."""

    TASK = "task"  # counts against `attempts`
    RESOURCE = "resource"  # counts against `attempts` too, but is shown apart
    NODE = "node"  # counts against `retry.node_losses`
    NOBODY = "nobody"  # counts against the bound on requeues


BLAME: dict[Outcome, Blame] = {
    Outcome.ERROR: Blame.TASK,
    Outcome.SIGNAL: Blame.TASK,
    Outcome.CAP_EXCEEDED: Blame.RESOURCE,
    Outcome.OUT_OF_MEMORY: Blame.RESOURCE,
    Outcome.TOO_MANY_PROCESSES: Blame.RESOURCE,
    Outcome.DISK_FULL: Blame.RESOURCE,
    Outcome.PRE_EMPTED: Blame.NOBODY,
    Outcome.REQUEUED: Blame.NOBODY,
    Outcome.TRY_LATER: Blame.NOBODY,
    Outcome.NODE_LOST: Blame.NODE,
    Outcome.RUNNER_CRASHED: Blame.TASK,
    Outcome.NOT_STARTABLE: Blame.TASK,
    Outcome.SUSPENDED: Blame.NOBODY,
}


class Event(Enum):
    """What can happen to a task."""

    ADMIT = "admit"
    RELEASE = "release"  # its last dependency ended well
    COME_DUE = "come_due"
    LEASE = "lease"
    CHANGE = "change"  # a waiting task becomes another one
    CHANGE_PAUSED = "change_paused"  # so does one that is paused and that no node has
    START = "start"
    GIVE_BACK = "give_back"  # handed out, not begun, returned: uses no attempt
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"  # an attempt failed and another is allowed
    LOSE = "lose"  # its node is gone
    SUSPEND = "suspend"  # it waits for its subtasks
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    SKIP = "skip"
    EXPIRE = "expire"
    REVIVE = "revive"  # a dead letter is sent again
    GATHER = "gather"  # all tasks that it stands for have succeeded
    RESTORE = "restore"  # its tree is tried again


@dataclass(frozen=True)
class Move:
    """From which states an event may take a task, and to which."""

    sources: tuple[State, ...]
    targets: tuple[State, ...]
    because: str


def move(*sources: State, to: State | tuple[State, ...], because: str) -> Move:
    return Move(sources, to if isinstance(to, tuple) else (to,), because)


TRANSITIONS: dict[Event, Move] = {
    Event.ADMIT: move(to=(*WAITING, State.LEASED), because="a submitter stored it, on an idle system straight onto a node"),
    Event.RELEASE: move(State.BLOCKED, to=(State.READY, State.SCHEDULED), because="its last dependency ended"),
    Event.COME_DUE: move(State.SCHEDULED, to=State.READY, because="its time has come"),
    Event.LEASE: move(State.READY, to=State.LEASED, because="the planner found room on a node"),
    Event.CHANGE: move(*WAITING, to=WAITING, because="somebody changed it while it waited"),
    Event.CHANGE_PAUSED: move(State.PAUSED, to=State.PAUSED, because="somebody changed it while it was kept from starting"),
    Event.START: move(State.LEASED, to=State.RUNNING, because="the node began it"),
    Event.GIVE_BACK: move(State.LEASED, to=(State.READY, State.PAUSED), because="the node did not begin it"),
    Event.PAUSE: move(
        State.SCHEDULED, State.READY, State.RUNNING, to=State.PAUSED, because="frozen on its node, or kept from being given to one"
    ),
    Event.RESUME: move(State.PAUSED, to=(State.RUNNING, State.READY, State.SCHEDULED), because="goes on, or waits again"),
    Event.RETRY: move(
        *HELD, to=(State.SCHEDULED, State.READY, State.PAUSED), because="an attempt ended, another is allowed, now or when resumed"
    ),
    Event.LOSE: move(*HELD, to=(State.READY, State.PAUSED), because="its node is gone, another run is allowed"),
    Event.SUSPEND: move(
        *HELD, to=(State.BLOCKED, State.READY, State.PAUSED), because="it waits for subtasks that it submitted"
    ),
    Event.SUCCEED: move(*HELD, to=State.SUCCEEDED, because="an attempt succeeded"),
    Event.FAIL: move(*WAITING, *HELD, to=State.FAILED, because="out of attempts, or impossible"),
    Event.CANCEL: move(*WAITING, *HELD, to=State.CANCELLED, because="a person or a program asked"),
    Event.SKIP: move(State.BLOCKED, to=State.SKIPPED, because="a dependency failed"),
    Event.EXPIRE: move(*WAITING, to=State.EXPIRED, because="waited beyond its limit"),
    Event.REVIVE: move(State.FAILED, to=(State.READY, State.BLOCKED), because="a dead letter was sent again"),
    Event.GATHER: move(State.BLOCKED, to=State.SUCCEEDED, because="every task of its `for_each` succeeded"),
    Event.RESTORE: move(
        State.FAILED, State.CANCELLED, State.SKIPPED, State.EXPIRED, to=WAITING, because="its tree is tried again"
    ),
}


def allowed(event: Event, source: State, target: State) -> bool:
    """Whether `event` may take a task from `source` to `target`."""
    rule = TRANSITIONS[event]
    return source in rule.sources and target in rule.targets
