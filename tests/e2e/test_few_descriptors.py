"""An agent with more tasks at a time than its descriptors suffice for: some of them cannot be run, and it goes on (H7)."""

from __future__ import annotations

from pathlib import Path

from headway.domain.resources import Resources
from tests.support.agents import running_agent
from tests.support.confined import shell
from tests.support.scripted_server import ScriptedServer

SMALL = Resources(cpus_milli=10)


def test_a_supervisor_without_descriptors_lives_and_tells_of_every_task(tmp_path: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, cpus=100.0, open_files=90) as agent:
        supervisor = agent.supervisor()
        refs = [server.order(server.define(command=shell(f"sleep 0.{number % 10}2"), resources=SMALL)) for number in range(100)]
        server.wait(lambda: all(ref in server.finished for ref in refs))
        assert agent.supervisor() == supervisor
