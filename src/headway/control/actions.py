"""What people do to tasks: cancel, send dead letters again, purge (H7 F4)."""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control import bounded_waiting, levels, subtasks
from headway.control.bus import Bus
from headway.control.contents import Contents
from headway.control.definitions import Definitions, Interned
from headway.control.draft import check_input
from headway.control.fleet import Fleet
from headway.control.settle import Effects, cancel_waiting, settle, tell
from headway.control.tenants import Tenants
from headway.domain.content import spec_fields
from headway.domain.define import define
from headway.domain.lifecycle import State
from headway.domain.notify import NotifySpec
from headway.domain.spec import ResourcesSpec, RetrySpec, TaskSpec
from headway.domain.stages import specs_of
from headway.domain.task import Definition
from headway.domain.tenant import Terms
from headway.domain.wrong_kind import decode_error
from headway.errors import InvalidInput
from headway.store.database import Connection, Database
from headway.store.partitions import ensure_days_of
from headway.store.queries import query

CHUNK = 1_000
_CANCEL_WAITING = query("task.cancel_waiting")
_WISH = query("task.wish_cancel")
_REVIVE = query("task.revive")
_WAIT_AGAIN = query("edge.wait_again")
_DEAD_IDS = query("read.dead_ids")
_DEAD_ROWS = query("read.dead_rows")
_PURGE = query("read.purge")


@dataclass
class Actions:
    database: Database
    definitions: Definitions
    contents: Contents
    fleet: Fleet
    tenants: Tenants
    bus: Bus

    async def cancel(self, ids: list[int]) -> None:
        """Waiting tasks end at once; those on a node get a wish, and end when their node reports it. Their subtasks too."""
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            effects, wishes = await self.database.transact(functools.partial(_cancel, ids=chunk))
            tell(self.bus, effects)
            self.bus.cancel(wishes)

    async def dead_ids(self, tenant: int | None, *, ids: list[int] | None, fingerprint: str | None, name: str | None) -> list[int]:
        async with self.database.cold() as connection:
            return [row["id"] for row in await connection.fetch(_DEAD_IDS, tenant, ids, fingerprint, name, 1_000_000)]

    async def revive(self, ids: list[int], tenant: int | None, edit: dict[str, Any] | None) -> list[int]:
        """Send dead letters again, with fields changed if asked; returns those that were."""
        revived: list[int] = []
        for start in range(0, len(ids), CHUNK):
            revived += await self._revive(ids[start : start + CHUNK], tenant, edit or {})
        return revived

    async def _revive(self, ids: list[int], tenant: int | None, edit: dict[str, Any]) -> list[int]:
        async with self.database.cold() as connection:
            rows = [dict(r) for r in await connection.fetch(_DEAD_ROWS, ids, tenant)]
        for owner in {row["tenant"] for row in rows}:
            self.tenants.check_there(owner)
        known = await self.definitions.load(row["definition"] for row in rows)
        new_input = check_input(msgspec.json.encode(edit["input"])) if "input" in edit else None
        changes = {key: value for key, value in edit.items() if key != "input"}
        edited: dict[int, Interned] = {}
        for row in rows:
            old = known[row["definition"]]
            if row["definition"] not in edited:
                edited[row["definition"]] = (
                    await self.contents.intern(
                        row["tenant"], edit_definition(old.definition, changes, self.tenants.terms(row["tenant"]))
                    )
                    if changes
                    else old
                )
        self.fleet.check_satisfiable(edited.values())
        effects = Effects()
        new = [edited[row["definition"]] for row in rows]

        async def work(connection: Connection) -> list[Any]:
            await ensure_days_of(connection, (row["id"] for row in rows))
            await subtasks.failed(connection, [row["id"] for row in rows])
            back: list[Any] = await connection.fetch(
                _REVIVE, [row["id"] for row in rows], [n.id for n in new], [n.shape for n in new], [n.definition.cap_ms for n in new],
                [n.definition.tolerance_ms for n in new], [n.definition.category for n in new], new_input,
            )  # fmt: skip
            await connection.execute(_WAIT_AGAIN, [row["id"] for row in back])
            effects.clear()
            effects.scheduled = await bounded_waiting.remember(connection, zip((row["id"] for row in rows), new, strict=True))
            for row in back:
                if row["tree"] is not None:
                    effects.levels.back(row["tree"], row["level"], State.FAILED)
            await levels.count(connection, effects)
            return back

        back = await self.database.transact(work)
        effects.now_ready([row for row in back if row["state"] == State.READY])
        effects.scheduled |= len(effects.ready) < len(back)  # a `for_each` is expanded anew
        tell(self.bus, effects)
        return [row["id"] for row in back]

    async def purge(self, ids: list[int], tenant: int | None) -> list[int]:
        async def work(connection: Connection) -> list[int]:
            await ensure_days_of(connection, ids)
            effects = Effects()
            rows = await connection.fetch(_PURGE, ids, tenant)
            for row in rows:
                if row["tree"] is not None:
                    effects.levels.back(row["tree"], row["level"], State.FAILED)
                    effects.levels.end(row["tree"], row["level"], State.CANCELLED)
            await levels.count(connection, effects)
            return [row["id"] for row in rows]

        return await self.database.transact(work)


