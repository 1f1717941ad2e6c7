"""@task, what of a call travels how, and the eager mode."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway import AsyncClient, Client, errors, task
from headway.client import calling
from headway.client.context import Current
from tests.support.scripted_api import accepted, routes
from tests.support.scripted_http import Request, serving, serving_in_thread
from tests.unit import client_jobs as jobs

MODULE = "tests.unit.client_jobs"
TOKEN = "hw_tenant_x"


def taking() -> Any:
    def bulk_or_one(request: Request) -> Any:
        body = json.loads(request.body)
        if "inputs" in body:
            return {"ids": [str(i) for i, _ in enumerate(body["inputs"])], "count": len(body["inputs"])}
        return accepted("1")

    return serving_in_thread(routes({"POST /v1/tasks": bulk_or_one}))


def test_a_decorated_function_is_still_a_function() -> None:
    assert jobs.add(2, b=3) == 5
    assert jobs.add.__name__ == "add"  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(jobs.add)) is jobs.add


def test_a_call_is_sent_under_its_name_with_its_options() -> None:
    with taking() as server, Client(server.url, TOKEN):
        handle = jobs.add.options(attempts=5, name="sum").submit(1, 2)
    assert handle.id == "1"
    assert json.loads(server.requests[0].body) == {
        "function": f"{MODULE}:add", "codec": "json", "input": [1, 2], "attempts": 5, "name": "sum",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "kwargs", "sent"),
    [
        ((), {}, None),
        ((1,), {}, [1]),
        (([1],), {}, [[1]]),
        ((1,), {"b": 2}, {"*": [1], "**": {"b": 2}}),
        ((), {"a": 1}, {"**": {"a": 1}}),
    ],
)
def test_plain_arguments_travel_as_json(args: tuple[Any, ...], kwargs: dict[str, Any], sent: Any) -> None:
    codec, (encoded,) = calling.encode_calls([(args, kwargs)])
    assert codec == "json"
    assert json.loads(bytes(encoded)) == sent


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: "a"}, {1, 2}, b"x", math.inf, 2**70, datetime.date(2026, 1, 1), jobs.Point(1, 2), "\ud800", "a\0b"],
    ids=repr,
)
def test_what_json_would_change_travels_as_a_pickle(value: Any) -> None:
    codec, (encoded,) = calling.encode_calls([((value,), {})])
    assert codec == "pickle"
    assert calling.decode_call(bytes(encoded), codec) == ((value,), {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.tuples(st.integers()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(args=st.lists(json_values, max_size=4), kwargs=st.dictionaries(st.text(min_size=1), json_values, max_size=3))
def test_the_function_gets_exactly_what_the_caller_gave(args: list[Any], kwargs: dict[str, Any]) -> None:
    codec, (encoded,) = calling.encode_calls([(tuple(args), kwargs)])
    got_args, got_kwargs = calling.decode_call(bytes(encoded), codec)
    assert repr((got_args, dict(got_kwargs))) == repr((tuple(args), kwargs))  # repr tells 1 from 1.0 and True


def test_arguments_that_cannot_be_sent_are_refused_here() -> None:
    with pytest.raises(errors.InvalidInput, match="cannot be sent"):
        calling.encode_calls([((lambda: 1,), {})])


def test_map_sends_one_request_for_many_items() -> None:
    with taking() as server, Client(server.url, TOKEN):
        handles = jobs.add.map(range(100))
        pairs = jobs.add.starmap([(1, 2), (3, 4)])
    assert (len(handles), len(pairs), len(server.requests)) == (100, 2, 2)
    assert json.loads(server.requests[0].body)["inputs"][:2] == [[0], [1]]
    assert json.loads(server.requests[1].body)["inputs"] == [[1, 2], [3, 4]]


async def test_aio_submits_through_the_active_async_client() -> None:
    async with serving(routes({"POST /v1/tasks": lambda r: accepted("8")})) as server, AsyncClient(server.url, TOKEN):
        assert (await jobs.add.aio(1)).id == "8"
    with pytest.raises(errors.InvalidInput, match="no AsyncClient is active"):
        await jobs.add.aio(1)


async def test_a_call_that_blocks_is_refused_where_an_async_client_is_active() -> None:
    """It made a client of its own, perhaps of another server, and stopped the event loop meanwhile."""
    async with serving(routes({"POST /v1/tasks": lambda r: accepted("8")})) as server, AsyncClient(server.url, TOKEN):
        for call in (lambda: jobs.add.submit(1), lambda: jobs.add.map([1])):
            with pytest.raises(errors.InvalidInput, match="an AsyncClient is active here") as caught:
                call()
            assert "f.aio" in (caught.value.hint or "")
        with Client(server.url, TOKEN):  # whoever names one gets it, and another thread stops no loop
            assert (await asyncio.to_thread(jobs.add.submit, 1)).id == "8"


def test_the_innermost_client_is_the_active_one() -> None:
    with taking() as outer, taking() as inner, Client(outer.url, TOKEN):
        with Client(inner.url, TOKEN):
            jobs.add.submit(1)
        jobs.add.submit(2)
    assert [json.loads(r.body)["input"] for r in inner.requests] == [[1]]
    assert [json.loads(r.body)["input"] for r in outer.requests] == [[2]]


def test_a_wrong_option_is_an_error_where_it_is_written() -> None:
    with pytest.raises(errors.UnknownField, match="did you mean `attempts`"):
        task(atempts=3)(jobs.plain)
    with pytest.raises(errors.InvalidInput, match="execution_cap"):
        task(execution_cap="soon")(jobs.plain)
    with pytest.raises(errors.InvalidInput, match="command"):
        task(command="true")(jobs.plain)


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="cannot be found by name"):
        calling.function_name(lambda: 1)


def test_a_function_of_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from headway import task\n@task\ndef job(): ...\nprint(job.spec()['function'])\n")
    ran = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"{script}:job"


def test_a_function_of_a_script_from_a_pipe_is_refused_where_it_is_submitted() -> None:
    typed = "from headway import task\n@task\ndef job(): ...\njob.spec()\n"
    ran = subprocess.run([sys.executable, "-"], input=typed, capture_output=True, text=True, check=False)
    assert "InvalidInput: job was typed into an interactive session" in ran.stderr


def test_a_call_that_the_function_does_not_take_is_refused_before_anything_is_sent() -> None:
    with taking() as server, Client(server.url, TOKEN), headway.Executor() as pool:
        with pytest.raises(TypeError, match=r"add\(\): missing a required argument: 'a'"):
            jobs.add.submit()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"add\(\): got an unexpected keyword argument 'c'"):
            pool.submit(jobs.add, 1, c=2)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"add\(\): too many positional arguments"):
            jobs.add.starmap([(1,), (1, 2), (1, 2, 3)])
        jobs.wrapped.submit(1)  # its decorator gives the second argument
        task(max).call(1, 2)  # says nothing of what it takes
    assert len(server.requests) == 1


def test_what_only_a_pool_of_processes_has_is_refused_in_words() -> None:
    with taking() as server, Client(server.url, TOKEN):
        for make in (lambda: headway.Executor(max_workers=4), lambda: headway.Executor(4)):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="how many calls run at once, and where, is the fleet's"):
                make()


def test_a_handle_as_an_argument_is_refused_with_the_way_to_do_it() -> None:
    with taking() as server, Client(server.url, TOKEN):
        handles = jobs.add.map([1, 2])
        with pytest.raises(errors.InvalidInput, match="a handle is of the process") as caught:
            jobs.unique.submit(handles)
        with pytest.raises(errors.InvalidInput):
            pickle.dumps(handles[0].aio)
    assert "handle.result()" in (caught.value.hint or "")


def test_eager_tasks_run_here_and_keep_their_types() -> None:
    with headway.eager():
        assert jobs.add.submit(1, b=4).result() == 5
        assert jobs.mirrored.submit(jobs.Point(1, 2)).result() == jobs.Point(2, 1)
        assert jobs.later.submit(datetime.date(2026, 12, 31)).result() == datetime.date(2027, 1, 1)
        assert [handle.result() for handle in jobs.add.map([1, 2])] == [2, 3]
        assert jobs.unique.submit([1, 1]).result() == {1}


async def test_eager_async_tasks_run_inside_an_event_loop_too() -> None:
    with headway.eager():
        assert jobs.later.submit(datetime.date(2026, 1, 1)).result() == datetime.date(2026, 1, 2)


def test_an_eager_failure_is_told_as_a_real_one() -> None:
    with headway.eager():
        handle = jobs.broken.submit("this")
        assert handle.state() == "failed"
        with pytest.raises(errors.TaskFailed, match="ValueError: cannot do this"):
            handle.result()


def test_an_eager_task_is_tried_as_often_as_it_may() -> None:
    jobs.runs.clear()
    with headway.eager():
        assert jobs.third_time_lucky.submit().result() == 3
    assert jobs.runs == [1, 2, 3]


def test_outside_eager_tasks_are_submitted_again() -> None:
    with headway.eager():
        pass
    with taking() as server, Client(server.url, TOKEN):
        jobs.add.submit(1)
    assert len(server.requests) == 1


def test_outside_a_task_there_is_no_current_one() -> None:
    with pytest.raises(RuntimeError, match="outside a task"):
        headway.current()


def test_a_program_finds_its_task_in_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in (("TASK_ID", "42"), ("ATTEMPT", "3"), ("DEADLINE", "1790000000.5")):
        monkeypatch.setenv(f"HEADWAY_{name}", value)
    me = headway.current()
    assert (me.task_id, me.attempt, me.deadline) == ("42", 3, 1790000000.5)
    me.progress(40, 100, "two\nlines")
    assert capsys.readouterr().out == "headway progress 40/100 two lines\n"


def test_progress_goes_where_the_runner_says() -> None:
    said: list[tuple[float, float, str]] = []
    Current(7, 1, None, lambda *what: said.append(what)).progress(1, 2, "half")
    assert said == [(1, 2, "half")]


def test_importing_headway_loads_next_to_nothing() -> None:
    heavy = ("typing", "asyncio", "msgspec", "dataclasses")
    code = f"import sys, headway; headway.current; print(*set(sys.modules).intersection({heavy}))"
    command = [sys.executable, "-S", "-c", code]  # -S: what site imports is not ours
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": "src"})
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_the_version_is_that_of_the_package() -> None:
    import tomllib

    with open("pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == headway.__version__
