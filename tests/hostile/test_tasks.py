"""Tasks that mean harm, or do it by mistake: each ends as documented, the node stays well, and nothing of it remains.

Memory, processes, disk and open files are in e2e/test_limits.py, what the sandbox hides is in test_sandbox.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.stages import Stage
from tests.support.agents import AgentProcess, running_agent
from tests.support.confined import LEVELS, MIB, ROOM, confining, need_groups, need_sandbox, python, shell
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

QUICKLY_S = 60.0  # for a task that does nothing, beside the hostile one
MARK = f"headway-hostile-{os.getpid()}-mark"  # of processes of these tests, in their command lines; others may run the same tests now


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    need_groups()
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with confining(tmp_path_factory.mktemp("agent"), max_output=2**20) as running:
        yield running


@pytest.fixture
def server(node: tuple[ScriptedServer, AgentProcess]) -> Iterator[ScriptedServer]:
    """And whatever the test did: afterwards the node works, under the same boot, and nothing is left."""
    server, agent = node
    boots, supervisor = len(server.registered), agent.supervisor()
    yield server
    ref = server.run(server.define(command=("/bin/true",), resources=ROOM))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    assert len(server.registered) == max(boots, 1)
    assert agent.supervisor() == supervisor
    until(lambda: not _left())


def _left() -> list[str]:
    """Processes that carry the mark of these tests in their command line."""
    return subprocess.run(["pgrep", "-f", MARK], capture_output=True, text=True).stdout.split()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "none" else request.param


def test_a_flood_of_output_neither_blocks_the_task_nor_holds_up_its_neighbour(server: ScriptedServer, level: str) -> None:
    flood = server.order(server.define(command=shell("timeout 3 cat /dev/zero; echo end"), isolation=level, resources=ROOM))
    server.wait(lambda: flood in server.output)
    began = time.monotonic()
    ref = server.run(server.define(command=shell("echo neighbour"), resources=ROOM))
    assert time.monotonic() - began < QUICKLY_S
    assert server.text(ref) == "neighbour\n"
    server.wait(lambda: flood in server.finished)
    assert sum(len(piece.data) for piece in server.output[flood]) <= 2**20 + 200
    assert server.text(flood).endswith("end\n")


def test_one_that_ignores_the_warning_is_killed_at_the_end_of_its_grace(server: ScriptedServer, level: str) -> None:
    text = f"trap '' TERM; echo ready; while :; do sleep 0.1 {MARK} 2>/dev/null; done"
    ref = server.order(server.define(command=shell(text), isolation=level, resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    server.cancel(ref, grace_s=0.3)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED


ESCAPE = f"""
import os, signal, sys, time
def hide():
    os.setsid()
    if os.fork(): os._exit(0)
    os.environ.clear()
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)",
        "{MARK}"], {{}})
for _ in range(5):
    if not os.fork(): hide()
"""


def test_processes_that_leave_session_parent_and_environment_end_with_their_task(server: ScriptedServer, level: str) -> None:
    ref = server.run(server.define(command=python(ESCAPE), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    until(lambda: not _left())


def test_they_end_too_when_it_is_cancelled(server: ScriptedServer, level: str) -> None:
    wait = "\nprint('ready', flush=True); time.sleep(600)"
    ref = server.order(server.define(command=python(ESCAPE + wait), isolation=level, resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    until(lambda: len(_left()) >= 5)
    server.cancel(ref, grace_s=0.2)
    server.wait(lambda: ref in server.finished)
    until(lambda: not _left())


def test_children_that_nobody_waits_for_do_not_fill_the_node(server: ScriptedServer, level: str) -> None:
    code = "import os\nfor _ in range(40):\n  if not (pid := os.fork()): os._exit(0)\n  os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)"
    for _ in range(3):
        ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
        assert server.outcome(ref) is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    "trick",
    [
        "ln -s /etc/hostname $HEADWAY_RESULT",
        "mkfifo $HEADWAY_RESULT",
        "mkdir $HEADWAY_RESULT",
        "ln -s /dev/zero $HEADWAY_RESULT",
    ],
)
def test_a_result_that_is_no_plain_file_is_refused_and_leads_nowhere(server: ScriptedServer, level: str, trick: str) -> None:
    ref = server.run(server.define(command=shell(trick), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.ERROR
    assert server.error(ref)["type"] == "ResultUnreadable"
    assert server.finished[ref].result is None


def test_links_in_its_folder_are_removed_and_not_what_they_lead_to(server: ScriptedServer, level: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o750)
    (kept / "file").write_text("here")
    before = kept.stat()
    text = f"ln -s {kept} a; ln -s {kept} $HEADWAY_CHECKPOINT_DIR/b; rm -rf $HEADWAY_CHECKPOINT_DIR; ln -s {kept} $HEADWAY_CHECKPOINT_DIR"
    server.run(server.define(command=shell(text), isolation=level, resources=ROOM))
    for _ in range(2):
        ref = server.run(server.define(command=shell("ls -A"), isolation=level, resources=ROOM))
        assert server.text(ref) == "checkpoint\n"
    assert (kept / "file").read_text() == "here"
    after = kept.stat()
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)


def test_links_of_one_stage_lead_the_next_one_nowhere(server: ScriptedServer, level: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("here")
    before = [path.stat() for path in (kept, kept / "file")]
    plant = f"rm -r $HEADWAY_CHECKPOINT_DIR; ln -s {kept} $HEADWAY_CHECKPOINT_DIR; ln -sf {kept}/file $HEADWAY_INPUT"
    stages = (Stage("plant", shell(plant)), Stage("read", shell("cat $HEADWAY_INPUT")))
    ref = server.order(server.define(stages=stages, isolation=level, resources=ROOM), "its input")
    server.wait(lambda: ref in server.finished)
    assert server.text(ref) == '"its input"'
    assert (kept / "file").read_text() == "here"
    after = [path.stat() for path in (kept, kept / "file")]
    assert [(of.st_mode, of.st_uid) for of in after] == [(of.st_mode, of.st_uid) for of in before]


def test_a_pipe_where_subtasks_are_told_holds_nobody_up(server: ScriptedServer, level: str) -> None:
    ref = server.run(server.define(command=shell("mkfifo subtasks; exit 85"), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.REQUEUED


def test_folders_nested_very_deep_and_very_many_files_are_removed_without_holding_up_the_node(
    server: ScriptedServer, level: str
) -> None:
    code = """
