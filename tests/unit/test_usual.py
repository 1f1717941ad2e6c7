"""Bulks that are read the short way are what they would be the long way, and whatever else they are is left to that (A1 L1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from headway.control import draft as drafts_
from headway.control import usual as usual_
from headway.control.draft import Draft, Drafts
from headway.control.remembered import Remembered
from headway.domain.task import Definition, encode
from headway.domain.tenant import STANDARD, Terms
from headway.errors import HeadwayError, InvalidInput

RESOURCES = ({"cpus": 0.5}, {"cpus": 1, "memory": "64MiB"}, "regular")


class Reader(Drafts):
    """Definitions are numbers, by content; nothing is stored. `long`: how many lists were read the long way."""

    def __init__(self) -> None:
        self.long = 0
        self.stored: dict[bytes, Any] = {}
        self.bus = SimpleNamespace(on_tenants=[])
        super().__init__(SimpleNamespace(remembered=Remembered()), SimpleNamespace(bus=self.bus), SimpleNamespace())  # type: ignore[arg-type]

    def known(self, tenant: int, spec: Any) -> Any:
        content = drafts_._content(spec)
        return self.stored.setdefault(content, SimpleNamespace(id=len(self.stored)))

    async def many(self, tenant: int, specs: Any) -> list[Draft]:
        self.long += 1
        return await super().many(tenant, specs)


def said(draft: Draft) -> tuple[Any, ...]:
    return (draft.interned.id, draft.input, draft.name, draft.labels, draft.key, draft.at_us, draft.size, draft.edges, list(draft.local))


async def read(reader: Drafts, body: bytes, tenant: int = 1) -> list[tuple[Any, ...]]:
    drafts, single = await reader.read(tenant, body, ndjson=False, key=None)
    assert not single
    return [said(draft) for draft in drafts]


@some.composite
def bulks(draw: Any) -> list[dict[str, Any]]:
    """Lists of tasks of which some wait for an earlier one, and few say more."""
    names: list[str] = []
    tasks = []
    for at in range(draw(some.integers(1, 8))):
        task: dict[str, Any] = {"function": draw(some.sampled_from(("a:b", "c:d")))}
        if draw(some.booleans()):
            task["resources"] = draw(some.sampled_from(RESOURCES))
        if draw(some.booleans()):
            task["input"] = draw(some.sampled_from((None, [], ["x" * at], {"deep": {"er": 1.5}})))
        if names and draw(some.booleans()):
            task["after"] = draw(some.sampled_from(names))
        if draw(some.booleans()):
            names.append(f"t{at}")
            task["name"] = names[-1]
        if draw(some.integers(0, 9)) == 0:
            task |= draw(some.sampled_from(({"labels": {"a": "b"}}, {"env": {"A": "1"}}, {"size": 3.0}, {"after": []}, {"attempts": 3})))
        tasks.append(task)
    return tasks


@given(bulks())
async def test_a_list_that_is_read_again_is_what_it_was(tasks):
    reader, body = Reader(), msgspec.json.encode(tasks)
    assert await read(reader, body) == await read(reader, body)


USUAL = {  # what a list says as it is written, and each means something
    "function": ('"a:b"', '"a:\\u0062"', '"c:d"'), "command": ("null", "[]"), "args": ("[]", '["x"]', "[1, 2.5]"),
    "resources": ("null", '"regular"', '{"cpus": 1}', '{"memory": "64MiB", "cpus": 0.5}'), "attempts": ("1", "3", "4"),
    "execution_cap": ("null", "60", '"2m"'), "delay_tolerance": ("null", "0", '"1h"'), "queue": ("null", '"q"', '"r"'),
    "category": ("null", '"urgent"', '"Periodic"'),
}  # fmt: skip
NAMES = ('"a"', '"b"', '"c"', '"\\u0061"')
OTHER = {  # and what seldom stands there, or never should
    "function": ('"no function"', '""', "null", "5", '"\\ud800"', '"\\u0000:b"', '"\xff:b"'),
    "command": ('["true"]', '"true"', '["true", "\\u0000"]', "[1]", '""'), "args": ("[18446744073709551616]", "[1e999]", "null"),
    "resources": ('{"cpus": -1}', '{"cpu": 1}', "[]", '"nothing"'), "attempts": ("3.0", "0", "1e3", "99999999999999999999", "null", "true"),
    "execution_cap": ("-1", "1e308", '"soon"'), "delay_tolerance": ("1e400",), "queue": ('"a b"', "5"), "category": ('"none"',),
    "name": ("null", '""', '"a\\u0000"', '"\\udfff"', '"\xff"', "5", f'"{200 * "n"}"', f'"{201 * "n"}"'),
    "after": ('"z"', '"7"', '"0"', "null", "[]", '["a"]', "7", '{"task": "a"}', '[{"task": "a", "when": "failed"}]'),
    "input": ("1e999", '"\\ud800"', '"\xff"', '{"a": 1, "a": 2}', "nul", "[" * 2000 + "]" * 2000, "-", "\x01", ""),
    "labels": ('{"a": "b"}', "{}"), "size": ("1", "-1"), "idempotency_key": ('"k"', "null"), "nmae": ('"a"',),
}  # fmt: skip
SPACES = ("", "", "", "", "", "", " ", "\n\t", "\r ", "\xa0", "\x00")
Task = dict[str, str]


@some.composite
def kinds(draw: Any) -> list[Task]:
    """What some tasks are, the ones but for one thing what the others are."""
    first = {key: draw(some.sampled_from(USUAL[key])) for key in draw(some.lists(some.sampled_from(sorted(USUAL)), max_size=3))}
    first = {"function": '"a:b"', **first}
    key = draw(some.sampled_from(sorted(USUAL)))
    return [first, {**first, key: draw(some.sampled_from(USUAL[key]))}]


@some.composite
def lists(draw: Any, kinds: list[Task]) -> list[Task]:
    """Tasks of these kinds. One of them may say something else besides."""
    tasks = []
    for _ in range(draw(some.integers(1, 5))):
        own = {"name": NAMES, "after": (*(6 * ('""',)), *NAMES), "input": ("null", "[ 1 ]")}
        said = {key: draw(some.sampled_from(own[key])) for key in draw(some.lists(some.sampled_from(sorted(own)), unique=True))}
        tasks.append(said | draw(some.sampled_from(kinds)))
    if draw(some.integers(0, 4)):
        key, value = draw(some.sampled_from([(key, value) for key, values in OTHER.items() for value in values]))
        draw(some.sampled_from(tasks))[key] = value
    return tasks


def written(tasks: list[Task], space: str = "") -> bytes:
    each = ("{" + f",{space}".join(f'"{key}"{space}:{space}{value}' for key, value in task.items()) + "}" for task in tasks)
    return f"{space}[{space}{f'{space},'.join(each)}]".encode("latin-1")


class Definitions:
    """Numbers that are what was defined."""

    def __init__(self) -> None:
        self.remembered = Remembered()

    def known(self, number: bytes) -> bytes:
        return number

    async def intern_many(self, tenant: int, definitions: list[Definition]) -> list[Any]:
        return [SimpleNamespace(id=encode(definition)) for definition in definitions]


def defining() -> Drafts:
    """All of the long way but the store."""
    tenants = SimpleNamespace(bus=SimpleNamespace(on_tenants=[]), known=nothing, terms=lambda tenant: STANDARD)
    return Drafts(Definitions(), tenants, SimpleNamespace(checked=nothing))  # type: ignore[arg-type]


async def told(drafts: Drafts, body: bytes) -> Any:
    try:
        return await read(drafts, body)
    except HeadwayError as error:
        return type(error), error.detail, getattr(error, "field", None), error.hint


@settings(max_examples=1000)
@given(
    some.data(),
    some.sampled_from(SPACES),
    some.lists(some.tuples(some.integers(0, 400), some.integers(0, 1), some.sampled_from(b'"\\{}[],: 0e-u\x00\xff\xed')), max_size=1),
)
async def test_whoever_wrote_a_list_it_is_the_same_whatever_is_known(data, space, slips):
    """Or wrong in the same words. `slips`: of somebody's hand: a byte more, or another."""
    known = data.draw(kinds())
    reader = defining()
    for kind in known:
        await told(reader, written([kind]))
    body = written(data.draw(lists(known)), space)
    for at, instead, byte in slips:
        at %= len(body) + 1
        body = body[:at] + bytes([byte]) + body[at + instead :]
    first = await told(defining(), body)
    assert await told(reader, body) == first
    assert await told(reader, body) == first


