"""What people do in a walk: submit, cancel, pause, change, send again, purge, schedule, limit, drain, remove, and ask why."""

from __future__ import annotations

import datetime
import json
from typing import Any

import msgspec

from headway.control.access import Caller
from headway.control.audit import Entry
from headway.control.core import Core
from headway.domain.schedule import Scheduled
from headway.domain.tenant import SubscriptionSpec
from headway.errors import HeadwayError, IdempotencyConflict
from headway.store.queries import query
from tests.support.ordering import explained
from tests.support.walk import specs
from tests.support.walk.programs import check
from tests.support.walk.world import Violation, World

LIMITS: tuple[dict[str, Any], ...] = (
    {"max_running": 1}, {"max_running": 3}, {"max_running": None}, {"max_waiting": 5}, {"max_waiting": None},
    {"rate_per_hour": 3600.0, "burst": 5}, {"rate_per_hour": None, "burst": None}, {"suspended": True}, {"suspended": False},
    {"weight": 3.0}, {"max_cpus": 1.0}, {"max_cpus": None},
)  # fmt: skip
EDITS: tuple[dict[str, Any], ...] = (
    {"resources": {"cpus": 1.5}}, {"delay_tolerance": 5}, {"labels": {"a": "b"}}, {"at": "now"}, {"max_wait": 0.5},
    {"category": "urgent"}, {"input": [1]}, {"queue": "off-peak"},
)  # fmt: skip
SCHEDULES = ("one", "two", "three")


