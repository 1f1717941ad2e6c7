"""Runs one container to its end and leaves nothing of it: started as the process of a task (H2).

Arguments: the task's folder, the container's name, the number of words of the engine's command line, and the command line itself.
The exit code is the container's. One that the kernel ended for its memory leaves a note in the folder, since the exit code alone
(137) does not tell it from any other kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from headway.agent import tree

NOTE = "out-of-memory"
REMOVE_S = 20.0
_ENGINE_FAILED = 125  # podman and docker: the engine itself failed, not the command


def main() -> None:
    folder, name, count, *words = sys.argv[1:]
    engine, command = words[: int(count)], words
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    client = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: client.send_signal(number))  # the client hands it to the container
    code = client.wait()
    if code in (137, -signal.SIGKILL) and _ran_out_of_memory(engine, name):
        with open(os.path.join(folder, NOTE), "w"):
            pass
    _remove(engine, name)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _ran_out_of_memory(engine: list[str], name: str) -> bool:
    asked = subprocess.run([*engine, "inspect", "--format", "{{.State.OOMKilled}}", name], capture_output=True, text=True, timeout=REMOVE_S)
    return asked.stdout.strip() == "true"


def _remove(engine: list[str], name: str) -> None:
    subprocess.run([*engine, "rm", "--force", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=REMOVE_S)
