"""Runs one container to its end and leaves nothing of it: started as the process of a task (H2).

Arguments: the descriptor to say something on, the one of the task's variables, the container's name, its limits (memory, processes, disk),
the folder it shares with the agent, the number of words of the engine's command line, and the command line itself. The exit code is the
container's. What it used, and the limit that it was ended for, is said at the end: the exit code alone (137) does not tell it from any
other kill, and engines do not say it reliably. So its cgroups and files are watched (contain_watch.py), and Podman's monitor, where there
is one, leaves a note in the folder it was started in: one of ours, made here, which the container does not see. Neither descriptor is
handed on: what runs in the container can say nothing on the first, and the client reads the second by its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys

from headway.agent import tree
from headway.agent.contain_watch import Limits, Watch
from headway.agent.container_group import ID_FILE

LEFT = {"left": 1}  # the container could not be removed: the agent sees to it
ASK_S = 10.0
MONITORS_NOTE = "oom"
REMOVE_S = 20.0
PRIORITY = -10  # the groups of a container may be gone soon after it: who looks too late cannot tell why it ended


def main() -> None:
    status, variables, name, limits, folder, count, *words = sys.argv[1:]
    engine, watch = words[: int(count)], Watch(Limits(*map(int, limits.split(","))), name)
    run = len(engine) + 1  # behind the word itself
    words[run:run] = [f"--env-file=/proc/{os.getpid()}/fd/{variables}", f"--cidfile={ID_FILE}"]
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.mkdir(name, 0o700)
    client = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=name)
    with contextlib.suppress(PermissionError):  # an agent that is not root
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: client.send_signal(number))  # the client hands it to the container
    watch.begin(client.pid, folder)
    code = _watch(client, watch)
    watch.close()
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
    """Until the client has ended: at the times that the watch asks for, and at once when a process is refused, since the container may
    end by that and be gone a moment later."""
    ended = os.pidfd_open(client.pid)
    while True:
        wait = watch.look()
        refusals = [watch.refusals] if watch.refusals >= 0 and watch.over is None else []
        if select.select([ended], [], refusals, wait)[0]:
            break
    os.close(ended)
    return client.wait()
