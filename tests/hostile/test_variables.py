"""Variables of a task are obeyed inside its walls, and by nothing that builds them (H11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from tests.support.confined import ROOM, confining, need_sandbox, shell
from tests.support.packages import need
from tests.support.preloading import Preloading, preloading
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with confining(tmp_path_factory.mktemp("agent"), paths=[str(Path(__file__).parent)]) as (running, _):
        yield running


@pytest.fixture
def evil() -> Iterator[Preloading]:
    with preloading() as made:
        yield made


@pytest.mark.parametrize("network", [(), ("127.0.0.1:9",)])
def test_a_library_a_task_names_is_not_loaded_outside_its_sandbox(
    server: ScriptedServer, evil: Preloading, network: tuple[str, ...]
) -> None:
    command = shell("unset LD_PRELOAD LD_AUDIT; echo ran")
    ref = server.run(server.define(command=command, isolation="sandbox", resources=ROOM, network=network, env=evil.variables))
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    assert server.text(ref) == "ran\n"
    assert evil.ran() == []


def test_inside_a_task_has_its_variables_as_it_wrote_them(server: ScriptedServer) -> None:
    env = {"LINES": "one\ntwo\n", "EMPTY": "", "QUOTES": "\"a' b\"", "NOT_ASCII": "ä €", "LD_LIBRARY_PATH": "/no", "PATH": "/usr/bin:/bin"}
    show = 'for name in LINES EMPTY QUOTES NOT_ASCII LD_LIBRARY_PATH PATH; do eval "printf \'%s=%s;\' $name \\"\\$$name\\""; done'
    ref = server.run(server.define(command=shell(show), isolation="sandbox", resources=ROOM, env=env))
    assert server.text(ref) == "".join(f"{name}={value};" for name, value in env.items()), server.text(ref, 2)


def test_nothing_of_the_agents_own_variables_is_inside(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=("env",), isolation="sandbox", resources=ROOM, env={"HEADWAY_AGENT_INSTANCE": "another"}))
    found = dict(line.partition("=")[::2] for line in server.text(ref).splitlines())
    assert found["HEADWAY_AGENT_INSTANCE"] != "another"  # by it its processes are found
    assert (found["HOME"], found["USER"], found["TMPDIR"]) == ("/task", "task", "/tmp")


def test_a_library_named_for_a_warm_runner_is_not_loaded_outside_its_sandbox(server: ScriptedServer, evil: Preloading) -> None:
    need("perl")
    ref = server.run(
        server.define(
            function="/nowhere.pl:nothing", isolation="sandbox", tenant=7, resources=ROOM, env={"LD_PRELOAD": evil.library}
        )
    )
    assert ref in server.finished
    assert evil.ran() == []


def test_a_preparation_runs_with_no_variables_of_a_task_around_it(server: ScriptedServer, evil: Preloading) -> None:
    content = Content(prepare=("/bin/sh", "-c", 'echo "$LD_PRELOAD$HOME" > made'))
    ref = server.run(
        server.define(
            command=shell('unset LD_PRELOAD; cat "$HEADWAY_PREPARED/made"'),
            isolation="sandbox",
            tenant=7,
            resources=ROOM,
            content=content,
            env={"LD_PRELOAD": evil.library},
        )
    )
    assert server.text(ref) == "/tmp\n", server.error(ref)
    assert evil.ran() == []