import os
for n in range(3000): open(f"f{n}", "w").close()
for _ in range(3000):
    os.mkdir("deep"); os.chdir("deep")
"""
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert ref in server.finished
    ref = server.run(server.define(command=shell("ls -A"), isolation=level, resources=ROOM))
    assert server.text(ref) == "checkpoint\n"


def test_one_that_burns_its_cpu_leaves_the_agent_its_own(server: ScriptedServer, level: str) -> None:
    burn = shell("for n in 1 2 3 4; do while :; do :; done & done; wait")
    hogs = [server.order(server.define(command=burn, isolation=level, resources=ROOM)) for _ in range(4)]
    server.wait(lambda: len([ref for ref in hogs if any((s.id, s.attempt) == ref for s in server.started)]) == 4)
    beats = len(server.heartbeats)
    server.wait(lambda: len(server.heartbeats) >= beats + 5, timeout=QUICKLY_S)
    for ref in hogs:
        server.cancel(ref, grace_s=0)
    server.wait(lambda: all(ref in server.finished for ref in hogs))


def test_a_watch_on_the_disk_that_is_killed_is_replaced_and_knows_who_runs(
    server: ScriptedServer, node: tuple[ScriptedServer, AgentProcess], tmp_path: Path
) -> None:
    def watch() -> list[int]:
        return [pid for pid in tree.children(node[1].supervisor()) if b"disk_process" in command_line(pid)]

    wait = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; cat /dev/zero > file"
    ref = server.order(server.define(command=shell(wait), resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    (before,) = watch()
    os.kill(before, signal.SIGKILL)
    until(lambda: watch() not in ([], [before]))
    (tmp_path / "go").touch()
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.DISK_FULL


def test_a_program_without_rights_to_its_own_folder_leaves_no_trace(server: ScriptedServer, level: str) -> None:
    ref = server.run(server.define(command=shell("mkdir a; touch a/b; chmod 000 a .; exit 0"), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    ref = server.run(server.define(command=shell("ls -A"), isolation=level, resources=ROOM))
    assert server.text(ref) == "checkpoint\n"


def test_a_stopped_task_is_ended_too(server: ScriptedServer, level: str) -> None:
    ref = server.order(server.define(command=shell("echo ready; kill -STOP $$"), isolation=level, resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    server.cancel(ref, grace_s=0.2)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED


def test_no_groups_are_left_when_the_agent_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    need_groups()
    from headway.agent.main import Agent

    folder = tmp_path_factory.mktemp("ended")
    with confining(folder, node_name="ended") as (server, agent):
        server.run(server.define(command=("/bin/true",), resources=ROOM))
        assert agent.stop() == 0
        instance = Agent(agent.settings).instance
    found = subprocess.run(["find", "/sys/fs/cgroup", "-name", f"*{instance}*"], capture_output=True, text=True).stdout
    assert found == ""
    assert not os.path.exists(f"/var/tmp/headway-{instance}")


def test_five_hundred_orphans_of_a_task_do_not_keep_the_supervisor_from_its_lease(tmp_path: Path) -> None:
    """They were ended one by one, and for each every process of the machine was looked at, twice: longer than the lease."""
    marker = str(41_000_000 + os.getpid())
    code = f"for n in $(seq 500); do sleep {marker} & done"
    room = Resources(cpus_milli=500, memory=1024 * MIB)
    with ScriptedServer(fence_s=3.0) as server, running_agent(tmp_path, server.url, max_processes=1000) as agent:
        server.run(server.define(command=("/bin/true",)))
        supervisor = agent.supervisor()
        ref = server.run(server.define(command=shell(code), resources=room))
        assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
        until(lambda: not [pid for pid in tree.table() if tree.words(pid)[:2] == [b"sleep", marker.encode()]])
        server.run(server.define(command=("/bin/true",)))
        assert agent.supervisor() == supervisor
