"""Values of the wrong kind are refused in our words, never in the decoder's (A8)."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from headway.domain.schedule import Scheduled
from headway.domain.spec import TaskSpec
from headway.domain.wrong_kind import Complaint, decode_error, decoded, describe
from headway.errors import InvalidInput, UnknownField


def refusal(body: str | bytes, kind: Any = TaskSpec, **options: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        decoded(msgspec.json.Decoder(kind).decode, body if isinstance(body, bytes) else body.encode(), **options)
    return error.value


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ('{"attempts": "three"}', "attempts", "expected a whole number, here is the text 'three'"),
        ('{"attempts": 1.5}', "attempts", "expected a whole number, here is 1.5"),
        ('{"attempts": null}', "attempts", "expected a whole number, here is nothing"),
        ('{"attempts": []}', "attempts", "expected a whole number, here is a list"),
        ('{"resources": {"cpus": "two"}}', "resources.cpus", "expected a number, here is the text 'two'"),
        ('{"resources": 2}', "resources", "expected a text or a mapping, here is 2"),
        ('{"command": {"a": 1}}', "command", "expected a text or a list, here is a mapping"),
        ('{"command": ["a", 1]}', "command[1]", "expected a text, here is 1"),
        ('{"env": {"A": "x", "PORT": 8080}}', "env.PORT", "expected a text, here is 8080"),
        ('{"preemptible": "yes"}', "preemptible", "expected true or false, here is the text 'yes'"),
        ('{"with_results": 1}', "with_results", "expected true or false, here is 1"),
        ('{"memory": true}', "memory", "there is no field `memory`"),
        ('{"after": [{"when": "done"}]}', "after[0].task", "it is needed, and not given"),
        ('{"stages": [{"name": false}]}', "stages[0].name", "expected a text, here is false"),
        ('{"size": 1e999}', "size", "number out of range"),
    ],
)
def test_the_field_what_was_expected_and_what_is_given(body: str, field: str, words: str) -> None:
    found = refusal(body)
    assert (found.field, found.detail) == (field, f"{field}: {words}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[1]", "the body is a list, expected a mapping"),
        ('"echo"', "the body is the text 'echo', expected a mapping"),
        ("null", "the body is nothing, expected a mapping"),
        ("", "the body is empty"),
        (" \n", "the body is empty"),
        ('{"name": ', "the body ends too early: a bracket or a quote is not closed"),
        ('{"name": "x",}', "the body is not JSON: trailing comma in object (byte 13)"),
        (b'{"name": "\xff"}', "the body is not UTF-8: invalid start byte at byte 0"),
        ('{"input": ' + "[" * 100_000, "the body is nested too deeply"),
    ],
)
def test_a_body_that_is_no_task_at_all(body: str | bytes, words: str) -> None:
    assert refusal(body).detail == words


def test_where_it_stands_in_a_list_and_in_a_schedule() -> None:
    assert refusal('[{"command": "a"}, {"attempts": "x"}]', list[TaskSpec]).field == "[1].attempts"
    found = refusal('{"schedule": 60, "task": {"labels": {"a": 1}}}', Scheduled)
    assert found.detail == "task.labels.a: expected a text, here is 1"


def test_an_unknown_field_comes_with_the_nearest() -> None:
    found = refusal('{"retry": {"interva": 3}}')
    assert isinstance(found, UnknownField)
    assert (found.field, found.hint) == ("retry.interva", "did you mean `interval`?")
    assert "runs once" in refusal('{"schedule": "daily"}').detail
    assert "does not support `parameters` yet" in refusal('{"parameters": {}}').detail


def test_a_long_value_is_cut() -> None:
    assert refusal(f'{{"attempts": "{"x" * 1000}"}}').detail == f"attempts: expected a whole number, here is the text '{'x' * 37}...'"


def test_values_that_came_from_python_and_a_part_of_something_larger() -> None:
    given = {"attempts": datetime.timedelta(1)}
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(given, TaskSpec)
    assert decode_error(error.value, given=given).detail == "attempts: expected a whole number, here is a timedelta"
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert({"a": 1}, dict[str, str])
    assert decode_error(error.value, given={"a": 1}, field="labels").detail == "labels.a: expected a text, here is 1"
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert({1: "a"}, dict[str, str])
    assert decode_error(error.value, given={1: "a"}, field="labels").detail == "labels: expected a text as each key, here is a whole number"


def test_what_is_sent_as_messagepack_is_told_by_its_kind() -> None:
    with pytest.raises(InvalidInput) as error:
        decoded(msgspec.msgpack.Decoder(TaskSpec).decode, msgspec.msgpack.encode({"attempts": "three"}))
    assert error.value.detail == "attempts: expected a whole number, here is a text"
    with pytest.raises(InvalidInput, match="the body is not MessagePack"):
        decoded(msgspec.msgpack.Decoder(TaskSpec).decode, b"\xc1")


def test_kinds_that_python_made_of_others_are_told_as_what_they_are() -> None:
    assert describe(OrderedDict()) == "a mapping"
    assert describe(Complaint("", None, None, None, None, "")) == "a list"
