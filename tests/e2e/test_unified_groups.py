"""Cgroups of version 2 (G3 B4): the tests of limits run again in a Linux that has only those, and what is special there.

Where the machine itself has its controllers in version 2, all tests run on them, and the second Linux is not needed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headway.agent.starter import library
from headway.domain.lifecycle import Outcome
from tests.support import user_mode
from tests.support.agents import AgentProcess, running_agent
from tests.support.confined import ROOM, python, shell
from tests.support.groups import delegated, enter, unified
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

only_there = pytest.mark.skipif(not unified(), reason="this machine has its controllers in version 1: run by the test of the second Linux")
# Few of them in each run of all tests, whose processes leave that Linux little of the machine; `make unified` runs the rest too.
FEW = "more_memory or peak_of_its_own or unified"
MOST = ["tests/e2e/test_limits.py", "tests/e2e/test_freeze.py", "tests/e2e/test_agent_faults.py", "tests/hostile/test_tasks.py"]


@pytest.mark.time_limit(user_mode.PATIENCE_S + 60)
def test_limits_hold_in_a_linux_that_has_only_version_2(tmp_path: Path) -> None:
    if unified():
        pytest.skip("this machine has its controllers in version 2 itself")
    most = bool(os.environ.get("HEADWAY_UNIFIED"))
    which = [*MOST, __file__] if most else ["tests/e2e/test_limits.py", __file__, "-k", FEW]
    words = [sys.executable, "-u", "-m", "pytest", "-v", "--tb=short", "--color=no", "-p", "no:cacheprovider"]
    code, said = user_mode.run(tmp_path, [*words, *which])
    print(said)
    assert code == 0, said
    assert len(re.findall(r"::.* PASSED", said)) >= (91 if most else 8), said


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def groups_of(agent: AgentProcess) -> Path:
    assert agent.group is not None
    return Path(agent.group)


@only_there
def test_an_agent_with_a_group_of_its_own_makes_groups_in_it_and_leaves_none(tmp_path: Path, server: ScriptedServer) -> None:
    with running_agent(tmp_path / "agent", server.url) as agent:
        ref = server.run(server.define(command=shell("cat /proc/self/cgroup"), resources=ROOM))
        assert re.fullmatch(rf"0::/{groups_of(agent).name}/headway-[0-9a-f]+/\d+\n", server.text(ref))
        agents_own = groups_of(agent) / "headway-agent" / "cgroup.procs"
        assert str(agent.pid) in agents_own.read_text().split()
        assert agent.stop() == 0
        until(lambda: [path.name for path in groups_of(agent).iterdir() if path.is_dir()] == ["headway-agent"])


@only_there
def test_a_program_begins_in_its_group_with_no_shell_in_between(tmp_path: Path, server: ScriptedServer) -> None:
    """Who is moved into it waits in a shell meanwhile, and that leaves a variable of its own."""
    assert library() is not None
    with running_agent(tmp_path / "agent", server.url):
        ref = server.run(server.define(command=("/usr/bin/env",), resources=ROOM))
        variables = dict(line.partition("=")[::2] for line in server.text(ref).splitlines())
        assert (variables["HEADWAY_TASK_ID"], variables.get("PWD")) == (str(ref[0]), None)
        place = server.run(server.define(command=("/bin/cat", "/proc/self/cgroup"), resources=ROOM))
        assert re.fullmatch(r"0::/.*/headway-[0-9a-f]+/\d+\n", server.text(place))


@only_there
def test_a_supervisor_that_is_started_again_makes_its_groups_where_the_one_before_had_them(tmp_path: Path, server: ScriptedServer) -> None:
    with running_agent(tmp_path / "agent", server.url) as agent:
        where = server.define(command=shell("cat /proc/self/cgroup"), resources=ROOM)
        first = server.text(server.run(where))
        os.kill(agent.supervisor(), signal.SIGKILL)
        assert server.text(server.run(where)).rpartition("/")[0] == first.rpartition("/")[0]


@only_there
def test_an_agent_that_shares_its_group_leaves_it_alone_and_watches_instead(tmp_path: Path, server: ScriptedServer) -> None:
    group = delegated()
    assert group is not None
    with subprocess.Popen(["sleep", "600"], preexec_fn=partial(enter, group)) as neighbour:
        try:
            with running_agent(tmp_path / "agent", server.url, group=group) as agent:
                hog = python("import time\nx = bytearray(300 * 2**20); x[::4096] = bytes(len(x[::4096]))\ntime.sleep(600)")
                ref = server.run(server.define(command=hog, resources=ROOM))
                assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
                assert not [path for path in groups_of(agent).iterdir() if path.is_dir()]
        finally:
            neighbour.kill()
