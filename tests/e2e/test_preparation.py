"""What a task needs is made once, before it starts, and outside its cap (H5)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.domain.content import Archive, Content, Requires
from headway.domain.lifecycle import Outcome
from tests.support import indexes
from tests.support.agents import AgentProcess, running_agent
from tests.support.packages import need
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

MIB = 2**20
CAP_MS = 3000  # time enough to say a word on a busy machine


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent"), server.url, prepared_size=64 * MIB, prepare_s=300) as running:
        yield running


@pytest.fixture
def alone() -> Iterator[ScriptedServer]:
    """A server for a test that has an agent of its own."""
    with ScriptedServer() as running:
        yield running


def wheel(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    path.write_bytes(indexes.wheel(name, body))
    return path


def prepared(**content: object) -> Content:
    return Content(**content)  # type: ignore[arg-type]


def python(folder: Path, name: str, body: str) -> str:
    (folder / name).write_text(body)
    return str(folder / name)


@pytest.mark.usefixtures("agent")
def test_python_packages_are_installed_once_for_programs_and_functions(server: ScriptedServer, tmp_path: Path) -> None:
    made = wheel(tmp_path, "headway_demo", "def answer():\n    return 42\n")
    requires = Requires(pip=(f"headway_demo @ file://{made}",))
    script = python(tmp_path, "uses.py", "import headway_demo\nprint(headway_demo.answer(), headway_demo.__file__)\n")
    number = server.define(executable=script, content=prepared(requires=requires))
    first, second = server.run(number), server.run(number)
    assert server.text(first).startswith("42 "), server.error(first)
    assert server.text(first) == server.text(second)
    functions = python(tmp_path, "functions.py", "import headway_demo\ndef f():\n    return headway_demo.answer()\n")
    called = server.run(server.define(function=f"{functions}:f", content=prepared(requires=requires)))
    assert server.finished[called].result == b"42"
    without = server.run(server.define(function=f"{functions}:f"))
    assert server.outcome(without) is Outcome.NOT_STARTABLE  # the packages of one task are no other's


@pytest.mark.usefixtures("agent")
def test_npm_packages_are_installed(server: ScriptedServer, tmp_path: Path) -> None:
    need("npm")
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "headway-demo", "version": "1.0.0", "main": "index.js"}))
    (package / "index.js").write_text("module.exports = () => 'from npm'")
    with tarfile.open(tmp_path / "demo.tgz", "w:gz") as file:
        file.add(package, "package")
    script = python(tmp_path, "uses.js", "console.log(require('headway-demo')())")
    ref = server.order(
        server.define(executable=script, content=prepared(requires=Requires(npm=(f"file:{tmp_path / 'demo.tgz'}",))))
    )
    server.wait(lambda: ref in server.finished)
    assert server.text(ref) == "from npm\n", server.error(ref)


@pytest.mark.usefixtures("agent")
def test_a_package_that_cannot_be_installed_is_named_and_the_log_is_shown(server: ScriptedServer, tmp_path: Path) -> None:
    missing = Requires(pip=(f"nowhere @ file://{tmp_path}/nowhere-1.0-py3-none-any.whl",))
    ref = server.run(server.define(command=("true",), content=prepared(requires=missing)))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "pip could not install nowhere" in server.error(ref)["message"]
    assert "nowhere-1.0-py3-none-any.whl" in server.error(ref)["traceback"]


@pytest.mark.usefixtures("agent")
def test_an_archive_and_a_command_make_a_place_that_tasks_share(server: ScriptedServer, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho tool $1\n")
    tool.chmod(0o755)
    with tarfile.open(tmp_path / "tools.tar.xz", "w:xz") as file:
        file.add(tool, "bin/tool")
    counted = tmp_path / "counted"
    content = prepared(
        archives=(Archive(str(tmp_path / "tools.tar.xz")),), prepare=("sh", "-c", f"echo ran >> {counted}; tool x > made")
    )
    definition = server.define(command=("sh", "-c", "tool from-path; cat $HEADWAY_PREPARED/made"), content=content)
    refs = server.order_many(definition, [b""] * 5)
    other = server.order(server.define(command=("tool", "again"), content=content))
    server.wait(lambda: all(ref in server.finished for ref in (*refs, other)))
    assert {server.text(ref) for ref in refs} == {"tool from-path\ntool x\n"}
    assert server.text(other) == "tool again\n"
    assert counted.read_text() == "ran\n"  # two definitions, six tasks, one preparation


@pytest.mark.usefixtures("agent")
def test_preparation_is_outside_the_cap_and_holds_no_room(server: ScriptedServer, tmp_path: Path) -> None:
    """It takes longer than the cap of its task allows, and another task that needs all of the node runs meanwhile."""
    from headway.domain.resources import Resources

    go = tmp_path / "go"
    os.mkfifo(go)
    whole = Resources(cpus_milli=2000, memory=MIB)
    ordered = time.monotonic()
    slow = server.order(
        server.define(command=("echo", "prepared"), cap_ms=CAP_MS, resources=whole, content=prepared(prepare=("cat", str(go))))
    )
    quick = server.run(server.define(command=("echo", "meanwhile"), resources=whole))
    assert server.text(quick) == "meanwhile\n"
    assert slow not in server.finished
    until(lambda: time.monotonic() > ordered + CAP_MS / 1000 and _opened(go))
    server.wait(lambda: slow in server.finished)
    assert (server.outcome(slow), server.text(slow)) == (Outcome.SUCCEEDED, "prepared\n")


def _opened(fifo: Path) -> bool:
    """Let a reader of the fifo go on; False while there is none."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("agent")
