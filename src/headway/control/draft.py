"""From what a user sent to what admission stores: decoded, checked, dependencies resolved inside the request (A1 A2 A8)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headway.control.definitions import Definitions, Interned
from headway.domain import graph
from headway.domain.identity import MAX_ID
from headway.domain.task import (
    MAX_INPUT,
    AfterSpec,
    Edge,
    TaskSpec,
    When,
    at_seconds,
    check_key,
    check_labels,
    check_name,
    decode_error,
    define,
    edges,
)
from headway.errors import HeadwayError, InvalidInput, TooLarge

MAX_BULK = 1_000_000


class Draft:
    """One task about to be stored."""

    __slots__ = ("at_us", "edges", "existing", "input", "interned", "key", "key_hash", "labels", "level", "local", "name", "size")

    def __init__(self, interned: Interned, input: bytes) -> None:
        self.interned = interned
        self.input = input
        self.name: bytes | None = None
        self.labels: bytes | None = None
        self.key: str | None = None
        self.key_hash = b""
        self.at_us: int | None = None
        self.size: float | None = None
        self.level: int | None = None
        self.edges: tuple[Edge, ...] = ()  # as the user wrote them
        self.local: list[tuple[int, When]] = []  # positions in the same request
        self.existing: list[tuple[int, When]] = []  # ids of tasks already stored

    def weight(self) -> int:
        """Roughly how many bytes it holds while it waits for its commit."""
        return 200 + len(self.input) + 64 * len(self.local)


class _Inputs(msgspec.Struct, forbid_unknown_fields=True):
    """The same task over these inputs."""

    task: msgspec.Raw
    inputs: list[msgspec.Raw]


_spec = msgspec.json.Decoder(TaskSpec)
_many = msgspec.json.Decoder(list[TaskSpec])
_inputs = msgspec.json.Decoder(_Inputs)
_content = msgspec.msgpack.Encoder(order="deterministic").encode
_NOTHING = msgspec.Raw(b"null")
_SPECS_KEPT = 20_000


class _Own(NamedTuple):
    """The part of a spec that belongs to one task and not to its definition."""

    input: msgspec.Raw
    name: str | None
    labels: dict[str, str]
    at: str | float | None
    size: float | None
    idempotency_key: str | None
    after: list[str | int | AfterSpec] | str | int


def _take_own(spec: TaskSpec) -> _Own:
    own = _Own(spec.input, spec.name, spec.labels, spec.at, spec.size, spec.idempotency_key, spec.after)
    spec.input, spec.name, spec.labels, spec.at, spec.size, spec.idempotency_key, spec.after = (
        _NOTHING,
        None,
        {},
        None,
        None,
        None,
        [],
    )
    return own


class Drafts:
    """Makes drafts for one tenant at a time."""

    def __init__(self, definitions: Definitions) -> None:
        self.definitions = definitions
        self._specs: dict[tuple[int, bytes], Interned] = {}

    async def read(self, tenant: int, body: bytes, *, ndjson: bool, key: str | None) -> tuple[list[Draft], bool]:
        """The drafts in a request body, and whether it was a single task."""
        if ndjson:
            specs = _decode_lines(body)
        elif body[:64].lstrip()[:1] == b"[":
            specs = _decode(_many, body)
        else:
            bulk = _as_inputs(body)
            if bulk is not None:
                return await self.over_inputs(tenant, bulk.task, bulk.inputs), False
            spec = _decode(_spec, body)
            if key is not None:
                spec.idempotency_key = key
            return [await self.single(tenant, spec, resolve=True)], True
        return await self.many(tenant, specs), False

    async def single(self, tenant: int, spec: TaskSpec, *, resolve: bool) -> Draft:
        """The draft of one spec. Consumes the spec: what is the task's own is taken out, the rest is its definition."""
        key_hash = payload_hash(spec) if spec.idempotency_key is not None else b""
        own = _take_own(spec)
        content = _content(spec)
        interned = self._specs.get((tenant, content))
        if interned is None:
            interned = await self.definitions.intern(tenant, define(spec))
            if len(self._specs) > _SPECS_KEPT:
                self._specs.clear()
            self._specs[(tenant, content)] = interned
        draft = Draft(interned, check_input(bytes(own.input)))
        if own.name is not None:
            check_name(own.name)
            draft.name = own.name.encode()
        if own.labels:
            check_labels(own.labels)
            draft.labels = msgspec.json.encode(own.labels)
        if own.at is not None:
            draft.at_us = round(at_seconds(own.at) * 1_000_000)
        if own.size is not None:
            if not 0 <= own.size < 1e300:
                raise InvalidInput(f"size: {own.size} is out of range", field="size")
            draft.size = own.size
        if own.idempotency_key is not None:
            check_key(own.idempotency_key)
            draft.key = own.idempotency_key
            draft.key_hash = key_hash
        draft.edges = edges(own.after) if own.after else ()
        if resolve:
            draft.existing = [(_existing(edge), edge.when) for edge in draft.edges]
        return draft

    async def many(self, tenant: int, specs: Sequence[TaskSpec]) -> list[Draft]:
        """All or nothing; `after` may name other tasks of the request."""
        if not specs:
            raise InvalidInput("the list is empty", hint="send at least one task")
        _check_count(len(specs))
        names: dict[str, int] = {}
        drafts: list[Draft] = []
        for position, spec in enumerate(specs):
            try:
                drafts.append(await self.single(tenant, spec, resolve=False))
            except HeadwayError as error:
                raise _at(error, position) from None
            name = drafts[-1].name
            if name is not None and names.setdefault(name.decode(), position) != position:
                names[name.decode()] = -1
        _resolve(drafts, names)
        return drafts

    async def over_inputs(self, tenant: int, task: msgspec.Raw, inputs: Sequence[msgspec.Raw]) -> list[Draft]:
        _check_count(len(inputs))
        spec = _decode(_spec, bytes(task))
        if spec.input != _NOTHING or spec.idempotency_key is not None:
            field = "input" if spec.input != _NOTHING else "idempotency_key"
            raise InvalidInput(f"task.{field} and inputs exclude each other", field=f"task.{field}", hint="put it into the inputs")
        model = await self.single(tenant, spec, resolve=True)
        drafts = []
        for item in inputs:
            draft = Draft(model.interned, check_input(bytes(item)))
            draft.name, draft.labels, draft.at_us, draft.size = model.name, model.labels, model.at_us, model.size
            draft.existing = model.existing
            drafts.append(draft)
        return drafts


