"""Celery on Redis with the pool that it starts by itself: one worker, and a process of its own for each core in which functions run.

That is what Headway's runners are beside its agent. `with_celery.py` runs them in the worker's own process, which is quicker.
"""

from __future__ import annotations

import os

import race
from with_celery import QUIET, OnCelery, app


def work(where: str) -> None:
    app(where).worker_main(["worker", "-P", "prefork", "-l", "ERROR", *QUIET, "-n", f"worker{os.getpid()}@%h"])


if __name__ == "__main__":
    race.main(OnCelery, work, program=__file__)
