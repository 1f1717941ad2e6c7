"""Nobody waits behind a long task with two seconds of work: real processes on a full node (E9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from tests.support.upped import Upped, upped
from tests.support.waiting import until

# Sums numbers for as long as it is let, and says how far it came: a lost step would show in the sum.
LONG = """
import os, sys
folder = sys.argv[1]
n = total = 0
while not os.path.exists(f"{folder}/go") or n < 1000:
    n += 1
    total += n
    if n % 1000 == 0:
        with open(f"{folder}/steps.new", "w") as file:
            file.write(str(n))
        os.replace(f"{folder}/steps.new", f"{folder}/steps")
open(os.environ["HEADWAY_RESULT"], "w").write(str(total == n * (n + 1) // 2).lower())
"""
# On SIGTERM it saves what it has and asks to be run again.
SAVING = """
import os, signal, sys, time
folder, saved = sys.argv[1], os.path.join(os.environ["HEADWAY_CHECKPOINT_DIR"], "n")
n = int(open(saved).read()) if os.path.exists(saved) else 0
def save(*_):
    os.makedirs(os.path.dirname(saved), exist_ok=True)
    open(saved, "w").write(str(n))
    os._exit(85)
signal.signal(signal.SIGTERM, save)
open(f"{folder}/attempt-{os.environ['HEADWAY_ATTEMPT']}", "w").write(str(n))
while not os.path.exists(f"{folder}/go"):
    n += 1
    time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    folder = tmp_path_factory.mktemp("preemption") / "data"
    with upped(folder, HEADWAY_CPUS="1", HEADWAY_MEMORY="2GiB", HEADWAY_DISK="100GiB") as running:
        yield running


@pytest.fixture
def client(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


def script(folder: Path, text: str) -> list[str]:
    file = folder / "task.py"
    file.write_text(text)
    return ["python3", "-S", str(file), str(folder)]


def test_an_urgent_task_starts_at_once_on_a_full_node_and_the_long_one_completes_with_its_result(
    up: Upped, client: Client, tmp_path: Path
) -> None:
    whole = {"cpus": 1, "memory": "256MiB"}
    long = client.submit(command=script(tmp_path, LONG), resources=whole, execution_cap="20h")
    until(lambda: (tmp_path / "steps").exists())
    until(lambda: client.get(long.id).state == "running")
    urgent = client.submit(command=f"touch {tmp_path}/urgent; sleep 0.3", resources=whole, category="urgent")
    until(lambda: (tmp_path / "urgent").exists())
    steps = (tmp_path / "steps").read_text()
    assert client.wait([urgent.id], timeout=120)[0].state == "succeeded"
    assert int(steps) > 0
    until(lambda: (tmp_path / "steps").read_text() != steps)  # it has gone on where it was
    (tmp_path / "go").touch()
    assert long.result(timeout=120) is True
    view = client.get(long.id)
    assert (view.attempt, view.failures["requeues"]) == (1, 0)
    assert 'headway_tasks_preempted_total{mode="freeze"} 1.0' in metrics(up)


def test_a_task_that_fills_the_memory_saves_its_state_and_runs_again_from_there(client: Client, tmp_path: Path) -> None:
    whole = {"cpus": 1, "memory": "1500MiB"}
    long = client.submit(command=script(tmp_path, SAVING), resources=whole, execution_cap="20h")
    until(lambda: (tmp_path / "attempt-1").exists())
    until(lambda: client.get(long.id).state == "running")
    urgent = client.submit(command="true", resources=whole, category="urgent")
    assert client.wait([urgent.id], timeout=120)[0].state == "succeeded"
    until(lambda: (tmp_path / "attempt-2").exists())
    (tmp_path / "go").touch()
    [view] = client.wait([long.id], timeout=120)
    assert (view.state, view.attempt) == ("succeeded", 2)
    assert (view.failures["task"], view.failures["requeues"]) == (0, 1)
    assert client.attempts(long.id)[0].outcome == "pre_empted"


def metrics(up: Upped) -> str:
    import urllib.request

    request = urllib.request.Request(up.url + "/metrics", headers={"authorization": f"Bearer {up.token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(answer.read().decode())
