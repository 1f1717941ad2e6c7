"""The supervisor's hands for checkpoint folders: a process for each that is saved or brought back (H8)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import msgspec

from headway.agent import tree
from headway.agent.carry import Answer, Job
from headway.agent.link import Terms
from headway.wire.exchange import Order

_START = "from headway.agent.carry import main; main()"
FETCH_S = 60.0
SAVE_S = 30.0
Then = Callable[[Answer], None]


class Carriers:
    def __init__(self, terms: Terms, work_dir: str, env: dict[str, str]) -> None:
        self._terms, self._env = terms, env
        self._work = os.path.join(work_dir, "carried")
        os.makedirs(self._work, mode=0o700, exist_ok=True)
        self.node = 0  # set with the lease
        self._running: dict[int, tuple[int, Then]] = {}  # process -> where its answer comes, and what then

    @property
    def pids(self) -> set[int]:
        return set(self._running)

    def save(self, order: Order, folder: str, *, quiet_s: float, then: Then) -> int:
        return self._start(self._job(order, folder, SAVE_S, quiet_s=quiet_s), then)

    def fetch(self, order: Order, folder: str, checkpoints: list[tuple[bytes, int]], then: Then) -> int:
        job = self._job(order, folder, FETCH_S)
        job.fetch = checkpoints
        return self._start(job, then)

    def _job(self, order: Order, folder: str, seconds: float, *, quiet_s: float = 0.0) -> Job:
        terms = self._terms
        return Job(
            folder=folder,
            work=self._work,
            urls=[url.strip() for url in terms.url.split(",") if url.strip()],
            token=terms.token,
            tls_ca=terms.tls_ca,
            node=self.node,
            task=order.id,
            attempt=order.attempt,
            limit=terms.max_checkpoint,
            seconds=seconds,
            quiet_s=quiet_s,
        )

    def _start(self, job: Job, then: Then) -> int:
        told = os.memfd_create("headway-carry")  # not in a file and not in the environment: it holds the agent's token
        os.write(told, msgspec.msgpack.encode(job))
        os.lseek(told, 0, os.SEEK_SET)
        answer, child_answer = os.pipe()
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _START],
                self._env,
                file_actions=[(os.POSIX_SPAWN_DUP2, told, 0), (os.POSIX_SPAWN_DUP2, child_answer, 1)],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        finally:
            os.close(told)
            os.close(child_answer)
        self._running[pid] = (answer, then)
        return pid

    def ended(self, pid: int, status: int) -> None:
        """One of our processes was reaped: read its answer."""
        if pid not in self._running:
            return
        pipe, then = self._running.pop(pid)
        with open(pipe, "rb") as file:
            body = file.read()
        try:
            answer = msgspec.msgpack.decode(body, type=Answer)
        except msgspec.DecodeError:
            code = os.waitstatus_to_exitcode(status)
            answer = Answer(f"the process that carries it died ({'signal' if code < 0 else 'exit code'} {abs(code)})", again=True)
        then(answer)

    def kill(self, pid: int) -> None:
        if pid in self._running:
            tree.kill([pid], None)

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for pipe, _ in self._running.values():
            os.close(pipe)
        self._running.clear()