def check_input(data: bytes) -> bytes:
    if len(data) > MAX_INPUT:
        raise TooLarge(f"input: {len(data)} bytes are too many", field="input", hint=f"at most {MAX_INPUT}")
    return b"" if data == b"null" else data  # no input and null are the same, and take no room


def payload_hash(spec: TaskSpec) -> bytes:
    """What makes two requests with one idempotency key the same request: everything but the key."""
    return hashlib.blake2b(msgspec.json.encode(msgspec.structs.replace(spec, idempotency_key=None)), digest_size=16).digest()


def _check_count(count: int) -> None:
    if not 0 < count <= MAX_BULK:
        raise InvalidInput(f"{count} tasks in one request", hint=f"1 to {MAX_BULK}")


def _decode(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise decode_error(error) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None


def _decode_lines(body: bytes) -> list[TaskSpec]:
    specs = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                specs.append(_decode(_spec, line))
            except HeadwayError as error:
                raise _at(error, number, word="line") from None
    return specs


def _as_inputs(body: bytes) -> _Inputs | None:
    """The bulk form, recognised by its key `inputs`; None when the body is one task."""
    if b'"inputs"' not in body:
        return None
    try:
        keys = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise decode_error(error) from None
    if "inputs" not in keys:
        return None
    bulk: _Inputs = _decode(_inputs, body)
    return bulk


def _at(error: HeadwayError, position: int, *, word: str = "task") -> HeadwayError:
    """The same error, saying which task of the bulk it is about."""
    extra = {**error.extra, word: position}
    extra.pop("field", None)
    field = getattr(error, "field", None)
    if isinstance(error, InvalidInput):
        return type(error)(f"{word} {position}: {error.detail}", field=field, hint=error.hint, **extra)
    return type(error)(f"{word} {position}: {error.detail}", hint=error.hint, **extra)


def _existing(edge: Edge) -> int:
    """The id an edge names outside its request."""
    try:
        found = int(edge.task)
    except ValueError:
        raise InvalidInput(
            f"after: there is no task {str(edge.task)[:60]!r} in this request",
            field="after",
            hint="name a task of the same request, or an id",
        ) from None
    if not 0 < found <= MAX_ID:
        raise InvalidInput(f"after: {found} is not a task id", field="after")
    return found


def _resolve(drafts: list[Draft], names: dict[str, int]) -> None:
    """Turn names into positions, refuse cycles."""
    after: dict[int, list[int]] = {}
    for position, draft in enumerate(drafts):
        if not draft.edges:
            continue
        try:
            _resolve_one(draft, names)
        except HeadwayError as error:
            raise _at(error, position) from None
        if draft.local:
            after[position] = [upstream for upstream, _ in draft.local]
    if any(upstream >= position for position, ups in after.items() for upstream in ups):
        _refuse_cycles(drafts, after)


def _resolve_one(draft: Draft, names: dict[str, int]) -> None:
    seen: set[str | int] = set()
    for edge in draft.edges:
        if edge.task in seen:
            raise InvalidInput(f"after: {edge.task!r} is named twice", field="after")
        seen.add(edge.task)
        upstream = names.get(edge.task) if isinstance(edge.task, str) else None
        if upstream == -1:
            raise InvalidInput(
                f"after: several tasks are named {edge.task!r}", field="after", hint="names used in `after` must be unique"
            )
        if upstream is None:
            draft.existing.append((_existing(edge), edge.when))
        else:
            draft.local.append((upstream, edge.when))


def _refuse_cycles(drafts: list[Draft], after: dict[int, list[int]]) -> None:
    def named(position: int) -> str:
        name = drafts[position].name
        return name.decode() if name else str(position)

    graph.check_acyclic({named(position): [named(upstream) for upstream in ups] for position, ups in after.items()})
