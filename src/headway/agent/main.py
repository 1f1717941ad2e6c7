"""The agent as a whole: starts the supervisor, watches it, serves it, and ends it.

Who may die, and what happens then:

- The supervisor is killed: its orphans come to this process, the next subreaper above. All are killed at once, a
  new supervisor starts with a new boot id, and the server gives back what the old one held. Where one after the other
  dies, the next is waited for ever longer: nothing runs meanwhile, no lease is renewed, and no heartbeat is sent.
- The supervisor is frozen: it answers no question, so no heartbeat is sent. When the lease has passed, it and its
  tasks are killed.
- This process is killed: the supervisor starts another one by `adopt`, which goes on with what runs. If another version is installed by
  then that does not understand this supervisor, it is started from code of this version that the supervisor has kept (kept_code.py).
- This process is frozen: the supervisor kills its tasks when the lease passes, and goes on under a new boot id.
- Both are killed, or frozen: a process that waits for that (survivor.py) ends everything that ran. If it was killed with them,
  the next agent of this node on this machine finds what is left by its mark in the environment and by its groups, and
  kills it before it registers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import uvloop

from headway.agent import forsaken, health, kept_code, sandbox, tree
from headway.agent.clock import boottime
from headway.agent.containers import engine_words, why_no_engine
from headway.agent.exchange import ExchangeSide
from headway.agent.hardware import capacity, offered_labels
from headway.agent.kept_code import CODE_FD
from headway.agent.link import LINK_FD, Adopt, EndAll, Quit, Setup
from headway.agent.link_async import Link
from headway.agent.machine_id import machine_of
from headway.agent.niceness import TOLD, USUAL, be_usual
from headway.agent.noticing import notice
from headway.agent.places import SCRATCH, box_folder, why_no_sandbox
from headway.agent.preparations import PASSED_ON as BUILD_ENVIRONMENT
from headway.agent.process import INHERITED
from headway.agent.runners import PASSED_ON
from headway.agent.servers import Servers
from headway.agent.supervisor import PROCESS
from headway.agent.variables import INSTANCE
from headway.config import Settings
from headway.domain.resources import Capacity
from headway.ending import asking_signals
from headway.errors import ConfigError, HeadwayError, VersionMismatch
from headway.logs import configure, log
from headway.version import VERSION
from headway.wire import PROTOCOL
from headway.wire.exchange import Register
from headway.wire.objects import CREDENTIALS

_SUPERVISE = "from headway.agent.begin_supervisor import main; main()"
FROZEN_S = 0.15  # after the end of the lease: the supervisor has had its chance to end the tasks itself
END_GRACE_S = 5.0
FORSAKEN_S = 30.0  # an adopted agent whom no server answers for so long ends: nobody may be left to stop it
LAST_REPORT_S = 10.0  # for the end of what was ended, if the machine is slow: what is not told counts as lost with its node
QUIT_S = 5.0
PAUSES_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0)  # before another supervisor, by how many died one soon after the other
HEALTHY_S = 60.0  # who lived so long did not die soon
DYING_S = 0.1  # its end of the link is closed a little before it is dead; its tasks live as long


def run(settings: Settings) -> int:
    """The whole agent, until SIGTERM or SIGINT; returns its exit code."""
    configure(log_format=settings.log_format, log_level=settings.log_level)
    agent = Agent(settings)
    agent.take_over()
    return int(uvloop.run(agent.run()))


def adopt() -> None:
    """Started by a supervisor whose exchange side died; the link is descriptor 3 and begins with the settings."""
    be_usual()  # who started it is prompt
    os.set_inheritable(LINK_FD, False)
    sock = socket.socket(fileno=LINK_FD)
    length = sock.recv(4, socket.MSG_WAITALL)  # exactly the first frame: the rest is for the link
    body = sock.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL)
    message = msgspec.msgpack.decode(body, type=Adopt)
    if (message.link, message.protocol) != kept_code.OWN:
        raise SystemExit(
            f"the supervisor that keeps the tasks of this agent speaks {_spoken((message.link, message.protocol))}, the installed Headway "
            f"{_spoken(kept_code.OWN)}: start the agent again"
        )
    if message.kept:
        os.set_inheritable(CODE_FD, False)
    settings = msgspec.msgpack.decode(message.settings, type=Settings)
    configure(log_format=settings.log_format, log_level=settings.log_level)
    agent = Agent(settings)
    agent.adopted(message.supervisor, sock, asked=message.asked)
    raise SystemExit(uvloop.run(agent.run()))


class Agent:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.work_dir = os.path.realpath(
            settings.work_dir or os.path.join(settings.data_dir, "agent", settings.node_name.replace("/", "_"))
        )
        with _said_of(self.work_dir):
            os.makedirs(self.work_dir, mode=0o700, exist_ok=True)
        key = f"{self.work_dir}\0{settings.node_name}".encode()
        self.instance = hashlib.blake2b(key, digest_size=8).hexdigest()
        self.capacity = _capacity(settings, self.work_dir)
        self.engine = engine_words(settings.container_engine)  # as the supervisor finds it
        self.supervisor = 0
        self._sock: socket.socket | None = None
        self._adopted = False
        self._code = -1  # what this process was started from, for the supervisor to keep
        self._lock: int | None = None
        self._tried: object = None  # the bubblewrap that a sandbox was last tried with
        self._others = set(tree.children(os.getpid()))  # children that are none of our business
        self._deaths = 0  # of supervisors, one soon after the other
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def take_over(self) -> None:
        """Be the only agent of this node on this machine, and leave nothing of an earlier one running."""
        with _said_of(self.work_dir):
            self._lock = os.open(os.path.join(self.work_dir, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"an agent of node {self.settings.node_name!r} is already running here",
                hint="choose another --name, or stop it first",
            ) from None
        self._code = kept_code.pack()
        self._kill_leftovers()
        if os.path.dirname(self._box) != self.work_dir:
            forsaken.sweep(os.path.dirname(self._box))
        if self._try_sandbox():
            self._offer_sandbox()
        if self.engine and "container" not in self.capacity.labels:
            log("agent.no_containers", level="warning", engine=self.engine[0], reason=why_no_engine(self.engine), hint="start its daemon")
        tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)  # only now: what the trial of a sandbox leaves is not for us to wait for

    def _offer_sandbox(self) -> None:
        self.capacity = msgspec.structs.replace(self.capacity, labels={"sandbox": "yes", **self.capacity.labels})

    @property
    def _box(self) -> str:
        return box_folder(self.settings.sandbox_dir, self.work_dir, self.instance)

    def _try_sandbox(self) -> bool:
        self._tried = sandbox.installed()
        why = why_no_sandbox(self._box, self.settings.sandbox_uid)
        if why is None:
            forsaken.note_owner(self._box, self.work_dir)
        else:
            log("agent.no_sandbox", why=why)
        return why is None

    def _has_sandbox(self) -> bool:
        """Tried once with each bubblewrap that comes: a trial leaves a process behind. In one that was made before tasks may run."""
        there = sandbox.installed()
        made = "sandbox" in self.capacity.labels or os.path.isdir(self._box)
        return there is not None and (made or (there != self._tried and self._try_sandbox()))

    def _offered(self) -> dict[str, str]:
        """As capacity.labels, found anew."""
        settings = self.settings
        found = offered_labels(settings.labels, settings.volumes, settings.runners, self.engine)
        return {"sandbox": "yes", **found} if self._has_sandbox() else found

    async def _offer(self, side: ExchangeSide, labels: dict[str, str]) -> None:
        self.capacity = msgspec.structs.replace(self.capacity, labels=labels)
        await side.offer(self.capacity)

    def adopted(self, supervisor: int, sock: socket.socket, *, asked: int) -> None:
        """Go on for an exchange side that died, also with ending if the agent was asked to (twice: to hurry)."""
        self.supervisor, self._sock, self._adopted = supervisor, sock, True
        for _ in range(asked):
            self._asked_to_stop()
        self._code = kept_code.pack()
        tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
        if os.path.isdir(self._box):
            self._offer_sandbox()

    def _examine(self, before: bool) -> str:
        if kept_code.installed() != kept_code.OWN:  # what the supervisor would start for new tasks is of another version
            return kept_code.TROUBLE
        folders = {"work": os.path.join(self.work_dir, SCRATCH)}
        if "sandbox" in self.capacity.labels:
            folders["sandbox"] = self._box
        return health.trouble(folders, before=before)

    def _kill_leftovers(self) -> None:
        supervisor = tree.carries(f"{PROCESS}={self.instance}")
        task = tree.carries(f"{INSTANCE}={self.instance}")
        killed = tree.kill([], lambda text: supervisor(text) or task(text))
        if killed:
            log("agent.killed_leftovers", level="warning", processes=len(killed))

    # --- the supervisor

    def _start_supervisor(self) -> None:
        if (there := kept_code.installed()) != kept_code.OWN:
            raise VersionMismatch(
                f"the installed Headway speaks {_spoken(there)}, this agent, which was started before, {_spoken(kept_code.OWN)}",
                hint="start the agent again",
            )
        ours, theirs = socket.socketpair()
        high, code = os.dup(theirs.fileno()), os.dup(self._code)
        try:
            self.supervisor = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _SUPERVISE],
                _environment(os.environ, self.instance),
                file_actions=[(os.POSIX_SPAWN_DUP2, high, LINK_FD), (os.POSIX_SPAWN_DUP2, code, CODE_FD)],
                setsid=True,
                setsigmask=(),
            )
        finally:
            os.close(high)
            os.close(code)
            theirs.close()
        self._sock = ours

    def _kill_supervisor(self) -> None:
        """The supervisor is dead or frozen: end it and everything that was below it."""
        orphans = [pid for pid in tree.children(os.getpid()) if pid not in self._others]
        tree.kill([*orphans, self.supervisor], tree.carries(f"{INSTANCE}={self.instance}"))
        tree.send([self.supervisor], signal.SIGKILL)  # it may be our parent, which a walk spares
        for pid in tree.children(os.getpid()):
            if pid not in self._others:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        self.supervisor, self._sock = 0, None

    async def _connect(self, servers: Servers) -> tuple[Link, ExchangeSide]:
        fresh = self._sock is None
        if self._sock is None:
            self._start_supervisor()
        assert self._sock is not None
        register = Register(
            name=self.settings.node_name, boot="", capacity=self.capacity, protocol=PROTOCOL, version=VERSION,
            # Who goes on for another is of the same machine by its boot: its work folder may be gone, and an older server reckon otherwise.
            machine="" if self._adopted else machine_of(self.work_dir),
        )  # fmt: skip
        link = Link()
        side = ExchangeSide(servers, link, register, log, examine=self._examine)
        await link.connect(self._sock, side.hear)
        if fresh:
            amounts = list(self.capacity.amounts())
            link.send(Setup(msgspec.msgpack.encode(self.settings), self.instance, self.work_dir, amounts))
        return link, side

    # --- the life of the agent

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in asking_signals():
            loop.add_signal_handler(number, self._asked_to_stop)
        urls = [url.strip() for url in self.settings.url.split(",") if url.strip()]
        servers = Servers(urls, self.settings.token, self.settings.tls_ca)
        try:
            while True:
                link, side = await self._connect(servers)
                began = boottime()
                code = await self._serve(link, side)
                link.close()
                if code is not None:
                    return code
                self._kill_supervisor()
                self._deaths, pause = another(self._deaths, boottime() - began)
                if pause and await self._asked_within(pause):
                    return 0  # nothing runs here, and no supervisor lives long enough to say so
        finally:
            await servers.close()

    async def _serve(self, link: Link, side: ExchangeSide) -> int | None:
        """Serve one supervisor. An exit code when the agent shall end, None when the supervisor is dead or frozen."""
        serving = asyncio.create_task(side.run())
        stopping = asyncio.create_task(self._drain(link, side))
        dead = asyncio.create_task(link.ended.wait())
        frozen = asyncio.create_task(_frozen(side))
        forsaken = asyncio.create_task(_forsaken(side) if self._adopted else asyncio.Event().wait())
        noticing = asyncio.create_task(notice(self.settings.look_s, self.capacity.labels, self._offered, partial(self._offer, side)))
        decisive: tuple[asyncio.Task[Any], ...] = (serving, stopping, dead, frozen, forsaken)
        done, _ = await asyncio.wait(decisive, return_when=asyncio.FIRST_COMPLETED)
        for task in (*decisive, noticing):
            task.cancel()
        await asyncio.gather(*decisive, noticing, return_exceptions=True)
        if serving in done:
            await self._quit(link)
            return _failed(serving.exception())
        if stopping in done or forsaken in done:
            await side.beat_once()
            await self._quit(link)
            return 0
        log("agent.supervisor_gone", level="error", how=await self._how_it_died() if dead in done else "does not answer")
        return None

    async def _how_it_died(self) -> str:
        """In words. Of one that has started this process its parent knows more, and not we."""
        until = boottime() + DYING_S
        while not (how := _end_of(self.supervisor)) and boottime() < until:
            await asyncio.sleep(0.005)
        return how or "died"

    async def _asked_within(self, seconds: float) -> bool:
        """Wait so long, or until this agent is asked to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        return self._stop.is_set()

    async def _quit(self, link: Link) -> None:
        """The supervisor kills what is left and exits; one that does not is killed with everything below it."""
        link.send(Quit())
        try:
            await asyncio.wait_for(link.ended.wait(), QUIT_S)
        except TimeoutError:
            self._kill_supervisor()

    def _asked_to_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _drain(self, link: Link, side: ExchangeSide) -> None:
        """After SIGTERM: wait for what runs, then end it; a second SIGTERM ends it at once."""
        await self._stop.wait()
        log("agent.draining", seconds=self.settings.drain_s)
        await side.drain()
        if await self._settled(side, self.settings.drain_s, self._hurry.is_set):
            return
        grace = 0.0 if self._hurry.is_set() else END_GRACE_S
        link.send(EndAll(grace))
        await self._settled(side, grace + LAST_REPORT_S, lambda: boottime() >= side.lease)  # then no server listens

    async def _settled(self, side: ExchangeSide, seconds: float, give_up: Callable[[], bool]) -> bool:
        """Whether within that time nothing is held any more and everything was reported."""
        until = boottime() + seconds
        while (left := until - boottime()) > 0 and not give_up():
            try:
                state = await asyncio.wait_for(side.state(), left)
            except TimeoutError:
                return False
            if state.settled and side.clear:
                return True
            await asyncio.sleep(0.05)
        return False


