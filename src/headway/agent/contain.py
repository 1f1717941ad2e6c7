"""Runs one container to its end and leaves nothing of it: started as the process of a task (H2).

Arguments: the descriptor to say something on, the one of the task's variables, the container's name, its limits (memory, processes, disk),
the number of words of the engine's command line, and the command line itself. The exit code is the container's. What it used, and the
limit that it was ended for, is said at the end: the exit code alone (137) does not tell it from any other kill, and engines do not say it
reliably. So its cgroups and files are watched (contain_watch.py), and Podman's monitor, where there is one, leaves a note in the folder it
was started in: one of ours, made here, which the container does not see. Neither descriptor is handed on: what runs in the container can
say nothing on the first, and the client reads the second by its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

from headway.agent import tree
from headway.agent.contain_watch import Limits, Watch

LEFT = {"left": 1}  # the container could not be removed: the agent sees to it
ASK_S = 10.0
MONITORS_NOTE = "oom"
REMOVE_S = 20.0
WATCH_S = 0.02


def main() -> None:
    status, variables, name, limits, count, *words = sys.argv[1:]
    engine, watch = words[: int(count)], Watch(Limits(*map(int, limits.split(","))))
    words.insert(len(engine) + 1, f"--env-file=/proc/{os.getpid()}/fd/{variables}")  # behind its `run`
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.mkdir(name, 0o700)
    client = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=name)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: client.send_signal(number))  # the client hands it to the container
    code = _watch(client, watch)
    watch.look()  # its groups are often still there
    if code in (137, -signal.SIGKILL) and _ran_out(watch, engine, name):
        watch.ended_for_memory()
    said = watch.said()
    if _ask([*engine, "rm", "--force", "--volumes", name], REMOVE_S) is None:
        said |= LEFT
    os.write(int(status), json.dumps(said).encode() + b"\n")
    shutil.rmtree(name, ignore_errors=True)  # what a slow monitor still adds goes with the agent's next start
    if code < 0:
        if code != -signal.SIGKILL:  # of which nobody can change what it does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _ran_out(watch: Watch, engine: list[str], name: str) -> bool:
    """Three may have seen it, and each may have missed it: we ourselves, the monitor, and the engine, which hears it from the monitor."""
    if watch.over is not None:
        return False  # it was killed for something else
    if watch.out_of_memory or os.path.lexists(f"{name}/{MONITORS_NOTE}"):
        return True
    return _ask([*engine, "inspect", "--type", "container", "--format", "{{.State.OOMKilled}}", name], ASK_S) == "true"


def _ask(words: list[str], seconds: float) -> str | None:
    """What the engine answers; None when it does not, or cannot."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, text=True, errors="replace")
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _watch(client: subprocess.Popen[bytes], watch: Watch) -> int:
    while True:
        try:
            return client.wait(WATCH_S)
        except subprocess.TimeoutExpired:
            for pid in watch.look():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
