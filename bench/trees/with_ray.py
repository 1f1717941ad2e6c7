"""Ray: leaves, their joins, one root, on two CPUs; nothing durable."""

from __future__ import annotations

import json
import sys
import time

import ray

EACH = 100


@ray.remote(num_cpus=0.5)
def noop(*_: object) -> int:
    return 1


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.get([noop.remote() for _ in range(100)])
groups = max(int(sys.argv[1]) // EACH, 1)
began = time.monotonic()
joins = [noop.remote(*(noop.remote(n) for n in range(EACH))) for _ in range(groups)]
ray.get(noop.remote(*joins))
print(json.dumps({"nodes": groups * (EACH + 1) + 1, "seconds": time.monotonic() - began}))
