"""Preparation of isolated tasks runs in a sandbox like theirs (H5 H11)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.agent.scratch import remove
from headway.domain.content import Archive, Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import MIB, Resources
from tests.support.agents import running_agent
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

ROOM = Resources(cpus_milli=500, memory=256 * MIB, disk=256 * MIB)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    need("bubblewrap")
    folder = tmp_path_factory.mktemp("volume")
    with ScriptedServer() as running, running_agent(tmp_path_factory.mktemp("agent"), running.url, volumes={"src": str(folder)}):
        yield running


def prepared(server: ScriptedServer, prepare: str, then: str = 'cat "$HEADWAY_PREPARED/made"', tenant: int = 7) -> tuple[int, int]:
    return server.run(
        server.define(
            command=("/bin/sh", "-c", then),
            isolation="sandbox",
            tenant=tenant,
            resources=ROOM,
            content=Content(prepare=("/bin/sh", "-c", prepare)),
        )
    )


def test_what_is_made_inside_is_seen_inside_at_the_same_path(server: ScriptedServer) -> None:
    ref = prepared(server, 'echo "$HEADWAY_PREPARED" > made', 'cat "$HEADWAY_PREPARED/made"; echo "$HEADWAY_PREPARED"')
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    first, second = server.text(ref).splitlines()
    assert first == second


@pytest.mark.parametrize("where", ["/var/tmp", "/var/lib"])
def test_in_a_data_folder_anywhere_that_others_may_enter_it_works_too(where: str) -> None:
    """The agent's own folder in it they may not enter: what is prepared there is shown by another way."""
    if not os.access(where, os.W_OK):
        pytest.skip(f"{where} is not ours to write")
    folder = Path(tempfile.mkdtemp(dir=where, prefix="headway-test-"))
    folder.chmod(0o755)
    try:
        with ScriptedServer() as server, running_agent(folder, server.url, node_name="open"):
            ref = prepared(server, "echo here > made")
            assert server.text(ref) == "here\n", (server.error(ref), server.text(ref, 2))
    finally:
        remove(str(folder))


def test_a_compiler_that_is_not_inside_is_told_with_what_to_do(
    server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path_factory.mktemp("bin")
    (own / "rustc").write_text("#!/bin/sh\necho rustc 1.0")
    (own / "rustc").chmod(0o755)
    volume = next(tmp_path_factory.getbasetemp().glob("volume*"))
    (volume / "a.rs").write_text("fn main() {}")
    monkeypatch.setenv("PATH", f"{own}:{os.environ['PATH']}")
    with ScriptedServer() as other, running_agent(tmp_path_factory.mktemp("agent"), other.url, volumes={"src": str(volume)}):
        ref = other.run(other.define(executable="volume:src/a.rs", isolation="sandbox", tenant=7, resources=ROOM))
        assert "which builds rust programs, is not visible inside the sandbox" in other.error(ref)["message"]
        assert "sandbox_paths" in other.error(ref)["message"]


def test_the_command_sees_neither_the_nodes_files_nor_its_network(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("of the node")
    ref = prepared(
        server,
        f"(cat {tmp_path}/private; ls /root /home; echo x > /usr/x; cat /proc/1/environ | tr '\\0' '\\n' | grep -c TOKEN) > made 2>&1; "
        "ls /sys/class/net >> made 2>&1; grep -c : /proc/net/dev >> made; true",
    )
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    assert "of the node" not in server.text(ref)
    assert "Read-only file system" in server.text(ref)
    assert server.text(ref).splitlines()[-1] == "1"  # the loopback
    assert not Path("/usr/x").exists()


def test_a_compiler_cannot_show_a_file_of_the_node(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    need("gcc")
    private = tmp_path_factory.mktemp("private") / "private"
    private.write_text("THE_SECRET_WORD = 1;")
    volume = next(tmp_path_factory.getbasetemp().glob("volume*"))
    (volume / "a.c").write_text(f'#include "{private}"\nint main(void) {{ return 0; }}\n')
    ref = server.run(server.define(executable="volume:src/a.c", isolation="sandbox", tenant=7, resources=ROOM))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "THE_SECRET_WORD" not in str(server.error(ref))
    assert "No such file" in server.error(ref)["traceback"]
    (volume / "b.c").write_text('#include <stdio.h>\nint main(void) { puts("built and run inside"); return 0; }\n')
    ref = server.run(server.define(executable="volume:src/b.c", isolation="sandbox", tenant=7, resources=ROOM))
    assert server.text(ref) == "built and run inside\n", (server.error(ref), server.text(ref, 2))


def test_a_path_of_the_node_is_no_way_to_read_it(server: ScriptedServer, tmp_path: Path) -> None:
    """Whoever prepares may read more than the task: neither a source nor an archive may name such a file."""
    (tmp_path / "x.c").write_text("THE_SECRET_WORD")
    ref = server.run(server.define(executable=str(tmp_path / "x.c"), isolation="sandbox", tenant=7, resources=ROOM))
    assert "is not visible inside the sandbox" in server.error(ref)["message"]
    content = Content(archives=(Archive(str(tmp_path / "x.c")),))
    ref = server.run(server.define(command=("true",), isolation="sandbox", tenant=7, resources=ROOM, content=content))
    assert "is not visible inside the sandbox" in server.error(ref)["message"]


def test_tenants_share_no_prepared_place(server: ScriptedServer) -> None:
    refs = [prepared(server, "echo made > made", 'echo "$HEADWAY_PREPARED"', tenant=tenant) for tenant in (7, 8, 7)]
    places = [server.text(ref) for ref in refs]
    assert places[0] == places[2] != places[1]


def test_a_command_that_wants_everything_gets_no_more_than_a_task(server: ScriptedServer) -> None:
    """Memory without end, and processes without end: both end, are told, and the node goes on."""
    hog = prepared(server, "tail /dev/zero > made", tenant=9)
    assert server.outcome(hog) is Outcome.NOT_STARTABLE
    bomb = prepared(server, "bomb() { bomb | bomb & }; bomb; sleep 2; echo survived > made", tenant=9)
    assert server.outcome(bomb) in (Outcome.NOT_STARTABLE, Outcome.SUCCEEDED)
    assert server.text(prepared(server, "echo fine > made", tenant=9)) == "fine\n"


def test_what_is_prepared_at_once_for_two_tenants_is_done_by_two_users(tmp_path: Path) -> None:
    """Also where there are no cgroups, and so no slots with users of their own."""
    if os.geteuid() != 0:
        pytest.skip("only root can give each a user of its own")
    seconds = [str(21_000_000 + os.getpid()), str(31_000_000 + os.getpid())]
    with ScriptedServer() as server, running_agent(tmp_path, server.url, cgroups="avoid"):
        for tenant, long in enumerate(seconds, start=7):
            content = Content(prepare=("/bin/sleep", long))
            server.order(server.define(command=("/bin/true",), isolation="sandbox", tenant=tenant, resources=ROOM, content=content))
        until(lambda: all(_users_of(["/bin/sleep", long]) for long in seconds))
        one, other = (_users_of(["/bin/sleep", long]) for long in seconds)
    assert not one & other
    assert 0 not in one | other


def _users_of(words: list[str]) -> set[int]:
    return {os.stat(f"/proc/{pid}").st_uid for pid in tree.table() if tree.words(pid)[:-1] == [word.encode() for word in words]}
