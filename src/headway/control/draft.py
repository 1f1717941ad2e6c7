"""From what a user sent to what admission stores: decoded, checked, dependencies resolved inside the request (A1 A2 A8)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.control.contents import Contents
from headway.control.definitions import Definitions, Interned
from headway.control.tenants import Tenants
from headway.control.usual import Usual, UsualSpec, usual
from headway.domain import graph
from headway.domain.checks import check_key, check_labels, check_name, is_name
from headway.domain.define import define, edges
from headway.domain.fanout import Fan, check_template, fan_of
from headway.domain.identity import MAX_ID
from headway.domain.spec import MAX_INPUT, TaskSpec
from headway.domain.task import Definition, Edge, When
from headway.domain.units import at_seconds
from headway.domain.wrong_kind import decoded
from headway.errors import HeadwayError, InvalidInput, TooLarge

MAX_BULK = 1_000_000


class Draft:
    """One task about to be stored. What most tasks do not have stays in the class: a bulk makes these by the hundred thousand."""

    interned: Interned
    input: bytes = b""
    name: bytes | None = None
    labels: bytes | None = None
    key: str | None = None
    key_hash: bytes = b""
    at_us: int | None = None
    size: float | None = None
    level: int | None = None
    fan: Fan | None = None  # it stands for many
    source: int | None = None  # the id whose result is the list
    source_local: int | None = None  # or its position in the same request
    edges: tuple[Edge, ...] = ()  # as the user wrote them
    local: Sequence[tuple[int, When]] = ()  # positions in the same request
    existing: Sequence[tuple[int, When]] = ()  # ids of tasks already stored

    def weight(self) -> int:
        """Roughly how many bytes it holds while it waits for its commit."""
        return 200 + len(self.input) + 64 * len(self.local)


def apart(drafts: Sequence[Draft], ids: Sequence[int], created: Sequence[bool]) -> list[Draft]:
    """Some of them are there already, by their keys: those have their edges, and what waits for one of them waits for a stored task."""
    new = {task: position for position, task in enumerate(ids) if created[position]}
    found = []
    for position, draft in enumerate(drafts):
        mine = copy(draft)
        mine.local, mine.existing = (), ()
        if created[position]:
            edges = _once([*((ids[up], when) for up, when in draft.local), *draft.existing])
            mine.local = [(new[up], when) for up, when in edges if up in new]
            mine.existing = [(up, when) for up, when in edges if up not in new]
        found.append(mine)
    return found


def _once(edges: Sequence[tuple[int, When]]) -> list[tuple[int, When]]:
    """Two names that turn out to be one task by its key are one edge."""
    known: dict[int, When] = {}
    for upstream, when in edges:
        if known.setdefault(upstream, when) is not when:
            raise InvalidInput(
                f"after: two of the tasks it names are one and the same, task {upstream}, which cannot end in two ways",
                field="after",
                hint="give the other task an idempotency key of its own",
            )
    return list(known.items())


class _Inputs(msgspec.Struct, forbid_unknown_fields=True):
    """The same task over these inputs."""

    task: msgspec.Raw
    inputs: list[msgspec.Raw]


_spec = msgspec.json.Decoder(TaskSpec)
_many = msgspec.json.Decoder(list[TaskSpec])
_inputs = msgspec.json.Decoder(_Inputs)
_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
_content = msgspec.msgpack.Encoder(order="deterministic").encode
_NOTHING = msgspec.Raw(b"null")
_EACH = 200  # bytes that something remembered takes beside its content
_TOGETHER = 1_000  # new definitions stored by one statement


def draft_of(spec: TaskSpec) -> Draft:
    """The task's own part of a spec, taken out of it: what is left is the definition."""
    draft = Draft()
    if spec.idempotency_key is not None:
        check_key(spec.idempotency_key)
        draft.key = spec.idempotency_key
        draft.key_hash = payload_hash(spec)
        spec.idempotency_key = None
    draft.input = check_input(bytes(spec.input))
    spec.input = _NOTHING
    if spec.name is not None:
        check_name(spec.name)
        draft.name = spec.name.encode()
        spec.name = None
    if spec.labels:
        check_labels(spec.labels)
        draft.labels = msgspec.json.encode(spec.labels)
        spec.labels = {}
    if spec.at is not None:
        draft.at_us = round(at_seconds(spec.at) * 1_000_000)
        spec.at = None
    if spec.size is not None:
        if not 0 <= spec.size < 1e300:
            raise InvalidInput(f"size: {spec.size} is out of range", field="size")
        draft.size = spec.size
        spec.size = None
    if spec.after:
        draft.edges = edges(spec.after)
        spec.after = []
    if spec.for_each is not None:
        draft.fan = fan_of(spec.for_each, spec.command)
        check_template(draft.input)
        spec.for_each = None
        if draft.fan.source is not None and all(edge.task != draft.fan.source for edge in draft.edges):
            draft.edges = (*draft.edges, Edge(draft.fan.source))
    return draft


