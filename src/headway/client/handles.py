"""A handle is a submitted task as its submitter sees it: an id, and in time a result.

AsyncHandle does the work. Tasks submitted together form a Group: who waits for one of them learns about the others too,
so that `[h.result() for h in handles]` costs a few requests and not one for each task.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from headway.client import outcomes
from headway.errors import InvalidInput
from headway.wire.views.explanations import Explanation
from headway.wire.views.tasks import Accepted, AcceptedMany, LogLine, TaskView

if TYPE_CHECKING:
    from headway.client.core import AsyncClient
    from headway.client.inside import Inside

T = TypeVar("T", covariant=True)

WINDOW = 1000  # tasks of the group, from this one on, whose ends are asked for together


def no_data() -> NoReturn:
    """A handle was given as an argument, or to another process."""
    raise InvalidInput(
        "a handle is of the process that submitted the task, and cannot be sent",
        field="input",
        hint="send handle.result(), or handle.id for client.handle(id) there; for a task that waits for others and gets their results "
        "use Tree: tree.add(f.options(with_results=True), after=[...])",
    )


class Group:
    """Tasks of one request, and those views of their ends that nobody has asked for yet."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids
        self.ended: dict[str, TaskView] = {}
        self.waiting = 0

    def beside(self, index: int) -> list[str]:
        """The tasks to ask about together with this one; none when others wait already, who do so themselves."""
        if self.waiting:
            return []
        return [task_id for task_id in self.ids[index + 1 : index + WINDOW] if task_id not in self.ended]


class AsyncHandle(Generic[T]):
    """A task of an AsyncClient. `await handle` is `await handle.result()`."""

    def __init__(
        self,
        client: AsyncClient,
        task_id: str,
        *,
        kind: Any = None,
        group: Group | None = None,
        index: int = 0,
        foreign: bool = False,
        accepted: Accepted | AcceptedMany | None = None,
    ) -> None:
        self.id = task_id
        self._client = client
        self._kind = kind  # what the result is to become; None: as it is
        self._group = group
        self._index = index
        self._foreign = foreign  # submitted elsewhere: there may be no such task
        self._accepted = accepted  # what its submission was answered with; not known of one submitted elsewhere

    @property
    def predicted_start(self) -> datetime.datetime | None:
        """When it will probably start, as said when it was submitted (of a bulk: its last task); None when nothing was known."""
        return None if self._accepted is None else self._accepted.predicted_start

    @property
    def warning(self) -> str | None:
        """What the server said when that is later than its delay tolerance allows."""
        return None if self._accepted is None else self._accepted.warning

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __reduce__(self) -> NoReturn:
        no_data()

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    async def wait(self, timeout: float | None = None) -> TaskView:
        """Wait until the task is final, however it ended. TimeoutError when it is not within `timeout` seconds."""
        if (known := self.known()) is not None:
            return known
        if timeout is None and self._client.inside is not None:
            return await self._wait_inside(self._client.inside)
        try:
            async with asyncio.timeout(timeout) as limit:
                if self._foreign:
                    await self.view()  # a wait for a task that does not exist would never end
                    self._foreign = False
                if self._group:
                    return await self._wait(self._group)
                return (await self._client.waiter.final(self.id))[0]
        except TimeoutError:
            if not limit.expired():
                raise  # the server did not answer: another story
            raise TimeoutError(f"task {self.id} is not final after {timeout} s") from None

    async def _wait_inside(self, inside: Inside) -> TaskView:
        """In a running task: what has not ended ends this attempt, which then holds nothing while it waits. Those submitted
        together are waited for together."""
        asked = [self.id]
        if self._group:
            asked += [each for each in self._group.ids if each != self.id and each not in self._group.ended]
        found = await self._client.ended(asked)
        if self.id not in found:
            raise inside.suspended(each for each in asked if each not in found)
        mine = found.pop(self.id)
        if self._group:
            self._group.ended.update(found)
        return mine

    async def _wait(self, group: Group) -> TaskView:
        beside = group.beside(self._index)
        group.waiting += 1
        try:
            mine, *others = await self._client.waiter.final(self.id, also=beside)
        finally:
            group.waiting -= 1
        group.ended.update((view.id, view) for view in others)
        return mine

    def known(self) -> TaskView | None:
        """How the task ended, if that came along with another wait. Given out once: a dead letter may be revived."""
        return self._group.ended.pop(self.id, None) if self._group else None

    def value(self, view: TaskView) -> T:
        """The result in the final view of this task."""
        found: T = outcomes.value(view, self._kind)
        return found

    async def result(self, timeout: float | None = None) -> T:
        """The value. TaskFailed, or TaskCancelled, when the task ended without one."""
        return self.value(await self.wait(timeout))

    async def view(self) -> TaskView:
        """Everything known about the task now."""
        return await self._client.get(self.id)

    async def state(self) -> str:
        return (await self.view()).state

    async def explain(self) -> Explanation:
        """Why it does not run, what would start it, and when it will probably start; of one that ended, where its time went."""
        return await self._client.explain(self.id)

    async def change(self, **fields: Any) -> TaskView:
        """Change some fields while no node has it: `handle.change(delay_tolerance=0)`."""
        return await self._client.change(self.id, **fields)

    async def cancel(self) -> TaskView:
        return await self._client.cancel(self.id)

    async def pause(self) -> TaskView:
        return await self._client.pause(self.id)

    async def resume(self) -> TaskView:
        return await self._client.resume(self.id)

    def logs(self, *, follow: bool = False) -> AsyncIterator[LogLine]:
        return self._client.logs(self.id, follow=follow)
