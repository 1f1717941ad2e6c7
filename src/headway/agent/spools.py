"""Whole outputs on their way to an object store: written to a file while the attempt runs, stored by a process of its own after it (H9).

Only an output that was cut for the database is stored. A file that could not be stored stays and is tried again, also by the next
supervisor: an output is gone from the node only when the store has it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path

from headway.agent.link import Terms
from headway.logs import log

_START = "from headway.agent.store_output import main; main()"
AGAIN_S = 30.0


class Spool:
    """The output of one attempt, as it came. The file is made with the first byte."""

    def __init__(self, spools: Spools, path: Path, limit: int) -> None:
        self._spools, self._path, self._left = spools, path, limit
        self._file = -1

    def write(self, data: bytes) -> None:
        if self._left <= 0:
            return
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.write(self._file, data[: self._left])
        except OSError as error:  # a full disk: what is in the database is still there
            log("agent.output_not_spooled", level="warning", path=str(self._path), reason=str(error))
            self._left = 0
        self._left -= len(data)
        if self._left <= 0 and self._file >= 0:
            os.write(self._file, b"\n[headway: the rest of the output was cut here]\n")

    def close(self, *, cut: bool) -> None:
        """The attempt has ended; what the database has whole needs no second place."""
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        if cut:
            self._spools.finished(self._path)
        else:
            self._path.unlink(missing_ok=True)


class Spools:
    def __init__(self, terms: Terms, work_dir: str, env: dict[str, str]) -> None:
        self._url, self._limit, self._env = terms.output_store, terms.stored_output, env
        self._folder = Path(work_dir) / "spool"
        self._waiting: deque[Path] = deque()
        self._again_at = 0.0
        self._pid = 0
        self._now = Path()
        if self._url:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._waiting.extend(sorted(self._folder.glob("*-*")))  # what an earlier supervisor left

    @property
    def pids(self) -> set[int]:
        return {self._pid} if self._pid else set()

    def open(self, task: int, attempt: int) -> Spool | None:
        return Spool(self, self._folder / f"{task}-{attempt}", self._limit) if self._url else None

    def finished(self, path: Path) -> None:
        self._waiting.append(path)
        self._again_at = 0.0

    def tick(self, now: float) -> None:
        """Store the next, one at a time."""
        if self._pid or not self._waiting or now < self._again_at:
            return
        self._now = self._waiting.popleft()
        task, _, attempt = self._now.name.partition("-")
        words = [sys.executable, "-P", "-c", _START, self._url or "", task, attempt, str(self._now)]
        devnull = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
        try:
            self._pid = os.posix_spawn(sys.executable, words, self._env, file_actions=devnull, setsid=True, setsigmask=())
        except OSError as error:
            self._put_off(now, str(error))

    def ended(self, pid: int, status: int, now: float) -> None:
        if pid != self._pid:
            return
        self._pid = 0
        if status == 0:
            self._now.unlink(missing_ok=True)
        else:
            self._put_off(now, f"it ended with {os.waitstatus_to_exitcode(status)}")

    def _put_off(self, now: float, reason: str) -> None:
        log("agent.output_not_stored", level="warning", path=str(self._now), reason=reason, again_s=AGAIN_S)
        self._waiting.append(self._now)
        self._again_at = now + AGAIN_S