def _short(specs: Sequence[UsualSpec], interned: Sequence[Interned]) -> list[Draft] | None:
    """The drafts of a bulk as most are. None when something is wrong with it, or a task waits for another than an earlier one of the
    list: then it is read the long way, and told with its place what it is."""
    if len(specs) > MAX_BULK:
        return None
    drafts: list[Draft] = []
    names: dict[str, int] = {}
    for position, (spec, known) in enumerate(zip(specs, interned, strict=True)):
        draft = Draft()
        draft.interned = known
        if len(spec.input) > MAX_INPUT:
            return None
        draft.input = b"" if spec.input == _NOTHING else bytes(spec.input)
        if after := spec.after:
            if (upstream := names.get(after)) is None:
                return None
            draft.edges, draft.local = (Edge(after),), ((upstream, When.SUCCEEDED),)
        if (name := spec.name) is not None:
            if not is_name(name) or names.setdefault(name, position) != position:
                return None
            draft.name = name.encode()
        drafts.append(draft)
    return drafts


@dataclass
class _New:
    """Definitions of a request that are not known yet, by the content of their specs, and the drafts that wait for them."""

    edition: int = 0  # when the first of them was defined
    definitions: dict[bytes, Definition] = field(default_factory=dict)
    drafts: list[tuple[Draft, bytes]] = field(default_factory=list)


