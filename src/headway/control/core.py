"""Everything one server runs, put together: the parts, their loops, start and graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headway.config import Settings
from headway.control.access import Access
from headway.control.actions import Actions
from headway.control.administration import Administration
from headway.control.admission import Admission
from headway.control.allowances import Allowances
from headway.control.archivist import Archivist, ensure_partitions
from headway.control.audit import Audit
from headway.control.bounded_waiting import BoundedWaiting
from headway.control.bus import Bus
from headway.control.changing import Changing
from headway.control.checkpoints import Checkpoints
from headway.control.clock import Clock
from headway.control.contents import Contents
from headway.control.definitions import Definitions
from headway.control.deliveries import Deliveries
from headway.control.dispatcher import Dispatcher
from headway.control.draft import Drafts
from headway.control.duties import Loop
from headway.control.exchanges import Exchanges
from headway.control.expanding import Expander
from headway.control.explaining import Explaining
from headway.control.express import Express
from headway.control.feasibility import Feasibility
from headway.control.firing import Firing
from headway.control.fleet import Fleet
from headway.control.following import Following
from headway.control.heartbeats import Heartbeats
from headway.control.identity import IdSource
from headway.control.impossible import Impossible
from headway.control.leader import Leader
from headway.control.notifier import Notifier
from headway.control.once import Once
from headway.control.onward import Onward
from headway.control.outlook import Outlook
from headway.control.outputs import Outputs
from headway.control.planner import Planner
from headway.control.predictions import Predictions, Sampler
from headway.control.preemption import Preemption
from headway.control.promises import Promises
from headway.control.queues import Queues
from headway.control.queueviews import QueueViews
from headway.control.rates import Rates
from headway.control.reaper import Reaper
from headway.control.removing import Removing
from headway.control.reports import ReportDesk
from headway.control.reserving import Reserving
from headway.control.scenes import Scenes
from headway.control.schedules import Schedules
from headway.control.sealing import Seal
from headway.control.secrets import Secrets
from headway.control.sessions import Sessions
from headway.control.starting import Starter
from headway.control.steering import Steering
from headway.control.streaming import Streams
from headway.control.sweeper import Sweeper
from headway.control.tenants import Tenants
from headway.control.timekeeper import Timekeeper
from headway.control.tree_actions import TreeActions
from headway.control.waiting import Waiting
from headway.control.webhooks import Webhooks
from headway.domain.task import Definition
from headway.errors import HeadwayError, Unavailable
from headway.logs import log
from headway.policy import webhook
from headway.policy.tiers import larger
from headway.store.database import Database
from headway.store.queries import query
from headway.version import VERSION

BEAT_S = 3.0
SLOW_BEAT_S = 9.0  # for what changes are told of anyway
_ALIVE = query("duty.server_alive")
_GONE = query("duty.server_gone")
_SERVERS = query("duty.servers")


class Core:
    """One server."""

    def __init__(self, settings: Settings, dsn: str, holder: str) -> None:
        self.settings = settings
        self.holder = holder
        self.url = ""  # set before start()
        self.database = Database(dsn, pool_size=settings.pool_size, statement_timeout_s=settings.db_statement_timeout_s)
        self.bus, self.clock = Bus(), Clock()
        self.servers: list[dict[str, Any]] = []
        self.rates = Rates()
        self.ready = False
        self._tasks: list[asyncio.Task[None]] = []
        self._last_beat = 0.0
        self._vacant = asyncio.Event()  # somebody handed duties on
        self.bus.on_vacant.append(self._vacant.set)
        self._slow_beat = 0.0
        self._make_knowledge()
        self._make_exchange()
        self._make_planning()
        self._make_work()
        self._make_webhooks()
        self._make_time()

    def _make_knowledge(self) -> None:
        """What all others ask: who, what, where."""
        database, bus, clock, settings, holder = self.database, self.bus, self.clock, self.settings, self.holder
        self.access = Access(database)
        self.tenants = Tenants(database, bus)
        self.queues = Queues(database, bus)
        beside = Path(settings.data_dir) / "secrets.key"
        seal = self.seal = Seal(Path(settings.secrets_key or beside), shared=settings.secrets_key is not None)
        self.definitions = Definitions(database, self.queues, seal)
        self.definitions.confinement = self.tenants.confinement
        self.definitions.larger = self._larger
        self.secrets = Secrets(database, self.definitions, seal)
        self.contents = Contents(database, self.definitions, self.secrets)
        self.once = Once(database)
        self.outputs = Outputs(settings.output_store)
        self.drafts = Drafts(self.definitions, self.tenants, self.contents)
        self.fleet = Fleet(database, bus.fleet)
        self.ids = IdSource(database, clock, holder)
        self.leader = Leader(database, holder, settings.duty_lease_s)
        self.audit = Audit(database)
        self.administration = Administration(database, self.tenants, self.access)
        self.allowances = Allowances(database, self.tenants, holder)
        self.predictions = Predictions(database)

    def _make_exchange(self) -> None:
        """What talks with agents."""
        database, bus, clock, settings = self.database, self.bus, self.clock, self.settings
        self.desk = ReportDesk(database, self.definitions, clock, bus)
        self.sessions = Sessions(self.definitions)
        self.heartbeats = Heartbeats(database)
        self.checkpoints = Checkpoints(database, settings.max_checkpoint)
        self.exchanges = Exchanges(
            database, self.fleet, self.definitions, self.sessions, self.desk, self.heartbeats, self.leader,
            self.checkpoints, bus, self.secrets,
            settings.heartbeat_s, settings.fence_s, settings.hold_s,
        )  # fmt: skip

    def _make_planning(self) -> None:
        """What gives tasks to nodes, foresees it and explains it."""
        database, bus, clock, holder = self.database, self.bus, self.clock, self.holder
        self.planner = Planner(
            database,
            self.leader,
            self.fleet,
            self.definitions,
            self.sessions,
            self.tenants,
            bus,
            clock,
            lambda nodes: self.notifier.orders(nodes),
        )
        self.desk.onward = lambda: Onward(self.planner)
        self.outlook = Outlook(database, self.leader, self.planner, clock)
        self.scenes = Scenes(database, self.definitions, self.predictions)
        self.promises = Promises(database, self.outlook, self.fleet, self.scenes, clock)
        self.queue_views = QueueViews(database, clock, self.definitions, self.queues, self.outlook)
        self.notifier = Notifier(database, holder, bus, self.planner, self.exchanges, self.tenants)
        self.explaining = Explaining(
            database, clock, self.definitions, self.queues, self.fleet, self.planner, self.outlook, self.scenes,
            self.settings.fence_s, self.settings.lost_s,
        )  # fmt: skip
        self.reserving = Reserving(self.planner, self.scenes, clock)
        self.impossible = Impossible(
            database, self.leader, bus, self.fleet, self.planner, self.definitions, self.settings.impossible_s
        )
        self.preemption = Preemption(database, self.leader, self.planner, self.definitions, bus, clock)

    def _make_work(self) -> None:
        """What takes tasks in and changes them."""
        database, bus, clock, settings = self.database, self.bus, self.clock, self.settings
        self.admission = Admission(
            database,
            clock,
            self.ids,
            self.fleet,
            bus,
            Express(database, self.planner, bus),
            self.allowances,
            settings.admission_queue,
        )
        self.actions = Actions(database, self.definitions, self.contents, self.fleet, self.tenants, bus)
        self.streams = Streams(database, self.drafts, self.fleet, self.ids, clock, bus, self.allowances)
        self.trees = TreeActions(database, self.actions, bus)
        self.changing = Changing(database, self.definitions, self.contents, self.tenants, self.fleet, bus)
        self.steering = Steering(database, bus)
        self.waiting = Waiting(database, bus)
        self.following = Following(database, bus)

    def _make_webhooks(self) -> None:
        """What tells others."""
        database, bus, clock, settings = self.database, self.bus, self.clock, self.settings
        allowed = webhook.networks(settings.webhook_networks)
        self.webhooks = Webhooks(database, self.seal, allowed)
        self.definitions.check_target = self.webhooks.check_target
        self.dispatcher = Dispatcher(database, self.leader, bus, "headway")
        self.deliveries = Deliveries(database, clock, self.seal, allowed, settings.webhook_timeout_s, settings.webhook_concurrency)

    def _make_time(self) -> None:
        """What happens because time passes."""
        database, bus, clock, settings, holder = self.database, self.bus, self.clock, self.settings, self.holder
        self.bounded_waiting = BoundedWaiting(database, self.leader, bus)
        self.timekeeper = Timekeeper(database, self.leader, bus, Expander(self.definitions, self.ids, clock, self.allowances))
        self.starter = Starter(self.drafts, self.definitions, self.ids, clock, bus)
        self.firing = Firing(database, self.leader, self.starter, self.actions, self.allowances)
        sampler = Sampler(database, self.leader, self.definitions, bus)
        self.feasibility = Feasibility(database, self.leader, self.definitions, self.predictions, sampler)
        self.schedules = Schedules(database, self.drafts, self.fleet, self.starter, self.feasibility, self.allowances, bus)
        self.reaper = Reaper(
            database, self.leader, self.definitions, self.fleet, bus, holder, lambda: self.url, settings.lost_s, settings.hold_s
        )
        self.exchanges.held = self.reaper.watch.held
        self.archivist = Archivist(database, self.leader, clock, settings.retention_days)
        self.removing = Removing(
            database, self.leader, clock, self.tenants, self.access, self.actions, self.webhooks, settings.retention_days
        )
        self.sweeper = Sweeper(database, bus)

    async def start(self) -> None:
        """Open the database, claim a number, make partitions, run everything."""
        await self.database.open()
        await self.clock.ask(self.database)
        await ensure_partitions(self.database, self.clock)
        await self.ids.claim()
        await self.fleet.refresh()
        await self.tenants.refresh()
        await self.queues.refresh()
        await self.webhooks.seal_old()
        await self._beat()
        timekeeper = Loop("timekeeper", self.leader, self.timekeeper.run_once)
        firing = Loop("timekeeper", self.leader, self.firing.run_once)
        feasibility = Loop("timekeeper", self.leader, self.feasibility.run_once)
        bounded_waiting = Loop("bounded_waiting", self.leader, self.bounded_waiting.run_once)
        for told in (self.bus.on_scheduled, self.bus.on_scheduled_elsewhere):
            told += [timekeeper.wake.set, firing.wake.set, bounded_waiting.wake.set]
        planner = Loop("planner", self.leader, self.planner.run_once, wake=self.planner.wake, step_down=self.planner.step_down)
        preemption = Loop("planner", self.leader, self.preemption.run_once)
        self.preemption.wake = preemption.wake.set
        reserving = Loop("planner", self.leader, self.reserving.run_once)
        self.reserving.wake = reserving.wake.set
        outlook = Loop("planner", self.leader, self.outlook.run_once)
        self.outlook.wake = outlook.wake.set
        removing = Loop("archivist", self.leader, self.removing.run_once)
        self.bus.on_tenants.append(removing.wake.set)
        dispatcher = Loop("dispatcher", self.leader, self.dispatcher.run_once)
        self._connect_webhooks(dispatcher.wake)
        loops: list[Callable[[], Awaitable[None]]] = [
            self.admission.lanes.run, self.desk.lanes.run, self.heartbeats.run, self.notifier.run, self.waiting.run, self._beats,
            planner.run, timekeeper.run, firing.run, feasibility.run, preemption.run, Loop("reaper", self.leader, self.reaper.run_once).run,
            dispatcher.run, self.deliveries.run,
            outlook.run, reserving.run, self.allowances.run, bounded_waiting.run, self.sweeper.run,
            Loop("planner", self.leader, self.impossible.run_once).run,
            Loop("archivist", self.leader, self._archive).run, removing.run,
        ]  # fmt: skip
        self._tasks = [asyncio.ensure_future(_forever(loop)) for loop in loops]
        self.ready = True
        log("server.started", holder=self.holder, number=self.ids.number)

    def _connect_webhooks(self, wake: asyncio.Event) -> None:
        """New events wake the dispatcher if anybody listens, its messages wake the deliveries."""

        def happened() -> None:
            if self.dispatcher.busy:
                wake.set()

        def changed() -> None:
            self.deliveries.wake()
            wake.set()

        self.bus.on_ended.append(lambda _: happened())
        self.bus.on_told.append(happened)
        self.bus.on_remote.append(happened)
        self.webhooks.on_change.append(changed)
        self.dispatcher.sent.append(self.deliveries.wake)

    def _larger(self, tenant: int, definition: Definition) -> Definition | None:
        """A larger form that the tenant may have and some node could run."""
        found = larger(definition, self.tenants.tiers(tenant), most_memory=self.tenants.get(tenant).max_memory)
        return found if found is not None and self.fleet.could_run(found.resources) else None

    def begin_stop(self) -> None:
        """Nobody waits here any longer: long polls, waiting clients and streams are answered."""
        self.ready = False
        self.sessions.stop()
        self.waiting.stop()
        self.following.stop()

    async def stop(self) -> None:
        """Hand the duties on, end the loops, give the number back."""
        self.begin_stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.leader.hand_on()
            await self.notifier.tell_at_once("duties")
            await self.ids.release()
            async with self.database.cold() as connection:
                await connection.execute(_GONE, self.holder)
        except HeadwayError as error:
            log("server.left_hastily", level="warning", error=str(error))
        await self.database.close()
        log("server.stopped", holder=self.holder)

    async def _archive(self) -> float:
        await self.trees.run_once()
        return await self.archivist.run_once()

    async def _beats(self) -> None:
        while True:
            rest = self._last_beat + min(BEAT_S, self.settings.duty_lease_s * 0.3) - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, rest)):
                    await self._vacant.wait()
            self._vacant.clear()
            try:
                await self._beat()
            except Unavailable as error:
                log("server.waits", level="warning", error=str(error))
                await asyncio.sleep(0.2)

    async def _beat(self) -> None:
        """Leases, nodes and servers every time, the rest less often (changes made elsewhere are told by NOTIFY)."""
        now = self._last_beat = time.monotonic()
        await self.fleet.refresh()
        if "planner" in await self.leader.renew():
            self.planner.wake.set()
        if now - self._slow_beat >= min(SLOW_BEAT_S, self.settings.duty_lease_s):
            await self.tenants.refresh()
            await self.queues.refresh()
            await self.clock.ask(self.database)
            await self.ids.renew()
            self._slow_beat = now
        others = any(server["boot"] != self.holder for server in self.servers)
        async with self.database.cold() as connection:
            await connection.execute(
                _ALIVE, self.holder, socket.gethostname(), self.url, self.ids.number, VERSION, not (others or self.notifier.others)
            )
            self.servers = [dict(row) for row in await connection.fetch(_SERVERS)]
        # Only what is on record counts: a reaper elsewhere goes by it (see Reaper).
        self.exchanges.alone = not (others or self.notifier.others)
        self.notifier.others = any(server["boot"] != self.holder for server in self.servers)


async def _forever(loop: Callable[[], Awaitable[None]]) -> None:
    """A loop that ends by an unexpected error is logged and started again: one defect must not stop the server."""
    while True:
        try:
            await loop()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log("loop.failed", level="error", loop=getattr(loop, "__qualname__", str(loop)), error=repr(error))
            await asyncio.sleep(0.5)
