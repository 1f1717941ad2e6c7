"""A task: what a user says (TaskSpec), and what it is (Definition, interned by content).

The field names are the same in YAML, JSON, Python and on the command line. Everything is checked here, once, before anything is
stored; what this version does not do is refused by name rather than ignored.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from headway.domain import queues, units
from headway.domain.content import ArchiveSpec, Content, content_of, labels_needed
from headway.domain.fanout import ResultOf
from headway.domain.isolation import check_level, check_network
from headway.domain.notify import Notify, NotifySpec, targets
from headway.domain.resources import DEFAULT_TIER, LABEL_LIMIT, TIERS, Resources, misspelt
from headway.domain.stages import Stage, StageSpec, stages_of
from headway.domain.tenant import STANDARD, Terms
from headway.domain.waiting import Patience, patience_of
from headway.errors import InvalidInput, UnknownField


class Category(IntEnum):
    URGENT = 0
    DELAYABLE = 1
    PERIODIC = 2


class When(IntEnum):
    """What an edge waits for."""

    SUCCEEDED = 0
    DONE = 1  # however it ended
    FAILED = 2


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
    tenant: int = 0  # whose it is, when it is isolated from the tasks of others
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
        """What it runs, in one line."""
        if self.content.image:
            return " ".join((self.content.image, *(self.content.commands or self.args)))
        if self.function:
            return self.function
        if self.stages:
            return " → ".join(stage.name for stage in self.stages)
        return " ".join((*self.command, *self.args) if self.command else (self.executable, *self.args))


class Edge(msgspec.Struct, frozen=True):
    """`task` (a name in the same request, or an id) must end before this one begins."""

    task: str | int
    when: When = When.SUCCEEDED


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
_EVERY_FIELD = SUPPORTED.union(
    *(kind.__struct_fields__ for kind in (RetrySpec, ResourcesSpec, AfterSpec, ResultOf, ArchiveSpec, NotifySpec, StageSpec))
)

NAME_LIMIT = 200
KEY_LIMIT = 200
MAX_ATTEMPTS = 1000
MAX_INPUT = 4 * 2**20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FUNCTION = re.compile(r"[^\s:]+:[A-Za-z_][\w.]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOLERANCE_MS = {Category.URGENT: 0, Category.DELAYABLE: 60_000, Category.PERIODIC: 60_000}


def define(spec: TaskSpec, terms: Terms = STANDARD) -> Definition:
    """The definition behind a spec under a tenant's terms, or an error that says which field is wrong and what was expected."""
    command = _command(spec)
    content = content_of(spec)
    kinds = [
        kind
        for kind, given in (
            ("command", command), ("executable", spec.executable), ("function", spec.function), ("image", content.image),
            ("stages", spec.stages),
        )
        if given
    ]  # fmt: skip
    if len(kinds) != 1:
        raise InvalidInput(
            f"{' and '.join(kinds)} are given: a task runs one thing" if kinds else "nothing to run",
            field=kinds[1] if kinds else "command",
            hint="give exactly one of command, executable, function, image, stages",
        )
    if spec.function and not _FUNCTION.fullmatch(spec.function):
        raise InvalidInput(f"function: {spec.function!r} names no function", field="function", hint='write "module:name"')
    if spec.codec not in ("json", "pickle"):
        raise InvalidInput(f"codec: {spec.codec!r} is unknown", field="codec", hint="json or pickle")
    texts = {"executable": spec.executable, "interpreter": spec.interpreter, "workdir": spec.workdir}
    for field, text in texts.items():
        _no_nul(text or "", field)
    args = tuple(str(a) for a in spec.args)
    for field, words in (("command", command), ("args", args)):
        for text in words:
            _no_nul(text, field)
    if command and not command[0]:
        raise InvalidInput("command: the name of the program is empty", field="command")
    for key, value in spec.env.items():
        if not _ENV_NAME.fullmatch(key):
            raise InvalidInput(f"env: {key!r} is not a variable name", field="env", hint="letters, digits, underscores")
        _no_nul(value, f"env.{key}")
    tolerance, category = _tolerance(spec, terms)
    cap = _cap(spec, terms)
    if not 1 <= spec.attempts <= MAX_ATTEMPTS:
        raise InvalidInput(
            f"attempts: {spec.attempts} is out of range", field="attempts", hint=f"1 to {MAX_ATTEMPTS}, the first run included"
        )
    resources, tier = resolve(spec.resources or terms.default_tier, terms)
    if needed := labels_needed(spec, content):
        labels = tuple(sorted({**needed, **dict(resources.labels)}.items()))
        resources = msgspec.structs.replace(resources, labels=labels)
    return Definition(
        name=_default_name(spec, command),
        command=command,
        executable=spec.executable or "",
        function=spec.function or "",
        interpreter=spec.interpreter or "",
        args=args,
        env=spec.env,
        workdir=spec.workdir or "",
        codec=spec.codec,
        resources=resources,
        tier=tier,
        category=category,
        attempts=spec.attempts,
        retry=_retry(spec.retry),
        cap_ms=max(1, round(cap * 1000)),
        tolerance_ms=tolerance,
        content=content,
        queue=queues.check_queue(spec.queue),
        off_peak=queues.off_peak_of(spec.off_peak),
        preemptible=spec.preemptible,
        patience=patience_of(spec, terms.max_wait_s),
        isolation=check_level(spec.isolation),
        network=check_network(spec.network),
        notify=targets(spec.notify),
        with_results=spec.with_results,
        stages=stages_of(spec.stages),
    )


