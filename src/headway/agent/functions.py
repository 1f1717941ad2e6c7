"""Finding a function by its name and calling it with a task's input, inside a runner.

Names: "module:qualname" is imported (installed packages, then the agent's --path folders);
"/folder/file.py:qualname" is loaded from the file, for functions of a script that its author ran as __main__ on
this machine. A changed file is loaded again.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from headway.client import context

if TYPE_CHECKING:
    import asyncio


class NotFound(Exception):
    """There is no such function here; says where it was looked for."""


class BadResult(Exception):
    """The function returned something that cannot be sent."""


RESULT_LIMIT = 4 * 2**20
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_modules: dict[str, tuple[ModuleType, tuple[int, int]]] = {}  # file -> module, and (mtime, size) when it was loaded
_loop: asyncio.AbstractEventLoop | None = None


class Function:
    """A function, found at its first call; one that is not there says so at every call, until the next batch looks again."""

    __slots__ = ("_signature", "call", "cap_s", "env", "main", "name", "pickled", "plain", "workdir")

    def __init__(self, name: str, codec: str, env: dict[str, str], workdir: str, cap_s: float) -> None:
        self.name, self.env, self.workdir, self.cap_s = name, env, workdir, cap_s
        self.plain = not env and not workdir
        self.pickled = codec == "pickle"
        where, _, qualname = name.partition(":")
        file = where.endswith(".py") and os.path.isabs(where)
        self._signature = _signature(where) if file else None
        self.main: ModuleType | None = None  # pickles of a script's classes name __main__
        self.call: Callable[..., Any]
        try:
            context.loading = where
            module = load_file(where) if file else load_module(where)
            self.main = module if file else None
            self.call = _attribute(module, qualname, name)
        except NotFound as error:
            self._signature = (-1, -1)
            self.call = _raiser(error)
        finally:
            context.loading = ""

    @property
    def changed(self) -> bool:
        """Whether it must be looked up again: its file is another, or it was not there."""
        return self._signature is not None and self._signature != _signature(self.name.partition(":")[0])

    def run(self, data: bytes) -> bytes | None:
        """The encoded result of a call with an encoded input; None stands for None."""
        if self.main is not None:
            sys.modules["__main__"] = self.main
        if self.pickled:
            return self._run_pickled(data)
        if not data or data == b"null":
            result = self.call()
        else:
            value = _decode(data)
            if type(value) is dict:
                if value.keys() <= {"*", "**"} and value:
                    result = self.call(*value.get("*", ()), **value.get("**", {}))
                else:
                    result = self.call(**value)
            elif type(value) is list:
                result = self.call(*value)
            else:
                result = self.call(value)
        if result is None:
            return None
        if type(result) is CoroutineType:
            result = _complete(result)
        return _encoded(result)

    def _run_pickled(self, data: bytes) -> bytes | None:
        args, kwargs = pickle.loads(base64.b64decode(_decode(data))) if data and data != b"null" else ((), {})
        result = self.call(*args, **kwargs)
        if type(result) is CoroutineType:
            result = _complete(result)
        if result is None:
            return None
        try:
            encoded = _encode(base64.b64encode(pickle.dumps(result)).decode())
        except Exception as error:  # pickling runs the value's own code, which may raise anything
            raise BadResult(f"the result of type {type(result).__name__} cannot be pickled: {error}") from None
        return _fitting(encoded)


def _raiser(error: NotFound) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise error

    return missing


def _fitting(data: bytes) -> bytes:
    if len(data) > RESULT_LIMIT:
        raise BadResult(
            f"the result takes {len(data):,} bytes, more than {RESULT_LIMIT:,}: write it to a file on a shared volume or to an "
            "object store, and return its name"
        )
    return data


def _encoded(result: Any) -> bytes | None:
    if result is None:
        return None
    try:
        return _fitting(_encode(result))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadResult(
            f"the result of type {type(result).__name__} cannot be stored as JSON: {error}; return plain values, or submit "
            'with codec="pickle"'
        ) from None


def _complete(coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """Run a coroutine on the loop that all async functions of this runner share, so that their clients stay connected."""
    global _loop
    if _loop is None:
        import asyncio  # a third of a runner's start, and most functions are plain

        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(coroutine)


def load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        searched = ", ".join(path or "." for path in sys.path)
        reason = "" if missing == name or name.startswith(f"{missing}.") else f" (needed by {name!r})"
        advice = "install it there, or start the agent with --path FOLDER"
        raise NotFound(f"there is no module {missing!r}{reason} on this node: {advice}; searched: {searched}") from None
    except Exception as error:  # a module may fail in any way while it is imported
        raise NotFound(f"importing {name!r} failed: {type(error).__name__}: {error}") from error


def load_file(path: str) -> ModuleType:
    """The module made of a script, under a name that stays the same."""
    signature = _signature(path)
    known = _modules.get(path)
    if known is not None and known[1] == signature:
        return known[0]
    if signature == (0, 0):
        raise NotFound(f"there is no file {path!r} on this node")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a script that is run
    import hashlib

    name = f"headway_script_{hashlib.blake2b(path.encode(), digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NotFound(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by exec_module: it keeps bytecode beside the script, and takes the old one for a change within the same second and size.
        with open(path, "rb") as source:
            exec(compile(source.read(), path, "exec"), module.__dict__)
    except Exception as error:  # as above
        del sys.modules[name]
        raise NotFound(f"loading {path!r} failed: {type(error).__name__}: {error}") from error
    _modules[path] = (module, signature)
    return module


def _signature(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _attribute(module: ModuleType, qualname: str, name: str) -> Callable[..., Any]:
    value: Any = module
    for part in qualname.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise NotFound(f"{getattr(module, '__file__', module.__name__)} has no {qualname!r} (asked for {name!r})") from None
    if not callable(value):
        raise NotFound(f"{name!r} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]
