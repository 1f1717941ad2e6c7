"""A waiting task is changed in place (F5): same id, same fence, same dependencies; everything else of it may become another."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control import bounded_waiting
from headway.control.actions import edit_definition
from headway.control.bus import Bus
from headway.control.contents import Contents
from headway.control.definitions import Definitions, Interned
from headway.control.draft import check_input
from headway.control.fleet import Fleet
from headway.control.missing import no_task
from headway.control.tenants import Tenants
from headway.domain.checks import check_labels, check_name
from headway.domain.lifecycle import State
from headway.domain.units import at_seconds
from headway.domain.wrong_kind import decode_error
from headway.errors import Conflict, InvalidInput
from headway.store.database import Connection, Database
from headway.store.queries import query

_LOCK = query("explain.lock")
_CHANGE = query("explain.change")
_EXPANDED = query("explain.expanded")
_ONE = query("read.one")
OWN = ("input", "name", "labels", "size", "at")  # of the task itself; the rest is of its definition


@dataclass
class Changing:
    database: Database
    definitions: Definitions
    contents: Contents
    tenants: Tenants
    fleet: Fleet
    bus: Bus

    async def change(self, task: int, tenant: int | None, edit: dict[str, Any]) -> None:
        """Change some fields of a waiting task, or refuse: all of it or nothing."""
        before = await self._row(task, tenant)
        if not edit:
            raise InvalidInput("nothing to change", hint="give fields of the task, for example delay_tolerance")
        own = _own(edit)
        old, new = await self._defined(before, {field: value for field, value in edit.items() if field not in OWN})
        waits_anew = "at" in own or new.definition.patience != old.definition.patience

        async def work(connection: Connection) -> tuple[Any, Any]:
            row = await connection.fetchrow(_LOCK, task, tenant)
            if row is None or row["definition"] != before["definition"]:
                return row, None
            if not row["cap_ms"] and await connection.fetchval(_EXPANDED, task):
                raise Conflict(f"task {task} stands for a `for_each`, and its tasks are there", hint="change the tasks it is made of")
            category = new.category if new.category != old.category else row["category"]  # one that was promoted stays so
            changed = await connection.fetchrow(
                _CHANGE, task, new.id, new.shape, new.cap_ms, category, own.get("at"), new.definition.tolerance_ms, own.get("input"),
                own.get("name"), own.get("labels"), own.get("size"),
            )  # fmt: skip
            if waits_anew:
                await bounded_waiting.changed(connection, task, new)
            return row, changed

        row, changed = await self.database.transact(work)
        if row is None:
            state = State((await self._row(task, tenant))["state"])
            hint = "submit it anew, or retry it with an edit if it failed" if state.final else "its node has it: cancel it, or wait"
            raise Conflict(f"task {task} is {state.word}: only a waiting task can be changed", hint=hint)
        if changed is None:
            raise Conflict(f"task {task} was changed by somebody else at the same time", hint="look at it and try again")
        self.bus.changed([(row["tenant"], row["shape"])])
        if changed["state"] == State.READY:
            key = (changed["start_by"], changed["cap_ms"], changed["id"])
            self.bus.ready({(changed["tenant"], changed["shape"]): [key]})
        self.bus.scheduled()

    async def _defined(self, row: Any, changes: dict[str, Any]) -> tuple[Interned, Interned]:
        """What the task was, and what it is with these changes."""
        old = (await self.definitions.load([row["definition"]]))[row["definition"]]
        if not changes:
            return old, old
        if "category" in changes:
            changes.setdefault("delay_tolerance", None)  # another category's own, unless one was given
        definition = edit_definition(old.definition, changes, self.tenants.terms(row["tenant"]))
        interned = await self.contents.intern(row["tenant"], definition)
        self.fleet.check_satisfiable([interned])
        return old, interned

    async def _row(self, task: int, tenant: int | None) -> Any:
        async with self.database.cold() as connection:
            row = await connection.fetchrow(_ONE, [task], tenant)
            if row is None:
                raise await no_task(connection, task, tenant)
        return row


def _own(edit: dict[str, Any]) -> dict[str, Any]:
    """The task's own fields as values of its row, checked like those of a new one."""
    found: dict[str, Any] = {}
    if "input" in edit:
        found["input"] = check_input(msgspec.json.encode(edit["input"]))
    if "name" in edit:
        check_name(_typed(edit, "name", str))
        found["name"] = edit["name"]
    if "labels" in edit:
        labels = _typed(edit, "labels", dict[str, str])
        check_labels(labels)
        found["labels"] = msgspec.json.encode(labels).decode()
    if "size" in edit:
        found["size"] = _typed(edit, "size", float)
        if not 0 <= found["size"] < 1e300:
            raise InvalidInput(f"size: {found['size']} is out of range", field="size")
    if "at" in edit:
        at = _typed(edit, "at", str | float)
        found["at"] = datetime.datetime.fromtimestamp(0.0 if at == "now" else at_seconds(at), datetime.UTC)  # what is over means now
    return found


def _typed(edit: dict[str, Any], field: str, kind: Any) -> Any:
    try:
        return msgspec.convert(edit[field], kind)
    except msgspec.ValidationError as error:
        raise decode_error(error, given=edit[field], field=field) from None
