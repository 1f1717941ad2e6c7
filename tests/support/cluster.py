"""A whole Headway of real processes that a test may kill, freeze and start again: PostgreSQL, servers, agents, submitters.

Everything listens on loopback and lives in the test's folder. Limits of liveness are scaled down (a node is lost after 2.5 s),
with the same inequality between fence, kill and loss that the settings enforce.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from headway.agent import tree
from headway.embedded.postgres import Postgres
from headway.embedded.privileges import in_child
from headway.wire.http import Http, Response
from tests.support import checker_tasks
from tests.support.checker import assert_sound
from tests.support.databases import FAST
from tests.support.processes import command_line
from tests.support.upped import clean_environment
from tests.support.waiting import PATIENCE_S, eventually, until

COMMAND = [sys.executable, "-m", "headway.cli.main"]
ROOT = Path(__file__).parents[2]
TOKEN, AGENT_TOKEN = "hw_admin_faults", "hw_agent_faults"
# Not shorter: a shared machine may stand still for a second, and that is a reason to fence, not a defect.
LIVENESS = {"HEARTBEAT_S": "0.3", "FENCE_S": "2.5", "LOST_S": "4.2", "DUTY_LEASE_S": "4", "HOLD_S": "30"}
# A database or server that is away is no answer yet.
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Process:
    """A process in a session of its own, its output in a file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.popen: subprocess.Popen[str] | None = None

    def launch(self, arguments: list[str], environment: dict[str, str]) -> None:
        with open(self.log, "a") as errors:
            self.popen = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.folder,
                env=clean_environment(**environment),
                start_new_session=True,
                preexec_fn=in_child(None, signal.SIGTERM),  # a test run that is killed leaves nothing running
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def send(self, number: signal.Signals) -> None:
        assert self.popen is not None
        self.popen.send_signal(number)

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            if self.popen.stdout is not None:
                self.popen.stdout.close()


