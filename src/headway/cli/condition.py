"""What `doctor` finds at the server: is everything there, and does anything keep work from running."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from headway.cli.findings import Check

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.client.discovery import Place
    from headway.config import Settings
    from headway.wire.views.events import WebhookView
    from headway.wire.views.fleet import NodeView, QueueView, Stats
    from headway.wire.views.schedules import ScheduleView
    from headway.wire.views.tasks import DeadGroup

LONG_S = 60.0  # due tasks that wait longer than this want a look
RECENT = datetime.timedelta(hours=1)  # dead letters of the last hour are news
SHOWN = 5  # of each kind; the rest is counted


async def at_the_server(settings: Settings) -> AsyncIterator[Check]:
    from headway.cli.session import Server
    from headway.client.discovery import find
    from headway.errors import HeadwayError

    place = find(settings)
    if place is None:
        yield Check("server", "warn", "none configured, none running here", "`headway up` starts one; or set HEADWAY_URL")
        return
    server = Server(place, tls_ca=settings.tls_ca)
    try:
        checks = [one async for one in _ask(server, place)]
    except HeadwayError as error:
        checks = [Check("server", "fail", error.detail, error.hint or "")]
    finally:
        await server.close()
    for one in checks:
        yield one


async def _ask(server: Server, place: Place) -> AsyncIterator[Check]:
    from headway.cli.fleet import of_a_tenant
    from headway.cli.moments import now
    from headway.wire.views.events import WebhookView
    from headway.wire.views.fleet import NodeView, Stats
    from headway.wire.views.schedules import SchedulePage
    from headway.wire.views.tasks import DeadGroup

    stats = await server.get("/v1/stats", Stats, timeout=10.0)
    yield version(stats, place.url)
    if stats.trouble:
        todo = "make room where the database is (disk, memory), or see what is wrong with its files: it goes on by itself"
        yield Check("room", "fail", stats.trouble, todo)
    if of_a_tenant(stats):
        yield Check("agents", "ok", "not looked at: the nodes are the operator's")
    else:
        yield from_fleet(stats)
        for one in duties(stats.leaders):
            yield one
    found = [
        *nodes(await server.get("/v1/nodes", list[NodeView], timeout=10.0)),
        *queues(stats.queues),
        *schedules((await server.get("/v1/schedules", SchedulePage, timeout=10.0, limit=1000, next=0)).schedules),
        *webhooks(await _failing(server, await server.get("/v1/webhooks", list[WebhookView], timeout=10.0))),
        *dead_letters(await server.get("/v1/dead-letters", list[DeadGroup], timeout=10.0, group=1), now()),
    ]
    for one in found:
        yield one


def version(stats: Stats, url: str) -> Check:
    from headway.version import VERSION

    if stats.version == VERSION:
        return Check("server", "ok", f"{url}, version {stats.version}" + (f", {stats.servers} in all" if stats.servers else ""))
    return Check("server", "warn", f"version {stats.version}, and this is {VERSION}", "run the same version on both sides")


def from_fleet(stats: Stats) -> Check:
    if up := stats.nodes.get("up", 0):
        return Check("agents", "ok", f"{up} up, {stats.free_cpus:g} of {stats.total_cpus:g} cpus free")
    return Check("agents", "fail", "no node is up: nothing can run", "start one with `headway agent`")


def duties(leaders: dict[str, str]) -> Iterator[Check]:
    from headway.control.leader import DUTIES

    for duty in DUTIES:
        if duty not in leaders:
            yield Check(duty, "fail", "no server does this duty", "look into the servers' logs: one of them should take it within seconds")


def nodes(found: Iterable[NodeView]) -> Iterator[Check]:
    """Those that went in order are no trouble."""
    from headway.cli.fleet import CLOCK_S, clock_text

    for one in found:
        if one.state in ("up", "draining", "quarantined") and abs(one.clock_s) >= CLOCK_S:
            todo = "synchronise it (chrony, systemd-timesyncd): Headway's own times are right, what its tasks see is not"
            yield Check(f"node {one.name}", "warn", f"its clock is {clock_text(one.clock_s)}", todo)
        if one.state == "lost":
            todo = f"is the machine, or its agent, down? If it will not come back: headway node rm {one.name}"
            yield Check(f"node {one.name}", "warn", "lost", todo)
        elif one.state == "draining" and not one.trouble:
            yield Check(f"node {one.name}", "warn", "is drained: it takes no new tasks", f"headway node undrain {one.name}")
        elif one.trouble and one.state != "gone":
            yield Check(f"node {one.name}", "warn", f"takes no new tasks: it {one.trouble}", "it takes them again when that is over")


def queues(found: Iterable[QueueView]) -> Iterator[Check]:
    from headway.cli.moments import brief

    for one in found:
        if one.state == "paused" and one.ready:
            waits = f"is paused, with {_tasks(one.ready)} waiting in it"
            yield Check(f"queue {one.name}", "warn", waits, f"headway queue resume {one.name}")
        elif one.due and (one.oldest_ready_s or 0.0) > LONG_S:
            waits = f"{_tasks(one.due)} due and waiting, for up to {brief(one.oldest_ready_s or 0.0)}"
            yield Check(f"queue {one.name}", "warn", waits, "headway ls --state ready, then headway explain ID")


def schedules(found: Iterable[ScheduleView]) -> Iterator[Check]:
    from headway.cli.schedule import trouble

    said = []
    for one in found:
        name = f"schedule {one.name}"
        if why := trouble(one):
            said.append(Check(name, "warn", f"{one.state}; {why}", f"headway schedule show {one.name}"))
        elif one.state == "paused":
            said.append(Check(name, "warn", "is paused: it does not fire", f"headway schedule resume {one.name}"))
    yield from _some(said, "schedules", "headway schedule ls")


async def _failing(server: Server, found: Iterable[WebhookView]) -> list[tuple[WebhookView, str]]:
    """Those with a message that did not arrive, and why. A message that only waits is on its way."""
    from urllib.parse import quote

    from headway.wire.views.events import DeliveryView

    said = []
    for one in found:
        if one.enabled and (one.waiting or one.dead):
            path = f"/v1/webhooks/{quote(one.name, safe='')}/deliveries"
            deliveries = await server.get(path, list[DeliveryView], timeout=10.0)
            late = [each for each in deliveries if each.state != "delivered" and each.attempts]
            if late or one.dead:
                said.append((one, next((each.error for each in late if each.error), "")))
    return said


def webhooks(failing: Iterable[tuple[WebhookView, str]]) -> Iterator[Check]:
    said = []
    for one, error in failing:
        counted = f"{one.waiting} messages wait, {one.dead} were given up" + (f": {error[:80]}" if error else "")
        said.append(Check(f"webhook {one.name}", "warn", counted, f"headway webhook deliveries {one.name}; then `replay`"))
    yield from _some(said, "webhooks", "headway webhook ls")


def dead_letters(found: Iterable[DeadGroup], now: datetime.datetime) -> Iterator[Check]:
    fresh = [one for one in found if now - one.last_at < RECENT]
    if fresh:
        most = max(fresh, key=lambda one: one.count)
        text = f"new ones in the last hour, most often ({most.count}): {most.name}: {most.message[:80]}"
        yield Check("dead letters", "warn", text, "headway dead ls")


def _some(said: list[Check], what: str, look: str) -> Iterator[Check]:
    yield from said[:SHOWN]
    if len(said) > SHOWN:
        yield Check(what, "warn", f"and {len(said) - SHOWN} more", look)


def _tasks(count: int) -> str:
    return f"{count:,} task" + ("" if count == 1 else "s")
