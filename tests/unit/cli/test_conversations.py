"""Commands against a server whose answers the test decides: what is sent, what is printed, which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_http import Request, Server, reply, serving

ID = "1234567890123456789"
NOW = "2026-11-15T03:00:00Z"


@dataclass
class Said:
    code: int
    out: str
    err: str


@dataclass
class Api:
    """Answers by "METHOD path" (the path without its query): a status and a value, or a function of the request."""

    answers: dict[str, tuple[int, Any] | Callable[[Request], Awaitable[tuple[int, Any]]]]
    seen: list[Request] = field(default_factory=list)

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.seen.append(request)
        found = self.answers.get(f"{request.method} {request.path.partition('?')[0]}", (404, problem(404, "not_found")))
        status, value = found if isinstance(found, tuple) else await found(request)
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(reply(status, body, content_type="application/json"))

    def body(self, at: int = 0) -> Any:
        return json.loads(self.seen[at].body)


def problem(status: int, code: str, detail: str = "it is so", **more: Any) -> dict[str, Any]:
    return {"type": f"/problems/{code}", "title": code, "status": status, "code": code, "detail": detail, **more}


def task(state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {
        "id": ID, "name": "report", "tenant": "default", "state": state, "category": "delayable", "what": "make report",
        "labels": {"team": "web"}, "attempt": 1, "attempts": 3, "execution_cap_s": 600, "created_at": NOW,
        "eligible_at": NOW, "start_by": NOW, "started_at": NOW, "ended_at": NOW, "node": "node-1", **more,
    }  # fmt: skip


async def headway(server: Server, *words: str, stdin: bytes = b"", cwd: Path | None = None) -> Said:
    process = await start(server, *words, cwd=cwd)
    out, err = await process.communicate(stdin)
    return Said(process.returncode or 0, out.decode(), err.decode())


async def start(server: Server, *words: str, cwd: Path | None = None) -> asyncio.subprocess.Process:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway.cli.main", *words, cwd=cwd, env={**env, "HEADWAY_URL": server.url},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_input", 65), (422, "unsatisfiable_resources", 65), (409, "idempotency_conflict", 65),
        (429, "limit_exceeded", 75), (401, "unauthorized", 77), (403, "forbidden", 77), (503, "unavailable", 69),
        (500, "internal", 70), (404, "not_found", 1),
    ],
)  # fmt: skip
async def test_a_problem_becomes_its_exit_code_and_says_what_to_do(status: int, code: str, expected: int) -> None:
    api = Api({"POST /v1/tasks": (status, problem(status, code, hint="do this", retry_after=7))})
    async with serving(api) as server:
        said = await headway(server, "submit", "--", "true")
    assert said.code == expected
    assert said.out == ""
    assert said.err.startswith("headway: it is so\n")
    assert "do this" in said.err
    assert ("try again in 7 s" in said.err) == (code == "limit_exceeded")


async def test_no_server_is_exit_code_69_and_says_how_to_get_one() -> None:
    async with serving(Api({})) as server:
        pass
    said = await headway(server, "ls")
    assert said.code == 69
    assert f"no server answers at {server.url}" in said.err
    assert "headway up" in said.err


async def test_submit_prints_the_id_and_sends_the_command_with_its_folder(tmp_path: Path) -> None:
    api = Api({"POST /v1/tasks": (201, {"id": ID, "state": "ready", "start_by": NOW})})
    async with serving(api) as server:
        said = await headway(server, "submit", "--attempts", "3", "--", "make", "--json", "-o", "x", cwd=tmp_path)
    assert (said.code, said.out) == (0, f"{ID}\n")
    assert api.body() == {"attempts": 3, "command": ["make", "--json", "-o", "x"], "workdir": str(tmp_path)}


async def test_submit_sends_lines_of_tasks_as_they_are() -> None:
    api = Api({"POST /v1/tasks": (201, {"ids": ["1", "2"], "count": 2})})
    async with serving(api) as server:
        said = await headway(server, "submit", "-", stdin=b'{"function": "m:f"}\n{"function": "m:g"}\n')
    assert said.out == "1\n2\n"
    assert api.seen[0].headers["content-type"] == "application/x-ndjson"
    assert api.seen[0].body == b'{"function": "m:f"}\n{"function": "m:g"}\n'


async def test_submit_sends_a_tree_with_names_and_dependencies(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("t:\n  task:\n    command: [echo, a]\n    b:\n      command: [echo, b]\n")
    api = Api({"POST /v1/trees": (201, {"ids": ["1", "2"], "count": 2, "tree": "9"})})
    async with serving(api) as server:
        said = await headway(server, "submit", "t.yaml", cwd=tmp_path)
        quiet = await headway(server, "submit", "t.yaml", "-o", "quiet", cwd=tmp_path)
    assert (said.out, quiet.out) == ("9\n", "1\n2\n")
    sent = api.body()
    assert sent["name"] == "t"
    assert {one["name"]: one.get("after", []) for one in sent["tasks"]} == {"task": ["b"], "b": []}


async def test_submit_and_apply_keep_a_tree_with_its_schedule(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "t:\n  task:\n    schedule: 300\n    overlap: queue\n    command: [echo, a]\n    b: {command: [echo, b], schedule: 60}\n"
    )
    answer = [{"name": "t", "change": "created", "next_at": None}, {"name": "t.b", "change": "unchanged", "next_at": None}]
    api = Api({"POST /v1/schedules": (200, answer)})
    async with serving(api) as server:
        said = await headway(server, "submit", "t.yaml", cwd=tmp_path)
        applied = await headway(server, "apply", "t.yaml", cwd=tmp_path)
    assert said.out == applied.out == "t: created\nt.b: unchanged\n"
    whole, part = api.body()
    assert (whole["name"], whole["schedule"], whole["overlap"]) == ("t", 300, "queue")
    assert [one["name"] for one in whole["tasks"]] == ["task", "b"]
    # It runs more often than the tree, so it runs by itself, too.
    assert (part["name"], part["schedule"], [one["name"] for one in part["tasks"]]) == ("t.b", 60, ["b"])


async def test_submit_keeps_a_command_with_a_schedule() -> None:
    api = Api({"POST /v1/schedules": (200, [{"name": "tidy", "change": "created", "next_at": None}])})
    async with serving(api) as server:
        said = await headway(server, "submit", "--name", "tidy", "--schedule", "0 3 * * *", "--jitter", "5m", "--", "true")
        nameless = await headway(server, "submit", "--schedule", "daily", "--", "true")
        idle = await headway(server, "submit", "--overlap", "skip", "--", "true")
    assert said.out == "tidy: created\n"
    (sent,) = api.body()
    assert (sent["name"], sent["schedule"], sent["jitter"]) == ("tidy", "0 3 * * *", "5m")
    assert (sent["task"]["name"], sent["task"]["command"]) == ("tidy", ["true"])
    assert (nameless.code, idle.code) == (64, 64)


async def test_apply_needs_a_schedule(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("t:\n  task: {command: [echo, a]}\n")
    api = Api({})
    async with serving(api) as server:
        said = await headway(server, "apply", "t.yaml", cwd=tmp_path)
    assert said.code == 65
    assert "'t' has no schedule" in said.err
    assert api.seen == []


async def test_the_next_firings_are_shown_by_the_schedule_s_own_clock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    view = {
        "name": "nightly", "tenant": "default", "state": "active", "schedule": "30 2 * * *", "timezone": "Europe/Berlin", "start": None,
        "end": None, "jitter": 0, "overlap": "skip", "misfire": "one", "tasks": 1, "last_at": None, "created_at": NOW, "changed_at": NOW,
        "next": ["2099-07-01T00:30:00Z"],
    }  # fmt: skip
    async with serving(Api({"GET /v1/schedules/nightly": (200, view)})) as server:
        there = await headway(server, "schedule", "show", "nightly")
        view["timezone"] = "Etc/UTC"
        here = await headway(server, "schedule", "show", "nightly")
    assert re.search(r"2099-07-01 00:30:00  \(in .*\), Wed 02:30 in Europe/Berlin$", there.out, re.MULTILINE)
    assert re.search(r"2099-07-01 00:30:00  \(in [^,]*\)$", here.out, re.MULTILINE)


async def test_secrets_are_listed_by_the_clock_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    async with serving(Api({"GET /v1/secrets": (200, [{"name": "db", "changed_at": NOW}])})) as server:
        said = await headway(server, "secret", "ls")
    assert "2026-11-15 12:00:00" in said.out


async def test_ls_asks_with_its_filters_and_prints_whole_ids() -> None:
    api = Api({"GET /v1/tasks": (200, {"tasks": [task("failed")], "next": "c2"})})
    async with serving(api) as server:
        filters = ("--state", "failed", "--state", "expired", "--label", "team=web", "-q", "a b")
        said = await headway(server, "ls", *filters)
        quiet = await headway(server, "ls", "-o", "quiet")
        as_json = await headway(server, "ls", "--json")
    assert api.seen[0].path == "/v1/tasks?state=failed&state=expired&label=team%3Dweb&q=a+b&limit=20"
    assert re.search(rf"^{ID}  failed +report ", said.out, re.MULTILINE)
    assert said.out.endswith("more: --cursor c2\n")
    assert quiet.out == f"{ID}\n"
    assert json.loads(as_json.out)["tasks"][0]["id"] == ID


async def test_show_says_why_there_were_more_attempts_than_allowed() -> None:
    for attempt, text in ((2, "  2 of 3\n"), (4, "  4 (3 allowed; lost, requeued and retried ones do not count)\n")):
        answers = {f"GET /v1/tasks/{ID}": (200, task(attempt=attempt)), f"GET /v1/tasks/{ID}/attempts": (200, [])}
        async with serving(Api(answers)) as server:
            assert text in (await headway(server, "show", ID)).out


async def test_show_prints_attempts_and_the_error_with_its_traceback() -> None:
    error = {"type": "ValueError", "message": "no page", "traceback": "Traceback\n  line 1"}
    attempt = {"attempt": 1, "outcome": "error", "node": "node-1", "leased_at": NOW, "started_at": NOW, "ended_at": NOW}
    api = Api({
        f"GET /v1/tasks/{ID}": (200, task("failed", error=error, input={"page": 7}, exit_code=1)),
        f"GET /v1/tasks/{ID}/attempts": (200, [{**attempt, "error": error}]),
    })  # fmt: skip
    async with serving(api) as server:
        said = await headway(server, "show", ID)
    for expected in ("make report", "team=web", '"page": 7', "error  ValueError: no page", "  line 1", "ATTEMPT"):
        assert expected in said.out


async def test_show_of_what_is_neither_task_nor_tree_says_so_once() -> None:
    async with serving(Api({})) as server:
        said = await headway(server, "show", ID)
    assert (said.code, said.out, said.err) == (1, "", "headway: it is so\n")


async def test_wait_returns_the_first_exit_code_that_is_not_0() -> None:
    done = [task(id="1"), task("failed", id="2", exit_code=3), task("failed", id="3", exit_code=4)]
    known = {f"GET /v1/tasks/{one['id']}": (200, one) for one in done}
    api = Api({"POST /v1/tasks/wait": (200, {"done": done, "pending": []}), **known})
    async with serving(api) as server:
        said = await headway(server, "wait", "1", "2", "3")
    assert said.code == 3


async def test_wait_gives_up_with_124() -> None:
    known = task("running", id="1")
    api = Api({"POST /v1/tasks/wait": (200, {"done": [], "pending": ["1"]}), "GET /v1/tasks/1": (200, known)})
    async with serving(api) as server:
        said = await headway(server, "wait", "1", "--timeout", "0")
    assert said.code == 124
    assert "1 of 1 not ended" in said.err


async def test_result_prints_the_value_alone() -> None:
    api = Api({f"GET /v1/tasks/{ID}": (200, task(result={"total": 3}))})
    async with serving(api) as server:
        said = await headway(server, "result", ID)
    assert (said.code, json.loads(said.out), said.err) == (0, {"total": 3}, "")


async def test_result_of_a_failed_task_is_its_reason_and_its_exit_code() -> None:
    api = Api({f"GET /v1/tasks/{ID}": (200, task("failed", exit_code=9))})
    async with serving(api) as server:
        said = await headway(server, "result", ID)
    assert (said.code, said.out) == (9, "")
    assert "failed: exit code 9" in said.err


async def test_logs_go_to_the_streams_they_came_from() -> None:
    lines = [
        {"attempt": 1, "stream": "stdout", "at": NOW, "text": "one\nhal"},
        {"attempt": 1, "stream": "stderr", "at": NOW, "text": "two"},
        {"attempt": 1, "stream": "stdout", "at": NOW, "text": "f\n\nend"},
    ]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    api = Api({f"GET /v1/tasks/{ID}/logs": (200, body)})
    async with serving(api) as server:
        said = await headway(server, "logs", "-f", "--attempt", "1", ID)
    assert (said.out, said.err) == ("one\nhalf\n\nend\n", "two\n")
    assert api.seen[0].path == f"/v1/tasks/{ID}/logs?follow=1&attempt=1"


async def test_dead_letters_are_sent_again_in_bulk_after_an_edit() -> None:
    api = Api({"POST /v1/dead-letters/retry": (200, {"changed": 7, "ids": []})})
    async with serving(api) as server:
        edit = ("--set", "attempts=5", "--set", "execution_cap=1h")
        said = await headway(server, "dead", "retry", "--name", "report", *edit)
    assert said.out == "7 sent again\n"
    assert api.body() == {"name": "report", "edit": {"attempts": 5, "execution_cap": "1h"}}


async def test_a_dead_letter_that_is_not_there_is_named() -> None:
    api = Api({"POST /v1/dead-letters/retry": (200, {"changed": 1, "ids": ["7"]})})
    async with serving(api) as server:
        some = await headway(server, "dead", "retry", "7", "8")
        all_of_them = await headway(server, "dead", "retry", "7")
    assert (some.code, some.out, some.err) == (1, "1 sent again\n", "headway: no dead letter: 8\n")
    assert (all_of_them.code, all_of_them.err) == (0, "")


async def test_run_prints_the_output_then_the_result_and_leaves_with_the_works_code() -> None:
    line = {"attempt": 1, "stream": "stdout", "at": NOW, "text": "hello\n"}
    api = Api({
        "POST /v1/tasks": (201, {"id": ID, "state": "ready", "start_by": NOW}),
        f"GET /v1/tasks/{ID}": (200, task("failed", exit_code=42)),
        f"GET /v1/tasks/{ID}/logs": (200, json.dumps(line).encode()),
    })  # fmt: skip
    async with serving(api) as server:
        said = await headway(server, "run", "--", "x")
    assert (said.code, said.out) == (42, "hello\n")
    assert re.search(rf"task {ID} failed after .* on node-1: exit code 42", said.err)


async def test_ctrl_c_cancels_the_work_and_waits_and_twice_leaves() -> None:
    cancelled, looked = asyncio.Event(), asyncio.Event()

    async def look(request: Request) -> tuple[int, Any]:
        looked.set()
        await asyncio.wait([asyncio.create_task(cancelled.wait())], timeout=0.05)
        return 200, task("running", ended_at=None)

    async def cancel(request: Request) -> tuple[int, Any]:
        cancelled.set()
        return 200, task("running", cancelling=True)

    api = Api({
        "POST /v1/tasks": (201, {"id": ID, "state": "ready", "start_by": NOW}),
        f"GET /v1/tasks/{ID}": look,
        f"GET /v1/tasks/{ID}/logs": (200, b""),
        f"POST /v1/tasks/{ID}/cancel": cancel,
    })  # fmt: skip
    async with serving(api) as server:
        process = await start(server, "run", "--", "x")
        await looked.wait()
        process.send_signal(signal.SIGINT)
        await cancelled.wait()
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Ctrl-C again leaves" in err


@pytest.mark.parametrize("word", ["cancel", "pause", "resume", "retry"])
async def test_one_of_many_that_has_ended_does_not_keep_the_command_from_the_rest(word: str) -> None:
    ended, gone, other = "1234567890123456781", "1234567890123456782", "1234567890123456783"
    api = Api(
        {
            f"POST /v1/tasks/{ended}/{word}": (409, problem(409, "conflict", "it has ended")),
            f"POST /v1/tasks/{ID}/{word}": (200, task("paused", ended_at=None)),
            f"POST /v1/tasks/{other}/{word}": (200, task("paused", ended_at=None, id=other)),
        }
    )
    async with serving(api) as server:
        said = await headway(server, word, ended, ID, gone, other)
    assert said.code == 1
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [ID, other]
    assert "it has ended" in said.err
    assert said.err.count("headway: ") == 2


async def test_cancelling_a_tree_cancels_the_tree() -> None:
    tree = {"id": "9", "name": "t", "state": "cancelled", "created_at": NOW, "levels": [], "tasks": []}
    api = Api({"POST /v1/trees/9/cancel": (200, tree)})
    async with serving(api) as server:
        said = await headway(server, "cancel", "9")
    assert said.code == 0
    assert [request.path for request in api.seen] == ["/v1/tasks/9/cancel", "/v1/trees/9/cancel"]


async def test_an_empty_id_is_bad_input_not_a_question_for_the_list_of_tasks() -> None:
    api = Api({})
    async with serving(api) as server:
        said = await headway(server, "show", "")
    assert said.code == 65
    assert "the id of the task is empty" in said.err


def lost_at_first(*answers: tuple[int, Any], losses: int = 2) -> Callable[[Request], Awaitable[tuple[int, Any]]]:
    """The first of these answers, then torn connections, then the last one."""
    asked = 0

    async def answer(_: Request) -> tuple[int, Any]:
        nonlocal asked
        asked += 1
        if len(answers) > 1 and asked == 1:
            return answers[0]
        if asked <= losses + len(answers) - 1:
            raise ConnectionError("the server restarts")
        return answers[-1]

    return answer


async def test_who_waits_outlasts_a_restart_of_the_server() -> None:
    done = task(id="1", exit_code=0)
    wait = lost_at_first((200, {"done": [done], "pending": []}))
    async with serving(Api({"POST /v1/tasks/wait": wait, "GET /v1/tasks/1": (200, task("running", id="1"))})) as server:
        said = await headway(server, "wait", "1")
    assert (said.code, said.err) == (0, "")
    look = lost_at_first((200, task("running")), (200, task(result=7)))
    async with serving(Api({f"GET /v1/tasks/{ID}": look})) as server:
        said = await headway(server, "result", ID, "--timeout", "1m")
    assert (said.code, said.out) == (0, "7\n")


async def test_a_submission_is_not_sent_twice_when_the_answer_is_lost() -> None:
    api = Api({"POST /v1/tasks": lost_at_first((201, {}), losses=1)})
    async with serving(api) as server:
        said = await headway(server, "submit", "--", "true")
    assert (said.code, len(api.seen)) == (69, 1)


async def test_logs_go_on_behind_the_last_entry_when_the_server_comes_back() -> None:
    """What was printed already may come in fewer or more entries by then: only the position counts."""
    entry = {"attempt": 1, "stream": "stdout", "at": NOW}
    lines = [json.dumps({**entry, "text": f"{n}\n", "sequence": n}).encode() + b"\n" for n in (4, 7, 9)]
    asked: list[str] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        asked.append(request.path)
        if len(asked) == 2:
            raise ConnectionError("it restarts")
        if len(asked) == 1:
            writer.write(reply(200, b"".join(lines), content_type="application/x-ndjson")[: -len(lines[2])])
            await writer.drain()
            raise ConnectionError("it goes away after two lines")
        writer.write(reply(200, lines[2], content_type="application/x-ndjson"))

    async with serving(answer) as server:
        said = await headway(server, "logs", "-f", ID)
    assert (said.code, said.out, said.err) == (0, "4\n7\n9\n", "")
    first, *again = asked
    assert first == f"/v1/tasks/{ID}/logs?follow=1"
    assert set(again) == {f"/v1/tasks/{ID}/logs?follow=1&after=1-7"}


async def test_logs_of_an_older_server_that_tells_no_positions_are_not_printed_twice() -> None:
    entry = {"attempt": 1, "stream": "stdout", "at": NOW}
    lines = [json.dumps({**entry, "text": f"{n}\n"}).encode() + b"\n" for n in range(3)]
    asked: list[str] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        asked.append(request.path)
        whole = reply(200, b"".join(lines), content_type="application/x-ndjson")
        writer.write(whole if len(asked) == 3 else whole[: -len(lines[2])])
        await writer.drain()
        if len(asked) < 3:
            raise ConnectionError("it goes away after two lines")

    async with serving(answer) as server:
        said = await headway(server, "logs", "-f", ID)
    assert (said.code, said.out, said.err) == (0, "0\n1\n2\n", "")
    assert set(asked) == {f"/v1/tasks/{ID}/logs?follow=1"}


async def test_a_json_list_is_sent_as_lines_and_what_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[\n {"function": "m:f"},\n {"function": "m:g"}\n]')
    (tmp_path / "torn.json").write_text('[{"function": "m:f"}')
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "list.yaml").write_text("- function: m:f\n")
    api = Api({"POST /v1/tasks": (201, {"ids": ["1", "2"], "count": 2})})
    async with serving(api) as server:
        said = await headway(server, "submit", "list.json", cwd=tmp_path)
        piped = await headway(server, "submit", "-", stdin=(tmp_path / "list.json").read_bytes())
        wrong = {name: await headway(server, "run", name, cwd=tmp_path) for name in ("torn.json", "empty.json", "list.yaml")}
        with_params = await headway(server, "run", "list.json", "--param", "a=b", cwd=tmp_path)
    assert (said.out, piped.out) == ("1\n2\n", "1\n2\n")
    for request in api.seen:
        assert request.headers["content-type"] == "application/x-ndjson"
        assert request.body == b'{"function":"m:f"}\n{"function":"m:g"}'
    assert len(api.seen) == 2
    assert {one.code for one in wrong.values()} == {65}
    assert "torn.json: not a JSON list of tasks" in wrong["torn.json"].err
    assert "empty.json: the list is empty" in wrong["empty.json"].err
    assert "list.yaml:1:1: expected a tree or a task, here is a list" in wrong["list.yaml"].err
    assert "`headway submit`" in wrong["list.yaml"].err
    assert with_params.code == 64


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_closed_streams_do_not_disturb_a_command(closed: str) -> None:
    api = Api({
        "POST /v1/tasks": (201, {"id": ID, "state": "ready", "start_by": NOW}),
        f"GET /v1/tasks/{ID}": (200, task()),
        f"GET /v1/tasks/{ID}/logs": (200, b""),
    })  # fmt: skip
    async with serving(api) as server:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
        line = f"{sys.executable} -m headway.cli.main run -- true {closed}"
        process = await asyncio.create_subprocess_shell(line, env={**env, "HEADWAY_URL": server.url})
        assert await process.wait() == 0


async def test_no_lines_on_stdin_are_told_as_such() -> None:
    async with serving(Api({})) as server:
        said = await headway(server, "submit", "-", stdin=b"\n")
    assert said.code == 65
    assert "nothing came on stdin" in said.err
