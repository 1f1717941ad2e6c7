"""Dask distributed: leaves, their joins, one root, on two worker processes; nothing durable."""

from __future__ import annotations

import json
import sys
import time

from distributed import Client, LocalCluster

EACH = 100


def noop(*_: object) -> int:
    return 1


def main(nodes: int) -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=40) as cluster, Client(cluster) as client:
        client.gather(client.map(noop, range(100), pure=False))
        groups = max(nodes // EACH, 1)
        began = time.monotonic()
        joins = [client.submit(noop, *client.map(noop, range(EACH), pure=False), pure=False) for _ in range(groups)]
        client.submit(noop, *joins, pure=False).result()
        print(json.dumps({"nodes": groups * (EACH + 1) + 1, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