class Drafts:
    """Makes drafts for one tenant at a time."""

    def __init__(self, definitions: Definitions, tenants: Tenants, contents: Contents) -> None:
        self.definitions = definitions
        self.contents = contents
        self.tenants = tenants
        self._specs: dict[tuple[int, bytes], Interned] = {}
        self._usual = Usual()
        forget = [self._specs.clear, self._usual.clear]
        tenants.bus.on_tenants += forget  # the same words may now mean another task
        definitions.remembered.on_full += forget

    async def read(self, tenant: int, body: bytes, *, ndjson: bool, key: str | None) -> tuple[list[Draft], bool]:
        """The drafts in a request body, and whether it was a single task."""
        if ndjson:
            specs = _decode_lines(body)
        elif body[:64].lstrip()[:1] == b"[":
            return await self._list(tenant, body), False
        else:
            bulk = _as_inputs(body)
            if bulk is not None:
                return await self.over_inputs(tenant, bulk.task, bulk.inputs), False
            spec = decoded(_spec.decode, body)
            if key is not None:
                spec.idempotency_key = key
            return [await self.single(tenant, spec)], True
        return await self.many(tenant, specs), False

    async def _list(self, tenant: int, body: bytes) -> list[Draft]:
        """Those that were seen before are read the short way."""
        specs, edition = usual(body), self._usual.edition
        if specs and (known := self._usual.known(tenant, specs)) is not None and (drafts := _short(specs, known)) is not None:
            return drafts
        drafts = await self.many(tenant, decoded(_many.decode, body))
        if specs:
            self._usual.learn(tenant, specs, [draft.interned for draft in drafts], edition)
        return drafts

    async def single(self, tenant: int, spec: TaskSpec) -> Draft:
        """The draft of one spec, which is used up; edges name tasks already stored."""
        draft = draft_of(spec)
        draft.existing = [(_existing(edge), edge.when) for edge in draft.edges]
        if draft.fan is not None and draft.fan.source is not None:
            draft.source = _existing(Edge(draft.fan.source))
        draft.interned = self.known(tenant, spec) or await self._intern(tenant, spec)
        return draft

    def known(self, tenant: int, spec: TaskSpec) -> Interned | None:
        try:
            return self._specs.get((tenant, _content(spec)))
        except OverflowError:  # beyond 64 bits: the definition's checks know which, if it is none of args
            define(spec)
            raise InvalidInput("args: a number is larger than 64 bits", field="args") from None

    async def _intern(self, tenant: int, spec: TaskSpec) -> Interned:
        await self.tenants.known(tenant)
        edition = self._usual.edition
        interned = await self.contents.intern(tenant, define(spec, self.tenants.terms(tenant)))
        self._remember(tenant, _content(spec), interned, edition)
        return interned

    async def interned(self, tenant: int, spec: TaskSpec) -> Interned:
        """The definition of a spec whose own part was taken out (see draft_of)."""
        return self.known(tenant, spec) or await self._intern(tenant, spec)

    async def many(self, tenant: int, specs: Sequence[TaskSpec]) -> list[Draft]:
        """All or nothing; `after` may name other tasks of the request."""
        if not specs:
            raise InvalidInput("the list is empty", hint="send at least one task")
        _check_count(len(specs))
        names: dict[str, int] = {}
        drafts: list[Draft] = []
        new = _New()
        for position, spec in enumerate(specs):
            name = spec.name
            try:
                draft = draft_of(spec)
                if (known := self.known(tenant, spec)) is not None:
                    draft.interned = known
                elif not await self._put_off(tenant, spec, draft, new):
                    draft.interned = await self._intern(tenant, spec)
            except HeadwayError as error:
                raise error.at("task", position) from None
            drafts.append(draft)
            if name is not None and names.setdefault(name, position) != position:
                names[name] = -1
            if len(new.definitions) >= _TOGETHER:
                await self._intern_new(tenant, new)
        await self._intern_new(tenant, new)
        _resolve(drafts, names)
        return drafts

    async def _put_off(self, tenant: int, spec: TaskSpec, draft: Draft, new: _New) -> bool:
        """Keep a new definition for later, to be stored with others: a request of ten thousand commands took ten thousand questions."""
        content = _content(spec)
        if content not in new.definitions:
            await self.tenants.known(tenant)
            if not new.definitions:
                new.edition = self._usual.edition
            definition = define(spec, self.tenants.terms(tenant))
            if not await self.contents.checked(definition):
                return False
            new.definitions[content] = definition
        new.drafts.append((draft, content))
        return True

    async def _intern_new(self, tenant: int, new: _New) -> None:
        if not new.definitions:
            return
        found = await self.definitions.intern_many(tenant, list(new.definitions.values()))
        by_content = dict(zip(new.definitions, found, strict=True))
        for content, interned in by_content.items():
            self._remember(tenant, content, interned, new.edition)
        for draft, content in new.drafts:
            draft.interned = by_content[content]
        new.definitions.clear()
        new.drafts.clear()

    def _remember(self, tenant: int, content: bytes, interned: Interned, edition: int) -> None:
        if edition != self._usual.edition:
            return  # the same words mean another task by now
        if self.definitions.known(interned.id) is not None and self.definitions.remembered.add(_EACH + len(content)):
            self._specs[(tenant, content)] = interned

    async def define(self, tenant: int, spec: TaskSpec) -> Definition:
        """What a spec means for a tenant, without storing anything."""
        await self.tenants.known(tenant)
        return define(spec, self.tenants.terms(tenant))

    def again(self, specs: Sequence[TaskSpec], interned: Sequence[Interned]) -> list[Draft]:
        """Drafts of specs that were checked before and whose definitions are known: those of a schedule (D3)."""
        names: dict[str, int] = {}
        drafts: list[Draft] = []
        for position, (spec, known) in enumerate(zip(specs, interned, strict=True)):
            if spec.name is not None:
                names[spec.name] = position
            draft = draft_of(spec)
            draft.interned = known
            drafts.append(draft)
        _resolve(drafts, names)
        return drafts

    async def over_inputs(self, tenant: int, task: msgspec.Raw, inputs: Sequence[msgspec.Raw]) -> list[Draft]:
        _check_count(len(inputs))
        spec = decoded(_spec.decode, bytes(task), what="task")
        if spec.input != _NOTHING or spec.idempotency_key is not None:
            field = "input" if spec.input != _NOTHING else "idempotency_key"
            raise InvalidInput(f"task.{field} and inputs exclude each other", field=f"task.{field}", hint="put it into the inputs")
        model = await self.single(tenant, spec)
        drafts = []
        for item in inputs:
            draft = copy(model)
            draft.input = check_input(bytes(item))
            if draft.fan is not None:
                check_template(draft.input)
            drafts.append(draft)
        return drafts


