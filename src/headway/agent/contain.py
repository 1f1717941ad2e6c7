"""Runs one container to its end and leaves nothing of it: started as the process of a task (H2).

Arguments: the descriptor to say something on, the one of the task's variables, the container's name, its memory limit, the number of
words of the engine's command line, and the command line itself. The exit code is the container's. Of one that the kernel ended for its
memory it says so: the exit code alone (137) does not tell it from any other kill, and engines do not say it reliably. So its cgroup is
watched, and Podman's monitor, where there is one, leaves a note in the folder it was started in: one of ours, made here, which the
container does not see. Neither descriptor is handed on: what runs in the container can say nothing on the first, and the client reads the
second by its path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from headway.agent import tree

SAID = b'{"out-of-memory": 1}\n'
LEFT = b'{"left": 1}\n'  # the container could not be removed: the agent sees to it
ASK_S = 10.0
MONITORS_NOTE = "oom"
REMOVE_S = 20.0
WATCH_S = 0.05
NEARLY = 0.95  # of the limit: a container killed so close to it ran out of memory
_CGROUPS = "/sys/fs/cgroup"


class Memory:
    """The container's memory group, once it is there: how much it used at most, and whether the kernel killed for it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.exceeded = False
        self._path = ""
        self._marked = tree.carries(*(f"{name}={os.environ.get(name, '')}" for name in ("HEADWAY_TASK_ID", "HEADWAY_ATTEMPT")))
        self._own = _memory_group(os.getpid())

    def look(self) -> None:
        if not self.limit or self.exceeded:
            return
        if not self._path:
            self._path = self._find()
        if self._path:
            kills = [
                line.split()[1]
                for name in ("memory.oom_control", "memory.events")
                for line in self._lines(name)
                if "oom_kill " in line
            ]
            peak = [line for name in ("memory.max_usage_in_bytes", "memory.peak") for line in self._lines(name)]
            killed = any(int(count) > 0 for count in kills)
            self.exceeded = killed or any(int(used) >= self.limit * NEARLY for used in peak if used.isdigit())

    def _find(self) -> str:
        for pid in tree.members([], self._marked):
            group = _memory_group(pid)
            if group and group != self._own and "conmon" not in group:
                return group
        return ""

    def _lines(self, name: str) -> list[str]:
        try:
            with open(f"{self._path}/{name}") as file:
                return file.read().splitlines()
        except OSError:
            return []


def main() -> None:
    status, variables, name, limit, count, *words = sys.argv[1:]
    engine, memory = words[: int(count)], Memory(int(limit))
    words.insert(len(engine) + 1, f"--env-file=/proc/{os.getpid()}/fd/{variables}")  # behind its `run`
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.mkdir(name, 0o700)
    client = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=name)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: client.send_signal(number))  # the client hands it to the container
    code = _watch(client, memory)
    if code in (137, -signal.SIGKILL) and _ran_out(memory, engine, name):
        os.write(int(status), SAID)
    if _ask([*engine, "rm", "--force", name], REMOVE_S) is None:
        os.write(int(status), LEFT)
    shutil.rmtree(name, ignore_errors=True)  # what a slow monitor still adds goes with the agent's next start
    if code < 0:
        if code != -signal.SIGKILL:  # of which nobody can change what it does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _ran_out(memory: Memory, engine: list[str], name: str) -> bool:
    """Three may have seen it, and each may have missed it: we ourselves, the monitor, and the engine, which hears it from the monitor."""
    if memory.exceeded or os.path.lexists(f"{name}/{MONITORS_NOTE}"):
        return True
    return _ask([*engine, "inspect", "--type", "container", "--format", "{{.State.OOMKilled}}", name], ASK_S) == "true"


def _ask(words: list[str], seconds: float) -> str | None:
    """What the engine answers; None when it does not, or cannot."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, text=True, errors="replace")
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _watch(client: subprocess.Popen[bytes], memory: Memory) -> int:
    while True:
        try:
            return client.wait(WATCH_S)
        except subprocess.TimeoutExpired:
            memory.look()


def _memory_group(pid: int) -> str:
    """The folder of a process's memory cgroup, version 1 or 2."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return f"{_CGROUPS}/memory{path}"
    return next((f"{_CGROUPS}{path}" for number, _, path in lines if number == "0"), "")
