"""What the load generators send is what the scenarios promise."""

from __future__ import annotations

import msgspec
import pytest

from headway.bench import bodies, work
from headway.bench.connection import parse
from headway.domain.define import define, edges
from headway.domain.spec import TaskSpec


def specs(body: bytes) -> list[TaskSpec]:
    return msgspec.json.decode(body, type=list[TaskSpec])


def test_inputs_have_a_hundred_bytes() -> None:
    assert {len(bytes(spec.input)) for spec in specs(bodies.mixed(50))} == {100}


def test_every_second_task_waits_for_the_one_before_it() -> None:
    sent = specs(bodies.mixed(10))
    waits = [[edge.task for edge in edges(spec.after)] for spec in sent]
    assert waits == [[], ["t0"], [], ["t2"], [], ["t4"], [], ["t6"], [], ["t8"]]
    assert [spec.name for spec in sent[::2]] == ["t0", "t2", "t4", "t6", "t8"]


def test_a_bulk_has_three_shapes_of_resources() -> None:
    assert len({define(spec).resources for spec in specs(bodies.mixed(12))}) == 3
    assert len({define(spec).resources for spec in specs(bodies.ready(12))}) == 3


def test_a_backlog_has_no_dependencies() -> None:
    assert not any(edges(spec.after) for spec in specs(bodies.ready(10)))


@pytest.mark.parametrize("kind", ["single", "clock"])
def test_a_single_submission_is_one_object(kind: str) -> None:
    assert define(msgspec.json.decode(bodies.KINDS[kind](1), type=TaskSpec)).function


def test_the_function_answers_with_the_part_of_its_input_that_is_checked() -> None:
    stored = bytes(specs(bodies.ready(1))[0].input)
    assert msgspec.json.encode(work.noop(*msgspec.json.decode(stored))) == b'"' + stored[2:10] + b'"'


def test_a_request_says_how_long_it_is_and_who_asks() -> None:
    whole = bodies.request(host="h:1", token="secret", path="/v1/tasks", body=b"[1]")
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == b"[1]"
    assert b"content-length: 3" in head
    assert b"authorization: Bearer secret" in head


def test_an_answer_is_whole_only_with_all_of_its_body() -> None:
    whole = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"id": "42"}'[:-1]
    assert parse(whole) == (201, whole[-11:])
    assert [parse(whole[:at]) for at in range(len(whole))] == [None] * len(whole)


def test_an_answer_of_unknown_length_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="content-length"):
        parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
