"""The supervisor's hands for checkpoint folders: a process for each that is saved or brought back (H8)."""

from __future__ import annotations

import os
from collections.abc import Callable

from headway.agent import tree
from headway.agent.carry import Answer, Job
from headway.agent.errands import Errands
from headway.agent.link import Terms
from headway.wire.exchange import Order

FETCH_S = 60.0
SAVE_S = 30.0
Then = Callable[[Answer], None]


class Carriers:
    def __init__(self, terms: Terms, work_dir: str, env: dict[str, str]) -> None:
        self._terms = terms
        self._work = os.path.join(work_dir, "carried")
        os.makedirs(self._work, mode=0o700, exist_ok=True)
        self.node = 0  # set with the lease
        self._errands = Errands("headway.agent.carry", env, Answer)
        self._then: dict[int, Then] = {}  # process -> what to do with its answer

    @property
    def pids(self) -> set[int]:
        return set(self._then)

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
        """0 when no process can be had now; `then` has been told."""
        try:
            pid = self._errands.start(job)
        except OSError as error:
            then(Answer(f"the node could not do it: {error}", again=True))
            return 0
        self._then[pid] = then
        return pid

    def ended(self, pid: int, status: int) -> None:
        """One of our processes was reaped: read its answer."""
        answer = self._errands.ended(pid, status)
        if isinstance(answer, str):
            answer = Answer(f"the process that carries it died ({answer})", again=True)
        if answer is not None:
            self._then.pop(pid)(answer)

    def kill(self, pid: int) -> None:
        if pid in self._then:
            tree.kill([pid], None)

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        self._errands.drop_all()
        self._then.clear()
