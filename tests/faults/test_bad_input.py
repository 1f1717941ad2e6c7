"""Bad input of every kind: a precise 4xx that says what was wrong, and nothing stored."""

from __future__ import annotations

import json

import msgspec
import pytest
import pytest_asyncio

from headway.wire.http import Http, Response
from tests.support.cluster import TOKEN, Cluster, cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMIT = 1 << 20

GOOD = {"command": ["true"]}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made(tmp_path_factory):
    async with cluster(tmp_path_factory.mktemp("bad"), agents=0, HEADWAY_MAX_BODY=str(LIMIT)) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def before(made):
    """What was stored before the test."""
    global _before
    _before = await stored(made)


_before: dict[str, int] = {}
# A definition is a content that tasks may share; one that nobody uses is nothing.
TABLES = ("task", "task_history", "dead_letter", "edge", "idempotency_key", "tree", "node", "token", "tenant")


async def stored(made: Cluster) -> dict[str, int]:
    counts = ", ".join(f"(select count(*) from {table}) as {table}" for table in TABLES)
    return dict((await made.fetch(f"select {counts}"))[0])


async def post(made: Cluster, body: bytes, path: str = "/v1/tasks", **headers: str) -> Response:
    http = Http(made.servers[0].url, token=TOKEN)
    kind = headers.pop("content_type", "application/json")
    try:
        return await http.request("POST", path, body=body, content_type=kind, headers=headers)
    finally:
        await http.close()


async def assert_refused(made: Cluster, answer: Response, *, word: str = "", field: str | None = None) -> None:
    """A problem document with a 4xx that names what is wrong, and nothing stored."""
    assert 400 <= answer.status < 500, (answer.status, answer.body[:500])
    assert answer.headers["content-type"].startswith("application/problem+json")
    problem = msgspec.json.decode(answer.body)
    assert problem["status"] == answer.status
    assert problem["code"] not in ("", "internal")
    assert word in problem["detail"], problem
    if field is not None:
        assert problem.get("field") == field, problem
    assert await stored(made) == _before, "something was stored"


