"""The one call between agents and servers: `POST /v1/nodes/{id}/exchange`.

Up go heartbeat, what the agent holds, what it started, finished and gives back; down come orders. It is repeatable: a report is
answered only after its commit and repeated by the agent until then, and an order is repeated by the server until the agent says
it received that (id, attempt). Lists are absolute or keyed by (id, attempt), never deltas, so duplicates and reordering change
nothing. JSON and MessagePack carry the same structs: curl can do it by hand, agents use MessagePack.
"""

from __future__ import annotations

import msgspec

from headway.domain.resources import Capacity
from headway.domain.task import Definition

Ref = tuple[int, int]  # (task id, attempt): the attempt number is the fence
ENDING = "is ending"  # the trouble of an agent that was asked to end: it takes no new tasks and finishes what runs


class Register(msgspec.Struct, omit_defaults=True):
    """`POST /v1/nodes`: an agent announces its machine. The same name again is the same node, if it is the same machine."""

    name: str
    boot: str  # new for every start of a supervisor
    capacity: Capacity
    protocol: int
    version: str
    region: str = ""
    machine: str = ""  # the same for every start of an agent in one folder, and of no other


class Registered(msgspec.Struct):
    id: int
    heartbeat_s: float
    fence_s: float  # without an answered heartbeat for this long, kill everything
    hold_s: float  # how long a server may ask to hold on while the database is away
    protocol: int
    version: str
    task_key: bytes = b""  # with it the agent makes the tokens of the attempts it runs (wire/task_token.py)


class Started(msgspec.Struct, array_like=True):
    """An attempt still running at the report."""

    id: int
    attempt: int
    at_ms: int  # Unix ms, agent's clock


class Finished(msgspec.Struct, array_like=True):
    """How an attempt ended. `outcome` is a lifecycle.Outcome; `result` is the encoded value, `error` JSON of ErrorInfo."""

    id: int
    attempt: int
    outcome: int
    started_ms: int
    ended_ms: int
    result: bytes | None = None
    exit_code: int | None = None
    error: str | None = None
    cpu_ms: int | None = None
    max_memory: int | None = None
    read_bytes: int | None = None  # from storage, as far as the kernel says
    written_bytes: int | None = None
    waits: list[int] = []  # suspended: the subtasks it waits for


class Excess(msgspec.Struct):
    """The limit an attempt was ended for: what it used and what it was allowed, in bytes, processes or seconds."""

    what: str  # memory | processes | disk | time
    used: float
    allowed: float


MOST_WAITED_FOR = 100_000


def possible(ids: list[int]) -> list[int]:
    """Those that can be ids of tasks: what a task says it waits for comes from the task itself."""
    return [each for each in ids[:MOST_WAITED_FOR] if type(each) is int and 0 < each < 2**63]


def is_json(data: bytes) -> bool:
    """Whether it can stand in an answer as it is, and be read there: a result comes from the task itself."""
    try:
        if not data.isascii():
            data.decode()  # texts are not looked at below
        _skip(data)
    except (ValueError, RecursionError):
        return False
    return True


def as_text(data: bytes) -> bytes | None:
    """What a result is that is no JSON: a text."""
    return msgspec.json.encode(data.decode(errors="replace").replace("\0", "\ufffd")) if data.strip() else None


class ErrorInfo(msgspec.Struct, omit_defaults=True):
    """Why an attempt did not succeed. `type` and `message` group dead letters."""

    type: str
    message: str
    traceback: str = ""
    excess: Excess | None = None


class Output(msgspec.Struct, array_like=True):
    """A piece of stdout (1) or stderr (2). (id, attempt, sequence) is unique, so a repeated piece is stored once."""

    id: int
    attempt: int
    sequence: int
    stream: int
    at_ms: int
    data: bytes


class Progress(msgspec.Struct, array_like=True):
    id: int
    attempt: int
    done: float
    total: float
    text: str = ""


