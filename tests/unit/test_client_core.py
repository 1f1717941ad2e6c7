"""What the client does with the answers of a server: values, errors, tries, streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headway import AsyncClient, Client, TaskSpec, errors
from headway.client.discovery import find
from headway.client.problems import KINDS, error_from
from headway.config import load
from headway.errors import HeadwayError
from headway.wire.http import NotSent, Response
from tests.support.scripted_api import MOMENT, accepted, problem, routes, task_view
from tests.support.scripted_http import Request, reply, serving, serving_in_thread

TOKEN = "hw_tenant_x"


def every_error(kind: type[HeadwayError] = HeadwayError) -> list[type[HeadwayError]]:
    ours = [kind] if kind.__module__ == errors.__name__ else []
    return ours + [found for sub in kind.__subclasses__() for found in every_error(sub)]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.code)
def test_every_code_comes_back_as_its_exception(kind: type[HeadwayError]) -> None:
    body = {"code": kind.code, "detail": "d", "hint": "h", "field": "f", "retry_after": 2.5, "cycle": ["a", "b"]}
    error = error_from(Response(400, {}, json.dumps(body).encode()))
    assert type(error) is KINDS[kind.code] is kind
    assert (error.detail, error.hint, error.extra["cycle"]) == ("d", "h", ["a", "b"])
    assert error.extra["retry_after"] == 2.5


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthorized), (404, errors.NotFound), (429, errors.LimitExceeded), (502, errors.Unavailable)],
)
def test_an_answer_that_is_not_headways_is_understood_by_its_status(status: int, kind: type[HeadwayError]) -> None:
    error = error_from(Response(status, {"retry-after": "7"}, b"<html>Bad Gateway</html>"))
    assert type(error) is kind
    assert "Bad Gateway" in error.detail
    assert error.extra["retry_after"] == 7.0


async def test_a_submit_is_tried_again_with_the_same_key_after_a_lost_connection() -> None:
    tries = itertools.count()

    async def lose_first(request: Request, writer: asyncio.StreamWriter) -> None:
        if next(tries) == 0:
            writer.close()
        else:
            writer.write(reply(201, json.dumps(accepted("77")).encode()))

    async with serving(lose_first) as server, AsyncClient(server.url, TOKEN) as client:
        handle = await client.submit(command="true")
    assert handle.id == "77"
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_two_submits_have_different_keys() -> None:
    async with (
        serving(routes({"POST /v1/tasks": lambda r: accepted()})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        await client.submit(command="true")
        await client.submit(TaskSpec(command="true"))
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(keys) == 2


async def test_what_is_no_task_is_refused_with_what_to_write() -> None:
    async with AsyncClient("http://127.0.0.1:1", "hw_x") as client:
        with pytest.raises(errors.InvalidInput, match="given by its fields, here is the text 'echo hello'") as refused:
            await client.submit("echo hello")  # type: ignore[arg-type]
        assert "submit(command=...)" in (refused.value.hint or "")


async def test_a_task_says_only_what_was_said() -> None:
    spec = TaskSpec(command="true", attempts=2)
    async with (
        serving(routes({"POST /v1/tasks": lambda r: accepted()})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        await client.submit(spec)
        await client.submit(spec, input={"a": 1})
    assert [json.loads(request.body) for request in server.requests] == [
        {"command": "true", "attempts": 2},
        {"command": "true", "attempts": 2, "input": {"a": 1}},
    ]


async def test_the_callers_own_key_is_the_only_one() -> None:
    async with (
        serving(routes({"POST /v1/tasks": lambda r: accepted(created=False)})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        await client.submit({"command": "true"}, idempotency_key="mine")
    assert "idempotency-key" not in server.requests[0].headers
    assert json.loads(server.requests[0].body) == {"command": "true", "idempotency_key": "mine"}


async def test_a_bulk_lost_on_the_way_is_not_sent_twice() -> None:
    async def lose(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with serving(lose) as server, AsyncClient(server.url, TOKEN) as client:
        with pytest.raises(ConnectionError):
            await client.submit_many([{"command": "true"}, {"command": "true"}])
    assert len(server.requests) == 1


async def test_a_bulk_with_a_key_is_sent_again_with_a_key_for_each_task() -> None:
    tries = itertools.count()

    async def lose_first(request: Request, writer: asyncio.StreamWriter) -> None:
        if next(tries) == 0:
            writer.close()
        else:
            writer.write(reply(201, b'{"ids": ["1", "2"], "count": 2}'))

    async with serving(lose_first) as server, AsyncClient(server.url, TOKEN) as client:
        handles = await client.submit_inputs({"function": "m:f"}, [10, 20], key="nightly")
    assert [handle.id for handle in handles] == ["1", "2"]
    assert server.requests[0].body == server.requests[1].body
    assert json.loads(server.requests[1].body) == [
        {"function": "m:f", "input": 10, "idempotency_key": "nightly/0"},
        {"function": "m:f", "input": 20, "idempotency_key": "nightly/1"},
    ]


async def test_a_limit_is_waited_for_as_long_as_the_server_says_even_by_a_bulk() -> None:
    answers = iter([problem(429, "limit_exceeded", retry_after=0.01), b""])

    def limited(request: Request) -> Any:
        return next(answers) or {"ids": ["1"], "count": 1}

    async with (
        serving(routes({"POST /v1/tasks": limited})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        assert [handle.id for handle in await client.submit_many([{"command": "true"}])] == ["1"]
    assert len(server.requests) == 2


async def test_a_limit_beyond_the_clients_patience_is_told_at_once() -> None:
    async with (
        serving(routes({"POST /v1/tasks": lambda r: problem(429, "limit_exceeded", retry_after=3600)})) as server,
        AsyncClient(server.url, TOKEN, patience=5) as client,
    ):
        with pytest.raises(errors.LimitExceeded) as caught:
            await client.submit(command="true")
    assert caught.value.retry_after == 3600
    assert "(try again in 3600 s" in str(caught.value)
    assert len(server.requests) == 1


async def test_a_busy_server_is_asked_again_until_the_patience_is_over() -> None:
    async with (
        serving(routes({"GET /v1/stats": lambda r: problem(503, "unavailable", retry_after=0.05)})) as server,
        AsyncClient(server.url, TOKEN, patience=2.0) as client,
    ):
        with pytest.raises(errors.Unavailable):
            await client.stats()
    assert 2 <= len(server.requests) <= 1 + 2.0 / 0.05, "it rests as long as it is told"


async def test_an_unavailable_server_may_have_stored_the_bulk_so_it_is_not_repeated() -> None:
    async with (
        serving(routes({"POST /v1/tasks": lambda r: problem(503, "unavailable", retry_after=0.01)})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        with pytest.raises(errors.Unavailable):
            await client.submit_many([{"command": "true"}])
    assert len(server.requests) == 1


async def test_a_server_that_never_answered_is_reported_at_once() -> None:
    client = AsyncClient("http://127.0.0.1:9", TOKEN, patience=1000)
    with pytest.raises(NotSent):
        await client.stats()


async def test_the_next_of_several_servers_takes_over() -> None:
    async with serving(routes({"GET /v1/queues": lambda r: []})) as server:
        client = AsyncClient(f"http://127.0.0.1:9,{server.url}", TOKEN)
        assert await client.queues() == []
        await client.close()


async def test_an_error_tells_which_field_and_what_to_do() -> None:
    refusal = problem(400, "unknown_field", field="comand", hint="did you mean `command`?")
    async with (
        serving(routes({"POST /v1/tasks": lambda r: refusal})) as server,
        AsyncClient(server.url, TOKEN) as client,
    ):
        with pytest.raises(errors.UnknownField, match="did you mean") as caught:
            await client.submit(comand="true")
    assert caught.value.field == "comand"


async def test_iterating_follows_the_cursor_to_the_end() -> None:
    pages = {None: (["3", "2"], "c1"), "c1": (["1"], None)}

    def page(request: Request) -> Any:
        query = parse_qs(urlsplit(request.path).query)
        ids, after = pages[query["cursor"][0] if "cursor" in query else None]
        assert query["label"] == ["team=a", "env=b"]
        return {"tasks": [task_view(i) for i in ids], "next": after}

    async with serving(routes({"GET /v1/tasks": page})) as server, AsyncClient(server.url, TOKEN) as client:
        found = [view.id async for view in client.iterate(label={"team": "a", "env": "b"})]
    assert found == ["3", "2", "1"]


async def test_an_event_stream_goes_on_behind_the_last_event_after_a_loss() -> None:
    def event(number: int) -> bytes:
        data = {"id": str(number), "kind": "task.succeeded", "tenant": "t", "at": MOMENT}
        return f"id: {number}\ndata: {json.dumps(data)}\n\n".encode()

    async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
        start = int(request.headers.get("last-event-id", 0)) + 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: ping\n\n" + event(start))
        writer.write(event(start + 1) + event(start + 2)[:20])  # cut in the middle of the third
        await writer.drain()
        writer.close()

    async with serving(stream) as server, AsyncClient(server.url, TOKEN) as client:
        seen = []
        async for found in client.events():
            seen.append(found.id)
            if len(seen) == 5:
                break
    assert seen == ["1", "2", "3", "4", "5"]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "2", "4"]


async def test_events_go_on_at_another_server_when_one_goes_away() -> None:
    def telling(number: int) -> Any:
        async def stream(request: Request, writer: asyncio.StreamWriter) -> None:
            data = {"id": str(number), "kind": "task.succeeded", "tenant": "t", "at": MOMENT}
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + f"data: {json.dumps(data)}\n\n".encode())
            await writer.drain()
            writer.close()

        return stream

    async with serving(telling(2)) as second:
        async with serving(telling(1)) as first:
            client = AsyncClient(f"{first.url},{second.url}", TOKEN, patience=5.0)
            events = client.events()
            assert (await anext(events)).id == "1"
        assert (await anext(events)).id == "2"  # the first has gone for good
        await events.aclose()  # type: ignore[attr-defined]
        await client.close()


async def test_followed_output_goes_on_behind_its_last_piece_when_the_server_comes_back() -> None:
    entry = {"attempt": 1, "stream": "stdout", "at": MOMENT}
    lines = [json.dumps({**entry, "text": f"{n}\n", "sequence": n}).encode() + b"\n" for n in (4, 7, 9)]
    tries = itertools.count()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        match next(tries):
            case 0:  # before anything is written
                writer.close()
            case 1:
                writer.write(reply(200, b"".join(lines), content_type="application/x-ndjson")[: -len(lines[2])])
                await writer.drain()
                writer.close()
            case _:
                writer.write(reply(200, lines[2], content_type="application/x-ndjson"))

    async with serving(answer) as server, AsyncClient(server.url, TOKEN) as client:
        assert [piece.text async for piece in client.logs(5, follow=True)] == ["4\n", "7\n", "9\n"]
    asked = [parse_qs(urlsplit(request.path).query).get("after") for request in server.requests]
    assert asked == [None, None, ["1-7"]]


async def test_output_that_is_not_followed_is_told_to_be_torn() -> None:
    async def torn(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        await writer.drain()
        writer.close()

    async with serving(torn) as server, AsyncClient(server.url, TOKEN) as client:
        with pytest.raises(ConnectionError):
            [piece async for piece in client.logs(5)]
    assert len(server.requests) == 1


def test_logs_come_line_by_line_through_the_blocking_client() -> None:
    lines = "".join(json.dumps({"attempt": 1, "stream": "stdout", "at": MOMENT, "text": text}) + "\n" for text in ("one", "two"))
    with (
        serving_in_thread(routes({"GET /v1/tasks/5/logs": lambda r: reply(200, lines.encode())})) as server,
        Client(server.url, TOKEN) as client,
    ):
        assert [line.text for line in client.logs(5, follow=True)] == ["one", "two"]
    assert "follow=1" in server.requests[0].path


def test_an_unknown_task_is_not_found() -> None:
    with (
        serving_in_thread(routes({"GET /v1/tasks/5": lambda r: problem(404, "not_found")})) as server,
        Client(server.url, TOKEN) as client,
        pytest.raises(errors.NotFound, match="what was wrong"),
    ):
        client.get(5)


def up_note(folder: Path, pid: int) -> dict[str, str]:
    (folder / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:4711", "pid": pid}))
    (folder / "token").write_text("hw_admin_secret\n")
    return {"HEADWAY_DATA": str(folder), "HOME": str(folder)}


def test_a_running_up_is_found_with_its_token(tmp_path: Path) -> None:
    settings = load(env=up_note(tmp_path, os.getpid()))
    assert find(settings) == ("http://127.0.0.1:4711", "hw_admin_secret")


def test_the_note_of_a_dead_up_is_not_believed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert find(load(env=up_note(tmp_path, gone.pid))) is None


def test_what_the_environment_names_wins_over_a_running_up(tmp_path: Path) -> None:
    env = up_note(tmp_path, os.getpid()) | {"HEADWAY_URL": "http://elsewhere:1", "HEADWAY_TOKEN": "hw_x"}
    assert find(load(env=env)) == ("http://elsewhere:1", "hw_x")
    assert find(load(env=env), url="http://argument:1", token="hw_y") == ("http://argument:1", "hw_y")


def test_the_token_of_up_is_not_shown_to_another_server(tmp_path: Path) -> None:
    settings = load(env=up_note(tmp_path, os.getpid()))
    assert find(settings, url="http://elsewhere:1") == ("http://elsewhere:1", None)
    assert find(settings, url="http://127.0.0.1:4711/") == ("http://127.0.0.1:4711/", "hw_admin_secret")
