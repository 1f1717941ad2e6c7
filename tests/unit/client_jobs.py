"""Functions that tests of the client submit: of a module, as an agent would import them."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
from collections.abc import Callable, Sequence

import headway
from headway import task


@dataclasses.dataclass
class Point:
    x: int
    y: int


@task
def add(a: int, b: int = 1) -> int:
    return a + b


def _with_two(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def wrapper(*args: int) -> int:
        return function(*args, 2)

    return wrapper


@task
@_with_two
def wrapped(a: int, b: int) -> int:
    return a + b


@task(attempts=3, execution_cap="30s", labels={"team": "a"})
def mirrored(point: Point) -> Point:
    return Point(point.y, point.x)


@task
async def later(day: datetime.date) -> datetime.date:
    await asyncio.sleep(0)
    return day + datetime.timedelta(days=1)


@task(codec="pickle")
def unique(items: Sequence[int]) -> set[int]:
    return set(items)


@task
def broken(text: str) -> None:
    raise ValueError(f"cannot do {text}")


class Odd(LookupError):
    def __init__(self, number: int, *, base: int) -> None:
        super().__init__(f"{number} is odd in base {base}")


def raises_its_own(number: int) -> None:
    raise Odd(number, base=10)


runs: list[int] = []


@task(attempts=3)
def third_time_lucky() -> int:
    runs.append(headway.current().attempt)
    if len(runs) < 3:
        raise RuntimeError("not yet")
    return len(runs)


@task(attempts=2)
def attempt_of_two() -> int:
    me = headway.current()
    me.progress(me.attempt, 2, "trying")
    if me.attempt < 2:
        raise RuntimeError("the next attempt will do")
    return me.attempt


def plain(number: int) -> int:
    return number * 2
