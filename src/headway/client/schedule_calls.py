"""Calls about schedules, and about what tasks are expected to take."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from headway.client.calls import BULK_TIMEOUT, Calls, Spec, encode, moment, said, segment
from headway.wire.views.answers import Changed
from headway.wire.views.predictions import PredictionsView
from headway.wire.views.schedules import AppliedView, Backfilled, FiringView, SchedulePage, ScheduleView


class ScheduleCalls(Calls):
    """Of schedules and predictions."""

    async def apply(self, name: str, /, *, task: Spec | None = None, tasks: Iterable[Spec] | None = None, **when: Any) -> AppliedView:
        """Make a schedule what this says; the same again changes nothing. `task`, or the `tasks` of a tree; `schedule` (0, seconds,
        "daily", cron ...), `timezone`, `start`, `end`, `jitter`, `overlap`, `misfire`."""
        body: dict[str, Any] = {**when}
        if task is not None:
            body["task"] = said(task)
        if tasks is not None:
            body["tasks"] = [said(each) for each in tasks]
        return await self._to.ask("PUT", schedule_path(name), AppliedView, body=encode(body), timeout=BULK_TIMEOUT)

    async def apply_many(self, schedules: Iterable[Mapping[str, Any]]) -> list[AppliedView]:
        """Apply many schedules, each a mapping as apply() takes it, with its name; all or none."""
        body = encode(list(schedules))
        return await self._to.ask("POST", "/v1/schedules", list[AppliedView], body=body, repeatable=True, timeout=BULK_TIMEOUT)

    async def schedules(self) -> list[ScheduleView]:
        """All of them, with the next firing of each."""
        found: list[ScheduleView] = []
        cursor: str | None = None
        while True:
            page = await self._to.ask("GET", "/v1/schedules", SchedulePage, query={"limit": 1000, "cursor": cursor})
            found += page.schedules
            cursor = page.next
            if cursor is None:
                return found

    async def schedule(self, name: str, *, next: int = 5, past: int = 10) -> ScheduleView:
        """One schedule with its next firings and its past ones."""
        return await self._to.ask("GET", schedule_path(name), ScheduleView, query={"next": next, "past": past})

    async def pause_schedule(self, name: str) -> ScheduleView:
        return await self._to.ask("POST", schedule_path(name, "pause"), ScheduleView, repeatable=True)

    async def resume_schedule(self, name: str) -> ScheduleView:
        return await self._to.ask("POST", schedule_path(name, "resume"), ScheduleView, repeatable=True)

    async def trigger(self, name: str) -> FiringView:
        """Run it now; `run` of the answer is the id of its task or tree."""
        return await self._to.ask("POST", schedule_path(name, "trigger"), FiringView)

    async def backfill(
        self, name: str, since: datetime.datetime | str, until: datetime.datetime | str, *, overlap: str = "queue"
    ) -> Backfilled:
        """Make up for the moments from `since` on and before `until` that did not run."""
        body = encode({"since": moment(since), "until": moment(until), "overlap": overlap})
        return await self._to.ask("POST", schedule_path(name, "backfill"), Backfilled, body=body, repeatable=True)

    async def stop_backfill(self, name: str) -> Backfilled:
        """Give up the moments of backfills that have not begun; runs under way go on."""
        return await self._to.ask("POST", schedule_path(name, "stop-backfill"), Backfilled, repeatable=True)

    async def delete_schedule(self, name: str) -> Changed:
        return await self._to.ask("DELETE", schedule_path(name), Changed)

    async def predict(self, tasks: Iterable[Spec]) -> PredictionsView:
        """What these tasks are expected to take, one by one and as a tree, from earlier runs."""
        return await self._to.ask("POST", "/v1/predictions", PredictionsView, body=encode({"tasks": [said(task) for task in tasks]}))


def schedule_path(name: str, *rest: str) -> str:
    return "/".join(("/v1/schedules", segment(name), *rest))
