"""Warm runners for other languages: the protocol, and what an agent makes of it (H4)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.conformance import check
from headway.agent.warm import runner_command, runners_folder
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, running_agent
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer

RUNNERS = [
    ("node", "functions.mjs", "nodejs"),
    ("perl", "functions.pl", "perl"),
    ("java", "Functions.java", "default-jdk-headless"),
]
OWN = """
import json, sys
print("ready\\t1\\town", flush=True)
for line in sys.stdin:
    word, task, attempt, deadline, name, text = line.rstrip("\\n").split("\\t", 5)
    if name.endswith(":die"):
        sys.exit(3)
    while name.endswith(":endless"):
        sys.stdout.write("x" * 65536)
    while name.endswith(":lines"):
        sys.stdout.write("\\n" * 65536)
    if name.endswith(":long"):
        print("ok", task, '"' + "x" * 2**23 + '"', sep="\\t", flush=True)
        continue
    print("a line of its own", flush=True)
    print("ok", task, json.dumps([name, json.loads(text)]), sep="\\t", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "own.py").write_text(OWN)
    added = {"own": f"{sys.executable} {folder / 'own.py'}", "broken": "/bin/false", "endless": "/bin/cat /dev/zero"}
    with running_agent(folder, server.url, runners=added) as running:
        yield running


def functions(name: str) -> Path:
    return runners_folder() / "conformance" / name


@pytest.mark.parametrize(("language", "file", "package"), RUNNERS)
def test_our_runners_conform(language: str, file: str, package: str) -> None:
    need(package)
    command = runner_command(language, {})
    assert command is not None
    failed = [result for result in check(command, str(functions(file))) if result.why]
    assert failed == []


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        'print("ready\\t1\\tbad", flush=True)\nfor line in __import__("sys").stdin: print("ok\\t0\\t1", flush=True)\n'
    )
    results = check([sys.executable, "-u", str(tmp_path / "silent.py")], "f")
    assert results[0].why == "it ended"
    results = check([sys.executable, "-c", 'print("hello")'], "f")
    assert "its first line is" in results[0].why


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(("language", "file", "package"), RUNNERS)
def test_functions_of_other_languages_run_warm(server: ScriptedServer, language: str, file: str, package: str) -> None:
    need(package)
    where = functions(file)
    done = server.run_many(server.define(function=f"{where}:add"), [b"[%d,1]" % number for number in range(200)])
    assert [finished.result for finished in done] == [b"%d" % (number + 1) for number in range(200)]
    failed = server.run(server.define(function=f"{where}:fail"), ["it broke"])
    assert server.outcome(failed) is Outcome.ERROR
    assert server.error(failed)["message"] == "it broke"
    hello = server.run(server.define(function=f"{where}:hello"))
    assert server.text(hello) == "hello from the function\n"
    server.run(server.define(function=f"{where}:steps"))
    server.wait(lambda: any(said.text == "half way" for said in server.progress))
    missing = server.run(server.define(function=f"{where}:nobody"))
    assert server.outcome(missing) is Outcome.NOT_STARTABLE


@pytest.mark.usefixtures("agent")
def test_a_function_that_ends_its_process_is_the_one_that_crashed(server: ScriptedServer) -> None:
    need("perl")
    where = functions("functions.pl")
    crash, add = server.define(function=f"{where}:crash"), server.define(function=f"{where}:add")
    refs = [*server.order_many(add, [b"[1,1]"] * 20), server.order(crash), *server.order_many(add, [b"[1,1]"] * 20)]
    server.wait(lambda: refs[20] in server.finished and server.is_over(*refs))
    assert server.outcome(refs[20]) is Outcome.RUNNER_CRASHED
    assert "perl was killed by SIGKILL" in server.error(refs[20])["message"]
    others = [ref for ref in refs if ref != refs[20] and ref in server.finished]
    assert {server.outcome(ref) for ref in others} <= {Outcome.SUCCEEDED, Outcome.PRE_EMPTED}


@pytest.mark.usefixtures("agent")
def test_cancelling_ends_a_function_that_hangs(server: ScriptedServer, tmp_path: Path) -> None:
    need("perl")
    (tmp_path / "hang.pl").write_text('sub hang { print "hanging\\n"; sleep 1000 }\n1;\n')
    ref = server.order(server.define(function=f"{tmp_path / 'hang.pl'}:hang"))
    server.wait(lambda: server.started and server.started[-1].id == ref[0])
    server.cancel(ref, 0.2)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED


