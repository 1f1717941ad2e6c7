"""The supervisor's hands for preparation: one process for each definition that needs it, and a folder of limited size (H5).

What is ready stays ready while its files do. The folder's entries are removed least recently used first, never those that waiting or
running tasks use, and only here, in the one thread that also decides what is ready: nothing vanishes between the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from headway.agent.clock import boottime
from headway.agent.entries import MARKS, mark_of, size_of
from headway.agent.errands import Errands
from headway.agent.group import Limits
from headway.agent.health import for_want_of_room
from headway.agent.link import Terms
from headway.agent.niceness import as_usual
from headway.agent.places import OWN_PROCESSES, Place, Places
from headway.agent.prepare import PREPARED, Answer, Job
from headway.agent.scratch import remove
from headway.agent.signals import Prepared, Stimulus
from headway.agent.unforeseen import unforeseen
from headway.agent.workshop import TMP
from headway.domain.resources import GIB
from headway.domain.task import Definition
from headway.logs import log

ENTRY = ("file-", "url-", "place-", "program-")
MOST = 4  # at the same time
# For pip, npm and compilers, beside what tasks inherit: where an organisation keeps its packages.
PASSED_ON = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "NPM_CONFIG_REGISTRY", "NPM_CONFIG_USERCONFIG", "NPM_CONFIG_CAFILE", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE",
    "CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOCACHE", "GOPROXY", "JAVA_HOME",
)  # fmt: skip


@dataclass
class Running:
    """A preparation that is being made."""

    number: int  # of the definition
    place: Place | None  # with limits, if its commands are not trusted
    user: int | None = None  # who they are then; None: the agent's own


class Preparations:
    def __init__(
        self,
        terms: Terms,
        work_dir: str,
        env: dict[str, str],
        engine: list[str],
        places: Places,
        handle: Callable[[Stimulus], None],
    ) -> None:
        self._terms, self._env, self._engine, self._places, self._handle = terms, env, engine, places, handle
        self.root = Path(work_dir) / PREPARED
        self.ready: dict[int, Answer] = {}
        self.in_use: Callable[[], Collection[int]] = tuple  # set by the supervisor: definitions whose tasks are held
        self._waiting: dict[int, Definition] = {}
        self._errands = Errands("headway.agent.prepare", env, Answer)
        self._running: dict[int, Running] = {}  # by process
        self._removing: set[int] = set()
        self._sizes = self._found()
        self._unsure = False  # whether there are all that is there

    @property
    def pids(self) -> set[int]:
        return self._running.keys() | self._removing

    def prepare(self, number: int, definition: Definition) -> None:
        """Say at once that it is ready, or start what makes it so."""
        if number in self.ready and self._still_there(self.ready[number]):
            self._handle(Prepared(number, boottime()))
            return
        self.ready.pop(number, None)
        self._waiting[number] = definition
        self._start()

    def _start(self) -> None:
        if self._running and self._over() > 0:
            return  # room is made when these have ended: on a busy node that would be never, were others begun meanwhile
        busy = {running.number for running in self._running.values()}
        for number in [number for number in self._waiting if number not in busy][: MOST - len(self._running)]:
            try:
                self._launch(number, self._waiting.pop(number))
            except Exception as error:
                why = unforeseen(error, "preparing what it needs", definition=number)
                self._handle(Prepared(number, boottime(), why, no_room=for_want_of_room(error)))

    def _launch(self, number: int, definition: Definition) -> None:
        terms = self._terms
        job = Job(
            number=number,
            definition=definition,
            root=str(self.root),
            env=self._env,
            urls=[url.strip() for url in terms.url.split(",") if url.strip()],
            token=terms.token,
            tls_ca=terms.tls_ca,
            hosts=terms.fetch_hosts,
            volumes=terms.volumes,
            limit=terms.prepared_size,
            seconds=terms.prepare_s,
            sandbox_paths=terms.sandbox_paths,
            engine=self._engine,
        )
        running = Running(number, self._limited(definition))
        try:
            if definition.isolation == "sandbox":
                job.box = self._places.workshop
                if self._places.slots.users is not None:
                    job.user = running.user = self._places.slots.users.take()
            pid = self._errands.start(job, running.place.slot if running.place is not None else None)
        except BaseException:
            self._leave(running)
            raise
        self._running[pid] = running

    def _leave(self, running: Running) -> None:
        """Its processes have ended."""
        if running.place is not None:
            self._places.give_back(running.place)
        if running.user is not None and self._places.slots.users is not None:
            self._places.slots.users.give_back(running.user)

    def _limited(self, definition: Definition) -> Place | None:
        """Commands of people we do not trust get no more than a task: as much memory as theirs, at least what a compiler needs."""
        if definition.isolation != "sandbox":
            return None
        need = definition.resources
        limits = Limits(max(need.cpus_milli, 1000), max(need.memory, GIB), self._terms.max_processes + OWN_PROCESSES)
        slot = self._places.slots.take(limits, isolated=False)
        return None if slot is None else Place("", self._places.scratch, slot, limits, 0)

    def ended(self, pid: int, status: int) -> None:
        """One of our processes was reaped: read its answer."""
        self._removing.discard(pid)
        answer = self._errands.ended(pid, status)
        if answer is None:
            return
        if isinstance(answer, str):
            answer = Answer(error=f"the preparation died ({answer})")
            self._unsure = True
        running = self._running.pop(pid)
        number, place = running.number, running.place
        if answer.error and place is not None and (used := place.used()) is not None and used.kills > 0:
            answer.error = f"the preparation used more memory than it may ({place.limits.memory} bytes); {answer.error}"
        self._leave(running)
        if not answer.error:
            self.ready[number] = answer
        self._sizes.update(answer.entries)
        self._make_room(number)
        self._handle(Prepared(number, boottime(), answer.error, answer.log, answer.no_room))
        self._start()

    # --- the folder

    def _still_there(self, answer: Answer) -> bool:
        for path, (mtime_ns, size) in answer.watched.items():
            try:
                found = os.stat(path)
            except OSError:
                return False
            if (found.st_mtime_ns, found.st_size) != (mtime_ns, size):
                return False
        for key in answer.entries:
            try:
                os.utime(mark_of(self.root, key))  # used now
            except OSError:
                return False
        return True

    def _make_room(self, newest: int) -> None:
        """Remove what was used least recently, until the rest fits. Not while something is being prepared: it may need it."""
        if self._running:
            return
        if self._unsure:
            self._look()
        over = self._over()
        if over <= 0:
            return
        kept = {key for number in (*self.in_use(), newest) if number in self.ready for key in self.ready[number].entries}
        for key in sorted(self._sizes.keys() - kept, key=self._used_at):
            if over <= 0:
                break
            over -= self._sizes.pop(key)
            self._remove(key)
        for number in [number for number, answer in self.ready.items() if not answer.entries.keys() <= self._sizes.keys()]:
            del self.ready[number]  # in place: others look things up in it

    def _over(self) -> int:
        """By how much what is kept exceeds its limit."""
        return sum(self._sizes.values()) - self._terms.prepared_size

    def _look(self) -> None:
        """One died and told nothing: what it made whole is counted, what it left half-made is removed."""
        self._unsure = False
        for place in self.root.glob("*"):
            if place.name.startswith((*ENTRY, TMP)) and place.name not in self._sizes:
                size = size_of(self.root, place.name) if place.name.startswith(ENTRY) else None
                if size is not None:
                    self._sizes[place.name] = size
                else:
                    self._remove(place.name)

    def _remove(self, key: str) -> None:
        """Out of the way at once; the removal of many files, which takes long, is another process's work."""
        gone = self.root / f"gone-{key}"
        try:
            mark_of(self.root, key).unlink(missing_ok=True)
            os.rename(self.root / key, gone)
            words = as_usual(["/bin/rm", "-rf", str(gone)])
            pid = os.posix_spawnp(words[0], words, self._env, setsigmask=())
        except OSError as error:
            log("agent.cannot_remove", level="warning", entry=key, reason=str(error))
        else:
            self._removing.add(pid)

    def _used_at(self, key: str) -> float:
        try:
            return mark_of(self.root, key).stat().st_mtime
        except OSError:
            return 0.0

    def _found(self) -> dict[str, int]:
        """What an earlier supervisor left: whole entries are used again, the others are removed."""
        found: dict[str, int] = {}
        for place in self.root.glob("*"):
            size = size_of(self.root, place.name) if place.name.startswith(ENTRY) else None
            if size is not None:
                found[place.name] = size
            elif place.name.startswith(("gone-", TMP, *ENTRY)):
                remove(str(place))  # by a process: what a tenant's command left may be nested deeper than Python can go
        for mark in (self.root / MARKS).glob("*"):
            if mark.name not in found:
                mark.unlink()
        return found

    def drop_all(self) -> None:
        """Forget what is being prepared: it has been killed."""
        self._errands.drop_all()
        for running in self._running.values():
            self._leave(running)
        self._running.clear()
        self._waiting.clear()