def check_input(data: bytes) -> bytes:
    if len(data) > MAX_INPUT:
        raise TooLarge(f"input: {len(data)} bytes are too many", field="input", hint=f"at most {MAX_INPUT}")
    try:
        if not data.isascii():
            data.decode()  # whoever took the request apart passed over the texts of the input
    except UnicodeDecodeError as error:
        raise InvalidInput(f"input: it is not UTF-8: {error.reason} at byte {error.start}", field="input") from None
    return b"" if data == b"null" else data  # no input and null are the same, and take no room


def payload_hash(spec: TaskSpec) -> bytes:
    """What makes two requests with one idempotency key the same request: everything but the key, and how the input is spaced."""
    try:
        data = msgspec.Raw(msgspec.json.format(spec.input, indent=-1))
        body = msgspec.json.encode(msgspec.structs.replace(spec, idempotency_key=None, input=data))
    except OverflowError:
        define(spec)  # knows which number it is, if it is none of args
        raise InvalidInput("args: a number is larger than 64 bits", field="args") from None
    except RecursionError:  # it could just be read
        raise InvalidInput("input: it is nested too deeply", field="input") from None
    return hashlib.blake2b(body, digest_size=16).digest()


def _check_count(count: int) -> None:
    if not 0 < count <= MAX_BULK:
        raise InvalidInput(f"{count} tasks in one request", hint=f"1 to {MAX_BULK}")


def _decode_lines(body: bytes) -> list[TaskSpec]:
    try:
        return _spec.decode_lines(body)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # once more line by line, to say which one is wrong
    specs = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                specs.append(decoded(_spec.decode, line, what="it"))
            except HeadwayError as error:
                raise error.at("line", number) from None
    return specs


def _as_inputs(body: bytes) -> _Inputs | None:
    """The bulk form, recognised by its key `inputs`; None when the body is one task."""
    if b'"inputs"' not in body:
        return None
    if "inputs" not in decoded(_keys.decode, body):
        return None
    bulk: _Inputs = decoded(_inputs.decode, body, _Inputs.__struct_fields__)
    return bulk


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


def _resolve(drafts: list[Draft], names: Mapping[str, int]) -> None:
    """Turn names into positions, refuse cycles."""
    forward = False
    for position, draft in enumerate(drafts):
        if not draft.edges:
            continue
        try:
            _resolve_one(draft, names)
        except HeadwayError as error:
            raise error.at("task", position) from None
        if draft.local and max(draft.local)[0] >= position:
            forward = True
    if forward:  # else each waits for earlier ones only
        _refuse_cycles(drafts, {at: [upstream for upstream, _ in draft.local] for at, draft in enumerate(drafts) if draft.local})


def _resolve_one(draft: Draft, names: Mapping[Any, int]) -> None:
    if draft.fan is None:  # most wait for tasks of their request, for each once
        if len(draft.edges) == 1:
            (edge,) = draft.edges
            if (position := names.get(edge.task, -1)) >= 0:
                draft.local = ((position, edge.when),)
                return
        found = [names.get(edge.task, -1) for edge in draft.edges]
        if min(found) >= 0 and len(set(found)) == len(found):
            draft.local = list(zip(found, (edge.when for edge in draft.edges), strict=True))
            return
    seen: set[str | int] = set()
    local: list[tuple[int, When]] = []
    existing: list[tuple[int, When]] = []
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
            existing.append((_existing(edge), edge.when))
        else:
            local.append((upstream, edge.when))
        if draft.fan is not None and draft.fan.source == edge.task:
            draft.source_local, draft.source = upstream, None if upstream is not None else existing[-1][0]
    draft.local, draft.existing = local, existing


def _refuse_cycles(drafts: list[Draft], after: dict[int, list[int]]) -> None:
    def named(position: int) -> str:
        name = drafts[position].name
        return name.decode() if name else str(position)

    graph.check_acyclic(after, named)