class Notice(msgspec.Struct, array_like=True):
    """Something happened to a running attempt. With a `number` it answers that Control; else its kind is an event's, as `cap_warning`."""

    id: int
    attempt: int
    kind: str  # paused | resumed | signalled | yielding | returned | gone | refused: ...
    number: int = 0
    text: str = ""  # JSON of what else is known


class Exchange(msgspec.Struct, omit_defaults=True):
    """What an agent says."""

    boot: str
    sequence: int  # rises with every new report; a lower one is ignored, an equal one is a repeat
    wait_s: float = 0.0  # > 0: hold this call until there are orders
    heartbeat: bool = False  # commit that I live before answering: only then does my lease run on
    held: list[Ref] | None = None  # absolute: every attempt I answer for (queued, running, finished and unreported)
    received: list[Ref] = []  # orders that arrived
    started: list[Started] = []
    finished: list[Finished] = []
    returned: list[Ref] = []  # received, not begun, given back
    output: list[Output] = []
    progress: list[Progress] = []
    unknown_definitions: list[int] = []  # orders came whose definition I do not have
    draining: bool = False
    now_ms: int = 0  # my clock when I sent this: the server moves my times onto the database's clock
    notices: list[Notice] = []
    stages: list[Staged] = []
    trouble: str = ""  # with a heartbeat: why I take no new tasks


class Staged(msgspec.Struct, array_like=True):
    """A stage of an attempt that ended well; the next one begins when this is committed."""

    id: int
    attempt: int
    number: int


class Resume(msgspec.Struct, array_like=True):
    """Where a task goes on that has run before."""

    stage: int = 0  # the first one to run
    checkpoints: list[tuple[bytes, int]] = []  # folders, newest first: SHA-256 and size of what they are packed in


class Order(msgspec.Struct, array_like=True):
    """Run this attempt."""

    id: int
    attempt: int
    definition: int
    input: bytes
    name: str | None = None
    traceparent: str | None = None
    dependencies: bytes | None = None  # JSON of Dependencies, for a task that asked for them
    resume: Resume | None = None


class Dependencies(msgspec.Struct, omit_defaults=True):
    """What the tasks resulted in that this one waited for, by name; of those in `pickled`, a pickle in base64."""

    results: dict[str, msgspec.Raw] = {}
    pickled: list[str] = []
    error: str = ""  # why they are not here


class Cancel(msgspec.Struct, array_like=True):
    """End this attempt: SIGTERM, then after `grace_s` SIGKILL, the whole process tree. Report it as cancelled."""

    id: int
    attempt: int
    grace_s: float = 5.0


class Control(msgspec.Struct, array_like=True):
    """Do this to an attempt you hold: pause, resume, signal (argument: its name) or yield (end as pre-empted, argument: seconds of
    grace). Numbers rise; a lower one than the last of its attempt is out of date. Each is repeated until a Notice answers it."""

    number: int
    id: int
    attempt: int
    word: str
    argument: str = ""


class Orders(msgspec.Struct, omit_defaults=True):
    """What a server answers."""

    sequence: int
    renewed: bool = False  # the heartbeat of this call is committed
    hold: bool = False  # the database is away: do not fence because of it
    lost: bool = False  # this boot was declared lost: kill everything, register with a new boot
    drain: bool = False  # finish what runs, take nothing new
    orders: list[Order] = []
    definitions: dict[int, Definition] = {}
    secrets: dict[int, dict[str, str]] = {}  # variables for tasks of these definitions; kept in memory only
    cancels: list[Cancel] = []
    controls: list[Control] = []


_skip = msgspec.json.Decoder(msgspec.Raw).decode
MSGPACK = "application/msgpack"
encode_msgpack = msgspec.msgpack.Encoder().encode
decode_exchange = msgspec.msgpack.Decoder(Exchange).decode
decode_orders = msgspec.msgpack.Decoder(Orders).decode
