"""Stimuli and instructions of the machine: what can happen to an agent, and what its shell is told to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import Cancel, Control, Excess, Finished, Notice, Order, Ref, Started

# --- stimuli -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OrdersArrived:
    orders: list[Order]
    definitions: dict[int, Definition]
    cancels: list[Cancel]
    now: float
    controls: list[Control] = field(default_factory=list)


@dataclass(slots=True)
class Prepared:
    """What a definition needs is there, or cannot be: `error` says why and `log` shows it."""

    definition: int
    now: float
    error: str = ""
    log: str = ""
    no_room: bool = False  # on the node's disk, that is why


@dataclass(slots=True)
class ProcessEnded:
    """An executable ended, or could not be started. `finished` says how, as far as its exit status tells."""

    finished: Finished
    now: float


@dataclass(slots=True)
class RunnerReady:
    runner: int
    now: float


@dataclass(slots=True)
class RunnerDid:
    """The first `count` of its batch are done and their results are on the way."""

    runner: int
    count: int
    busy_s: float  # all of them
    last_s: float  # the last of them
    tired: bool  # it has run enough, or grown too much
    now: float


@dataclass(slots=True)
class RunnerGaveBack:
    """The last `count` of its batch had not begun and will not."""

    runner: int
    count: int
    now: float


@dataclass(slots=True)
class BatchNotGiven:
    """The last `count` orders of a runner's batch could not be given to it."""

    runner: int
    count: int
    why: str
    now: float
    unstarted: int | None = None  # it is the fault of this definition alone: the orders of others may try again


@dataclass(slots=True)
class RunnerEnded:
    """`begun` counts the tasks it began in its life: the last of them ran when it died."""

    runner: int
    begun: int
    started_ms: int
    why: str
    now: float
    excess: Excess | None = None  # it was ended for a limit
    unstarted: int | None = None  # it never began: it could not be started as this definition needs it


@dataclass(slots=True)
class Tick:
    """Time passed. `current` gives for each runner how many tasks it has begun in its life, and when the last of them."""

    now: float
    current: dict[int, tuple[int, float]]


@dataclass(slots=True)
class DrainAsked:
    on: bool
    now: float


@dataclass(slots=True)
class EndAllAsked:
    grace_s: float
    now: float


@dataclass(slots=True)
class Fenced:
    """The lease is over: whatever ran is being killed by the shell, all of it, now."""


Stimulus = (
    OrdersArrived
    | Prepared
    | ProcessEnded
    | RunnerReady
    | RunnerDid
    | RunnerGaveBack
    | BatchNotGiven
    | RunnerEnded
    | Tick
    | DrainAsked
    | EndAllAsked
    | Fenced
)

# --- instructions ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Take:
    """Tell the server that these arrived, and which definitions are missing."""

    refs: list[Ref]
    unknown: list[int]


@dataclass(slots=True)
class Prepare:
    """See to what this definition needs before it can start; Prepared answers."""

    number: int
    definition: Definition


@dataclass(slots=True)
class Spawn:
    order: Order
    definition: Definition


@dataclass(slots=True)
class EndProcess:
    """End an executable's whole tree: by SIGTERM, or by SIGKILL when `force`."""

    id: int
    force: bool


@dataclass(slots=True)
class Freeze:
    """Stop every process of an attempt: a program's, or its runner's when `runner` is not 0."""

    id: int
    runner: int


@dataclass(slots=True)
class Thaw:
    id: int
    runner: int


@dataclass(slots=True)
class SignalProcess:
    """Send a signal to the first process of a program."""

    id: int
    signal: str


@dataclass(slots=True)
class StartRunner:
    """Start a runner of this kind, as `definition` needs it; None: any Python function."""

    runner: int
    kind: str
    definition: int | None = None


@dataclass(slots=True)
class GiveBatch:
    runner: int
    orders: list[Order]


@dataclass(slots=True)
class AskBack:
    runner: int


@dataclass(slots=True)
class Nudge:
    """Results and output may be waiting behind a long task: send them."""

    runner: int


@dataclass(slots=True)
class StopRunner:
    """It has nothing to do: let it exit."""

    runner: int


@dataclass(slots=True)
class EndRunner:
    """End the runner's whole tree, as EndProcess."""

    runner: int
    force: bool


@dataclass(slots=True)
class TellFinished:
    finished: Finished


@dataclass(slots=True)
class TellStarted:
    started: list[Started]


@dataclass(slots=True)
class TellNotices:
    notices: list[Notice]


@dataclass(slots=True)
class TellReturned:
    refs: list[Ref]


@dataclass(slots=True)
class TellAgain:
    """These left here before, and the server orders them all the same."""

    refs: list[Ref]


Instruction = (
    Take
    | Prepare
    | Spawn
    | EndProcess
    | Freeze
    | Thaw
    | SignalProcess
    | StartRunner
    | GiveBatch
    | AskBack
    | Nudge
    | StopRunner
    | EndRunner
    | TellFinished
    | TellStarted
    | TellNotices
    | TellReturned
    | TellAgain
)


@dataclass(slots=True)
class Ending:
    """Why an attempt is being ended, and when patience ends."""

    id: int
    outcome: Outcome
    kill_at: float
    forced: bool = False
