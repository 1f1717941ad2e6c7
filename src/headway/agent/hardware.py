"""What this machine offers: CPUs it may use, memory within its cgroup, disk, and labels that tasks can ask for."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from headway.agent.containers import engine_words, why_no_engine
from headway.agent.interpreters import found_interpreters
from headway.agent.warm import runner_labels
from headway.domain.resources import Capacity

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_CPU = "/sys/fs/cgroup/cpu.max"


def capacity(
    *,
    cpus: float | None,
    memory: int | None,
    disk: int | None,
    labels: Mapping[str, str],
    work_dir: str,
    volumes: Mapping[str, str] = {},
    runners: Mapping[str, str] = {},
    engine: str = "none",
) -> Capacity:
    """Settings win over what was found."""
    return Capacity(
        cpus_milli=round((_cpus() if cpus is None else cpus) * 1000),
        memory=_memory() if memory is None else memory,
        disk=shutil.disk_usage(work_dir).free if disk is None else disk,
        labels=offered_labels(labels, volumes, runners, engine_words(engine)),
    )


def offered_labels(
    labels: Mapping[str, str], volumes: Mapping[str, str], runners: Mapping[str, str], engine: list[str]
) -> dict[str, str]:
    """What can be run here now. What the tasks of a language, a volume or an image need are labels like any other; settings win."""
    return {
        **found_labels(),
        **found_interpreters(interpreter_cache()),
        **runner_labels(runners),
        **{f"volume/{name}": "yes" for name, folder in volumes.items() if os.path.isdir(folder)},
        **({"container": os.path.basename(engine[0])} if engine and not why_no_engine(engine) else {}),
        **labels,
    }


def found_labels() -> dict[str, str]:
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
    }


def interpreter_cache() -> Path:
    """Where versions of programs are remembered: by user, since agents of one machine see the same programs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "headway" / "interpreters.json"


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
