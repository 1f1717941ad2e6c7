"""Celery's chords on Redis: leaves, their joins, one root; two `solo` workers, results in Redis, nothing durable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from celery import Celery, chord

EACH = 100
where = os.environ.get("PEER_REDIS") or sys.argv[2]
app = Celery("peer", broker=f"{where}/0", backend=f"{where}/1")
app.conf.update(worker_prefetch_multiplier=64, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(name="noop")
def noop(*_: object) -> int:
    return 1


def main(nodes: int) -> None:
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-P", "solo", "-l", "ERROR"]
    command = [sys.executable, "-m", "celery", "-A", "with_celery", "worker", *options]
    environment = {**os.environ, "PEER_REDIS": where, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    workers = [
        subprocess.Popen([*command, "-n", f"w{number}@%h"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for number in range(2)
    ]
    try:
        noop.delay().get(timeout=60)
        groups = max(nodes // EACH, 1)
        began = time.monotonic()
        joins = [chord((noop.s(n) for n in range(EACH)), noop.s()) for _ in range(groups)]
        chord(joins, noop.s()).apply_async().get(timeout=600)
        print(json.dumps({"nodes": groups * (EACH + 1) + 1, "seconds": time.monotonic() - began}))
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