def resolve(asked: str | ResourcesSpec, terms: Terms) -> tuple[Resources, str]:
    """The resource vector behind a tier's name or an exact request, and the tier's name if there was one."""
    if isinstance(asked, str):
        return _affordable(_tier(asked, terms.tiers), terms), asked
    base = _tier(asked.tier or terms.default_tier, terms.tiers)
    if asked.cpus is not None and not 0 <= asked.cpus <= 1_000_000:
        raise InvalidInput(f"resources.cpus: {asked.cpus} is out of range", field="resources.cpus", hint="for example 0.5 or 4")
    for field in ("iops", "ports"):
        value = getattr(asked, field)
        if value is not None and not 0 <= value <= 2**31 - 1:
            raise InvalidInput(f"resources.{field}: {value} is out of range", field=f"resources.{field}")
    check_labels(asked.labels, "resources.labels")
    need = Resources(
        cpus_milli=base.cpus_milli if asked.cpus is None else round(asked.cpus * 1000),
        memory=base.memory if asked.memory is None else units.size(asked.memory, "resources.memory"),
        disk=base.disk if asked.disk is None else units.size(asked.disk, "resources.disk"),
        iops=base.iops if asked.iops is None else asked.iops,
        bandwidth=base.bandwidth if asked.bandwidth is None else units.size(asked.bandwidth, "resources.bandwidth"),
        ports=base.ports if asked.ports is None else asked.ports,
        labels=tuple(sorted({**dict(base.labels), **asked.labels}.items())),
    )
    return _affordable(need, terms), asked.tier or ""


def edges(after: list[str | int | AfterSpec] | str | int) -> tuple[Edge, ...]:
    """The dependencies behind an `after`, each with its kind."""
    asked = after if isinstance(after, list) else [after]
    if len(asked) == 1 and isinstance(asked[0], str):
        return (Edge(asked[0]),)
    found = []
    for item in asked:
        if isinstance(item, AfterSpec):
            try:
                when = When[item.when.upper()]
            except KeyError:
                raise InvalidInput(
                    f"after: when: {item.when!r} is unknown", field="after.when", hint="succeeded, done or failed"
                ) from None
            found.append(Edge(item.task, when))
        else:
            found.append(Edge(item))
    return tuple(found)


