"""Functions that submit subtasks, for tests/e2e/test_subtasks.py. They run in warm runners."""

from __future__ import annotations

import headway
from headway.errors import TaskFailed


def depth(n: int) -> int:
    """Calls itself n times, each in a task of its own."""
    return 1 + headway.current().submit(depth, n - 1).result() if n else 0


def total(numbers: list[int], trail: str) -> int:
    """Adds up doubled numbers; each run leaves a line."""
    with open(trail, "a") as file:
        file.write("run\n")
    return sum(handle.result() for handle in headway.current().map(double, numbers))


def double(n: int) -> int:
    return 2 * n


def broken() -> None:
    raise ValueError("no such page")


def careful() -> str:
    try:
        headway.current().submit(broken).result()
    except TaskFailed as error:
        return f"{error.type}: {error.message}"
    return "it did not fail"


async def asynchronous(n: int) -> int:
    return 1 + headway.current().submit(double, n).result()


@headway.task
def decorated(n: int) -> int:
    """Inside a task a decorated function's own submit() makes subtasks too."""
    return n if n < 2 else sum(handle.result() for handle in [decorated.submit(n - 1), decorated.submit(n - 2)])


def same_twice() -> list[str]:
    me = headway.current()
    handles = [me.submit(double, 1), me.submit(double, 1), me.submit(double, 1, key="mine")]
    me.wait()
    return [handle.id for handle in handles]


def looks(n: int) -> str:
    """With a timeout it waits here, as outside a task."""
    try:
        headway.current().submit(command=["sleep", "60"]).result(timeout=0.01)
    except TimeoutError:
        return "not yet"
    return "over"