def task(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


WRONG_FIELDS = {
    "attempts": [0, -1, 2**31, 2**63, 1.5, "three", None, [], True, float("1e400")],
    "execution_cap": [0, -1, "soon", "-5s", 1e300, "99999999999d", [], {}],
    "delay_tolerance": [-1, "never", 1e300, [], "1h-30m"],
    "size": ["big", [], True],
    "name": ["", "a\x00b", "x" * 10_000, 5, [], "a\nb", "\ud800"],
    "labels": [[], "a=b", {"": "x"}, {"a": 1}, {"a": "x" * 100_000}, {"a\x00": "b"}, {"a": "\x00"}],
    "command": [[], "", "a\x00b", ["a\x00b"], [1], {}, 7, [""]],
    "function": ["", "no colon", "a:b:c\x00", 5, "a b:c"],
    "executable": ["", "\x00", 5, []],
    "args": ["a", {}, [{}], ["a\x00b"], [2**70]],
    "env": [[], "A=B", {"A": 1}, {"": "b"}, {"A=B": "c"}, {"A": "\x00"}],
    "workdir": ["\x00", 5, []],
    "interpreter": ["\x00", 5],
    "category": ["fast", 1, "", "periodic\x00"],
    "codec": ["yaml", 1, ""],
    "resources": ["huge", 5, [], {"cpus": -1}, {"cpus": 1e30}, {"memory": "lots"}, {"memory": -5}, {"memory": 2**70},
                  {"disk": "1XB"}, {"ports": -1}, {"ports": 10**12}, {"iops": 2**63}, {"gpu": 1}, {"labels": {"a": 1}}, {"labels": "a"}],
    "retry": [5, "often", {"interval": -1}, {"backoff": -1}, {"backoff": 1e308}, {"max": "x"}, {"jitter": 5}, {"node_losses": -1},
              {"node_losses": 2**40}, {"every": 5}],
    "after": [5.5, {}, [{}], ["nobody"], [-1], [0], [2**63], ["12345"], [{"task": "x", "when": "never"}], [[1]], [None]],
    "at": ["tomorrow", -1e300, 1e300, [], {}, "2026-13-45", True],
    "idempotency_key": ["", "x" * 10_000, "a\x00b", 5, []],
    "input_": [1],
    "comand": [["true"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{number}")
        for field, values in WRONG_FIELDS.items()
        for number, value in enumerate(values)
    ],
)
async def test_a_wrong_value_is_refused_by_the_name_of_its_field(made, field, value):
    fields = {field: value}
    if field in ("function", "executable"):
        fields["command"] = None
    answer = await post(made, task(**fields))
    await assert_refused(made, answer)
    said = msgspec.json.decode(answer.body)
    about = f"{said['detail']} {said.get('field')} {said.get('hint')}"
    assert field in about or b"\\ud800" in task(**fields) or value == float("inf"), f"it does not say which field: {said}"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"5", b'"text"', b"{", b"{}", b'{"command": ["true"]', b"[{}]", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf{}",
        b'{"command": ["\xff"]}', b'{"command": ["tr\xc3"]}', b'{"name": "\xed\xa0\x80", "command": ["true"]}',
        b'{"command": ["true"], "command": 5}', b'{"command": ["true"]} {"command": ["true"]}', b"[" * 5000, b'{"input":' * 2000,
        b'[{"command": ["true"]}, {"command": 5}]', b'[{"command": ["true"]}, null]', b'{"task": {"command": ["true"]}, "inputs": []}',
        b'{"task": {"command": ["true"]}, "inputs": 5}', b'{"task": {}, "inputs": [1]}', b'{"command": ["true"], "input": NaN}',
        b'{"command": ["true"], "function": "a:b"}', b'{"command": ["true"], "attempts": 1e999}', b"command: true",
    ],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
async def test_a_body_that_is_no_task_is_refused(made, body):
    await assert_refused(made, await post(made, body))


@pytest.mark.parametrize(
    ("line", "word"),
    [(b"{}", "task 2"), (b"nonsense", "line 3"), (b'{"command": 5}', "line 3"), (b"\xff", "line 3"), (b"[]", "line 3")],
)
async def test_one_bad_line_of_many_is_named_and_nothing_is_stored(made, line, word):
    body = b"\n".join([task(), task(), line, task()])
    answer = await post(made, body, content_type="application/x-ndjson")
    await assert_refused(made, answer, word=word)


async def test_one_bad_task_of_a_thousand_is_named_and_nothing_is_stored(made):
    body = json.dumps([{**GOOD, "name": f"n{i}"} for i in range(700)] + [{"command": ["true"], "attempts": 0}] + [GOOD] * 299).encode()
    await assert_refused(made, await post(made, body), word="700")


async def test_a_cycle_is_refused_with_its_tasks(made):
    tasks = [{**GOOD, "name": "a", "after": ["b"]}, {**GOOD, "name": "b", "after": ["c"]}, {**GOOD, "name": "c", "after": ["a"]}]
    answer = await post(made, json.dumps(tasks).encode())
    await assert_refused(made, answer)
    assert msgspec.json.decode(answer.body)["code"] == "cyclic_graph"


async def test_a_body_larger_than_allowed_is_refused(made):
    answer = await post(made, task(input="x" * LIMIT))
    await assert_refused(made, answer)
    assert answer.status == 413
    assert msgspec.json.decode(answer.body)["detail"].startswith("the body is larger than ")


@pytest.mark.parametrize("key", ["", "x" * 2000, "tab\there"])
async def test_a_bad_idempotency_header_is_refused(made, key):
    await assert_refused(made, await post(made, task(), **{"idempotency-key": key}))


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer nonsense", "Basic YTpi", f"Bearer {TOKEN}x", "Bearer " + "x" * 5000])
async def test_without_a_token_nothing_is_said(made, header):
    http = Http(made.servers[0].url)
    try:
        answer = await http.request("POST", "/v1/tasks", body=task(), headers={"authorization": header})
    finally:
        await http.close()
    await assert_refused(made, answer)
    assert answer.status == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tasks/wait", b'{"ids": []}'),
        ("/v1/tasks/wait", b'{"ids": ["x"]}'),
        ("/v1/tasks/wait", b'{"ids": [1], "timeout": "x"}'),
        ("/v1/tasks/wait", b'{"ids": [99999999999999999999999]}'),
        ("/v1/tasks/wait", b'{"ids": ["1"], "timeout": NaN}'),
        ("/v1/tasks/1/cancel", b""),
        ("/v1/tasks/x/cancel", b""),
        ("/v1/tasks/99999999999999999999/retry", b""),
        ("/v1/trees", b"{}"),
        ("/v1/trees", b'{"name": "t", "tasks": []}'),
        ("/v1/trees", b'{"name": "", "tasks": [{"name": "a", "command": ["true"]}]}'),
        ("/v1/trees", b'{"name": "a\\u0000b", "tasks": [{"name": "a", "command": ["true"]}]}'),
        ("/v1/trees", b'{"name": "t", "tasks": [{"name": "a", "command": ["true"]}, {"name": "a", "command": ["true"]}], "x": 1}'),
        ("/v1/dead-letters/retry", b"{}"),
        ("/v1/dead-letters/retry", b'{"ids": ["x"]}'),
        ("/v1/dead-letters/retry", b'{"name": "a\\u0000"}'),
        ("/v1/dead-letters/purge", b'{"all": "yes"}'),
        ("/v1/nodes", b"{}"),
        ("/v1/nodes", b'{"name": "n", "boot": "b", "capacity": {"cpus_milli": -1, "memory": 1, "disk": 1}, "protocol": 1, "version": "x"}'),
        ("/v1/nodes", b'{"name": "a\\u0000", "boot": "b", "capacity": {"cpus_milli": 1, "memory": 1, "disk": 1}, "protocol": 1, '
                      b'"version": "x"}'),
        ("/v1/nodes", b'{"name": "n", "boot": "a\\u0000", "capacity": {"cpus_milli": 1, "memory": 1, "disk": 1}, "protocol": 1, '
                      b'"version": "x"}'),
        ("/v1/nodes", b'{"name": "n", "boot": "b", "capacity": {"cpus_milli": 1, "memory": 1, "disk": 1}, "protocol": 99, '
                      b'"version": "x"}'),
        ("/v1/nodes/4711/exchange", b'{"boot": "b", "sequence": 1}'),
        ("/v1/nodes/none/drain", b""),
        ("/v1/tenants", b'{"name": "a\\u0000b"}'),
        ("/v1/keys", b'{"role": "king"}'),
        ("/v1/keys", b'{"tenant": "a\\u0000"}'),
        ("/v1/nowhere", b""),
    ],
    ids=lambda value: repr(value)[:60],
)  # fmt: skip
async def test_other_calls_are_as_strict(made, path, body):
    await assert_refused(made, await post(made, body, path))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tasks?limit=x", "/v1/tasks?limit=0", "/v1/tasks?limit=-5", "/v1/tasks?limit=99999999999999999999", "/v1/tasks?state=flying",
        "/v1/tasks?cursor=x", "/v1/tasks?cursor=-1", "/v1/tasks?cursor=99999999999999999999999", "/v1/tasks?since=yesterday-ish",
        "/v1/tasks?until=1e300", "/v1/tasks?since=-1e300", "/v1/tasks?tree=x", "/v1/tasks?category=x", "/v1/tasks?label=nothing",
        "/v1/tasks?node=nobody", "/v1/tasks?q=%00", "/v1/tasks?name=%00", "/v1/tasks?label=a%00=b",
        "/v1/tasks/x", "/v1/tasks/0", "/v1/tasks/-1", "/v1/tasks/99999999999999999999", "/v1/tasks/%00", "/v1/tasks/1?wait=x",
        "/v1/tasks/1/logs?attempt=x", "/v1/tasks/1/logs?stream=both", "/v1/trees/x", "/v1/nodes/%00", "/v1/dead-letters?group=maybe",
        "/v1/events?after=x", "/v1/nowhere", "/%00", "/v1/trees?name=%00", "/v1/trees?%00=x", "/v1/webhooks/a%00",
        "/v1/webhooks/%00/deliveries", "/v1/tenants/%00", "/v1/tenants/a%00/limits", "/v1/schedules/%00", "/v1/queues/%00",
    ],
)  # fmt: skip
async def test_a_wrong_question_is_refused(made, path):
    http = Http(made.servers[0].url, token=TOKEN)
    try:
        answer = await http.request("GET", path, timeout=60)
    finally:
        await http.close()
    await assert_refused(made, answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PATCH", "/v1/webhooks/%00", 404), ("DELETE", "/v1/webhooks/a%00", 404), ("POST", "/v1/webhooks/%00/rotate", 404),
        ("POST", "/v1/webhooks/%00/test", 404), ("POST", "/v1/webhooks/%00/replay", 404), ("DELETE", "/v1/queues/%00", 404),
        ("PATCH", "/v1/tenants/%00", 404), ("DELETE", "/v1/tenants/a%00", 404), ("PUT", "/v1/schedules/%00", 404),
        ("PUT", "/v1/tiers/basic?tenant=%00", 400), ("DELETE", "/v1/tenants/nobody?cancel=%00", 400),
    ],
)  # fmt: skip
async def test_no_name_has_a_nul_character(made, method, path, status):
    http = Http(made.servers[0].url, token=TOKEN)
    try:
        answer = await http.request(method, path, body=b"" if method == "DELETE" else b"{}")
    finally:
        await http.close()
    await assert_refused(made, answer, word="NUL")
    assert answer.status == status