def check_name(name: str, field: str = "name") -> None:
    if not name or len(name) > NAME_LIMIT or _CONTROL.search(name):
        raise InvalidInput(
            f"{field}: {name[:40]!r} is not a name", field=field, hint=f"1 to {NAME_LIMIT} characters, no control characters"
        )


def check_labels(labels: dict[str, str], field: str = "labels") -> None:
    if len(labels) > LABEL_LIMIT:
        raise InvalidInput(f"{field}: {len(labels)} labels are too many", field=field, hint=f"at most {LABEL_LIMIT}")
    for key, value in labels.items():
        check_name(key, f"{field}.{key[:40]}")
        if len(value) > NAME_LIMIT or _CONTROL.search(value):
            raise InvalidInput(
                f"{field}.{key}: the value is not valid",
                field=f"{field}.{key}",
                hint="at most 200 characters, no control characters",
            )


def check_key(key: str) -> None:
    if not key or len(key) > KEY_LIMIT or _CONTROL.search(key):
        raise InvalidInput(
            "idempotency_key is not valid", field="idempotency_key", hint=f"1 to {KEY_LIMIT} characters, no control characters"
        )


def at_seconds(at: str | float, field: str = "at") -> float:
    """A moment as Unix seconds: a number, or ISO 8601 with a time zone."""
    if isinstance(at, str):
        try:
            moment = datetime.datetime.fromisoformat(at)
        except ValueError:
            raise InvalidInput(
                f"{field}: {at[:40]!r} is not a moment", field=field, hint='write ISO 8601: "2026-11-15T03:00:00+00:00"'
            ) from None
        if moment.tzinfo is None:
            raise InvalidInput(f"{field}: {at!r} has no time zone", field=field, hint='end it with "Z" or "+01:00"')
        at = moment.timestamp()
    if not 0 <= at < 4_102_444_800:  # the year 2100; also refuses NaN
        raise InvalidInput(f"{field}: {at} is out of range", field=field, hint="Unix seconds before the year 2100")
    return at


def decode_error(error: msgspec.ValidationError | msgspec.DecodeError, fields: Iterable[str] = _EVERY_FIELD) -> InvalidInput:
    """Turn the decoder's complaint into ours: which field, what was expected, did-you-mean."""
    text = str(error)
    path = m[1] if (m := re.search(r" - at `\$?(.*)`$", text)) else ""
    field = re.sub(r"^\.", "", path)
    what = re.sub(r" - at `.*`$", "", text)
    if unknown := re.search(r"unknown field `([^`]*)`", text):
        name = unknown[1]
        full = f"{field}.{name}" if field else name
        if name in SCHEDULE_WORDS:
            where = "PUT /v1/schedules/NAME, `headway apply FILE`, or Client.apply() keep a schedule with its task"
            return UnknownField(f"{full}: a task by itself runs once", field=full, hint=where)
        if name in NOT_YET:
            return UnknownField(f"{full}: this version of Headway does not support `{name}` yet", field=full)
        known = {*fields, *_EVERY_FIELD} if field else set(fields)  # below the top it is part of a task
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else None
        return UnknownField(f"{full}: there is no field `{name}`", field=full, hint=hint)
    return InvalidInput(f"{field}: {what}" if field else what, field=field or None)


def _command(spec: TaskSpec) -> tuple[str, ...]:
    if isinstance(spec.command, str):
        return ("/bin/sh", "-c", spec.command) if spec.command.strip() else ()
    return tuple(spec.command or ())


def _default_name(spec: TaskSpec, command: tuple[str, ...]) -> str:
    if spec.function:
        return spec.function.partition(":")[2]
    if spec.image:
        return spec.image.rpartition("/")[2]
    if spec.stages:
        return "stages"
    first = spec.command.split()[0] if isinstance(spec.command, str) else spec.executable or command[0]
    return _CONTROL.sub("?", first.rstrip("/").rpartition("/")[2] or first)[:NAME_LIMIT] or "task"


