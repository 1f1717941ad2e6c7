"""What this machine offers: CPUs it may use, memory within its cgroup, disk, and labels that tasks can ask for."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping

from headway.agent.interpreters import LABELLED
from headway.domain.resources import Capacity

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_CPU = "/sys/fs/cgroup/cpu.max"


def capacity(*, cpus: float | None, memory: int | None, disk: int | None, labels: Mapping[str, str], work_dir: str) -> Capacity:
    """Settings win over what was found."""
    return Capacity(
        cpus_milli=round((_cpus() if cpus is None else cpus) * 1000),
        memory=_memory() if memory is None else memory,
        disk=shutil.disk_usage(work_dir).free if disk is None else disk,
        labels={**found_labels(), **labels},
    )


def found_labels() -> dict[str, str]:
    labels = {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
    }
    return labels | {name.lower(): "yes" for name in LABELLED if shutil.which(name)}


def _cpus() -> float:
    found = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    words = _read(_CGROUP_CPU).split()
    if len(words) == 2 and words[0].isdigit():
        found = min(found, int(words[0]) / int(words[1]))
    return found


def _memory() -> int:
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        text = _read(path).strip()
        if text.isdigit():
            found = min(found, int(text))
    return found


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