class Server(Process):
    """`headway server`; a restart listens on the same port."""

    port = 0
    url = ""

    def __init__(self, name: str, folder: Path, dsn: str, environment: dict[str, str]) -> None:
        super().__init__(name, folder)
        self.dsn, self.environment = dsn, environment

    async def start(self) -> None:
        folder = self.folder / f"{self.name}-data"
        folder.mkdir(exist_ok=True)
        for file, token in (("token", TOKEN), ("agent-token", AGENT_TOKEN)):
            (folder / file).write_text(token)
        settings = {f"HEADWAY_{name}": value for name, value in LIVENESS.items()}
        arguments = ["server", "--database", self.dsn, "--port", str(self.port), "--output", "json"]
        self.launch(arguments, {**settings, "HEADWAY_DATA": str(folder), **self.environment})
        assert self.popen is not None
        assert self.popen.stdout is not None
        line = await asyncio.to_thread(self.popen.stdout.readline)
        assert line, f"{self.name} did not start:\n{self.log.read_text()[-3000:]}"
        self.url = msgspec.json.decode(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    @property
    def http(self) -> Http:
        return Http(self.url, token=TOKEN, connect_timeout=2.0)


class Agent(Process):
    """`headway agent`: its exchange side, its supervisor, its runners and tasks, found by the marks they carry."""

    def __init__(self, name: str, folder: Path, urls: list[str], cpus: float) -> None:
        super().__init__(name, folder)
        self.urls, self.cpus = urls, cpus
        work = os.path.realpath(folder / f"{name}-work")
        self.instance = hashlib.blake2b(f"{work}\0{name}".encode(), digest_size=8).hexdigest()
        self.work = work

    def start(self) -> None:
        arguments = ["agent", "--name", self.name, "--cpus", str(self.cpus), "--memory", "8GiB", "--disk", "100GiB"]
        arguments += ["--path", str(ROOT), "--work-dir", self.work]
        environment = {"HEADWAY_URL": ",".join(self.urls), "HEADWAY_TOKEN": AGENT_TOKEN, "HEADWAY_DATA": str(self.folder)}
        # A task that a test holds is held for as long as the test takes, on a busy machine too.
        self.launch(arguments, {**environment, "HEADWAY_DRAIN_S": "600"})

    def processes(self) -> dict[str, list[int]]:
        """Pids by their part: exchange, supervisor, runner, task."""
        found: dict[str, list[int]] = {"exchange": [], "supervisor": [], "runner": [], "task": []}
        if self.popen is not None and self.popen.poll() is None:
            found["exchange"].append(self.popen.pid)
        for pid in self.marked():
            if command := command_line(pid):  # else it ended while we looked
                found[_part(command.decode(errors="replace"))].append(pid)
        return found

    def marked(self) -> set[int]:
        marks = [tree.carries(f"{name}={self.instance}") for name in ("HEADWAY_AGENT_PROCESS", "HEADWAY_AGENT_INSTANCE")]
        return tree.members([], lambda text: any(mark(text) for mark in marks))

    def alive(self) -> bool:
        found = self.processes()
        return bool(found["exchange"] or found["supervisor"])

    def kill_everything(self) -> None:
        """The machine's plug is pulled: nothing of it is left, nobody restarts anybody."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(signal.SIGSTOP)

        def gone() -> bool:
            pids = self.marked()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(gone, what=f"nothing of {self.name} is left")
        self.kill()


def _part(command: str) -> str:
    for word, part in (("supervisor import main", "supervisor"), ("import adopt", "exchange"), ("agent.runner", "runner")):
        if word in command:
            return part
    return "task"


@dataclass
class Cluster:
    """The processes, what was acknowledged, and what clients saw."""

    folder: Path
    postgres: Postgres
    dsn: str = ""
    servers: list[Server] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    surprises: list[str] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def held(self) -> Path:
        """The file that lets the first attempts of held tasks end."""
        return self.folder / "go"

    # Starting parts

    async def add_server(self, *, dsn: str | None = None, **environment: str) -> Server:
        server = Server(f"server-{len(self.servers) + 1}", self.folder, dsn or self.dsn, environment)
        self.servers.append(server)
        await server.start()
        return server

    async def add_agent(self, *, cpus: float = 2.0, servers: list[Server] | None = None) -> Agent:
        urls = [server.url for server in servers or self.servers]
        agent = Agent(f"agent-{len(self.agents) + 1}", self.folder, urls, cpus)
        agent.start()
        self.agents.append(agent)
        await self.until_node(agent.name, "up")
        return agent

    # Asking

    async def fetch(self, question: str, *values: object) -> list[Any]:
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": "headway"})
        try:
            return list(await connection.fetch(question, *values))
        finally:
            await connection.close()

    async def fetchval(self, question: str, *values: object) -> Any:
        rows = await self.fetch(question, *values)
        return rows[0][0] if rows else None

    async def until(self, question: str, *values: object, seconds: float = PATIENCE_S) -> Any:
        """Ask the database until the first value of the answer is true."""
        return await eventually(lambda: self.fetchval(question, *values), seconds=seconds, what=question, away=AWAY)

    async def until_node(self, name: str, word: str) -> None:
        states = {"up": 0, "lost": 1, "gone": 2}
        await self.until("select exists (select from node where name = $1 and state = $2)", name, states[word])

    async def until_running(self, task: int) -> int:
        """Until the task has written its first line; returns the attempt."""

        async def begun() -> int | None:
            return next(iter(self.runs_of(task)), None)

        return await eventually(begun, what=f"task {task} begins")

    def runs_of(self, task: int) -> list[int]:
        """The attempts that have begun, in order."""
        if not self.journal.exists():
            return []
        lines = (line.split() for line in self.journal.read_text().splitlines())
        return [int(words[2]) for words in lines if words[0] == "start" and words[1] == str(task)]

    async def until_final(self, *, seconds: float = PATIENCE_S) -> None:
        """Until every acknowledged task has left the hot table."""
        question = "select not exists (select from task where id = any ($1::bigint[]))"
        await self.until(question, list(self.acknowledged), seconds=seconds)

    # Submitting

    def function(self, seconds: float = 0.0, *, held: Path | None = None, **fields: Any) -> dict[str, Any]:
        """A task in a warm runner that leaves a trail."""
        call = {"journal": str(self.journal), "seconds": seconds, **({"held": str(held)} if held else {})}
        return {"function": "tests.support.checker_tasks:work", "input": call, **TOUGH, **fields}

    def program(self, seconds: float = 0.0, *, held: Path | None = None, **fields: Any) -> dict[str, Any]:
        """A program that leaves a trail."""
        command = [sys.executable, "-S", checker_tasks.__file__, str(self.journal), str(seconds), *([str(held)] if held else [])]
        return {"command": command, **TOUGH, **fields}

    async def submit(self, *specs: dict[str, Any], server: Server | None = None) -> list[int]:
        """Submit in one request and remember what was acknowledged."""
        http = (server or self.servers[0]).http
        try:
            ids = self.remember(await http.request("POST", "/v1/tasks", body=msgspec.json.encode(specs)))
        finally:
            await http.close()
        assert ids, self.surprises
        return ids

    def remember(self, response: Response) -> list[int]:
        """The ids of an answer; one that is neither a promise nor an honest 503 is a surprise."""
        if response.status in (200, 201):
            body = msgspec.json.decode(response.body)
            ids = [int(i) for i in body["ids"]] if "ids" in body else [int(body["id"])]
            self.acknowledged.update(ids)
            return ids
        if response.status != 503:
            self.surprises.append(f"{response.status} {response.body.decode(errors='replace')[:300]}")
        return []

    # The end

    async def assert_sound(self) -> None:
        """The checker, over everything that was acknowledged so far."""
        assert not self.surprises, self.surprises[:5]
        await assert_sound(self.dsn, self.acknowledged, self.journal)

    def logs(self) -> str:
        """The last words of every process."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    def end(self) -> None:
        for agent in self.agents:
            agent.kill_everything()
        for server in self.servers:
            server.kill()
        self.postgres.kill()
        self.postgres.stop()


# Faults are not the task's: it is run again as often as it takes, and soon.
TOUGH: dict[str, Any] = {
    "attempts": 50,
    "retry": {"interval": 0.05, "backoff": 1, "node_losses": 100},
    "resources": {"cpus": 0.25, "memory": "64MiB", "disk": "1MiB"},
}


@contextlib.asynccontextmanager
async def cluster(
    folder: Path, *, servers: int = 1, agents: int = 1, cpus: float = 2.0, durable: bool = False, **settings: str
) -> AsyncIterator[Cluster]:
    """So many servers and agents on a new database; when the test fails, the logs of all are printed.

    `settings` are variables of the servers.
    """
    # No test cuts the power, and a killed PostgreSQL loses nothing that it has written: fsync may be off, but not the write at
    # each commit.
    postgres = Postgres(folder / "db", settings={} if durable else {**FAST, "synchronous_commit": "on"})
    made = Cluster(folder, postgres)
    try:
        made.dsn = postgres.start()
        await made.add_server(**settings)  # the first alone: it makes the tables
        await asyncio.gather(*(made.add_server(**settings) for _ in range(servers - 1)))
        await asyncio.gather(*(made.add_agent(cpus=cpus) for _ in range(agents)))
        yield made
    except BaseException:
        print(made.logs())
        raise
    finally:
        made.end()
