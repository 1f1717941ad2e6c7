"""Everything that can go wrong and be told to a person, each with a stable code.

    HeadwayError
    ├── InvalidInput            the request or file is wrong; says which field, what was expected
    │   ├── UnknownField        with did-you-mean
    │   ├── CyclicGraph         prints the cycle
    │   ├── ImpossibleTree      can never keep its own schedule; names the chain of tasks
    │   └── TooLarge
    ├── UnsatisfiableResources  no node of the fleet could ever run it
    ├── IdempotencyConflict     the same key came with another payload
    ├── LimitExceeded           try again after `retry_after` seconds
    ├── CannotPromise           the task asked to be refused when its start would be too late
    ├── NotFound
    ├── Conflict                the thing is in a state that does not allow this
    ├── Unauthorized            no or unknown token
    ├── Forbidden               a known token of the wrong role or tenant
    ├── VersionMismatch         client, agent and server do not speak the same protocol
    ├── Unavailable             the server cannot do it now (database away, queue full); try again
    ├── Corrupt                 stored content is not what its checksum says
    ├── ConfigError             a setting is wrong
    ├── DatabaseInUse           another Headway owns this data folder
    ├── StaleEpoch              a deposed leader tried to write
    └── TaskFailed              raised by handles: the task ended without a result

HTTP statuses live in api/problems.py, exit codes in cli/main.py; a test holds both maps total.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self


class HeadwayError(Exception):
    """What was wrong, where, what was expected, what to do."""

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.detail} ({self.advice})" if self.advice else self.detail

    @property
    def advice(self) -> str | None:
        """What to do."""
        return self.hint

    def __reduce__(self) -> Any:
        """A pickle calls a class with its `args` alone; some of ours need more."""
        return rebuilt, (type(self), self.args, vars(self))

    def at(self, word: str, position: int) -> Self:
        """The same error, saying which part of a request it is about: `task 3: ...`."""
        detail = f"{word} {position}: {self.detail}"
        located = type(self).__new__(type(self), detail)
        vars(located).update(vars(self), detail=detail, extra={**self.extra, word: position})
        return located


class InvalidInput(HeadwayError):
    code = "invalid_input"
    title = "The request is not valid"

    def __init__(self, detail: str, *, field: str | None = None, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail, hint=hint, **({"field": field} if field else {}), **extra)
        self.field = field


class UnknownField(InvalidInput):
    code = "unknown_field"
    title = "Unknown field"


class CyclicGraph(InvalidInput):
    code = "cyclic_graph"
    title = "The dependencies form a cycle"


class ImpossibleTree(InvalidInput):
    code = "impossible_tree"
    title = "The tree can never keep its schedule"


class TooLarge(InvalidInput):
    code = "too_large"
    title = "The request is too large"


class UnsatisfiableResources(HeadwayError):
    code = "unsatisfiable_resources"
    title = "No node could ever run this task"


class IdempotencyConflict(HeadwayError):
    code = "idempotency_conflict"
    title = "The idempotency key was used with another payload"


class LimitExceeded(HeadwayError):
    code = "limit_exceeded"
    title = "Limit exceeded"

    def __init__(self, detail: str, *, retry_after: float, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after, **extra)
        self.retry_after = retry_after

    @property
    def advice(self) -> str | None:
        return _again(self.retry_after, self.hint)


class CannotPromise(HeadwayError):
    code = "cannot_promise"
    title = "The task could not start in time"

    def __init__(self, detail: str, *, retry_after: float, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after)
        self.retry_after = retry_after

    @property
    def advice(self) -> str | None:
        return _again(self.retry_after, self.hint)


class NotFound(HeadwayError):
    code = "not_found"
    title = "Not found"


class Conflict(HeadwayError):
    code = "conflict"
    title = "The current state does not allow this"


class Unauthorized(HeadwayError):
    code = "unauthorized"
    title = "Authentication needed"


class Forbidden(HeadwayError):
    code = "forbidden"
    title = "Not allowed"


class VersionMismatch(HeadwayError):
    code = "version_mismatch"
    title = "Versions do not fit together"


class Unavailable(HeadwayError):
    code = "unavailable"
    title = "Not available right now"

    def __init__(self, detail: str, *, retry_after: float = 1.0, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after)
        self.retry_after = retry_after

    def at(self, word: str, position: int) -> Self:
        return self  # not the fault of any part


class Corrupt(HeadwayError):
    code = "corrupt"
    title = "The content is damaged"


class ConfigError(HeadwayError):
    code = "config"
    title = "A setting is wrong"


class DatabaseInUse(HeadwayError):
    code = "database_in_use"
    title = "The data folder is in use"


class StaleEpoch(HeadwayError):
    code = "stale_epoch"
    title = "This server no longer leads the duty"


class TaskFailed(HeadwayError):
    """`type`, `message` and `traceback` are those of the error on the node."""

    code = "task_failed"
    title = "The task did not succeed"

    def __init__(
        self, detail: str, *, type: str = "", message: str = "", traceback: str = "", hint: str | None = None, **extra: Any
    ) -> None:
        super().__init__(detail, hint=hint, **extra)
        self.type = type
        self.message = message
        self.traceback = traceback


def rebuilt(kind: type[HeadwayError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadwayError:
    """An error out of a pickle."""
    found = kind.__new__(kind, *args)
    vars(found).update(state)
    return found


def _again(wait_s: float, hint: str | None) -> str | None:
    """ "try again in 2.5 s; nothing was stored"."""
    if wait_s <= 0:
        return hint
    return f"try again in {math.ceil(wait_s * 10) / 10:g} s" + (f"; {hint}" if hint else "")
