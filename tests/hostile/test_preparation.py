"""What a tenant's preparation can do to its node: nothing (H5 H11)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.scratch import remove
from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from tests.support.agents import AgentProcess, running_agent
from tests.support.confined import ROOM, confining, need_sandbox
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

DEEP = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    folder = tmp_path_factory.mktemp("agent")
    with confining(folder) as running:
        yield running
    remove(str(folder))  # if what is tested here fails, folders are left that are nested deeper than pytest can go


@pytest.fixture
def server(node: tuple[ScriptedServer, AgentProcess]) -> ScriptedServer:
    return node[0]


def prepared(server: ScriptedServer, *prepare: str, then: str = 'echo "$HEADWAY_PREPARED"') -> tuple[int, int]:
    content = Content(prepare=prepare)
    return server.run(server.define(command=("/bin/sh", "-c", then), isolation="sandbox", tenant=7, resources=ROOM, content=content))


@pytest.mark.parametrize("name", [".headway-ready", "ready", "../ready", "locks"])
def test_a_link_named_like_the_agents_mark_is_not_followed(server: ScriptedServer, tmp_path: Path, name: str) -> None:
    ref = prepared(server, "/bin/sh", "-c", f"ln -s {tmp_path}/written {name} || true")
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    assert list(tmp_path.iterdir()) == []


def test_half_a_place_is_not_taken_for_a_whole_one(server: ScriptedServer) -> None:
    for _ in range(2):
        ref = prepared(server, "/bin/sh", "-c", "echo 1 > .headway-ready; exit 3")
        assert server.outcome(ref) is Outcome.NOT_STARTABLE
        assert "exit code 3" in server.error(ref)["message"]


def test_no_program_that_it_makes_gives_rights_to_others(server: ScriptedServer) -> None:
    """Outside, its files are those of the agent's user."""
    ref = prepared(server, "/bin/sh", "-c", "mkdir d; cp /bin/true d/program; chmod 6755 d/program; ln -s /bin/su d/link")
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    made = Path(server.text(ref).strip()) / "d"
    assert stat.S_IMODE(os.lstat(made / "program").st_mode) == 0o755
    assert (made / "link").is_symlink()


def test_outside_it_is_a_user_that_owns_nothing_of_the_node(server: ScriptedServer) -> None:
    """Root, also without capabilities, may change the mode of each device that it sees."""
    device = Path("/dev/full")
    before = device.stat()
    try:
        ref = prepared(server, "/bin/sh", "-c", "chmod 0600 /dev/full; touch -d @0 /dev/full; stat -c %u /dev/full > owner; true")
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
        after = device.stat()
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    finally:
        device.chmod(stat.S_IMODE(before.st_mode))


def test_what_it_keeps_to_itself_its_task_can_read_and_nobody_change(server: ScriptedServer) -> None:
    make = "umask 077; mkdir d; echo made > d/made; printf '#!/bin/sh\\necho ran' > d/run; chmod 700 d/run"
    try_all = "cd $HEADWAY_PREPARED; cat d/made; d/run; (echo x > d/made) 2>/dev/null; rm -f d/made 2>/dev/null; cat d/made"
    ref = prepared(server, "/bin/sh", "-c", make, then=try_all)
    assert server.text(ref) == "made\nran\nmade\n", (server.error(ref), server.text(ref, 2))


def test_several_at_once_on_a_node_that_never_made_one(tmp_path: Path) -> None:
    with confining(tmp_path) as (server, _):
        numbers = [
            server.define(
                command=("/bin/sh", "-c", "cat $HEADWAY_PREPARED/made"),
                isolation="sandbox",
                tenant=tenant,
                resources=ROOM,
                content=Content(prepare=("/bin/sh", "-c", "echo $HOME > made")),
            )
            for tenant in range(7, 15)
        ]
        refs = [server.order(number) for number in numbers]
        server.wait(lambda: all(ref in server.finished for ref in refs), timeout=120)
        assert {server.text(ref) for ref in refs} == {"/tmp\n"}, [server.error(ref) for ref in refs]


def test_folders_nested_deeper_than_anyone_can_look_are_refused_and_removed(
    node: tuple[ScriptedServer, AgentProcess],
) -> None:
    server, agent = node
    ref = prepared(server, "/usr/bin/python3", "-c", DEEP)
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "too deeply" in server.error(ref)["message"]

    def only_whole() -> bool:
        whole = {mark.name for mark in Path(agent.settings.data_dir).glob("agent/*/prepared/ready/*")}
        return {place.name for place in Path(agent.settings.data_dir).glob("agent/*/prepared/place-*")} <= whole

    until(only_whole)


def test_an_agent_starts_beside_what_a_killed_one_left_half_made(tmp_path: Path) -> None:
    left = tmp_path / "agent" / "agent" / "test-node" / "prepared" / "place-0"
    left.mkdir(parents=True)
    here = os.getcwd()
    try:
        os.chdir(left)
        exec(DEEP)
    finally:
        os.chdir(here)
    try:
        with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url):
            assert server.outcome(server.run(server.define(command=("true",)))) is Outcome.SUCCEEDED
            assert not left.exists()
    finally:
        remove(str(left))


def test_a_container_has_no_preparation_on_its_node(server: ScriptedServer, tmp_path: Path) -> None:
    """It would run as the agent's user: there is no sandbox around a container's preparation."""
    content = Content(image="localhost/none:1", commands=("true",), prepare=("/bin/touch", str(tmp_path / "ran")))
    ref = server.run(server.define(isolation="container", tenant=7, resources=ROOM, content=content))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "a container has what its image has" in server.error(ref)["message"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_preparation_prints_and_writes_does_not_fill_the_disk(tmp_path: Path) -> None:
    """It ends when it has written more than the node keeps, be it in its place or in its /tmp; of what it prints the end is kept."""
    mib = 2**20
    with confining(tmp_path, prepared_size=64 * mib) as (server, agent):
        for where in (".", "/tmp"):
            fill = f"i=0; while :; do i=$((i+1)); head -c {mib} /dev/zero > {where}/f$i; done"
            ref = prepared(server, "/bin/sh", "-c", fill)
            assert "more than this node keeps" in server.error(ref)["message"]
        flood = "head -c 100000000 /dev/zero | tr '\\0' 'x'; sleep 1; head -c 40000000 /dev/zero | tr '\\0' 'y'; echo; echo the end; exit 3"
        ref = prepared(server, "/bin/sh", "-c", flood)
        assert server.error(ref)["traceback"].endswith("yyy\nthe end\n")
        assert len(server.error(ref)["traceback"]) < 20_000
        prepared_here = Path(agent.settings.data_dir) / "agent" / agent.settings.node_name / "prepared"
        assert prepared_here.is_dir()
        until(lambda: not [name for name in os.listdir(prepared_here) if name.startswith(("tmp-", "place-", "log-"))])
