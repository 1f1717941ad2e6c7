"""Headway: a distributed task scheduler.

    from headway import Client, task

    @task(attempts=3, execution_cap="30s")
    def thumbnail(path: str, size: int) -> str: ...

    with Client() as hw:
        print(thumbnail.submit("a.png", 256).result(timeout=30))

Names are imported when they are first used, so that `import headway` costs next to nothing in a runner or at the
command line.
"""

from __future__ import annotations

import sys

from headway.version import VERSION as __version__

TYPE_CHECKING = False  # checkers take it for typing's, whose import would cost more than all the rest
if TYPE_CHECKING:
    from headway import errors as errors
    from headway.client.context import current as current
    from headway.client.core import AsyncClient as AsyncClient
    from headway.client.decorator import task as task
    from headway.client.eager import eager as eager
    from headway.client.executor import Executor as Executor
    from headway.client.face import Client as Client
    from headway.client.tree import Tree as Tree
    from headway.domain.spec import TaskSpec as TaskSpec

_HOMES = {
    "AsyncClient": "headway.client.core",
    "Client": "headway.client.face",
    "Executor": "headway.client.executor",
    "TaskSpec": "headway.domain.spec",
    "Tree": "headway.client.tree",
    "current": "headway.client.context",
    "eager": "headway.client.eager",
    "task": "headway.client.decorator",
}

__all__ = ["AsyncClient", "Client", "Executor", "TaskSpec", "Tree", "__version__", "current", "eager", "errors", "task"]


if not TYPE_CHECKING:

    def __getattr__(name):
        home = "headway.errors" if name == "errors" else _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'headway' has no attribute {name!r}")
        __import__(home)
        found = sys.modules[home] if name == "errors" else getattr(sys.modules[home], name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