def _cap(spec: TaskSpec, terms: Terms) -> float:
    cap = terms.default_cap_s if spec.execution_cap is None else units.seconds(spec.execution_cap, "execution_cap")
    if not 0 < cap <= terms.max_cap_s:
        raise InvalidInput(
            f"execution_cap: {spec.execution_cap!r} is out of range",
            field="execution_cap",
            hint=f"above 0, at most {units.duration_text(terms.max_cap_s)}",
        )
    return cap


def _affordable(need: Resources, terms: Terms) -> Resources:
    """A task that is larger than all its tenant may run at once would wait for ever."""
    if terms.max_cpus is not None and need.cpus_milli > terms.max_cpus * 1000:
        raise InvalidInput(
            f"resources: {need.cpus_milli / 1000:g} cpus are more than your subscription has", field="resources",
            hint=f"at most {terms.max_cpus:g} cpus",
        )  # fmt: skip
    if terms.max_memory is not None and need.memory > terms.max_memory:
        raise InvalidInput(
            f"resources: {units.size_text(need.memory)} memory is more than your subscription has", field="resources",
            hint=f"at most {units.size_text(terms.max_memory)}",
        )  # fmt: skip
    return need


def _tolerance(spec: TaskSpec, terms: Terms) -> tuple[int, Category]:
    said = spec.delay_tolerance
    if said is None and spec.category is None:
        said = terms.delay_tolerance_s
    asked = None if said is None else round(units.seconds(said, "delay_tolerance") * 1000)
    if spec.category is None:
        category = Category.URGENT if asked == 0 else Category.DELAYABLE
    else:
        try:
            category = Category[spec.category.upper()]
        except KeyError:
            raise InvalidInput(
                f"category: {spec.category[:40]!r} is unknown", field="category", hint="urgent, delayable or periodic"
            ) from None
    return (_TOLERANCE_MS[category] if asked is None else asked), category


def _retry(asked: RetrySpec | None) -> Retry:
    if asked is None:
        return Retry()
    for field, value, low, high in (
        ("backoff", asked.backoff, 1, 100), ("jitter", asked.jitter, 0, 1), ("node_losses", asked.node_losses, 0, 1000),
    ):  # fmt: skip
        if not low <= value <= high:
            raise InvalidInput(f"retry.{field}: {value} is out of range", field=f"retry.{field}", hint=f"{low} to {high}")
    return Retry(
        interval_ms=round(units.seconds(asked.interval, "retry.interval") * 1000),
        backoff=asked.backoff,
        max_ms=round(units.seconds(asked.max, "retry.max") * 1000),
        jitter=asked.jitter,
        node_losses=asked.node_losses,
    )


def _tier(name: str, tiers: Mapping[str, Resources] | None) -> Resources:
    if tiers is None:  # only the server knows which there are
        if misspelt(name) is None:
            return TIERS.get(name, TIERS[DEFAULT_TIER])
        tiers = TIERS
    if name not in tiers:
        near = difflib.get_close_matches(name, tiers, n=1)
        raise InvalidInput(
            f"resources: there is no tier {name[:40]!r}",
            field="resources",
            hint=f"did you mean {near[0]!r}?" if near else f"tiers: {', '.join(sorted(tiers))}",
        )
    return tiers[name]


def _no_nul(text: str, field: str) -> None:
    if "\x00" in text:
        raise InvalidInput(f"{field}: a NUL character is not allowed", field=field)


def encode(definition: Definition) -> bytes:
    """The canonical bytes whose hash is the definition's identity."""
    return msgspec.json.encode(definition, order="deterministic")


def decode(body: bytes | str) -> Definition:
    return msgspec.json.decode(body, type=Definition)


def raw_input(value: Any) -> msgspec.Raw:
    """A Python value as a task's input."""
    return msgspec.Raw(msgspec.json.encode(value))
