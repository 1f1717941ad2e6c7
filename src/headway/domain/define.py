"""From what a user says (TaskSpec) to what a task is (Definition). Everything is checked here, once, before anything is stored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import msgspec

from headway.domain import queues, units
from headway.domain.checks import CONTROL, NAME_LIMIT, check_interpreter, check_labels
from headway.domain.content import Content, content_of, labels_needed
from headway.domain.isolation import check_level, check_network
from headway.domain.notify import targets
from headway.domain.resources import DEFAULT_TIER, TIERS, Resources, misspelt
from headway.domain.spec import AfterSpec, ResourcesSpec, RetrySpec, TaskSpec
from headway.domain.stages import stages_of
from headway.domain.task import Category, Definition, Edge, Retry, When
from headway.domain.tenant import STANDARD, Terms
from headway.domain.waiting import patience_of
from headway.errors import InvalidInput

MAX_ATTEMPTS = 1000
_FUNCTION = re.compile(r"[^\s:]+:[A-Za-z_][\w.]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOLERANCE_MS = {Category.URGENT: 0, Category.DELAYABLE: 60_000, Category.PERIODIC: 60_000}


def define(spec: TaskSpec, terms: Terms = STANDARD) -> Definition:
    """The definition behind a spec under a tenant's terms, or an error that says which field is wrong and what was expected."""
    command, args, content = _command(spec), tuple(str(a) for a in spec.args), content_of(spec)
    _check_kind(spec, command, content)
    _check_words(spec, command, args)
    _check_env(spec.env)
    tolerance, category = _tolerance(spec, terms)
    cap = _cap(spec, terms)
    _check_attempts(spec.attempts)
    resources, tier = _resources(spec, content, terms)
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


def _check_kind(spec: TaskSpec, command: tuple[str, ...], content: Content) -> None:
    """A task runs exactly one thing."""
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


def _check_words(spec: TaskSpec, command: tuple[str, ...], args: tuple[str, ...]) -> None:
    """What the system is told to start."""
    texts = {"executable": spec.executable, "interpreter": spec.interpreter, "workdir": spec.workdir}
    for field, text in texts.items():
        _no_nul(text or "", field)
    for field, words in (("command", command), ("args", args)):
        for text in words:
            _no_nul(text, field)
    if command and not command[0]:
        raise InvalidInput("command: the name of the program is empty", field="command")
    check_interpreter(spec.interpreter, "interpreter")


def _check_env(env: dict[str, str]) -> None:
    for key, value in env.items():
        if not _ENV_NAME.fullmatch(key):
            raise InvalidInput(f"env: {key!r} is not a variable name", field="env", hint="letters, digits, underscores")
        _no_nul(value, f"env.{key}")


def _check_attempts(attempts: int) -> None:
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise InvalidInput(
            f"attempts: {attempts} is out of range", field="attempts", hint=f"1 to {MAX_ATTEMPTS}, the first run included"
        )


def _no_nul(text: str, field: str) -> None:
    if "\x00" in text:
        raise InvalidInput(f"{field}: a NUL character is not allowed", field=field)


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
    return CONTROL.sub("?", first.rstrip("/").rpartition("/")[2] or first)[:NAME_LIMIT] or "task"


def _resources(spec: TaskSpec, content: Content, terms: Terms) -> tuple[Resources, str]:
    """What it asked for, and the labels of nodes that have what its content needs."""
    resources, tier = resolve(spec.resources or terms.default_tier, terms)
    if needed := labels_needed(spec, content):
        labels = tuple(sorted({**needed, **dict(resources.labels)}.items()))
        resources = msgspec.structs.replace(resources, labels=labels)
    return resources, tier


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


def _cap(spec: TaskSpec, terms: Terms) -> float:
    cap = terms.default_cap_s if spec.execution_cap is None else units.seconds(spec.execution_cap, "execution_cap")
    if not 0 < cap <= terms.max_cap_s:
        raise InvalidInput(
            f"execution_cap: {spec.execution_cap!r} is out of range",
            field="execution_cap",
            hint=f"above 0, at most {units.duration_text(terms.max_cap_s)}",
        )
    return cap


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
