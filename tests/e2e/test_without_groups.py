"""Where the kernel gives no groups: a watcher ends tasks above memory, processes and disk, later than the kernel would (G3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.confined import ROOM, confining, python
from tests.support.scripted_server import ScriptedServer

HOG = "import time\nx = bytearray(300 * 2**20); x[::4096] = bytes(len(x[::4096]))\ntime.sleep(600)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with confining(tmp_path_factory.mktemp("agent"), cgroups="avoid") as (running, _):
        yield running


def test_memory_is_watched(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=python(HOG), resources=ROOM))
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
    assert server.error(ref)["excess"]["used"] > ROOM.memory


def test_processes_are_watched(server: ScriptedServer) -> None:
    code = "import os, time\nfor _ in range(70):\n  if not os.fork(): time.sleep(600)\ntime.sleep(600)"
    ref = server.run(server.define(command=python(code), resources=Resources(cpus_milli=500, memory=2**31)))
    assert server.outcome(ref) is Outcome.TOO_MANY_PROCESSES


def test_the_disk_is_watched(server: ScriptedServer) -> None:
    code = "import os\nfd = os.open('f', os.O_WRONLY | os.O_CREAT)\nwhile True: os.write(fd, bytes(2**20))"
    ref = server.run(server.define(command=python(code), resources=ROOM))
    assert server.outcome(ref) is Outcome.DISK_FULL


def test_the_peak_is_what_the_watcher_saw(server: ScriptedServer, tmp_path: Path) -> None:
    code = "import os, time\nx = bytearray(100 * 2**20); x[::4096] = bytes(len(x[::4096]))\nprint('ready', flush=True)"
    code += f"\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    ref = server.order(server.define(command=python(code), resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    server.run(server.define(command=python(HOG), resources=ROOM))  # ends when the watcher has looked
    (tmp_path / "go").touch()
    server.wait(lambda: ref in server.finished)
    assert (server.finished[ref].max_memory or 0) > 100 * 2**20