@pytest.mark.parametrize(
    "body",
    [b'[{"function":"a:b","input":"\xff"}]', b'{"function":"a:b","input":{"\xff":1}}', b'{"task":{"function":"a:b"},"inputs":[1,"\xff"]}'],
    ids=["a list", "one", "over inputs"],
)
async def test_an_input_that_is_not_utf_8_is_refused_as_anything_else_is(body):
    """It was stored, and every answer that showed the task was no JSON."""
    drafts = Reader()
    await told(drafts, b'[{"function":"a:b"}]')
    for ndjson in (False, True) if body.startswith(b'{"function') else (False,):
        with pytest.raises(InvalidInput, match="input: it is not UTF-8: invalid start byte at byte"):
            await drafts.read(1, body, ndjson=ndjson, key=None)
    found = await drafts.read(1, body.replace(b"\xff", "é".encode()), ndjson=False, key=None)
    assert "é".encode() in found[0][-1].input


async def test_the_short_way_is_taken_for_other_inputs_of_what_is_known():
    reader = Reader()
    first = [{"function": "a:b", "name": "n", "input": [1]}, {"function": "a:b", "after": "n"}]
    await read(reader, msgspec.json.encode(first))
    found = await read(reader, b'[{"function":"a:b","input":[ 2 ]},{"function":"a:b","input":null}]')
    assert (reader.long, [one[1] for one in found]) == (1, [b"[ 2 ]", b""])


