"""Real agent processes for tests, and ways to look at their process trees."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headway.agent import tree
from headway.agent.scratch import remove
from headway.config import Settings
from tests.support.groups import delegated, enter
from tests.support.waiting import until

_RUN = (
    "import sys, msgspec; from headway.config import Settings; from headway.agent.main import run; "
    "sys.exit(run(msgspec.json.decode(sys.argv[1], type=Settings)))"
)


class AgentProcess:
    def __init__(self, folder: Path, url: str, group: str | None = None, **settings: Any) -> None:
        """In a group of version 2 where there are such: one of its own, unless one is named."""
        fields: dict[str, Any] = {"cpus": 2.0, "memory": 2**32, "disk": 2**40, "drain_s": 10.0, **settings}
        self.settings = Settings(data_dir=str(folder), url=url, **{"node_name": "test-node", **fields})
        text = msgspec.json.encode(self.settings).decode()
        self.group = group or delegated()
        into = partial(enter, self.group) if self.group is not None else None
        self.process = subprocess.Popen([sys.executable, "-c", _RUN, text], preexec_fn=into)
        self.pid = self.process.pid

    def supervisor(self) -> int:
        """The child that leads a session of its own."""

        def found() -> list[int]:
            return [pid for pid in tree.children(self.pid) if (of := tree.stat(pid)) and of.session == pid]

        return until(found)[0]

    def stop(self, timeout: float = 60.0) -> int:
        self.process.terminate()
        return self.process.wait(timeout)

    def clean_up(self) -> None:
        """Kill whatever the test left, the supervisor of a killed agent too."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            supervisors = tree.children(self.pid)
            tree.kill([self.pid, *supervisors], None)
            self.process.wait(60)
        tree.kill(marked_processes(self), None)
        # An agent that was killed could not do it, and tasks nest folders deeper than Python, and so pytest, can go.
        for left in (f"/var/tmp/headway-{_instance(self)}", f"{self.settings.data_dir}/agent/{self.settings.node_name}/scratch"):
            remove(left)


def marked_processes(agent: AgentProcess) -> set[int]:
    """Everything that an agent on this folder started and that still lives: supervisor, exchange side, runners, tasks."""
    instance = _instance(agent)
    either = (tree.carries(f"HEADWAY_AGENT_PROCESS={instance}"), tree.carries(f"HEADWAY_AGENT_INSTANCE={instance}"))
    return tree.members([], lambda text: any(mark(text) for mark in either))


def _instance(agent: AgentProcess) -> str:
    from headway.agent.main import Agent

    return Agent(agent.settings).instance


@contextmanager
def running_agent(folder: Path, url: str, **settings: Any) -> Iterator[AgentProcess]:
    agent = AgentProcess(folder, url, **settings)
    try:
        yield agent
    finally:
        agent.clean_up()


def alive(pid: int) -> bool:
    of = tree.stat(pid)
    return of is not None and not of.zombie
