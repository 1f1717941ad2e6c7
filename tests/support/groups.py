"""Where only cgroups of version 2 are: a group of its own for each agent, as a service manager would give it one."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from headway.agent.cgroup_files import MOUNT

_numbers = itertools.count(1)


def unified() -> bool:
    """Whether this machine has its controllers in version 2."""
    top = Path(MOUNT, "cgroup.controllers")
    return top.exists() and "memory" in top.read_text().split()


def delegated() -> str | None:
    """A new group that an agent can be started in, made as root would for a service; None where version 1 needs none."""
    if not unified() or os.geteuid() != 0:
        return None
    Path(MOUNT, "cgroup.subtree_control").write_text("+cpu +io +memory +pids")
    group = Path(MOUNT, f"test-{os.getpid()}-{next(_numbers)}")
    group.mkdir()
    return str(group)


def enter(group: str) -> None:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