class People:
    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance
        self.made = 0
        self.deeds = (
            *[self.submit] * 8, *[self.ask_why] * 3, *[self.cancel] * 2, *[self.send_again] * 2, self.pause, self.resume, self.change,
            self.purge, self.cancel_tree, self.retry_tree, self.pause_queue, self.limit, self.schedule, self.steer_schedule, self.drain,
            self.remove_node, self.remove_tenant,
        )  # fmt: skip

    async def act(self) -> None:
        core = self.world.core()
        try:
            await self.chance.choice(self.deeds)(core)
        except HeadwayError as error:  # too late, not that state, and so on: said in words, and nothing done
            check(error)

    async def submit(self, core: Core) -> None:
        owner, said = self.chance.choice(self.world.tenants), specs.named(specs.tasks(self.chance))
        tree = f"tree-{self.chance.random()}" if self.chance.random() < 0.2 else None
        strict = tree is not None and self.chance.random() < 0.5

        async def store() -> Any:
            drafts, _ = await core.drafts.read(owner, msgspec.json.encode(said), ndjson=False, key=None)
            await core.promises.check(owner, drafts)
            return await core.admission.submit(owner, drafts, tree=tree, strict=strict)

        try:
            receipt = await self.world.ask(core, store())
        except IdempotencyConflict as error:
            if all(self._is_as_before(owner, spec) for spec in said if "idempotency_key" in spec):
                raise Violation(f"the same keys with the same payloads were refused: {error}") from error
            return
        self.world.known += receipt.ids
        if receipt.tree is not None:
            self.world.trees.append(receipt.tree)
        for spec, task in zip(said, receipt.ids, strict=True):
            if (key := spec.get("idempotency_key")) is not None:
                self._compare(owner, key, spec, task)

    def _is_as_before(self, owner: int, spec: dict[str, Any]) -> bool:
        before = self.world.keys.get((owner, spec["idempotency_key"]))
        return before is not None and before[0] == json.dumps(spec)

    def _compare(self, owner: int, key: str, spec: dict[str, Any], task: int) -> None:
        """The same key is the same task, and only for the same payload."""
        before = self.world.keys.setdefault((owner, key), (json.dumps(spec), task))
        if before != (json.dumps(spec), task):
            raise Violation(f"the key {key} of tenant {owner} was {before}, and is {spec} in {task}")

    async def ask_why(self, core: Core) -> None:
        """Whatever a task does just now, there is an answer, and it is about the state the task was in."""
        for task in self._some(3):
            found = await self.world.rows("select 1 from task_anywhere where id = $1", task)
            if not found:
                return
            answer = await self.world.ask(core, explained(core, task))
            if not answer.summary or (answer.state in ("blocked", "scheduled", "paused") and not answer.reasons):
                raise Violation(f"explain says nothing of task {task}: {answer}")

    async def cancel(self, core: Core) -> None:
        await self.world.ask(core, core.actions.cancel(self._some()))

    async def pause(self, core: Core) -> None:
        await self.world.ask(core, core.steering.pause(self._one(), None))

    async def resume(self, core: Core) -> None:
        await self.world.ask(core, core.steering.resume(self._one(), None))

    async def change(self, core: Core) -> None:
        await self.world.ask(core, core.changing.change(self._one(), None, self.chance.choice(EDITS)))

    async def send_again(self, core: Core) -> None:
        dead = [row["id"] for row in await self.world.rows("select id from dead_letter order by id limit 20")]
        asked = self.chance.sample(dead, min(len(dead), 3))
        for task in asked:
            self.world.revived[task] = self.world.revived.get(task, 0) + 1
        edit = self.chance.choice((None, None, {"attempts": 2}, {"resources": "regular"}, {"input": [2]}))
        await self.world.ask(core, core.actions.revive(asked, None, edit))

    async def purge(self, core: Core) -> None:
        ids = await self.world.ask(core, core.actions.dead_ids(None, ids=self._some(5), fingerprint=None, name=None))
        self.world.purged.update(ids)
        await self.world.ask(core, core.actions.purge(ids, None))

    async def cancel_tree(self, core: Core) -> None:
        if self.world.trees and self.chance.random() < 0.3:
            await self.world.ask(core, core.trees.cancel(self.chance.choice(self.world.trees)))

    async def retry_tree(self, core: Core) -> None:
        if self.world.trees:
            await self.world.ask(core, core.trees.retry(self.chance.choice(self.world.trees), None))

    async def pause_queue(self, core: Core) -> None:
        queue, paused = self.chance.choice(("urgent", "delayable", "periodic")), self.chance.random() < 0.3
        await self.world.ask(core, core.queues.change(queue, paused=paused))

    async def limit(self, core: Core) -> None:
        owner, spec = self.chance.choice(self.world.tenants[1:]), SubscriptionSpec(**self.chance.choice(LIMITS))
        if owner not in core.tenants.removed:
            await self.world.ask(core, core.administration.set_subscription(owner, spec, await self._entry(core)))

    async def remove_tenant(self, core: Core) -> None:
        """The last one goes, with all it has, and a new one comes."""
        if self.chance.random() < 0.4:
            return
        name = f"passing-{self.made}"
        if self.made and self.chance.random() < 0.5:
            await self.world.ask(core, core.removing.remove(name, await self._entry(core), cancel=self.chance.random() < 0.8))
        self.made += 1
        new = SubscriptionSpec(isolation="none")
        made = core.administration.create_tenant(f"passing-{self.made}", new, await self._entry(core))
        self.world.tenants.append(await self.world.ask(core, made))

    async def schedule(self, core: Core) -> None:
        said = specs.schedule(self.chance, self.chance.choice(SCHEDULES))
        asked = msgspec.json.decode(msgspec.json.encode(said), type=Scheduled)
        await self.world.ask(core, core.schedules.apply(self.chance.choice(self.world.tenants), [asked]))

    async def steer_schedule(self, core: Core) -> None:
        owner, name, what = self.chance.choice(self.world.tenants), self.chance.choice(SCHEDULES), self.chance.randrange(5)
        schedules = core.schedules
        if what == 0:
            await self.world.ask(core, schedules.trigger(owner, name))
        elif what == 1:
            until = datetime.datetime.now(datetime.UTC)
            since = until - datetime.timedelta(seconds=6)
            await self.world.ask(core, schedules.backfill(owner, name, since, until, self.chance.choice(("queue", "allow"))))
        else:
            deed = (schedules.pause, schedules.resume, schedules.delete)[what - 2]
            await self.world.ask(core, deed(owner, name))

    async def drain(self, core: Core) -> None:
        node, drained = self.chance.randrange(1, 8), self.chance.random() < 0.4
        await self.world.ask(core, _with_nodes(core, query("node.set_drain"), node, drained))

    async def remove_node(self, core: Core) -> None:
        await self.world.ask(core, _with_nodes(core, query("node.remove"), self.chance.randrange(1, 8)))

    async def _entry(self, core: Core) -> Entry:
        caller = Caller("admin", 1, "default", everywhere=True)
        return await self.world.ask(core, core.audit.begin(caller, "walk", "walk"))

    def _one(self) -> int:
        return self._some(1)[0]

    def _some(self, most: int = 2) -> list[int]:
        """Young ones rather than old ones, which have ended."""
        young = self.world.known[-60:] if self.chance.random() < 0.8 else self.world.known
        return self.chance.sample(young, min(len(young), most)) or [1]


async def _with_nodes(core: Core, statement: str, *values: Any) -> None:
    """As the routes of /v1/nodes do it."""
    async with core.database.hot() as connection:
        await connection.fetch(statement, *values)
    await core.fleet.refresh()