@pytest.mark.parametrize(
    "tasks",
    [
        [{"function": "a:b", "name": ""}],
        [{"function": "a:b", "name": "a\x00b"}],
        [{"function": "a:b", "after": "nobody"}],
        [{"function": "a:b", "name": "same"}, {"function": "a:b", "name": "same"}, {"function": "a:b", "after": "same"}],
        [{"function": "a:b", "name": "self", "after": "self"}],
        [{"function": "a:b", "nmae": "typo"}],
        [{"function": "a:b", "name": 5}],
        [{"function": "a:b", "after": None}],
        [{"function": "a:b"}, {}],
        [],
    ],
)
async def test_what_is_wrong_is_told_in_the_same_words_however_much_is_known(tasks):
    stranger, reader = Reader(), Reader()
    await read(reader, b'[{"function":"a:b"}]')
    told = []
    for one in (stranger, reader):
        try:
            told.append(await read(one, msgspec.json.encode(tasks)))
        except HeadwayError as error:
            told.append((type(error), error.detail, getattr(error, "field", None), error.hint))
    assert told[0] == told[1]


async def test_a_dependency_on_a_later_task_is_found():
    reader = Reader()
    body = msgspec.json.encode([{"function": "a:b", "after": "later"}, {"function": "a:b", "name": "later"}])
    first = await read(reader, body)
    assert first == await read(reader, body)
    assert first[0][-1] == [(1, 0)]


async def test_what_one_tenant_said_means_nothing_for_another_nor_after_its_terms_changed():
    reader, body = Reader(), b'[{"function":"a:b"}]'
    await read(reader, body)
    await read(reader, body, tenant=2)
    assert reader.long == 2
    for clear in reader.bus.on_tenants:
        clear()
    await read(reader, body)
    assert reader.long == 3


async def test_a_list_that_was_being_read_when_terms_changed_is_not_remembered():
    class Slow(Reader):
        async def many(self, tenant: int, specs: Any) -> list[Draft]:
            found = await super().many(tenant, specs)
            for clear in self.bus.on_tenants:
                clear()
            return found

    reader = Slow()
    await read(reader, b'[{"function":"a:b"}]')
    await read(reader, b'[{"function":"a:b"}]')
    assert reader.long == 2


@pytest.mark.parametrize("body", [b'[{"function":"a:b"}]', b'{"function":"a:b"}'], ids=["a list", "one"])
async def test_a_definition_that_was_being_stored_when_terms_changed_is_not_remembered(body):
    said, defined = Terms(default_cap_s=60.0), []
    tenants = SimpleNamespace(bus=SimpleNamespace(on_tenants=[]), known=nothing, terms=lambda tenant: said)

    async def stored(tenant: int, wanted: Any) -> Any:
        nonlocal said
        defined.extend(wanted if isinstance(wanted, list) else [wanted])
        if len(defined) == 1:
            said = Terms(default_cap_s=120.0)
            for clear in tenants.bus.on_tenants:
                clear()
        return [SimpleNamespace(id=one) for one in wanted] if isinstance(wanted, list) else SimpleNamespace(id=wanted)

    contents = SimpleNamespace(checked=nothing, intern=stored)
    definitions = SimpleNamespace(intern_many=stored, known=lambda number: number, remembered=Remembered())
    drafts = Drafts(definitions, tenants, contents)  # type: ignore[arg-type]
    for _ in range(2):
        await drafts.read(1, body, ndjson=False, key=None)
    assert [definition.cap_ms for definition in defined] == [60_000, 120_000]


async def nothing(*_: Any) -> bool:
    return True


async def test_long_texts_and_more_of_them_than_are_kept_fill_no_memory(monkeypatch):
    monkeypatch.setattr(usual_, "KEPT", 10)
    reader = Reader()
    await read(reader, msgspec.json.encode([{"command": ["true", "x" * usual_.LONGEST]}]))
    assert reader._usual._known == {1: {}}
    for first in range(0, 100, 5):
        await read(reader, msgspec.json.encode([{"command": ["true", str(first + n)]} for n in range(5)]))
        assert len(reader._usual._known[1]) <= 15
    before = len(reader._usual._known[1])
    await read(reader, msgspec.json.encode([{"command": ["true", f"of many {n}"]} for n in range(11)]))
    assert len(reader._usual._known[1]) == before  # 200,000 of one list were 200 MB


async def test_too_many_tasks_are_too_many(monkeypatch):
    reader = Reader()
    await read(reader, b'[{"function":"a:b"}]')
    monkeypatch.setattr(drafts_, "MAX_BULK", 2)
    with pytest.raises(InvalidInput, match="3 tasks"):
        await read(reader, b'[{"function":"a:b"},{"function":"a:b"},{"function":"a:b"}]')