async def _cancel(connection: Connection, ids: list[int]) -> tuple[Effects, list[tuple[int, int, int]]]:
    effects = Effects()
    await connection.fetch(_WISH, ids)  # first: from here on they submit nothing more
    ids = [*ids, *await subtasks.below(connection, ids)]
    waiting = [row["id"] for row in await connection.fetch(_CANCEL_WAITING, ids)]
    await settle(connection, await cancel_waiting(connection, waiting, effects), effects)
    held = await connection.fetch(_WISH, ids)
    return effects, [(row["node"], row["id"], row["attempt"]) for row in held]


def edit_definition(old: Definition, changes: dict[str, Any], terms: Terms) -> Definition:
    """The definition with some of a task's fields changed, checked like a new one."""
    allowed = set(TaskSpec.__struct_fields__) - {"input", "after", "at", "idempotency_key", "name", "labels", "size", "for_each"}
    for field in changes:
        if field not in allowed:
            near = difflib.get_close_matches(field, sorted(allowed), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sorted(allowed))}"
            raise InvalidInput(f"edit: {field[:40]!r} cannot be changed here", field=f"edit.{field[:40]}", hint=hint)
    try:
        merged = msgspec.convert({**_said(as_spec(old)), **changes}, TaskSpec)
    except msgspec.ValidationError as error:
        raise decode_error(error, given=changes) from None
    new = define(merged, terms)
    return new if _RUNS & changes.keys() else msgspec.structs.replace(new, name=old.name)


_RUNS = {"command", "executable", "function", "image", "commands", "stages"}  # what a task that has no name is called after


def _said(spec: TaskSpec) -> dict[str, Any]:
    return {field: msgspec.to_builtins(getattr(spec, field)) for field in TaskSpec.__struct_fields__ if field != "input"}


def as_spec(old: Definition) -> TaskSpec:
    """A definition as a user would write it."""
    need, retry = old.resources, old.retry
    return TaskSpec(
        command=list(old.command) or None,
        executable=old.executable or None,
        function=old.function or None,
        args=list(old.args),
        env=dict(old.env),
        workdir=old.workdir or None,
        codec=old.codec,
        interpreter=old.interpreter or None,
        resources=old.tier
        or ResourcesSpec(
            None, need.cpus_milli / 1000, need.memory, need.disk, need.iops, need.bandwidth, need.ports, dict(need.labels)
        ),
        category=old.category.name.lower(),
        attempts=old.attempts,
        retry=RetrySpec(retry.interval_ms / 1000, retry.backoff, retry.max_ms / 1000, retry.jitter, retry.node_losses),
        execution_cap=old.cap_ms / 1000,
        delay_tolerance=old.tolerance_ms / 1000,
        max_wait=old.patience.limit_ms / 1000 or None,
        on_max_wait="keep" if old.patience.keep else "expire",
        on_late="refuse" if old.patience.refuse_late else "warn",
        queue=old.queue or None,
        off_peak=old.off_peak.value,
        preemptible=old.preemptible,
        **spec_fields(old.content),
        isolation=old.isolation or None,
        network=list(old.network) or None,
        stages=specs_of(old.stages),
        notify=[NotifySpec(target.to, list(target.kinds)) for target in old.notify],
        with_results=old.with_results,
    )
