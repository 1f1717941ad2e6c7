"""The exchange side: everything an agent says to servers and hears from them.

Three conversations at once. *Poll* holds one call open that brings orders. *Report* sends news as soon as the last
were answered. *Beat* says each heartbeat_s that we live and what we hold; only an answer with `renewed` moves the
lease on, from the moment the call was *sent*. Task data is not decoded here: it passes between the server's answer
and the supervisor as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headway.agent.clock import boottime, wall_ms
from headway.agent.link import Answer, Ask, Drain, Lease, Lost, NewBoot, Part, Report, Reported, State, Taken
from headway.agent.link_async import Link
from headway.agent.reports import compose
from headway.agent.servers import BACKOFF_S, Servers
from headway.domain.resources import Capacity
from headway.errors import Unauthorized, VersionMismatch
from headway.version import VERSION
from headway.wire import PROTOCOL
from headway.wire.exchange import ENDING, MSGPACK, Exchange, Orders, Ref, Register, Registered, encode_msgpack
from headway.wire.http import Http, Response
from headway.wire.views.answers import Problem

POLL_S = 10.0
REPORT_BYTES = 8 * 2**20  # in one call
REGISTER_TIMEOUT_S = 5.0
REPORT_TIMEOUT_S = 30.0
REPORT_GAP_S = 0.003  # a short report waits so long for company when another was just sent: each costs 0.3 ms
SHORT = 200
PATIENCE = 5  # refusals of a report before it is sent part by part


class Head(msgspec.Struct):
    """What the exchange side itself reads of an answer (wire.exchange.Orders)."""

    sequence: int
    renewed: bool = False
    hold: bool = False
    lost: bool = False
    drain: bool = False
    orders: msgspec.Raw = msgspec.Raw()
    cancels: msgspec.Raw = msgspec.Raw()
    controls: msgspec.Raw = msgspec.Raw()


class Refused(Exception):
    """This boot is not welcome any more: register again."""


_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_refs = msgspec.msgpack.Decoder(list[Ref]).decode


@dataclass(eq=False, slots=True)
class _News:
    """A part of a report of the supervisor."""

    number: int  # of the report
    part: Part
    sent: bool = False  # and not yet answered


class ExchangeSide:
    def __init__(
        self, servers: Servers, link: Link, register: Register, log: Callable[..., None], *, examine: Callable[[bool], str]
    ) -> None:
        self.servers, self.link, self.log = servers, link, log
        self._examine = examine  # what is wrong with this machine, given whether something was
        self._found = ""  # what it said last
        self.register = register
        self.terms = Registered(0, 1.0, 3.0, 60.0, PROTOCOL, VERSION)
        self.boot = ""
        self.lease = 0.0  # CLOCK_BOOTTIME; read by main.py, which kills a frozen supervisor when it passes
        self.draining = False  # the supervisor was told
        self._ending = False
        self._ending_known = asyncio.Event()  # to the servers
        self._beat_soon = asyncio.Event()
        self.renewed = 0.0  # when the last heartbeat was sent that a server committed
        self._sequence = int(boottime() * 1e6)  # above any of an earlier exchange side of the same boot
        self._parts: list[_News] = []  # they stay until they are answered
        self._heard = 0  # the number of the supervisor's last report
        self._news = asyncio.Event()
        self._reported_at = 0.0
        self._refusals = 0
        self._put_off = 0  # calls that a server could not store, since the lease was last renewed
        # None: not heard yet. The supervisor may have been told otherwise by an exchange side that died: the first answer is passed on.
        self._server_drains: bool | None = None
        self._received: list[Ref] = []
        self._unknown: list[int] = []
        self._answers = 0
        self._asks = 0
        self._taken: dict[int, asyncio.Future[Taken]] = {}
        self._states: dict[int, asyncio.Future[State]] = {}
        self._boot_changed = asyncio.Event()
        self._leased = asyncio.Event()
        self._registering = asyncio.Lock()  # one after another: a boot must not come after its successor

    # --- from the supervisor

    def hear(self, message: object) -> None:
        if isinstance(message, Report):
            self._heard = message.number
            self._parts += [_News(message.number, part) for part in message.parts]
            self._news.set()
        elif isinstance(message, Taken):
            if (taken := self._taken.pop(message.number, None)) is not None and not taken.done():
                taken.set_result(message)
        elif isinstance(message, State):
            if (state := self._states.pop(message.number, None)) is not None and not state.done():
                state.set_result(message)
        elif isinstance(message, NewBoot):
            self.boot, self.lease = message.boot, 0.0
            self._boot_changed.set()

    # --- the life of a boot

    async def run(self) -> None:
        """Serve one supervisor for as long as it lives."""
        while True:
            await self._wait_for_boot()
            async with self._registering:
                await self._register()
            try:
                async with asyncio.TaskGroup() as group:
                    for conversation in (self._poll, self._report, self._report, self._beat, self._until_new_boot):
                        group.create_task(conversation())
            except* Refused as refused:
                self.log("agent.registers_again", reason=str(refused.exceptions[0]))

    async def offer(self, capacity: Capacity) -> None:
        """This machine can run other things than before. The servers hear it now, or when a boot is registered."""
        self.register = msgspec.structs.replace(self.register, capacity=capacity)
        async with self._registering:
            if self._leased.is_set():
                await self._register()

    async def drain(self) -> None:
        """Take nothing new and give back what has not begun. The servers hear of it first: for as long as they do not know, each order
        that is given back is leased to this node again at once (230 times a second). One that does not answer is not waited for."""
        self._ending = True
        if self._server_drains is not None:
            self._tell_drain()  # only that we end
        self._beat_soon.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.terms.fence_s / 2):
                await self._ending_known.wait()
        self.draining = True
        self._tell_drain()

    @property
    def _trouble(self) -> str:
        """Why this node takes no new tasks."""
        return ENDING if self._ending else self._found

    def _tell_drain(self) -> None:
        self.link.send(Drain(self.draining or bool(self._server_drains) or bool(self._found), int(self._ending)))

    def _look(self) -> None:
        """Whether this machine is fit for tasks. It says so when that changes, and with every heartbeat."""
        before, now = self._found, self._examine(bool(self._found))
        if bool(before) == bool(now):
            return  # in the same words: what it has free changes all the time
        self._found = now
        if now:
            self.log("agent.takes_nothing", level="error", reason=f"this node {now}")
        else:
            self.log("agent.takes_tasks_again")
        self._tell_drain()

    @property
    def clear(self) -> bool:
        """Whether everything the supervisor told was answered."""
        return not self._parts and not self._received

    async def _wait_for_boot(self) -> None:
        if not self.boot:
            await self._boot_changed.wait()
        self._boot_changed.clear()
        self._leased.clear()
        self._received, self._unknown = [], []

    async def _until_new_boot(self) -> None:
        await self._boot_changed.wait()
        raise Refused("the supervisor has a new boot id")

    async def _register(self) -> None:
        """VersionMismatch when every server speaks another version: while they are being upgraded one after another, some still do not."""
        first = True
        others: set[str] = set()
        while True:
            http = self.servers.http
            register = msgspec.structs.replace(self.register, boot=self.boot)
            try:
                response = await http.request(
                    "POST",
                    "/v1/nodes",
                    body=msgspec.json.encode(register),
                    timeout=REGISTER_TIMEOUT_S,
                    idempotent=True,
                )
                self.terms = _registered(response)
            except VersionMismatch as error:
                others.add(http.base_url)
                if len(others) == len(self.servers.urls):
                    raise
                self.log("agent.cannot_register", server=http.base_url, reason=str(error), level="warning")
                self.servers.failed(http)
            except (ConnectionError, TimeoutError, Unavailable) as error:
                if first:
                    self.log("agent.cannot_register", server=http.base_url, reason=str(error), level="warning")
                first = False
                self.servers.failed(http)
                await asyncio.sleep(self.servers.backoff())
            else:
                self.servers.failures = 0
                self.log("agent.registered", node=self.terms.id, server=http.base_url, boot=self.boot)
                return

    # --- conversations

    async def _poll(self) -> None:
        await self._leased.wait()  # without a lease the supervisor takes no orders
        while True:
            answer = await self._call(self._head(wait_s=POLL_S), timeout=POLL_S + 5)
            if answer is not None:
                await self._accept(answer, self.boot)

    async def _report(self) -> None:
        """Two of these run: while one report is being committed, the next may already be on its way."""
        while True:
            while not self._sendable():
                self._news.clear()
                await self._news.wait()
            await self._gather()
            news = self._sendable()
            for one in news:
                one.sent = True
            try:
                answer = await self._say([one.part for one in news]) if news else None
            finally:
                for one in news:
                    one.sent = False
            if answer is None:
                continue
            self._forget(news)
            await self._accept(answer, self.boot)

    def _forget(self, news: list[_News]) -> None:
        """They were answered. The supervisor hears up to which of its reports everything was, whichever answer came first."""
        done = set(news)
        self._parts = [one for one in self._parts if one not in done]
        self.link.send(Reported(self._parts[0].number - 1 if self._parts else self._heard))
        self._news.set()  # what could not go beside this one may go now

    def _sendable(self) -> list[_News]:
        """The next report. Beside another only when both are nothing but ends, and many: what a task said must not come after its end,
        and two small reports cost more than one."""
        waiting = [one for one in self._parts if not one.sent]
        if len(waiting) < len(self._parts) and (
            sum(one.part.count for one in waiting) < SHORT or any(one.part.field != "finished" for one in self._parts)
        ):
            return []
        return waiting[: self._portion(waiting)]

    async def _say(self, parts: list[Part]) -> bytes | None:
        """One report. When a server keeps refusing it, the parts go one by one, so that one that it cannot store does not
        hold up the others; such a part is dropped if it is no more than output. An end is never dropped."""
        answer = await self._call(self._head(), parts, timeout=REPORT_TIMEOUT_S)
        if answer is not None:
            self._refusals = max(self._refusals - 1, 0) if len(parts) == 1 else 0
        elif self._refusals >= 2 * PATIENCE and parts[0].field in ("output", "progress"):
            self.log("agent.report_dropped", level="error", field=parts[0].field, reason="the server refuses it")
            self._refusals = PATIENCE
            return encode_msgpack(Orders(0, drain=bool(self._server_drains)))
        return answer

    async def _gather(self) -> None:
        now = asyncio.get_running_loop().time()
        wait = self._reported_at + REPORT_GAP_S - now
        if wait > 0 and sum(one.part.count for one in self._parts) < SHORT:
            await asyncio.sleep(wait)
            now += wait
        self._reported_at = now

    def _portion(self, waiting: list[_News]) -> int:
        """How many of them go into one call."""
        if self._refusals >= PATIENCE:
            return 1
        size = 0
        for count, one in enumerate(waiting, 1):
            size += len(one.part.items)
            if size >= REPORT_BYTES:
                return count
        return len(waiting)

    async def _beat(self) -> None:
        due = asyncio.get_running_loop().time()
        timeout = max(self.terms.fence_s / 2 - 0.1, 0.2)
        while True:
            self._beat_soon.clear()
            draining = self.draining  # before it says what it holds: what began since then must not be taken for nothing
            state = await self.state()
            if state.boot == self.boot:
                self._look()
                sent = boottime()
                head = self._head(heartbeat=True, held=_decode_refs(state.held))
                head.draining, head.trouble = draining, self._trouble
                http = self.servers.http
                answer = await self._call(head, timeout=timeout)
                if answer is not None:
                    heard = self._renew(_decode_head(answer), sent, head.trouble)
                    await self._accept(answer, self.boot)
                    due += self.terms.heartbeat_s if heard else self.terms.heartbeat_s / 4
                    if not heard:  # it cannot reach the database: another may
                        self.servers.failed(http)
            now = asyncio.get_running_loop().time()
            due = max(due, now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._beat_soon.wait()

    async def beat_once(self) -> None:
        """The last word of an agent that ends."""
        head = self._head(heartbeat=True, held=[])
        head.draining, head.trouble = True, self._trouble
        with contextlib.suppress(ConnectionError, TimeoutError, Refused):  # it is lost after a while all the same
            await self._post(encode_msgpack(head), 2.0)

    async def state(self) -> State:
        """The supervisor's own word. It comes at once, or the supervisor is frozen and there is no heartbeat."""
        self._asks += 1
        future: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._states[self._asks] = future
        self.link.send(Ask(self._asks))
        return await future

    def _renew(self, head: Head, sent: float, trouble: str) -> bool:
        """Whether the lease goes on after a heartbeat that told of this trouble."""
        if head.renewed:
            self.renewed = sent
            self._put_off = 0
            if trouble == ENDING:
                self._ending_known.set()
        elif not head.hold or sent - self.renewed > self.terms.hold_s:
            return False
        self.lease = max(self.lease, sent + self.terms.fence_s)
        self.link.send(Lease(self.boot, self.lease, self.terms.task_key, self.terms.id))
        self._leased.set()
        return True

    async def _accept(self, body: bytes, boot: str) -> None:
        """Hand orders on and wait until they are in the supervisor's hands: only then are they received."""
        head = _decode_head(body)
        if head.lost:
            self.link.send(Lost(boot))
            await self._boot_changed.wait()
            raise Refused("the server declared this node lost")
        if head.drain != self._server_drains:  # before the orders: who leases to a node knows that it takes tasks again
            self._server_drains = head.drain
            self._tell_drain()
        if not any(memoryview(part).nbytes for part in (head.orders, head.cancels, head.controls)):
            return
        self._answers += 1
        future = self._taken[self._answers] = asyncio.get_running_loop().create_future()
        self.link.send(Answer(self._answers, boot, body))
        taken = await future
        self._received += _decode_refs(taken.refs)
        self._unknown += taken.unknown

    # --- calls

    def _head(self, *, wait_s: float = 0.0, heartbeat: bool = False, held: list[Ref] | None = None) -> Exchange:
        """A new call. It takes along what was received; `_call` puts that back if the call does not get through."""
        self._sequence += 1
        head = Exchange(self.boot, self._sequence, wait_s, heartbeat, held, now_ms=wall_ms())
        head.received, self._received = self._received, []
        head.unknown_definitions, self._unknown = self._unknown, []
        return head

    async def _call(self, head: Exchange, parts: Sequence[Part] = (), *, timeout: float) -> bytes | None:
        """One exchange; None when it did not get through: the caller says it again."""
        http = self.servers.http
        try:
            answer = await self._post(compose(head, parts), timeout)
        except (ConnectionError, TimeoutError, Unavailable) as error:
            self._refusals += isinstance(error, Rejected)
            self._received += head.received
            self._unknown += head.unknown_definitions
            await asyncio.sleep(self._failed(http, error, head))
            return None
        self.servers.failures = 0
        return answer

    def _failed(self, http: Http, error: Exception, head: Exchange) -> float:
        """Go to another server, or stay; how long to wait first. Whose database is away may tell us to hold on, and no other would."""
        stays = not head.heartbeat and (type(error) is Unavailable or isinstance(error, TimeoutError))
        if not (self._put_off if stays else self.servers.failures):
            self.log("agent.exchange_failed", server=http.base_url, reason=str(error), level="warning")
        if stays:
            self._put_off += 1
            return BACKOFF_S[min(self._put_off, len(BACKOFF_S) - 1)]
        self.servers.failed(http)
        return self.servers.backoff()

    async def _post(self, body: bytes, timeout: float) -> bytes:
        path = f"/v1/nodes/{self.terms.id}/exchange"
        response = await self.servers.http.request(
            "POST", path, body=body, content_type=MSGPACK, timeout=timeout, headers={"accept": MSGPACK}, idempotent=True
        )
        if response.status == 200:
            return response.body
        if response.status in (404, 409, 410):
            raise Refused(_detail(response))
        raise (Rejected if response.status in (400, 413, 422, 500) else Unavailable)(_detail(response))


class Unavailable(Exception):
    """The server cannot answer now."""


class Rejected(Unavailable):
    """The server understood the call and will not have it."""


def _registered(response: Response) -> Registered:
    if response.status in (200, 201):
        decode = msgspec.msgpack.decode if "msgpack" in response.headers.get("content-type", "") else msgspec.json.decode
        return decode(response.body, type=Registered)
    detail = _detail(response)
    if response.status in (401, 403):
        raise Unauthorized(f"the server refused the agent's token: {detail}")
    if response.status in (400, 426):
        raise VersionMismatch(detail, hint="run the same version of Headway on servers and agents")
    raise Unavailable(detail)


def _detail(response: Response) -> str:
    try:
        return msgspec.json.decode(response.body, type=Problem).detail
    except msgspec.MsgspecError:
        return f"HTTP {response.status}"
