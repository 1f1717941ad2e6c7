"""How many calls a second one warm runner of another language does (H4): through the bridge, as an agent uses it.

    python bench/micro/warm_runners.py [--tasks 20000] [--rounds 3]

The other end of the bridge's socket is here, in place of the supervisor: batches go in, results come out, nothing else is measured.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import socket
import sys
import time

import msgspec

from headway.agent.link import SHARED_FD, SOCKET_FD, Frames, frame
from headway.agent.warm import runner_command, runners_folder

LANGUAGES = {"node": "functions.mjs", "perl": "functions.pl", "java": "Functions.java"}
BATCH = 100
_BRIDGE = "from headway.agent.bridge import main; main()"


def through_bridge(command: list[str], function: str, tasks: int) -> float:
    ours, theirs = socket.socketpair()
    shared = os.memfd_create("bench")
    os.ftruncate(shared, mmap.PAGESIZE)
    high = [os.dup(theirs.fileno()), os.dup(shared)]
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _BRIDGE, str(tasks * 2), str(2**30), "--", "", *command],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, high[0], SOCKET_FD), (os.POSIX_SPAWN_DUP2, high[1], SHARED_FD)],
    )
    theirs.close()
    frames = Frames()

    def heard() -> list[list[object]]:
        return [msgspec.msgpack.decode(body) for body in frames.feed(ours.recv(2**20))]

    while not any(message[0] == "ready" for message in heard()):
        pass
    definitions: dict[int, list[object]] = {1: [function, "json", {}, "", 600_000]}
    begun = time.perf_counter()
    sent = done = 0
    while done < tasks:
        while sent < tasks and sent - done < 2 * BATCH:
            orders = [[sent + at + 1, 1, 1, b"[1,2]"] for at in range(BATCH)]
            ours.sendall(frame(["run", definitions if not sent else {}, orders]))
            sent += BATCH
        done += sum(int(str(message[1])) for message in heard() if message[0] == "did")
    seconds = time.perf_counter() - begun
    ours.close()
    os.waitpid(pid, 0)
    return tasks / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'language':<10}{'calls/s of one process':>24}")
    for _ in range(given.rounds):
        for name, file in LANGUAGES.items():
            command = runner_command(name, {})
            if command is None or shutil.which(name) is None:
                print(f"{name:<10} is not on this machine")
                continue
            rate = through_bridge(command, f"{runners_folder() / 'conformance' / file}:add", given.tasks)
            print(f"{name:<10}{rate:>24,.0f}", flush=True)


if __name__ == "__main__":
    main()