def another(deaths: int, lived_s: float) -> tuple[int, float]:
    """One more supervisor died: how many did so by now, one soon after the other, and how long to wait before another one is started."""
    before = 0 if lived_s >= HEALTHY_S else deaths
    return before + 1, PAUSES_S[min(before, len(PAUSES_S) - 1)]


def _end_of(child: int) -> str:
    """How it died; nothing while it lives. It can be waited for still."""
    try:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "died"
    if ended is None:
        return ""
    number = ended.si_status
    return f"died: exit code {number}" if ended.si_code == os.CLD_EXITED else f"died: signal {number}, {signal.strsignal(number)}"


@contextlib.contextmanager
def _said_of(work_dir: str) -> Iterator[None]:
    """A folder that is another user's, or can be written by nobody."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise
        raise ConfigError(
            f"the work folder {work_dir} cannot be used by this user: {error.strerror}",
            hint="run the agent as the user that owns it, chown it, or choose another with --work-dir or --data-dir",
        ) from error


def _spoken(versions: tuple[int, ...] | None) -> str:
    return "another version" if versions is None else f"link {versions[0]} and protocol {versions[1]}"


async def _frozen(side: ExchangeSide) -> None:
    """Returns when the lease is over and the supervisor has not said that it has ended its tasks."""
    while True:
        lease = side.lease
        if lease and boottime() >= lease + FROZEN_S:
            await asyncio.sleep(0.05)  # this process itself may have been frozen: read first what was said meanwhile
            if side.lease == lease:
                return
        await asyncio.sleep(max(lease + FROZEN_S - boottime(), 0.0) if lease else 0.5)


async def _forsaken(side: ExchangeSide) -> None:
    """Returns when no server has renewed the lease for long."""
    since = boottime()
    while True:
        left = max(since, side.renewed) + FORSAKEN_S - boottime()
        if left <= 0:
            log("agent.forsaken", level="warning", seconds=FORSAKEN_S)
            return
        await asyncio.sleep(left)


def _failed(error: BaseException | None) -> int:
    if isinstance(error, HeadwayError):
        raise error
    if error is not None:
        raise RuntimeError("the agent's exchange side failed") from error
    raise AssertionError("the exchange side ended by itself")


def _capacity(settings: Settings, work_dir: str) -> Capacity:
    return capacity(
        cpus=settings.cpus,
        memory=settings.memory,
        disk=settings.disk,
        labels=settings.labels,
        work_dir=work_dir,
        volumes=settings.volumes,
        runners=settings.runners,
        engine=settings.container_engine,
    )


def _environment(source: Mapping[str, str], instance: str) -> dict[str, str]:
    """For the supervisor: what tasks and runners may inherit, and its mark. No token: it gets the settings by the link."""
    env = {name: source[name] for name in (*INHERITED, *PASSED_ON, *BUILD_ENVIRONMENT, *CREDENTIALS) if name in source}
    env[PROCESS], env[TOLD] = instance, str(USUAL)
    return env
