"""What killed agents and servers leave outside their own folders goes with the next start on the machine, and only that (H11 L3)."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.agent.forsaken import OWNER, YOUNG_S
from headway.agent.scratch import remove
from tests.support.agents import AgentProcess, marked_processes, running_agent
from tests.support.confined import need_sandbox
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until


@pytest.fixture
def boxes() -> Iterator[Path]:
    """A folder that other users can reach, as they must."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="headway-test-"))
    folder.chmod(0o755)
    yield folder
    remove(str(folder))


def age(box: Path) -> None:
    then = time.time() - 2 * YOUNG_S
    for path in (*box.iterdir(), box):
        os.utime(path, (then, then))


def kill(agent: AgentProcess) -> None:
    tree.send(marked_processes(agent) | {agent.pid}, signal.SIGKILL)
    agent.process.wait(120)


def test_the_sandbox_folders_of_killed_agents_are_removed_and_those_in_use_are_not(boxes: Path, tmp_path: Path) -> None:
    need_sandbox(tmp_path)
    stranger = boxes / "headway-00000000000000aa"  # such a name, and nothing that says whose it is
    stranger.mkdir()
    age(stranger)
    settings = {"sandbox_dir": str(boxes)}
    with ScriptedServer() as server:
        with running_agent(tmp_path / "killed", server.url, node_name="killed", **settings) as agent:
            killed = until(lambda: made(boxes, stranger))
            kill(agent)
        with running_agent(tmp_path / "lives", server.url, node_name="lives", **settings):
            living = until(lambda: made(boxes, stranger, killed))
            assert killed.is_dir(), "it is young: its agent may just be starting"
            age(killed)
            age(living)
            with running_agent(tmp_path / "next", server.url, node_name="next", **settings):
                until(lambda: made(boxes, stranger, killed, living))
                assert not killed.exists()
                assert living.is_dir()


def made(boxes: Path, *known: Path) -> Path | None:
    return next((box for box in boxes.glob("headway-*") if box not in known and (box / OWNER).exists()), None)


def test_the_trial_of_a_sandbox_leaves_no_process_with_the_agent(tmp_path: Path) -> None:
    need_sandbox(tmp_path)
    with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url) as agent:
        server.outcome(server.run(server.define(command=("true",))))
        ended = [pid for pid in tree.children(agent.pid) if (found := tree.stat(pid)) is not None and found.zombie]
        assert ended == []


def test_what_isolated_tasks_of_a_killed_supervisor_wrote_goes_with_the_next_supervisor(boxes: Path, tmp_path: Path) -> None:
    """Not only when there is an isolated task again: nobody may send one for long, and the disk is full meanwhile."""
    need_sandbox(tmp_path)
    with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url, sandbox_dir=str(boxes)) as agent:
        server.order(server.define(command=("/bin/sh", "-c", "echo much > kept; exec sleep 600"), isolation="sandbox", tenant=7))
        until(lambda: list(boxes.rglob("kept")))
        os.kill(agent.supervisor(), signal.SIGKILL)
        server.wait(lambda: len(server.registered) >= 2)
        assert list(boxes.glob("*/scratch/*")) == []