DEPTHS = range(900, 1000)  # among them what can just be read, and no more be written


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/tasks", '{"function": "m:f", "idempotency_key": "%(depth)d", "at": "2090-01-01T00:00:00Z", "input": %(input)s}'),
        ("POST", "/v1/tasks", '[{"function": "m:f", "idempotency_key": "l%(depth)d", "at": "2090-01-01T00:00:00Z", "input": %(input)s}]'),
        ("PATCH", "/v1/tasks/%(task)s", '{"input": %(input)s}'),
    ],
    ids=["one", "a list", "a change"],
)
async def test_an_input_is_taken_or_refused_however_deeply_it_is_nested(made, method, path, body):
    http = Http(made.servers[0].url, token=TOKEN)
    try:
        answer = await http.request("POST", "/v1/tasks", body=task(at="2090-01-01T00:00:00Z"))
        names = {"task": msgspec.json.decode(answer.body)["id"]}
        for depth in DEPTHS:
            said = body % {**names, "depth": depth, "input": "[" * depth + "]" * depth}
            answer = await http.request(method, path % names, body=said.encode())
            assert answer.status in (200, 201, 400, 404), (depth, answer.body)
            if answer.status == 400:
                assert b"nested too deeply" in answer.body
    finally:
        await http.close()
    assert answer.status == 400


async def test_a_schedule_that_is_nested_too_deeply_is_refused_and_no_other_cannot_be_triggered(made):
    http = Http(made.servers[0].url, token=TOKEN)
    try:
        for depth in (400, *DEPTHS):
            nested = "[" * depth + "]" * depth
            body = f'{{"schedule": 3600, "start": "2090-01-01T00:00:00Z", "task": {{"function": "m:f", "input": {nested}}}}}'
            answer = await http.request("PUT", "/v1/schedules/deep", body=body.encode())
            if depth == 400:
                assert answer.status == 200
                assert (await http.request("POST", "/v1/schedules/deep/trigger")).status == 201
            else:
                assert answer.status == 400
                assert b"nested too deeply" in answer.body
    finally:
        await http.close()
