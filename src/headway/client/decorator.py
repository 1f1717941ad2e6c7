"""`@task`: a function that stays a function and can be submitted.

@task(attempts=3, execution_cap="30s")
def thumbnail(path: str, size: int) -> str: ...

thumbnail("a.png", 256)                    # runs here
thumbnail.submit("a.png", 256).result()    # runs there
[h.result() for h in thumbnail.starmap([("a.png", 64), ("b.png", 64)])]
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from headway.client import calling, core, eager, face
from headway.client.face import Handle
from headway.client.handles import AsyncHandle
from headway.domain.define import define
from headway.domain.spec import TaskSpec
from headway.domain.tenant import ANYWHERE
from headway.domain.wrong_kind import decode_error
from headway.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")  # what the task results in
R = TypeVar("R")  # what a call returns: T, or a coroutine of T

MAP_CHUNK = 5000  # tasks in one request of map()
_NOT_OPTIONS = frozenset({"function", "command", "executable", "input", "args", "image", "commands", "stages"})


class Task(Generic[P, T, R]):
    """A function with the options under which it is submitted."""

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._options = dict(options)
        self.kind = calling.return_kind(function)  # what the result is made into

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {calling.function_name(self.function)}>"

    def __reduce__(self) -> Any:
        return _named, (calling.function_name(self.function),)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Submit a call. It is durable when this returns; the handle gives the result."""
        if eager.is_on():
            return eager.run(self, args, kwargs)
        client = face.active()
        return Handle(client, client.thread.run(self._submit(client.aio, args, kwargs)))

    delay = submit

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[T]:
        """Submit a call through the AsyncClient that is active: `await (await f.aio(1))` is its result."""
        client = core.active()
        if client is None:
            raise InvalidInput("no AsyncClient is active here", hint="call it inside `async with AsyncClient():`")
        return await self._submit(client, args, kwargs)

    def map(self, items: Iterable[Any], /) -> list[Handle[T]]:
        """One task for each item, as its only argument. Submitted in bulk, all or none of every 5,000."""
        return self.starmap((item,) for item in items)

    def starmap(self, arguments: Iterable[Iterable[Any]], /) -> list[Handle[T]]:
        """One task for each tuple of arguments."""
        calls: Iterator[calling.Arguments] = ((tuple(each), {}) for each in arguments)
        if eager.is_on():
            return [eager.run(self, args, kwargs) for args, kwargs in calls]
        client, handles = face.active(), []
        while chunk := list(itertools.islice(calls, MAP_CHUNK)):
            codec, inputs = self.encode(chunk)
            handles += client.submit_inputs(self.spec(codec), inputs, kind=self.kind)
        return handles

    def call(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """A call as a task that is not submitted: `client.apply("nightly", schedule="daily", task=report.call("all"))`."""
        codec, (encoded,) = self.encode([(args, kwargs)])
        return self.spec(codec, input=encoded)

    def options(self, **overrides: Any) -> Task[P, T, R]:
        """The same function under other options: `f.options(attempts=5).submit(...)`."""
        return Task(self.function, checked({**self._options, **overrides}))

    def spec(self, codec: str = "json", **fields: Any) -> dict[str, Any]:
        """The task as the API takes it."""
        return {**self._options, "function": calling.function_name(self.function), "codec": codec, **fields}

    def encode(self, calls: Sequence[calling.Arguments]) -> tuple[str, list[msgspec.Raw]]:
        calling.check_calls(self.function, calls)
        return calling.encode_calls(calls, self._options.get("codec"))

    async def _submit(self, client: core.AsyncClient, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AsyncHandle[T]:
        codec, (encoded,) = self.encode([(args, kwargs)])
        accepted = await client.accept(self.spec(codec, input=encoded))
        return AsyncHandle(client, accepted.id, kind=self.kind, accepted=accepted)


@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T, Coroutine[Any, Any, T]]: ...
@overload
def task(function: Callable[P, T], /) -> Task[P, T, T]: ...
@overload
def task(**options: Any) -> _Decorator: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function submittable. The options are the fields of a task: name, labels, resources, attempts, retry,
    execution_cap, delay_tolerance, category, env, idempotency_key ...; a wrong one is an error here, not at night."""
    if function is not None:
        return Task(function, {})
    return _Decorator(options)


class _Decorator:
    """`@task(...)`, waiting for its function."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return Task(function, checked(self._options))


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, or the error that the server would answer with."""
    if wrong := sorted(_NOT_OPTIONS & options.keys()):
        raise InvalidInput(f"{wrong[0]}: the function and its call say that themselves", field=wrong[0])
    try:
        spec = msgspec.convert({**options, "function": "module:name"}, TaskSpec)
    except msgspec.ValidationError as error:
        raise decode_error(error, given=dict(options)) from None
    define(spec, ANYWHERE)  # which tiers there are and how long a run may take, only the server knows
    return options


def _named(name: str) -> Any:
    """A pickled Task is its name: the other side has the same decorated function."""
    module, _, qualname = name.partition(":")
    found: Any = __import__(module, fromlist=["_"])
    for part in qualname.split("."):
        found = getattr(found, part)
    return found