@pytest.mark.usefixtures("agent")
def test_a_changed_file_is_loaded_again(server: ScriptedServer, tmp_path: Path) -> None:
    need("perl")
    script = tmp_path / "turn.pl"
    number = server.define(function=f"{script}:value")
    for value in ("1", "22", "333"):
        script.write_text(f"sub value {{ return {value} }}\n1;\n")
        assert server.finished[server.run(number)].result == value.encode()


@pytest.mark.usefixtures("agent")
def test_an_operator_adds_a_runner_by_a_setting(server: ScriptedServer) -> None:
    server.wait(lambda: server.registered)
    assert server.registered[0].capacity.labels["runner/own"] == "yes"
    ref = server.run(server.define(function="anything:name", interpreter="own"), {"x": 1})
    assert server.finished[ref].result == b'["anything:name", {"x": 1}]'
    assert server.text(ref) == "a line of its own\n"
    died = server.run(server.define(function="anything:die", interpreter="own"))
    assert server.outcome(died) is Outcome.RUNNER_CRASHED


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("name", ["endless", "lines"])
def test_one_that_prints_without_end_is_ended_at_its_cap_and_costs_no_more_than_its_output(server: ScriptedServer, name: str) -> None:
    ref = server.order(server.define(function=f"anything:{name}", interpreter="own", cap_ms=3000))
    done = server.run_many(server.define(function="anything:name", interpreter="own"), [b"1"] * 20)
    assert {finished.result for finished in done} == {b'["anything:name", 1]'}
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CAP_EXCEEDED, server.error(ref)  # by its memory, were it kept
    assert len(server.text(ref)) <= 2**20 + 200
    assert len(server.output[ref]) < 1000


@pytest.mark.usefixtures("agent")
def test_an_answer_that_is_too_long_is_an_error_and_the_next_one_is_heard(server: ScriptedServer) -> None:
    ref = server.run(server.define(function="anything:long", interpreter="own"))
    assert server.outcome(ref) is Outcome.ERROR
    assert "the result is larger than" in server.error(ref)["message"]
    assert "xx" not in server.text(ref)
    after = server.run(server.define(function="anything:name", interpreter="own"), 1)
    assert server.finished[after].result == b'["anything:name", 1]'


@pytest.mark.usefixtures("agent")
def test_one_that_begins_with_something_without_end_cannot_start(server: ScriptedServer) -> None:
    ref = server.run(server.define(function="a:b", interpreter="endless"))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "cat did not keep to the protocol" in server.error(ref)["message"]


@pytest.mark.usefixtures("agent")
def test_a_runner_that_cannot_start_is_told_and_not_tried_for_ever(server: ScriptedServer) -> None:
    refs = server.order_many(server.define(function="a:b", interpreter="broken"), [b""] * 3)
    server.wait(lambda: all(ref in server.finished for ref in refs))
    assert {server.outcome(ref) for ref in refs} == {Outcome.NOT_STARTABLE}
    assert "no runner for broken could be started" in server.error(refs[0])["message"]


@pytest.mark.usefixtures("agent")
def test_what_a_function_of_another_language_uses_is_seen(server: ScriptedServer, tmp_path: Path) -> None:
    """It is another process than the one that speaks for it."""
    need("perl")
    script = tmp_path / "use.pl"
    grow = "vec($kept, $_[0], 8) = 1; my $until = (times)[0] + $_[1]; 1 while (times)[0] < $until; return 1"
    script.write_text(f"my $kept = '';\nsub use_it {{ {grow} }}\n1;\n")
    size = 48 * 2**20
    number = server.define(function=f"{script}:use_it", resources=Resources(cpus_milli=500, memory=256 * 2**20))
    finished = server.finished[server.run(number, [size, 0.2])]
    assert Outcome(finished.outcome) is Outcome.SUCCEEDED, finished
    assert (finished.max_memory or 0) >= size
    assert 150 <= (finished.cpu_ms or 0) <= 2 * (finished.ended_ms - finished.started_ms)
