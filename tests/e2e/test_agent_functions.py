"""An agent and Python functions in warm runners."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.e2e.agent_functions import put
from tests.support.agents import AgentProcess, alive, running_agent
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent"), server.url, paths=[str(HERE)]) as running:
        yield running


def result(server: ScriptedServer, ref: tuple[int, int]) -> Any:
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.finished[ref]
    data = server.finished[ref].result
    return None if data is None else json.loads(data)


def function(server: ScriptedServer, name: str, **fields: Any) -> int:
    return server.define(function=f"agent_functions:{name}", **fields)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (None, [], {}),
        ([1, "b"], [1, "b"], {}),
        ({"a": 1}, [], {"a": 1}),
        (7, [7], {}),
        ("text", ["text"], {}),
        ({"*": [1, 2], "**": {"k": 3}}, [1, 2], {"k": 3}),
    ],
)
def test_the_input_becomes_the_arguments(server: ScriptedServer, given: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert result(server, server.run(function(server, "echo"), given)) == {"args": args, "kwargs": kwargs}


@pytest.mark.usefixtures("agent")
def test_async_functions_run_to_their_end(server: ScriptedServer) -> None:
    assert result(server, server.run(function(server, "later"), 41)) == 42


@pytest.mark.usefixtures("agent")
def test_pickled_calls_keep_what_json_cannot_say(server: ScriptedServer) -> None:
    given = base64.b64encode(pickle.dumps((({1, 2},), {"key": b"bytes"}))).decode()
    answer = result(server, server.run(function(server, "echo", codec="pickle"), given))
    assert pickle.loads(base64.b64decode(answer)) == {"args": [{1, 2}], "kwargs": {"key": b"bytes"}}


@pytest.mark.usefixtures("agent")
def test_an_exception_is_told_with_its_traceback(server: ScriptedServer) -> None:
    ref = server.run(function(server, "fail"), "no such customer")
    error = server.error(ref)
    assert server.outcome(ref) is Outcome.ERROR
    assert (error["type"], error["message"]) == ("ValueError", "no such customer")
    assert "in fail" in error["traceback"]


@pytest.mark.usefixtures("agent")
def test_leaving_by_exit_is_an_error_and_the_runner_goes_on(server: ScriptedServer) -> None:
    ref = server.run(function(server, "leave"), 3)
    assert server.outcome(ref) is Outcome.ERROR
    assert server.error(ref)["type"] == "SystemExit"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:f", "there is no module 'no_such_module' on this node: install it there, or start the agent with --path FOLDER"),
        ("agent_functions:missing", "has no 'missing'"),
        ("agent_functions:HERE.x", "has no 'HERE.x'"),
        ("/no/such/file.py:f", "there is no file"),
        ("agent_functions:os", "not a function"),
    ],
)
def test_a_function_that_is_not_there_is_named(server: ScriptedServer, name: str, words: str) -> None:
    ref = server.run(server.define(function=name))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert words in server.error(ref)["message"]


@pytest.mark.usefixtures("agent")
def test_a_result_that_cannot_be_sent_is_an_error(server: ScriptedServer) -> None:
    ref = server.run(function(server, "unsendable"))
    assert server.outcome(ref) is Outcome.ERROR
    assert "cannot be stored as JSON" in server.error(ref)["message"]


@pytest.mark.usefixtures("agent")
def test_a_function_of_a_script_is_loaded_again_when_the_script_changes(server: ScriptedServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f():\n    return 'first'\n")
    definition = server.define(function=f"{script}:f")
    assert result(server, server.run(definition)) == "first"
    script.write_text("def f():\n    return 'a changed one'\n")
    assert result(server, server.run(definition)) == "a changed one"
    script.write_text("def f():\n    return 'one as long  '\n")  # in the same second, perhaps: bytecode would be taken for its own
    assert result(server, server.run(definition)) == "one as long  "
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.usefixtures("agent")
def test_prints_and_progress_of_a_function_arrive(server: ScriptedServer) -> None:
    ref = server.run(function(server, "talk"))
    server.wait(lambda: "below Python" in server.text(ref))
    assert "to stdout\n" in server.text(ref)
    assert server.text(ref, stream=2) == "to stderr\n"
    said = [(p.done, p.text) for p in server.progress if p.id == ref[0]]
    assert said[-1] == (3.0, "by a call")
    assert set(said[:-1]) <= {(2.0, "by a line")}  # told only if it was the newest for a while
    assert result(server, ref) == f"{ref[0]} 1"


@pytest.mark.usefixtures("agent")
def test_a_crash_of_a_runner_is_the_outcome_of_the_task_that_ran_and_of_no_other(server: ScriptedServer, tmp_path: Path) -> None:
    notes, crash = tmp_path / "notes", function(server, "crash")
    note = function(server, "note")
    server.run(note, str(notes))
    before = server.order_many(note, [json.dumps(str(notes)).encode()] * 20)
    crashed = server.order(crash)
    after = server.order_many(note, [json.dumps(str(notes)).encode()] * 20)
    server.wait(lambda: crashed in server.finished and server.is_over(*before, *after))
    assert server.outcome(crashed) is Outcome.RUNNER_CRASHED
    assert "SIGSEGV" in server.error(crashed)["message"]
    ended = [ref for ref in [*before, *after] if ref in server.finished]
    # Done, or done with the result lost: then it runs again.
    assert {server.outcome(ref) for ref in ended} <= {Outcome.SUCCEEDED, Outcome.PRE_EMPTED}
    assert len(notes.read_text().splitlines()) == 1 + len(ended)  # none ran twice under one attempt


@pytest.mark.usefixtures("agent")
def test_what_waits_behind_a_long_call_goes_to_another_runner(server: ScriptedServer, tmp_path: Path) -> None:
    """The calls are predicted to be short, so they go out as one batch; then the first turns out to be long."""
    wait_for = function(server, "wait_for")
    there, go = tmp_path / "there", tmp_path / "go"
    there.touch()
    for _ in range(30):
        server.run(wait_for, [str(there)])
    long = server.order(wait_for, [str(go)])
    rest = server.run_many(wait_for, [json.dumps([str(there)]).encode()] * 50)
    assert {finished.outcome for finished in rest} == {Outcome.SUCCEEDED}
    assert long not in server.finished
    put(str(go), "now")
    server.wait(lambda: long in server.finished)
    assert result(server, long) == "now"


@pytest.mark.usefixtures("agent")
def test_at_its_cap_a_function_may_clean_up_and_only_it_ends(server: ScriptedServer, tmp_path: Path) -> None:
    began, cleaned = tmp_path / "began", tmp_path / "cleaned"
    ref = server.run(function(server, "stubborn", cap_ms=3000), [str(began), str(cleaned)])
    assert server.outcome(ref) is Outcome.CAP_EXCEEDED
    assert cleaned.read_text() == "yes"
    assert not alive(int(began.read_text()))
    assert result(server, server.run(function(server, "echo"), 1)) == {"args": [1], "kwargs": {}}


@pytest.mark.usefixtures("agent")
def test_a_running_function_is_cancelled(server: ScriptedServer, tmp_path: Path) -> None:
    began = tmp_path / "began"
    ref = server.order(function(server, "stubborn"), [str(began), str(tmp_path / "cleaned")])
    until(lambda: began.exists())
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED
    assert (tmp_path / "cleaned").exists()


@pytest.mark.usefixtures("agent")
def test_a_process_that_a_function_left_behind_is_ended(server: ScriptedServer, tmp_path: Path) -> None:
    ref = server.run(function(server, "start_child"), str(tmp_path / "child"))
    child = result(server, ref)
    until(lambda: not alive(child))


@pytest.mark.usefixtures("agent")
def test_long_calls_are_announced_as_started(server: ScriptedServer, tmp_path: Path) -> None:
    ref = server.order(function(server, "wait_for"), [str(tmp_path / "go")])
    server.wait(lambda: any((s.id, s.attempt) == ref for s in server.started))
    (tmp_path / "go").touch()
    server.wait(lambda: ref in server.finished)


@pytest.mark.usefixtures("agent")
def test_thousands_of_calls_each_end_once(server: ScriptedServer) -> None:
    ended = server.run_many(function(server, "echo"), [b"%d" % n for n in range(3000)])
    assert [json.loads(finished.result or b"")["args"] for finished in ended] == [[n] for n in range(3000)]
    refs = {(finished.id, finished.attempt) for finished in ended}
    assert len([ref for ref in server.finishes if ref in refs]) == 3000


def test_a_runner_is_replaced_after_its_share_of_tasks(tmp_path: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, paths=[str(HERE)], runner_tasks=10, cpus=1.0):
        note = function(server, "note", resources=Resources(cpus_milli=1000))
        notes = [json.dumps(str(tmp_path / "notes")).encode()] * 100
        ended = server.run_many(note, notes)
        assert len({finished.result for finished in ended}) > 1
        assert len((tmp_path / "notes").read_text().splitlines()) == 100


@pytest.mark.usefixtures("agent")
def test_a_function_is_not_charged_for_the_cpu_time_of_those_before_it(server: ScriptedServer) -> None:
    """Nor for the start of its runner. Only long ones are measured, and what short ones took was added to the next of those."""
    spin, rest = function(server, "spin"), function(server, "rest")
    for _ in range(40):
        server.run(spin, 0.006)
    finished = server.finished[server.run(rest, 0.03)]
    assert finished.cpu_ms is not None
    assert finished.cpu_ms <= 2 * (finished.ended_ms - finished.started_ms), finished  # it has two threads