def test_a_task_is_cancelled_while_it_is_being_prepared(server: ScriptedServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    ref = server.order(server.define(command=("true",), content=prepared(prepare=("cat", str(go)))))
    until(lambda: _reading(go))
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED
    until(lambda: _opened(go))


def _preparer(agent: AgentProcess) -> int:
    """Whichever thread of the supervisor started it."""
    below = tree.descendants([agent.supervisor()], tree.table())
    return next(pid for pid in below if b"agent.prepare" in command_line(pid))


def _reading(path: Path) -> bool:
    return any(str(path).encode() in command_line(pid) for pid in tree.table())


def test_a_preparation_that_died_half_way_is_made_anew(alone: ScriptedServer, tmp_path: Path) -> None:
    """kill -9 of whatever prepares: the task is told, nothing half-made is used, and the next try works."""
    with running_agent(tmp_path / "agent", alone.url, node_name="dies") as agent:
        go = tmp_path / "go"
        os.mkfifo(go)
        content = prepared(prepare=("sh", "-c", f"echo half > made; cat {go}; echo whole > made"))
        number = alone.define(command=("sh", "-c", "cat $HEADWAY_PREPARED/made"), content=content)
        first = alone.order(number)
        until(lambda: _reading(go))
        preparer = _preparer(agent)
        tree.kill([preparer], None)
        alone.wait(lambda: first in alone.finished)
        assert alone.outcome(first) is Outcome.NOT_STARTABLE
        second = alone.order(number)
        until(lambda: _opened(go))
        alone.wait(lambda: second in alone.finished)
        assert alone.text(second) == "whole\n"


def test_an_agent_that_was_killed_uses_what_it_had_prepared(alone: ScriptedServer, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    number = alone.define(command=("true",), content=prepared(prepare=("sh", "-c", f"echo ran >> {counted}")))
    for _ in range(2):
        with running_agent(tmp_path / "agent", alone.url, node_name="again"):
            assert alone.outcome(alone.run(number)) is Outcome.SUCCEEDED
    assert counted.read_text() == "ran\n"


def test_what_was_used_least_recently_makes_room(alone: ScriptedServer, tmp_path: Path) -> None:
    with running_agent(tmp_path / "agent", alone.url, node_name="small", prepared_size=5 * MIB):
        numbers = [
            alone.define(
                command=("sh", "-c", "ls $HEADWAY_PREPARED"),
                content=prepared(prepare=("sh", "-c", f"head -c 2M /dev/zero > {name}")),
            )
            for name in ("one", "two", "three")
        ]
        assert alone.text(alone.run(numbers[0])) == "one\n"
        assert alone.text(alone.run(numbers[1])) == "two\n"
        assert alone.text(alone.run(numbers[0])) == "one\n"  # used again: `two` is the oldest now
        assert alone.text(alone.run(numbers[2])) == "three\n"
        (root,) = (tmp_path / "agent").glob("agent/*/prepared")
        until(lambda: sorted(path.name for path in root.glob("place-*/[a-z]*")) == ["one", "three"])
        assert alone.text(alone.run(numbers[1])) == "two\n"  # made anew
        too_large = alone.run(alone.define(command=("true",), content=prepared(prepare=("sh", "-c", "head -c 6M /dev/zero > x"))))
        assert "more than this node keeps" in alone.error(too_large)["message"]


def test_a_busy_node_makes_room_too(alone: ScriptedServer, tmp_path: Path) -> None:
    """While something is prepared nothing is removed, which may be always: above its limit a node begins no more until room is made."""
    with running_agent(tmp_path / "agent", alone.url, node_name="small", prepared_size=5 * MIB):
        go, begun = tmp_path / "go", tmp_path / "begun"
        os.mkfifo(go)
        slow = alone.order(alone.define(command=("true",), content=prepared(prepare=("sh", "-c", f"cat {go}"))))
        until(lambda: _reading(go))
        for name in ("one", "two", "three"):
            content = prepared(prepare=("sh", "-c", f"head -c 2M /dev/zero > {name}"))
            assert alone.outcome(alone.run(alone.define(command=("true",), content=content))) is Outcome.SUCCEEDED
        content = prepared(prepare=("sh", "-c", f"echo > {begun}; head -c 2M /dev/zero > four"))
        last = alone.order(alone.define(command=("true",), content=content))
        alone.run(alone.define(command=("true",)))
        assert not begun.exists()
        go.write_text("")
        alone.wait(lambda: slow in alone.finished and last in alone.finished)
        (root,) = (tmp_path / "agent").glob("agent/*/prepared")
        until(lambda: sorted(path.name for path in root.glob("place-*/[a-z]*")) == ["four", "three"])


def test_what_a_failed_preparation_made_is_counted_too(alone: ScriptedServer, tmp_path: Path) -> None:
    """Its place is whole and may serve others, though its program cannot be built: many such must not fill the disk."""
    need("gcc")
    source = tmp_path / "bad.c"
    source.write_text("this is no program")
    with running_agent(tmp_path / "agent", alone.url, node_name="small", prepared_size=5 * MIB):
        for name in ("one", "two", "three", "four"):
            content = prepared(prepare=("sh", "-c", f"head -c 2M /dev/zero > {name}"))
            assert "could not build" in alone.error(alone.run(alone.define(executable=str(source), content=content)))["message"]
        (root,) = (tmp_path / "agent").glob("agent/*/prepared")
        until(lambda: sorted(path.name for path in root.glob("place-*/[a-z]*")) == ["four", "three"])


def test_one_that_died_leaves_nothing_half_made(alone: ScriptedServer, tmp_path: Path) -> None:
    with running_agent(tmp_path / "agent", alone.url, node_name="dies") as agent:
        go = tmp_path / "go"
        os.mkfifo(go)
        first = alone.order(alone.define(command=("true",), content=prepared(prepare=("sh", "-c", f"echo half > made; cat {go}"))))
        until(lambda: _reading(go))
        preparer = _preparer(agent)
        tree.kill([preparer], None)
        alone.wait(lambda: first in alone.finished)
        (root,) = (tmp_path / "agent").glob("agent/*/prepared")
        until(lambda: not [path.name for path in root.iterdir() if path.name.startswith(("place-", "gone-"))])


def test_preparation_has_a_time_limit_and_leaves_nothing_running(alone: ScriptedServer, tmp_path: Path) -> None:
    with running_agent(tmp_path / "agent", alone.url, node_name="patient", prepare_s=1):
        marker = f"headway-test-{os.getpid()}"
        content = prepared(prepare=("sh", "-c", f"sh -c 'sleep 1000; true' {marker} & sleep 1000"))
        ref = alone.run(alone.define(command=("true",), content=content))
        assert "longer than 1 s" in alone.error(ref)["message"]
        until(lambda: not any(marker.encode() in command_line(pid) for pid in tree.table()))


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("language", "name", "body", "compiler"),
    [
        ("c", "a.c", '#include <stdio.h>\nint main(int n, char **v) { printf("%s\\n", v[1]); }\n', "gcc"),
        ("c++", "a.cpp", "#include <iostream>\nint main(int n, char **v) { std::cout << v[1] << std::endl; }\n", "g++"),
        ("rust", "a.rs", 'fn main() { println!("{}", std::env::args().nth(1).unwrap()); }\n', "rustc"),
    ],
)
def test_a_compiled_program_is_built_once_for_each_content(
    server: ScriptedServer, tmp_path: Path, language: str, name: str, body: str, compiler: str
) -> None:
    need(compiler)
    source = tmp_path / name
    source.write_text(body)
    number = server.define(executable=str(source), args=("built",))
    first = server.run(number)
    assert server.text(first) == "built\n", server.error(first)
    source.write_text(body.replace("main(", "main ("))
    assert server.text(server.run(number)) == "built\n"  # another content: built again
    source.write_text("this is no program\n")
    broken = server.run(number)
    assert server.outcome(broken) is Outcome.NOT_STARTABLE
    assert f"could not build {name}" in server.error(broken)["message"]
    assert name in server.error(broken)["traceback"]


@pytest.mark.usefixtures("agent")
def test_nodes_announce_what_they_can_run(server: ScriptedServer) -> None:
    server.wait(lambda: server.registered)
    labels = server.registered[0].capacity.labels
    node = shutil.which("node")
    if node is not None:
        version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
        assert labels["interpreter/node"] == version.partition(".")[0]
        assert labels["runner/node"] == "yes"
    assert ("interpreter/ruby" in labels) == (shutil.which("ruby") is not None)
    assert labels["interpreter/sh"]
