"""`headway up` as a real process, for tests that start, crash and end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from headway.embedded import postmaster
from tests.support.waiting import eventually

# A busy machine may stand still for seconds: that is a reason to fence, not a defect, and no test waits for it in vain.
LIVENESS = {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "25"}
COMMAND = [sys.executable, "-m", "headway.cli.main"]


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of the person who runs the tests."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}, **more}


class Upped:
    """A running `headway up`: its address, its processes, its database."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, url: str) -> None:
        self.process = process
        self.folder = folder
        self.url = url

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    @property
    def log(self) -> str:
        return (self.folder / "stderr.log").read_text()

    @property
    def postmaster_pid(self) -> int:
        found = postmaster.read(self.folder / "postgres")
        assert found is not None
        return found.pid

    @property
    def dsn(self) -> str:
        """As the database says itself: a folder with a long name has its socket elsewhere."""
        said = self.folder / "postgres" / "postmaster.pid"
        lines = said.read_text().splitlines() if said.exists() else []
        return f"postgresql://headway@/postgres?host={lines[4] if len(lines) > 4 else self.folder / 'postgres'}"

    async def fetchval(self, question: str) -> object:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()

    async def database_answers(self) -> None:
        """Returns once the database accepts connections again."""
        what = "the database answers"
        await eventually(lambda: self.fetchval("select 1"), what=what, away=(OSError, asyncpg.PostgresError))

    def family(self) -> list[int]:
        """Every process that came from it: children, their children, and so on."""
        return descendants(self.process.pid)

    def headway(self, *arguments: str, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        """Run a command against it."""
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=clean_environment(HEADWAY_DATA=str(self.folder)),
        )

    def kill_everything(self) -> None:
        """A power cut: SIGKILL to all of them, the parent first so that nobody restarts anybody."""
        pids = [self.process.pid, *self.family()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # its parent's death ended it
        self.process.wait()

    def end(self, timeout: float = 120.0) -> int:
        """Ask it to end, and wait."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def upped(folder: Path, **settings: str) -> Iterator[Upped]:
    """Start it on a free port; whatever happened inside, nothing of it runs afterwards."""
    command = [*COMMAND, "up", "--data-dir", str(folder), "--port", "0", "--output", "json"]
    environment = clean_environment(**{**LIVENESS, **settings})
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stderr.log", "a+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"up did not start: {(folder / 'stderr.log').read_text()}"
            running = Upped(process, folder, json.loads(line)["url"])
            yield running
        finally:
            if process.poll() is None:
                Upped(process, folder, "").kill_everything()
            if process.stdout is not None:
                process.stdout.close()


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
