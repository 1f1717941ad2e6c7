"""What code inside a task can know about itself: `headway.current()`.

Imported by every warm runner, so it imports next to nothing. The runner fills in `_running` before it calls a function
and may reuse one Current for all its tasks; a program started by an agent finds the same facts in its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

TYPE_CHECKING = False  # checkers take it for typing's: this module is imported by every runner
if TYPE_CHECKING:
    from typing import Any

    from headway.client.face import Handle
    from headway.client.once import Claim
    from headway.wire.views.tasks import TaskView


class Suspended(BaseException):
    """The task waits for its subtasks: this attempt ends here. Not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, waits: list[int], *, program: bool = False) -> None:
        super().__init__(waits)
        self.waits = waits
        self.program = program  # a program of its own ends with an exit code, a function of a warm process by this exception


class Current:
    """The task that runs here, in this attempt. The attempt number is a fence: it rises with every run."""

    __slots__ = ("ask_place", "attempt", "deadline", "id", "read_dependencies", "send_progress")

    def __init__(
        self,
        task_id: int | str,
        attempt: int,
        deadline: float | None = None,
        send_progress: Callable[[float, float, str], None] | None = None,
        ask_place: Callable[[], tuple[str, str, str | None]] | None = None,
    ) -> None:
        self.id = task_id
        self.attempt = attempt
        self.deadline = deadline  # Unix seconds at which the execution cap is reached
        self.send_progress = send_progress or _print_progress
        self.ask_place = ask_place  # in a warm process: where the server is, and the token of this attempt
        self.read_dependencies: Callable[[], bytes | None] | None = None  # of a warm runner; a program has a file

    @property
    def task_id(self) -> str:
        """As handles and the API write it: a decimal string."""
        return str(self.id)

    @property
    def dependencies(self) -> dict[str, Any]:
        """The results of the tasks that this one waited for, by name; of a task that asked for them by `with_results`."""
        from headway.client.dependencies import read

        return read(self.read_dependencies)

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        """Say how far the task is, to be shown as a bar: `progress(40, 100, "resizing")`. May be called often."""
        self.send_progress(done, total, text)

    def once(self, key: str, *, again: bool = False) -> Claim:
        """Claim an effect, so that it happens once though the task runs again: `with current().once("pay-42") as claim: if claim: ...`

        The claim is true when the effect is yours to do. `again` also takes what an earlier attempt began and never finished.
        """
        from headway.client import once

        return once.claim(self.task_id, self.attempt, key, again=again)

    def checkpoint(self, data: Any) -> None:
        """Save a value (plain data or bytes) from which the next attempt can go on, on whatever machine."""
        from headway.client import saving

        saving.save(self, data)

    def last_checkpoint(self, default: Any = None) -> Any:
        """The value that was saved last, by this attempt or an earlier one."""
        from headway.client import saving

        return saving.last(self, default)

    def submit(self, what: Any = None, /, *args: Any, key: str | None = None, **fields: Any) -> Handle[Any]:
        """Submit a subtask: `submit(f, 1, 2)` calls a function, `submit(command=[...])` runs anything.

        When this task runs again, the same submission gives the same subtask back; `key` names it if what it says may differ.
        `result()` of the handle gives the value, or raises TaskFailed. While the subtask has not ended, this task holds nothing:
        it is ended, and runs again from its top when the subtask has ended.
        """
        from headway.client import subtasks

        return subtasks.submit(what, args, key, fields)

    def map(self, what: Callable[..., Any], items: Iterable[Any], /, *, key: str | None = None) -> list[Handle[Any]]:
        """Submit a subtask for each item, all or none; asking one of them for its result waits for all of them."""
        from headway.client import subtasks

        return subtasks.map_over(what, items, key)

    def wait(self, *handles: Handle[Any]) -> list[TaskView]:
        """Wait for these subtasks, or for all that were submitted so far, without holding anything."""
        from headway.client import subtasks

        return subtasks.wait(handles)


_running: Current | None = None
loading = ""  # the script or module that a warm runner imports just now, to find a function in it


def check_loaded() -> None:
    """Called before anything is changed on the server. A script without a main guard would submit itself again in each runner that
    loads it, and wait there for its own result: ever more tasks, none of which ends."""
    if loading:
        from headway.errors import InvalidInput

        raise InvalidInput(
            f"{loading} submits tasks when a runner loads it to find a function in it",
            field="function",
            hint='put what is to happen only when it is run as a script below `if __name__ == "__main__":`',
        )


def current() -> Current:
    """The running task. Outside a task there is none, and that is a RuntimeError."""
    if _running is not None:
        return _running
    task_id = os.environ.get("HEADWAY_TASK_ID")
    if not task_id:
        raise RuntimeError("headway.current() was called outside a task")
    deadline = os.environ.get("HEADWAY_DEADLINE")
    return Current(task_id, int(os.environ.get("HEADWAY_ATTEMPT", "1")), float(deadline) if deadline else None)


def _print_progress(done: float, total: float, text: str) -> None:
    """The line that agents look for on the standard output of any program."""
    words = " ".join(text.split())
    sys.stdout.write(f"headway progress {done:.12g}/{total:.12g} {words}".rstrip() + "\n")
    sys.stdout.flush()
