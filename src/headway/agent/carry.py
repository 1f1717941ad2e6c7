"""The process that carries one checkpoint folder to a server or back, started by the supervisor and gone when it is done (H8).

The job comes on descriptor 0, the answer goes to descriptor 1. A folder is saved only if nothing in it changed while it was packed.
One that comes back is compared with its SHA-256 before it is unpacked; when it is damaged, the one before it is taken.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import tempfile
import time
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from headway.agent import folders, tree
from headway.agent.folders import Changed, Unfit

CHUNK = 2**20  # as servers keep them
TRIES = 5  # to read a folder that is being written to
CALL_S = 20.0
PAUSE_S = 0.2


class Job(msgspec.Struct):
    """All that the process is told."""

    folder: str
    work: str  # where files may be put meanwhile
    urls: list[str]
    token: str | None
    tls_ca: str | None
    node: int
    task: int
    attempt: int
    limit: int
    seconds: float  # how long to try
    fetch: list[tuple[bytes, int]] = []  # to bring one of these back, newest first; none: to save the folder
    quiet_s: float = 0.0  # save only what was not written to for so long


class Answer(msgspec.Struct, omit_defaults=True):
    """What became of it. `saved` and `fetched` are hashes."""

    error: str = ""
    saved: str = ""
    fetched: str = ""
    again: bool = False  # it was being written to, or no server answered


class Refused(Exception):
    """A server answered that it will not have it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class NoAnswer(Exception):
    """No server answered in time."""


class CheckpointServers:
    """The servers of this agent, one after another until one answers."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._until = time.monotonic() + job.seconds
        self._at = 0

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        why = "no time was left"
        while time.monotonic() < self._until:
            url = self._job.urls[self._at % len(self._job.urls)]
            try:
                status, answer = self._once(url, method, path, body, kind)
            except (OSError, http.client.HTTPException) as error:
                why = f"{url}: {error or type(error).__name__}"
            else:
                if status < 400:
                    return answer
                if status < 500 and status != 429:
                    raise Refused(status, _detail(answer))
                why = f"{url} answered {status}"
            self._at += 1
            time.sleep(PAUSE_S)
        raise NoAnswer(why)

    def _once(self, url: str, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        parts = urlsplit(url)
        host = parts.hostname or ""
        timeout = max(min(CALL_S, self._until - time.monotonic()), 0.1)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._job.tls_ca)
            connection = http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(host, parts.port or 80, timeout=timeout)
        headers = {"content-type": kind} if body is not None else {}
        if self._job.token:
            headers["authorization"] = f"Bearer {self._job.token}"
        try:
            connection.request(method, parts.path.rstrip("/") + path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class Carrier:
    def __init__(self, job: Job) -> None:
        self.job, self.servers = job, CheckpointServers(job)
        self.base = f"/v1/nodes/{job.node}/checkpoints/{job.task}"

    def run(self) -> Answer:
        try:
            return self.fetch() if self.job.fetch else self.save()
        except NoAnswer as error:
            return Answer(f"no server answers: {error}", again=True)
        except Refused as error:
            return Answer(str(error), again=error.status == 409)
        except Changed as error:
            return Answer(f"it was written to while it was read: {error}", again=True)
        except Unfit as error:
            return Answer(str(error))
        except OSError as error:
            return Answer(f"the node could not do it: {error}")

    # --- to a server

    def save(self) -> Answer:
        with tempfile.TemporaryFile(dir=self.job.work) as packed:
            if not self._pack(packed):
                return Answer("it is being written to", again=True)
            size = packed.tell()
            digest = _digest(packed)
            if not self._announce(digest, size):
                self._send(packed, digest, size)
                if not self._announce(digest, size):
                    return Answer("the server did not keep it", again=True)
        return Answer(saved=digest)

    def _pack(self, packed: IO[bytes]) -> bool:
        """Read the folder as it was at one moment; False when it is never still."""
        for _ in range(TRIES):
            before = folders.signature(self.job.folder)
            if time.time() - folders.newest(before) < self.job.quiet_s:
                return False
            packed.seek(0)
            packed.truncate()
            try:
                folders.pack(self.job.folder, packed, self.job.limit)
                if folders.signature(self.job.folder) == before:
                    return True
            except Changed:
                continue  # once more
        return False

    def _announce(self, digest: str, size: int, *, damaged: bool = False) -> bool:
        said = {"attempt": self.job.attempt, "hash": digest, "size": size, "damaged": damaged}
        return bool(json.loads(self.servers.ask("POST", self.base, json.dumps(said).encode()))["saved"])

    def _send(self, packed: IO[bytes], digest: str, size: int) -> None:
        packed.seek(0)
        for number in range(-(-size // CHUNK)):
            path = f"{self.base}/{digest}/{number}?attempt={self.job.attempt}&size={size}"
            self.servers.ask("PUT", path, packed.read(CHUNK), "application/octet-stream")

    # --- from a server

    def fetch(self) -> Answer:
        problems = []
        for raw, size in self.job.fetch:
            digest = raw.hex()
            try:
                with tempfile.TemporaryFile(dir=self.job.work) as packed:
                    self._receive(packed, digest, size)
                    if _digest(packed) != digest:
                        self._announce(digest, size, damaged=True)
                        raise Unfit("its checksum is another")
                    packed.seek(0)
                    folders.unpack(packed, self.job.folder, self.job.limit)
            except (Unfit, Refused) as error:
                if isinstance(error, Refused) and error.status == 409:
                    raise
                problems.append(f"{digest[:12]}: {error}")
                _empty(self.job.folder)
            else:
                return Answer("; ".join(problems), fetched=digest)
        return Answer("; ".join(problems))

    def _receive(self, packed: IO[bytes], digest: str, size: int) -> None:
        for number in range(-(-size // CHUNK)):
            packed.write(self.servers.ask("GET", f"{self.base}/{digest}/{number}?attempt={self.job.attempt}"))


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _empty(folder: str) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _detail(body: bytes) -> str:
    try:
        said: Any = json.loads(body)
        return str(said["detail"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def main() -> None:
    tree.prctl(tree.PR_SET_PDEATHSIG, 9)
    with os.fdopen(0, "rb") as told:
        job = msgspec.msgpack.decode(told.read(), type=Job)
    answer = Carrier(job).run()
    with os.fdopen(1, "wb") as out:
        out.write(msgspec.msgpack.encode(answer))
