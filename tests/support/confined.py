"""Agents that confine tasks, for the tests of limits and isolation, and what those tests ask again and again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hatch_build import compiled
from headway.agent import cgroups, sandbox
from headway.agent.descriptors import can_part
from headway.agent.starter import LIBRARY, library
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, running_agent
from tests.support.groups import unified
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer

MIB = 2**20
LEVELS = ("none", "sandbox")
ROOM = Resources(cpus_milli=500, memory=128 * MIB, disk=64 * MIB)


def need_groups() -> None:
    if not unified() and cgroups.available() is None:
        pytest.skip("this machine lets us make no cgroups: limits are the watcher's here")


def need_sandbox(folder: Path) -> None:
    need("bubblewrap")
    reason = sandbox.why_not(str(folder), None)
    if reason is not None:
        pytest.skip(f"this machine cannot make a sandbox: {reason}")


@contextmanager
def confining(folder: Path, **settings: Any) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    """An agent with room for all tests of a module, and the server that orders it about."""
    settings = {"cpus": 8.0, "max_processes": 64, **settings}
    with ScriptedServer() as server, running_agent(folder, server.url, **settings) as agent:
        yield server, agent


def python(code: str) -> tuple[str, ...]:
    """A program in this Python, small and quick to start."""
    return (sys.executable, "-I", "-S", "-c", code)


def shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


def is_root() -> bool:
    return os.geteuid() == 0


def stands_still_while_paused(server: ScriptedServer, ref: tuple[int, int]) -> None:
    """A task that says something all the time says nothing while it is paused, and goes on when it is resumed."""
    assert server.control(ref, "pause") == "paused"
    for _ in range(2):  # what it said before the pause may still be on its way during the first
        before = server.text(ref)
        server.run(server.define(command=("/bin/sleep", "0.5")))
    assert server.text(ref) == before
    assert server.control(ref, "resume") == "resumed"
    server.wait(lambda: server.text(ref) != before)


def need_starter() -> None:
    """Groups, and the compiled code that starts programs in them."""
    need_groups()
    if not os.path.exists(LIBRARY):
        need("gcc")
        assert compiled(os.path.join(os.path.dirname(LIBRARY), "starter.c"), LIBRARY) == ""
        library.cache_clear()
    if library() is None or not can_part():
        pytest.skip("this kernel cannot start programs for threads with descriptors of their own")
