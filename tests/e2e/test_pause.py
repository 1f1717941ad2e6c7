"""Pause, resume and signal with real processes: frozen means frozen, for every process of a task (H7)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from headway.agent import tree
from headway.agent.freeze import V2_ROOTS
from tests.support.agents import alive
from tests.support.upped import Upped, upped
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
CAP_S = 15.0  # a busy machine must be able to pause a program within it
# Counts as fast as it can, and has a child that left its session and does the same.
COUNTER = """
import os, subprocess, sys, time
folder = sys.argv[1]
if len(sys.argv) == 2:
    subprocess.Popen([sys.executable, __file__, folder, "child"], start_new_session=True)
name, n = ("child" if len(sys.argv) > 2 else "main"), 0
while not os.path.exists(f"{folder}/go"):
    n += 1
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(f"{os.getpid()} {n}")
    os.replace(f"{folder}/{name}.new", f"{folder}/{name}")
    time.sleep(0.005)
if name == "main":
    open(os.environ["HEADWAY_RESULT"], "w").write("42")
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("pause") / "data", HEADWAY_PATHS=str(ROOT)) as running:
        yield running


@pytest.fixture
def client(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


def counter(client: Client, folder: Path, **fields: object) -> str:
    """A running counter; returns its task."""
    script = folder / "counter.py"
    script.write_text(COUNTER)
    task = client.submit(command=["python3", "-S", str(script), str(folder)], **fields).id
    until(lambda: (folder / "main").exists() and (folder / "child").exists())
    return task


def seen(folder: Path, name: str) -> tuple[int, int]:
    pid, count = (folder / name).read_text().split()
    return int(pid), int(count)


def stands_still(pid: int) -> bool:
    """By a signal, or in a group that is frozen."""
    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
        return True
    path = next((line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    events = [Path(f"{root}{path}/cgroup.events") for root in V2_ROOTS]
    return any("frozen 1" in file.read_text() for file in events if file.exists())


def test_a_paused_program_stands_still_with_all_its_processes_and_its_cap_does_too(
    up: Upped, client: Client, tmp_path: Path
) -> None:
    task = counter(client, tmp_path, execution_cap=CAP_S)
    assert client.pause(task, wait=60).state == "paused"
    said = up.headway("pause", task, "-o", "json")  # again changes nothing
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)[0]["state"] == "paused"
    until(lambda: all(stands_still(seen(tmp_path, name)[0]) for name in ("main", "child")))
    before = {name: seen(tmp_path, name) for name in ("main", "child")}
    # Longer than its cap: nothing may end it, and nothing may move.
    with pytest.raises(TimeoutError):
        client.wait([task], timeout=CAP_S + 0.5)
    assert {name: seen(tmp_path, name) for name in ("main", "child")} == before
    assert client.get(task).state == "paused"
    assert client.resume(task, wait=60).state == "running"
    until(lambda: seen(tmp_path, "main")[1] > before["main"][1] and seen(tmp_path, "child")[1] > before["child"][1])
    (tmp_path / "go").touch()
    assert client.result(task, timeout=120) == 42
    assert client.get(task).attempt == 1
    told = json.loads(up.headway("explain", task, "-o", "json").stdout)["spent"]
    assert told["paused"] >= CAP_S, "where the time went"


def test_a_paused_task_dies_when_it_is_cancelled(client: Client, tmp_path: Path) -> None:
    task = counter(client, tmp_path)
    assert client.pause(task, wait=60).state == "paused"
    pids = [seen(tmp_path, name)[0] for name in ("main", "child")]
    client.cancel(task)
    [view] = client.wait([task], timeout=120)
    assert view.state == "cancelled"
    until(lambda: not any(alive(pid) for pid in pids))


def test_a_function_is_frozen_in_its_runner_while_others_run(client: Client, tmp_path: Path) -> None:
    call = {"journal": str(tmp_path / "journal"), "seconds": 0.0}
    slow = client.submit(function="tests.support.checker_tasks:work", input={**call, "held": str(tmp_path / "go")})
    until(lambda: (tmp_path / "journal").exists() and (tmp_path / "journal").read_text())
    assert client.pause(slow.id, wait=60).state == "paused"
    runner = int((tmp_path / "journal").read_text().split()[3])
    until(lambda: stands_still(runner))
    quick = [client.submit(function="tests.support.checker_tasks:work", input=call) for _ in range(5)]

    def steps() -> int:
        return (tmp_path / "journal").read_text().count(f" {slow.id} ")

    before = steps()
    client.wait([handle.id for handle in quick], timeout=120)
    assert steps() == before
    assert client.resume(slow.id, wait=60).state == "running"
    until(lambda: steps() > before)
    (tmp_path / "go").touch()
    slow.result(timeout=120)
    assert client.get(slow.id).attempt == 1


def test_a_pause_outlives_the_exchange_side_of_its_agent(up: Upped, client: Client, tmp_path: Path) -> None:
    task = counter(client, tmp_path)
    client.pause(task, wait=60)
    marked = [pid for pid in up.family() if b"HEADWAY_AGENT_PROCESS=" in tree.environ(pid)]
    supervisor = next(pid for pid in marked if (of := tree.stat(pid)) is not None and of.session == pid)
    exchange = tree.stat(supervisor)
    assert exchange is not None
    os.kill(exchange.ppid, signal.SIGKILL)
    assert client.resume(task, wait=60).state == "running"
    (tmp_path / "go").touch()
    assert client.result(task, timeout=120) == 42
    assert client.get(task).attempt == 1


def test_a_waiting_task_that_is_paused_does_not_start(up: Upped, client: Client, tmp_path: Path) -> None:
    first = client.submit(command=f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
    second = client.submit(command="true", after=[first.id])
    assert "blocked, and paused" in up.headway("pause", second.id).stdout
    (tmp_path / "go").touch()
    client.wait([first.id], timeout=120)
    assert client.get(second.id).state == "blocked"
    assert up.headway("resume", second.id).returncode == 0
    assert client.wait([second.id], timeout=120)[0].state == "succeeded"


def test_a_signal_reaches_the_program_and_only_a_running_one(up: Upped, client: Client, tmp_path: Path) -> None:
    text = f"trap 'echo got it; code=7' USR1; touch {tmp_path}/on; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit $code"
    task = client.submit(command=["/bin/sh", "-c", text]).id
    until(lambda: (tmp_path / "on").exists())
    assert up.headway("signal", "USR1", task).returncode == 0
    (tmp_path / "go").touch()
    [view] = client.wait([task], timeout=120)
    assert (view.state, view.exit_code) == ("failed", 7)
    late = up.headway("signal", "USR1", task)
    assert late.returncode == 1
    assert "has ended already: it is failed" in late.stderr
    wrong = up.headway("signal", "KILL", task)
    assert wrong.returncode != 0


def test_a_program_that_ends_of_its_signal_did_as_it_was_told(up: Upped, client: Client, tmp_path: Path) -> None:
    # Its end comes before the answer or after it: three of five did when this was an error.
    commands = [["/bin/sh", "-c", f"touch {tmp_path}/{n}; exec sleep 300"] for n in range(5)]
    tasks = [client.submit(command=command, resources={"cpus": 0.1}).id for command in commands]
    until(lambda: len(list(tmp_path.iterdir())) == len(tasks))
    for task in tasks:
        told = up.headway("signal", "TERM", task)
        assert told.returncode == 0, told.stderr
        assert ("has ended meanwhile: it is failed" in told.stderr) == ("failed" in told.stdout)
    assert {view.outcome for view in client.wait(tasks, timeout=120)} == {"signal"}
